/* The rules of the screen in C, row by row: for a look at the events of one step, or of a few.

The vectorised passes (`blocks.py`, `entries.py`, `sequences.py`, `numbers.py`, `transfers.py`) ask each question of all
rows of a chunk at once, which is fast for a hundred thousand rows and slow for two hundred: a hundred calls of numpy cost
the same for one row as for a thousand. Here the same questions are asked of one row after the other, against what is
known of its block, its sequence and its step, so that a look costs what its rows cost. Rule for rule this is what those
passes say, under the same names; `tests/property/test_screen.py` holds both to each other and to the detectors.

What is left to Python: which slots of the host tier are held, once there is a swap (`beside`). */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <structmember.h>

#if PY_BIG_ENDIAN || !defined(__GNUC__)
#error "rows are little endian, and marks are read with the atomics of GCC and clang"
#endif

#define EDITION 2 /* as in live.py */

/* -- kinds and reasons: as in schema.py, whose numbers never change ---------------------------------------------- */

#define KINDS(X) \
    X(ALLOC) X(SHARE) X(RELEASE) X(FREE) X(WRITE) X(COMMIT) X(PUBLISH) X(UNPUBLISH) X(HIT) X(MISS) X(EVICT) X(COW) \
    X(COPY_DONE) X(QUARANTINE) X(SETTLE) X(LEASE) X(UNLEASE) X(FORK) X(TRUNCATE) X(SWAP_OUT) X(SWAP_IN) X(SUBMIT) \
    X(ADMIT) X(WAIT) X(REFUSED) X(PREEMPT) X(RESUME) X(FINISH) X(ABORT) X(STEP_BEGIN) X(SCHED) X(STEP_END) X(WITNESS) \
    X(SIGNAL) X(AWAIT) X(CHECK) X(MISMATCH) X(POOL) X(GROW) X(SHRINK) X(GAP) X(NOTE)

#define AS_ENUM(name) K_##name,
#define AS_TEXT(name) #name,
enum { KINDS(AS_ENUM) COUNT_OF_KINDS };
static const char *const kind_names[] = {KINDS(AS_TEXT)};

enum { WINDOW = 11, NO_BLOCKS = 13, RESIZED = 27 }; /* reasons */

enum { FREE, HELD, QUARANTINED }; /* where a block is */

enum { /* what a kind is */
    OF_BLOCK = 1,
    TAKES = 2,
    GIVES = 4,
    OF_SEQUENCE = 8,
    BEGINS = 16,
    ENDS = 32,
    RESETS = 64, /* what is known to be written ends here */
    COUNTS = 128, /* must say a count before and after */
    LEAVES = 256, /* to a free list or into quarantine */
};

typedef struct {
    int is, references, leases;
    int place, published, unbound; /* 1 + the new value; 0 where it says nothing */
    int values, exactly; /* of its details: how many are looked at */
} Traits;

#define TABLE (OF_BLOCK | OF_SEQUENCE)
static const Traits traits[COUNT_OF_KINDS] = {
    [K_ALLOC] = {TABLE | TAKES | COUNTS, 1, .place = 1 + HELD, .published = 1, .unbound = 1},
    [K_SHARE] = {TABLE | TAKES | COUNTS, 1, .place = 1 + HELD},
    [K_HIT] = {TABLE | TAKES | COUNTS, 1, .place = 1 + HELD, .published = 2, .values = 4, .exactly = 1},
    [K_RELEASE] = {TABLE | GIVES | COUNTS, -1, .place = 1 + HELD},
    [K_LEASE] = {OF_BLOCK | COUNTS, 1, 1, .values = 2},
    [K_UNLEASE] = {OF_BLOCK | COUNTS, -1, -1, .place = 1 + HELD},
    [K_FREE] = {OF_BLOCK | LEAVES, .place = 1 + FREE, .published = 1},
    [K_SETTLE] = {OF_BLOCK, .place = 1 + FREE, .published = 1},
    [K_QUARANTINE] = {OF_BLOCK | LEAVES, .place = 1 + QUARANTINED, .published = 1},
    [K_WRITE] = {TABLE | COUNTS, .unbound = 2},
    [K_COMMIT] = {OF_BLOCK, .unbound = 1},
    [K_PUBLISH] = {OF_BLOCK, .published = 2, .values = 4, .exactly = 1},
    [K_UNPUBLISH] = {OF_BLOCK, .published = 1},
    [K_EVICT] = {OF_BLOCK, .published = 1},
    [K_COW] = {TABLE | RESETS, .values = 4},
    [K_COPY_DONE] = {OF_BLOCK},
    [K_SWAP_OUT] = {OF_BLOCK, .values = 2},
    [K_SWAP_IN] = {TABLE, .values = 2},
    [K_SCHED] = {OF_SEQUENCE, .values = 2},
    [K_TRUNCATE] = {OF_SEQUENCE | RESETS},
    [K_ADMIT] = {OF_SEQUENCE | BEGINS | RESETS},
    [K_RESUME] = {OF_SEQUENCE | BEGINS | RESETS},
    [K_FORK] = {OF_SEQUENCE | BEGINS | RESETS},
    [K_FINISH] = {OF_SEQUENCE | ENDS | RESETS},
    [K_ABORT] = {OF_SEQUENCE | ENDS | RESETS},
    [K_PREEMPT] = {OF_SEQUENCE | ENDS | RESETS},
    [K_WITNESS] = {.values = 8},
};

/* -- what is known ------------------------------------------------------------------------------------------------ */

enum { MOST_BLOCKS = 1 << 21, MOST_SEQUENCES = 1 << 24, MOST_LOGICAL = 1 << 22 };
static const int64_t MOST_POSITIONS = (int64_t)1 << 40;

typedef struct {
    int32_t gen, references, leases, written, leased; /* written: slots below; leased: leases of this life cover so far */
    uint8_t place, published, unbound, touched, named, worded, copying;
    uint8_t state; /* what a WITNESS counts it as */
    uint64_t keys; /* sum of the keys of its table entries */
    int64_t last_use; /* 1 + the last step that used it */
    int64_t words[4]; /* `named`: it was published, `worded`: as this */
    int64_t published_at;
    int64_t copied[3]; /* `copying`: source, its life, slots of this life's COW */
    int32_t ever_written;
} Block;

typedef struct {
    int64_t since; /* number of the event that took it */
    int32_t block, gen; /* block -1: there is none */
} Entry;

/* A place in a table. Between the ALLOC of a copy-on-write and the RELEASE of its source there are two in it. */
typedef struct {
    Entry newest, older;
} Place;

typedef struct {
    Place *table;
    int64_t room, entries, reach, slid, sched_seq, sched_step, tokens;
    uint64_t digest;
    uint8_t over, fresh, holding, submitted;
} Sequence;

typedef struct {
    int64_t lease;
    int32_t block, gen; /* block -1: empty; gone: -2 */
} Lease;

typedef struct {
    int64_t told, rows, tokens;
} Step;

/* The details of one event. */
typedef struct {
    int64_t seq;
    Py_ssize_t count;
    const int64_t *values;
} Told;

enum { ALONE = 9 };
typedef struct {
    int64_t seq;
    Py_ssize_t count;
    int64_t values[ALONE];
} Single;

typedef struct {
    Py_buffer view;
    int64_t first, rows;
    Py_ssize_t width;
} Bulk;

/* Of rows of all kinds as a trace keeps them: the details of event `seqs[i]` are `lengths[i]` values from
`starts[i]` on. */
enum { SEQS, STARTS, LENGTHS, VALUES, COLUMNS };
typedef struct {
    Py_buffer views[COLUMNS];
    const int64_t *columns[COLUMNS];
    Py_ssize_t opened, count, at, values;
} Kept;

typedef struct {
    Py_buffer view;
    Py_ssize_t begin, end; /* rows of the look */
} Part;

/* Where the columns of a row lie: as EVENT_DTYPE, or as the ROW_DTYPE of a recorder's buffer. */
typedef struct {
    int bytes, aux, step, block, references, kind, mark;
} Layout;
static const Layout event_layout = {48, 8, 16, 20, 36, 44, -1}, row_layout = {56, 16, 8, 24, 40, 46, 48};

typedef struct {
    int64_t aux;
    int32_t step, block, gen, seq_id, lblock;
    int16_t before, after, fill;
    uint8_t kind, reason;
} Event;

enum { C_FREE, C_PRIVATE, C_SHARED, C_CACHED, C_QUARANTINED, C_IN_TRANSIT, COUNTED }; /* as a WITNESS counts */

typedef struct {
    PyObject_HEAD
    int64_t num_blocks, block_size, rooms; /* rooms: blocks that there is memory for */
    int ordered, swaps;
    Block *blocks;
    Sequence *sequences;
    int64_t known; /* sequences */
    Lease *leases;
    int64_t lease_room, lease_used, leased; /* used: not empty; leased: held */
    Step *open;
    int64_t open_room, opened, closed;
    int64_t begun, ended, last_step;
    int64_t counts[COUNTED], entries, left_over;
    uint64_t digest;
    /* what the facts promise; 0, or below 0 for the watermark: nothing */
    int64_t window, max_seqs, max_batched_tokens, max_model_len, max_blocks;
    double watermark;
    int32_t *reserved;
    Py_ssize_t reserved_count;
    /* what was found */
    const char *rule;
    int64_t at;
    /* of the look that is going on */
    Part *parts;
    Py_ssize_t parts_count, part;
    const Layout *layout;
    Single *singles;
    Py_ssize_t singles_count, single;
    Bulk *bulk;
    Py_ssize_t bulk_count, in_bulk;
    Kept kept;
    int64_t first;
    Py_ssize_t length;
    int64_t hit_row, hit_prefix; /* the last HIT: its row, and the prefix that its details told; -1: they did not */
    int hit_told;
} Live;

static const char *const no_memory = "no memory"; /* in place of a rule */

/* -- rows --------------------------------------------------------------------------------------------------------- */

static const char *
row_at(Live *self, Py_ssize_t i)
{
    Part *part = &self->parts[self->part];
    if (i < part->begin || i >= part->end) {
        for (part = self->parts; i >= part->end; part++) {
        }
    }
    return (const char *)part->view.buf + (i - part->begin) * self->layout->bytes;
}

static inline void
read_row(const Layout *layout, const char *row, Event *event)
{
    memcpy(&event->aux, row + layout->aux, 8);
    memcpy(&event->step, row + layout->step, 4);
    memcpy(&event->block, row + layout->block, 16); /* block, gen, seq_id, lblock */
    memcpy(&event->before, row + layout->references, 6); /* ref_before, ref_after, fill */
    event->kind = (uint8_t)row[layout->kind];
    event->reason = (uint8_t)row[layout->kind + 1];
}

static int
read_at(Live *self, Py_ssize_t i, Event *event)
{
    if (i < 0 || i >= self->length) {
        return 0;
    }
    read_row(self->layout, row_at(self, i), event);
    return 1;
}

static inline int
kind_at(Live *self, Py_ssize_t i)
{
    return i < 0 || i >= self->length ? -1 : (uint8_t)row_at(self, i)[self->layout->kind];
}

/* -- details ------------------------------------------------------------------------------------------------------ */

static int
kept_of(Kept *kept, int64_t seq, Told *told)
{
    while (kept->at < kept->count && kept->columns[SEQS][kept->at] < seq) {
        kept->at++;
    }
    if (kept->at == kept->count || kept->columns[SEQS][kept->at] != seq) {
        return 0;
    }
    int64_t start = kept->columns[STARTS][kept->at], length = kept->columns[LENGTHS][kept->at];
    int there = 0 <= start && start <= kept->values && 0 <= length && length <= kept->values - start;
    told->count = there ? length : 0, told->values = kept->columns[VALUES] + (there ? start : 0);
    return 1;
}

/* The details of event `seq`, which is asked for in rising order; 0 where nothing was told of it. */
static int
told_of(Live *self, int64_t seq, Told *told)
{
    if (self->kept.count > 0) {
        return kept_of(&self->kept, seq, told);
    }
    while (self->single < self->singles_count && self->singles[self->single].seq < seq) {
        self->single++;
    }
    if (self->single < self->singles_count && self->singles[self->single].seq == seq) { /* it came later */
        told->count = self->singles[self->single].count, told->values = self->singles[self->single].values;
        return 1;
    }
    while (self->in_bulk < self->bulk_count && self->bulk[self->in_bulk].first + self->bulk[self->in_bulk].rows <= seq) {
        self->in_bulk++;
    }
    if (self->in_bulk < self->bulk_count && self->bulk[self->in_bulk].first <= seq) {
        const Bulk *bulk = &self->bulk[self->in_bulk];
        told->count = bulk->width;
        told->values = (const int64_t *)bulk->view.buf + (seq - bulk->first) * bulk->width;
        return 1;
    }
    return 0;
}

static int
by_seq(const void *one, const void *other)
{
    int64_t a = ((const Single *)one)->seq, b = ((const Single *)other)->seq;
    return (a > b) - (a < b);
}

static int
by_first(const void *one, const void *other)
{
    int64_t a = ((const Bulk *)one)->first, b = ((const Bulk *)other)->first;
    return (a > b) - (a < b);
}

/* A whole number of Python's or numpy's. No exception is left behind. */
static int
whole(PyObject *value, int64_t *out)
{
    int overflow;
    PyObject *number = PyNumber_Index(value);
    if (number == NULL) {
        PyErr_Clear();
        return 0;
    }
    *out = PyLong_AsLongLongAndOverflow(number, &overflow);
    Py_DECREF(number);
    return !overflow;
}

/* 0: an exception is set. Values that are no numbers, or too large, are a suspicion: `self->rule`. */
static int
get_singles(Live *self, PyObject *singles)
{
    PyObject *key, *value;
    Py_ssize_t at = 0, count = 0;
    int rising = 1;
    self->singles = PyMem_Malloc(sizeof(Single) * (size_t)(PyDict_GET_SIZE(singles) + 1));
    if (self->singles == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    while (PyDict_Next(singles, &at, &key, &value)) {
        Single *single = &self->singles[count];
        PyObject *values;
        if (!whole(key, &single->seq) || (values = PySequence_Fast(value, "details are a sequence")) == NULL) {
            PyErr_Clear();
            self->rule = "details";
            continue;
        }
        single->count = PySequence_Fast_GET_SIZE(values);
        for (Py_ssize_t i = 0; i < single->count && i < ALONE; i++) {
            if (!whole(PySequence_Fast_GET_ITEM(values, i), &single->values[i])) {
                self->rule = "details";
            }
        }
        Py_DECREF(values);
        rising &= count == 0 || self->singles[count - 1].seq < single->seq;
        count++;
    }
    self->singles_count = count;
    if (!rising) {
        qsort(self->singles, (size_t)count, sizeof(Single), by_seq);
    }
    return 1;
}

/* 0: an exception is set. */
static int
get_kept(Live *self, PyObject *columns)
{
    Kept *kept = &self->kept;
    for (Py_ssize_t i = 0; i < COLUMNS; i++) {
        Py_buffer *view = &kept->views[i];
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(columns, i), view, PyBUF_C_CONTIGUOUS) < 0) {
            return 0;
        }
        kept->opened++;
        if (view->ndim != 1 || view->itemsize != 8) {
            PyErr_SetString(PyExc_TypeError, "kept details are columns of int64");
            return 0;
        }
        kept->columns[i] = view->buf;
    }
    if (kept->views[SEQS].len != kept->views[STARTS].len || kept->views[SEQS].len != kept->views[LENGTHS].len) {
        PyErr_SetString(PyExc_TypeError, "kept details have a number, a start and a length each");
        return 0;
    }
    kept->count = kept->views[SEQS].len / 8, kept->values = kept->views[VALUES].len / 8;
    return 1;
}

static int
get_bulk(Live *self, PyObject *parts)
{
    Py_ssize_t count = PyList_GET_SIZE(parts);
    self->bulk = PyMem_Calloc((size_t)count + 1, sizeof(Bulk));
    if (self->bulk == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    int rising = 1;
    for (Py_ssize_t i = 0; i < count; i++) {
        Bulk *bulk = &self->bulk[self->bulk_count];
        PyObject *pair = PyList_GET_ITEM(parts, i);
        if (!PyTuple_CheckExact(pair) || PyTuple_GET_SIZE(pair) != 2 || !whole(PyTuple_GET_ITEM(pair, 0), &bulk->first) ||
            PyObject_GetBuffer(PyTuple_GET_ITEM(pair, 1), &bulk->view, PyBUF_C_CONTIGUOUS) < 0) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_TypeError, "bulk is a list of (seq, int64 array)");
            }
            return 0;
        }
        self->bulk_count++;
        if (bulk->view.ndim != 2 || bulk->view.itemsize != 8) {
            PyErr_SetString(PyExc_TypeError, "bulk details are rows of int64");
            return 0;
        }
        bulk->rows = bulk->view.shape[0], bulk->width = bulk->view.shape[1];
        rising &= i == 0 || bulk[-1].first < bulk->first;
    }
    if (!rising) {
        qsort(self->bulk, (size_t)self->bulk_count, sizeof(Bulk), by_first);
    }
    return 1;
}

/* -- memory -------------------------------------------------------------------------------------------------------- */

/* Room for `count` things at `*at`, of which there is room for `*room`; what is new is zero. */
static int
grow(void **at, int64_t *room, int64_t count, size_t size)
{
    if (count <= *room) {
        return 1;
    }
    int64_t more = 2 * *room > count ? 2 * *room : count;
    char *made = PyMem_Realloc(*at, (size_t)more * size);
    if (made == NULL) {
        return 0;
    }
    memset(made + (size_t)*room * size, 0, (size_t)(more - *room) * size);
    *at = made, *room = more;
    return 1;
}

static Sequence *
sequence_of(Live *self, int32_t seq_id)
{
    if (seq_id >= self->known) {
        int64_t before = self->known;
        if (!grow((void **)&self->sequences, &self->known, (int64_t)seq_id + 64, sizeof(Sequence))) {
            return NULL;
        }
        for (int64_t i = before; i < self->known; i++) {
            self->sequences[i].sched_seq = self->sequences[i].sched_step = -1;
        }
    }
    return &self->sequences[seq_id];
}

static Place *
place_of(Sequence *sequence, int32_t lblock)
{
    if (lblock >= sequence->room) {
        int64_t before = sequence->room;
        if (!grow((void **)&sequence->table, &sequence->room, (int64_t)lblock + 4, sizeof(Place))) {
            return NULL;
        }
        for (int64_t i = before; i < sequence->room; i++) {
            sequence->table[i].newest.block = sequence->table[i].older.block = -1;
        }
    }
    return &sequence->table[lblock];
}

/* -- leases: an open table of (lease, block) ----------------------------------------------------------------------- */

static Lease *
lease_at(Lease *leases, int64_t room, int64_t lease, int32_t block)
{
    uint64_t at = ((uint64_t)lease * 0x9E3779B97F4A7C15u) ^ ((uint64_t)(uint32_t)block * 0xBF58476D1CE4E5B9u);
    for (at ^= at >> 29;; at++) {
        Lease *found = &leases[at & (uint64_t)(room - 1)];
        if (found->block == -1 || (found->block == block && found->lease == lease)) {
            return found;
        }
    }
}

static int
room_for_a_lease(Live *self)
{
    if (self->lease_room && 2 * self->lease_used < self->lease_room) {
        return 1;
    }
    int64_t room = 64;
    while (room < 4 * self->leased) {
        room *= 2;
    }
    Lease *made = PyMem_Malloc(sizeof(Lease) * (size_t)room);
    if (made == NULL) {
        return 0;
    }
    for (int64_t i = 0; i < room; i++) {
        made[i].block = -1;
    }
    for (int64_t i = 0; i < self->lease_room; i++) {
        if (self->leases[i].block >= 0) {
            *lease_at(made, room, self->leases[i].lease, self->leases[i].block) = self->leases[i];
        }
    }
    PyMem_Free(self->leases);
    self->leases = made, self->lease_room = room, self->lease_used = self->leased;
    return 1;
}

static const char *
lease_or_unlease(Live *self, const Event *event)
{
    if (!room_for_a_lease(self)) {
        return no_memory;
    }
    Lease *found = lease_at(self->leases, self->lease_room, event->aux, event->block);
    int held = found->block >= 0;
    if (event->kind == K_LEASE) {
        if (held) {
            return "transfers";
        }
        *found = (Lease){event->aux, event->block, event->gen};
        self->lease_used++, self->leased++;
        return NULL;
    }
    if (!held || found->gen != event->gen) {
        return "transfers";
    }
    found->block = -2;
    self->leased--;
    return NULL;
}

/* -- the rules ----------------------------------------------------------------------------------------------------- */

#define MUST(kept, rule) \
    do { \
        if (!(kept)) { \
            return rule; \
        } \
    } while (0)

static inline int64_t
low_of(int64_t range)
{
    return range & 0xFFFFFFFF;
}

static inline int64_t
between(int64_t value, int64_t lo, int64_t hi)
{
    return value < lo ? lo : value > hi ? hi : value;
}

/* The word that a table entry adds to the digest of its table: `digest_words` of schema.py. */
static inline uint64_t
digest_word(int32_t block, int32_t gen, int32_t lblock)
{
    uint64_t x = ((uint64_t)(int64_t)gen << 32 | (uint64_t)(int64_t)block) ^
                 ((uint64_t)(int64_t)lblock + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* Whether this ALLOC begins a copy-on-write: ALLOC, LEASE of the source, COW. */
static int
starts_copy(Live *self, Py_ssize_t i, const Event *event)
{
    Event copy;
    return kind_at(self, i + 2) == K_COW && read_at(self, i + 2, &copy) && copy.block == event->block &&
           copy.gen == event->gen && copy.seq_id == event->seq_id && copy.lblock == event->lblock;
}

/* Steps: they are counted upwards, and have as many sequences and tokens as they say. */

static const char *
step_begins(Live *self, const Event *event)
{
    MUST(event->step >= self->last_step, "steps");
    MUST(!self->max_seqs || event->aux <= self->max_seqs, "limits");
    self->last_step = event->step;
    self->begun++;
    int64_t open = self->opened - self->closed;
    if (self->closed && (open == 0 || self->opened == self->open_room)) {
        memmove(self->open, self->open + self->closed, sizeof(Step) * (size_t)open);
        self->opened = open, self->closed = 0;
    }
    if (!grow((void **)&self->open, &self->open_room, self->opened + 1, sizeof(Step))) {
        return no_memory;
    }
    self->open[self->opened++] = (Step){event->aux, 0, 0};
    return NULL;
}

static const char *
step_ends(Live *self, const Event *event)
{
    self->ended++;
    MUST(self->ended <= self->begun, "step end");
    MUST(!self->max_batched_tokens || event->aux <= self->max_batched_tokens, "limits");
    const Step *step = &self->open[self->closed++];
    int wrong = (step->told > 0 && step->told != step->rows) || (event->aux > 0 && event->aux != step->tokens);
    MUST(!wrong || step->rows == 0, "steps");
    return NULL;
}

static const char *
is_scheduled(Live *self, const Event *event)
{
    MUST(self->opened > self->closed, "steps");
    MUST(!self->max_model_len || event->aux >> 32 <= self->max_model_len, "limits");
    if (self->window) {
        int64_t needed = (int64_t)event->lblock - self->window + 1;
        MUST(low_of(event->aux) <= (needed > 0 ? needed : 0), "window");
    }
    Step *step = &self->open[self->opened - 1];
    step->rows++;
    step->tokens += event->fill > 0 ? event->fill : 0;
    return NULL;
}

/* No more tokens are counted as cached than the hits behind the admission hold. */
static const char *
is_admitted(Live *self, Py_ssize_t i, const Event *event)
{
    if (event->aux > 0) {
        int64_t hits = 0;
        while (kind_at(self, i + 1 + hits) == K_HIT) {
            hits++;
        }
        MUST(event->aux <= hits * self->block_size, "admitted");
    }
    return NULL;
}

/* Nobody waits for blocks that are there, and the counters of the pool can be. */
static const char *
asks(Live *self, const Event *event, int64_t seq)
{
    Told told;
    if (!told_of(self, seq, &told) || told.count < 3) {
        return NULL;
    }
    int64_t needed = told.values[0], vacant = told.values[1], evictable = told.values[2];
    int refused = event->kind == K_REFUSED, side_by_side = refused && told.count > 3;
    MUST(needed >= 0 && vacant >= 0 && evictable >= 0, "counters");
    MUST(vacant <= self->num_blocks && evictable <= self->num_blocks - vacant, "counters");
    int64_t there = vacant + evictable, most = needed, kept = 0;
    MUST(!side_by_side || told.values[3] <= there, "counters");
    if (event->reason != NO_BLOCKS || event->seq_id < 0) {
        return NULL;
    }
    there = side_by_side ? told.values[3] : there;
    const Sequence *sequence = event->seq_id < self->known ? &self->sequences[event->seq_id] : NULL;
    if (!refused || sequence == NULL || !sequence->holding) {
        if (sequence == NULL || !sequence->submitted || (!refused && self->watermark < 0)) {
            return NULL;
        }
        int64_t blocks = sequence->tokens / self->block_size;
        blocks += blocks * self->block_size < sequence->tokens;
        most = blocks > needed ? blocks : needed;
        kept = refused ? 0 : (int64_t)(self->watermark * (double)self->num_blocks);
    }
    MUST(most > there || most + kept > there || most < 1, "needless wait");
    return NULL;
}

/* What `asks` must know of who asks. */
static const char *
moves_on(Live *self, const Event *event)
{
    if (event->seq_id < 0) {
        return NULL;
    }
    MUST(event->seq_id < MOST_SEQUENCES, "sequence exists");
    Sequence *sequence = sequence_of(self, event->seq_id);
    if (sequence == NULL) {
        return no_memory;
    }
    switch (event->kind) {
    case K_SUBMIT:
        sequence->tokens = event->aux, sequence->submitted = 1;
        break;
    case K_PREEMPT:
        sequence->holding = 0;
        if (event->aux >= sequence->tokens && event->aux < INT64_MAX) {
            sequence->tokens = event->aux + 1;
        }
        break;
    case K_FINISH:
    case K_ABORT:
        sequence->holding = 0;
        break;
    default:
        sequence->holding = 1;
    }
    return NULL;
}

static int64_t
never_free(const Live *self, int64_t num_blocks)
{
    int64_t count = 0;
    for (Py_ssize_t i = 0; i < self->reserved_count; i++) {
        count += self->reserved[i] < num_blocks;
    }
    return count;
}

static const char *
resizes(Live *self, const Event *event)
{
    int64_t size = event->aux, before = event->lblock;
    MUST(before == self->num_blocks && 0 <= size && size < MOST_BLOCKS, "resize");
    MUST(!(0 < self->max_blocks && self->max_blocks < size), "resize");
    self->counts[C_FREE] += size - before - never_free(self, size) + never_free(self, before);
    for (int64_t i = size; i < self->rooms; i++) {
        const Block *block = &self->blocks[i];
        MUST(block->references == 0 && !block->published && block->place == FREE, "resize");
    }
    if (!grow((void **)&self->blocks, &self->rooms, size, sizeof(Block))) {
        return no_memory;
    }
    self->num_blocks = size;
    return NULL;
}

/* The pool's own counters are those that its events make. */
static const char *
witness(Live *self, const Told *told)
{
    MUST(self->left_over == 0, "witness");
    if (told == NULL) {
        return NULL;
    }
    MUST(self->swaps || told->count <= 8 || told->values[8] <= 0, "host slots");
    for (int i = 0; i < COUNTED; i++) {
        MUST(told->values[i] == self->counts[i], "witness");
    }
    MUST(told->values[6] == self->entries, "witness");
    MUST(told->values[7] == 0 || (uint64_t)told->values[7] == self->digest, "witness");
    return NULL;
}

/* A block just before a row, and what the row says of slots. */
typedef struct {
    Block *block;
    int references, place, published, written, unbound;
    int64_t lo, hi, slots; /* range of a WRITE; slots: that a COW copies */
} Was;

/* Where a block may go from where it is. */
static const char *
goes(const Event *event, const Was *was)
{
    int unheld = was->references == 0, held = was->place == HELD;
    switch (event->kind) {
    case K_ALLOC:
        MUST(unheld && was->place == FREE && !was->published, "transition");
        break;
    case K_SHARE:
    case K_PUBLISH:
        MUST(!unheld, "transition");
        break;
    case K_HIT:
        MUST(was->published && held, "transition");
        break;
    case K_LEASE:
        MUST((was->published || !unheld) && held, "transition");
        break;
    case K_FREE:
    case K_QUARANTINE:
        MUST(unheld && held, "transition");
        break;
    case K_SETTLE:
        MUST(unheld && was->place == QUARANTINED, "transition");
        break;
    case K_EVICT:
        MUST(unheld, "transition");
        break;
    }
    return NULL;
}

/* Handles are of the current life; counts chain; places follow each other. */
static const char *
lives(Live *self, const Event *event, const Traits *kind, Was *was)
{
    MUST(0 <= event->block && event->block < self->num_blocks, "block exists");
    Block *block = was->block = &self->blocks[event->block];
    MUST(event->kind == K_ALLOC ? event->gen > block->gen : event->gen == block->gen, "life");
    block->gen = event->gen;

    was->references = block->references, was->place = block->place, was->published = block->published;
    was->written = block->written, was->unbound = block->unbound;
    block->references += kind->references, block->leases += kind->leases;
    if (kind->is & COUNTS || event->after >= 0 || event->before >= 0) {
        MUST(event->before == was->references && event->after == block->references && event->after >= 0, "count");
    }
    MUST(block->leases >= 0 && block->references >= block->leases, "holders");
    block->place = kind->place ? (uint8_t)(kind->place - 1) : block->place;
    block->published = kind->published ? (uint8_t)(kind->published - 1) : block->published;
    block->unbound = kind->unbound ? (uint8_t)(kind->unbound - 1) : block->unbound;
    block->touched = 1;
    return goes(event, was);
}

/* Slots are written in order by the only holder; copies and publications find them written. */
static const char *
slots(Live *self, const Event *event, const Told *told, Was *was)
{
    Block *block = was->block;
    int64_t size = self->block_size, reach = 0;
    was->lo = low_of(event->aux), was->hi = event->aux >> 32;
    switch (event->kind) {
    case K_WRITE:
        MUST(was->lo < was->hi && was->hi <= size && was->lo <= was->written, "slots");
        reach = was->hi;
        break;
    case K_COW:
        was->slots = told != NULL && told->values[2] == 0 ? told->values[3] : -1;
        MUST(0 <= was->slots && was->slots <= size, "copy details");
        reach = was->slots;
        break;
    case K_SWAP_IN:
        reach = event->fill >= 0 && event->fill <= size ? event->fill : 0; /* they count as written from then on */
        break;
    case K_LEASE:
        reach = told != NULL ? between(told->values[1], 0, size) : size;
        block->leased = reach > block->leased ? (int32_t)reach : block->leased;
        reach = 0;
        break;
    case K_ALLOC:
        block->written = block->leased = 0;
        break;
    case K_PUBLISH:
        MUST(was->written == size, "published full");
        break;
    }
    block->written = reach > block->written ? (int32_t)reach : block->written;
    block->ever_written = block->written > block->ever_written ? block->written : block->ever_written;
    return NULL;
}

/* A place in a table is taken and given back alternately, as the same life of the same block. */
static const char *
entries(Live *self, Py_ssize_t i, const Event *event, Sequence *sequence, int copies, Entry *given, int *current)
{
    MUST(event->lblock < MOST_LOGICAL, "too large");
    Place *place = place_of(sequence, event->lblock);
    if (place == NULL) {
        return no_memory;
    }
    if (event->kind != K_RELEASE) {
        if (place->newest.block >= 0) {
            int replaces = copies || (event->kind == K_SHARE && event->reason == RESIZED);
            MUST(place->older.block < 0 && replaces, "entry");
            place->older = place->newest;
        }
        place->newest = (Entry){self->first + i, event->block, event->gen};
        return NULL;
    }
    *current = place->older.block < 0;
    Entry *entry = *current ? &place->newest : &place->older;
    MUST(entry->block == event->block && entry->gen == event->gen, "entry");
    *given = *entry;
    entry->block = -1;
    return NULL;
}

/* Positions are written in order and never claimed twice; a step reads what is written. */
static const char *
positions(const Event *event, Sequence *sequence, const Was *was, int64_t size, int copies, int current)
{
    int64_t base = (int64_t)event->lblock * size, before = sequence->reach, reach = 0;
    int64_t written = was->block != NULL ? was->block->written : 0, lo = low_of(event->aux), hi = event->aux >> 32;
    int is = traits[event->kind].is;
    MUST(event->lblock >= 0 || !(is & OF_BLOCK), "positions"); /* what is of both is in a place of a table */
    switch (event->kind) {
    case K_WRITE:
        MUST(base + lo <= before, "written in order");
        reach = base + hi;
        break;
    case K_SHARE:
    case K_HIT:
        reach = base + written;
        MUST((before >= base || sequence->fresh) && (written == size || before <= reach), "joined in order");
        break;
    case K_TRUNCATE:
        MUST(event->aux >= 0 && event->aux <= before, "truncate");
        reach = event->aux;
        break;
    case K_COW:
        MUST(before >= base, "copied in order");
        reach = base + was->slots;
        break;
    case K_SWAP_IN:
        MUST(before >= base, "copied in order");
        reach = base + written;
        break;
    case K_SCHED:
        MUST(lo <= hi && hi <= before, "read before written");
        break;
    case K_ALLOC:
        MUST(copies || base >= before, "new block");
        break;
    case K_RELEASE:
        MUST(!current || before <= base || event->reason == WINDOW, "still needed");
        break;
    }
    MUST(reach < MOST_POSITIONS, "positions");
    sequence->reach = is & RESETS || reach > before ? reach : before;
    sequence->fresh = (is & BEGINS) != 0;
    return NULL;
}

/* The worker's table is the one that the events make; a sequence begins with an empty one and ends with nothing left. */
static const char *
tables(Live *self, const Event *event, Sequence *sequence, const Told *told, int current)
{
    int is = traits[event->kind].is, was_over = sequence->over;
    int64_t sign = is & TAKES ? 1 : is & GIVES ? -1 : 0;
    if (sign) {
        uint64_t word = digest_word(event->block, event->gen, event->lblock) * (uint64_t)sign;
        sequence->entries += sign, self->entries += sign;
        sequence->digest += word, self->digest += word;
    }
    if (is & BEGINS) {
        MUST(sequence->entries == 0, "begins empty");
        sequence->over = 0;
        sequence->slid = 0;
        if (event->kind == K_FORK && 0 <= event->aux && event->aux < self->known) {
            sequence->slid = self->sequences[event->aux].slid;
        }
    }
    if (event->kind == K_RELEASE && current && event->reason == WINDOW && event->lblock >= sequence->slid) {
        sequence->slid = (int64_t)event->lblock + 1;
    }
    if (event->kind == K_SCHED && told != NULL) {
        MUST((uint64_t)told->values[0] == sequence->digest, "table");
        MUST(told->values[1] == sequence->entries + sequence->slid, "table");
    }
    sequence->over |= (is & ENDS) != 0;
    if (sequence->over) {
        self->left_over += was_over ? sign : sequence->entries;
        if (sequence->entries == 0 && sequence->room > 8) { /* as a rule it is not heard of again */
            PyMem_Free(sequence->table);
            sequence->table = NULL, sequence->room = 0;
        }
    }
    return NULL;
}

/* A hit finds what was published, at the same place, behind the same prefix, and its writes committed. */
static const char *
publication(Live *self, Py_ssize_t i, const Event *event, const Told *told, const Was *was)
{
    Block *block = was->block;
    if (event->kind == K_PUBLISH) {
        block->named = 1, block->worded = told != NULL, block->published_at = event->lblock;
        if (told != NULL) {
            memcpy(block->words, told->values, sizeof(block->words));
        }
        return NULL;
    }
    MUST(!self->ordered || !was->unbound, "hit before its writes");
    MUST(block->worded == (told != NULL), "hit content");
    MUST(told == NULL || memcmp(block->words, told->values, sizeof(block->words)) == 0, "hit content");
    MUST(!block->named || block->published_at < 0 || event->lblock < 0 || block->published_at == event->lblock,
         "hit content");
    if (event->lblock > 0 && told != NULL) {
        Event front;
        MUST(read_at(self, i - 1, &front) && front.seq_id == event->seq_id, "hit prefix");
        int follows = front.kind == K_HIT && self->hit_row == i - 1 && self->hit_told &&
                      front.lblock == event->lblock - 1 && self->hit_prefix == told->values[0];
        MUST(front.kind == K_ADMIT || front.kind == K_RESUME || follows, "hit prefix");
    }
    self->hit_row = i, self->hit_told = told != NULL, self->hit_prefix = told != NULL ? told->values[2] : -1;
    return NULL;
}

/* A copy's source is leased by the row before it, and let go by the row after it has run. */
static const char *
copies_of(Live *self, Py_ssize_t i, const Event *event, const Told *told, Block *block)
{
    Event near;
    if (event->kind == K_COW) {
        int64_t source = told->values[0], life = told->values[1]; /* `slots` has seen that they are there */
        MUST(read_at(self, i - 1, &near) && near.kind == K_LEASE && near.block == source && near.gen == life, "copy source");
        MUST(self->blocks[near.block].written >= told->values[3], "copy source");
        block->copied[0] = source, block->copied[1] = life, block->copied[2] = told->values[3];
        block->copying = 1;
        return NULL;
    }
    MUST(block->copying && read_at(self, i + 1, &near) && near.kind == K_UNLEASE, "copy done");
    MUST(near.block == block->copied[0] && near.gen == block->copied[1], "copy done");
    MUST(event->fill < 0 || event->fill >= block->copied[2], "copy done");
    return NULL;
}

static const char *
of_block_and_sequence(Live *self, Py_ssize_t i, const Event *event, const Traits *kind, const Told *told)
{
    Was was = {NULL, 0, 0, 0, 0, 0, 0, 0, 0};
    const char *broken;
    if (kind->is & OF_BLOCK) {
        if ((broken = lives(self, event, kind, &was)) != NULL || (broken = slots(self, event, told, &was)) != NULL) {
            return broken;
        }
    }
    Block *block = was.block;
    Sequence *sequence = NULL;
    Entry given = {-1, -1, -1};
    int current = 0, copies = event->kind == K_ALLOC && starts_copy(self, i, event);
    if (kind->is & OF_SEQUENCE) {
        MUST(0 <= event->seq_id && event->seq_id < MOST_SEQUENCES, "sequence exists");
        if ((sequence = sequence_of(self, event->seq_id)) == NULL) {
            return no_memory;
        }
        if (kind->is & (TAKES | GIVES)) {
            MUST(event->lblock >= 0, "positions");
            uint64_t key = (uint64_t)(uint32_t)event->seq_id << 32 | (uint64_t)(uint32_t)event->lblock;
            block->keys += kind->is & TAKES ? key : -key;
            broken = entries(self, i, event, sequence, copies, &given, &current);
            if (broken != NULL) {
                return broken;
            }
        }
        else if (event->kind == K_WRITE) {
            uint64_t key = (uint64_t)(uint32_t)event->seq_id << 32 | (uint64_t)(uint32_t)event->lblock;
            MUST(block->references - block->leases == 1 && block->keys == key && !block->published, "writer");
            MUST(block->leases == 0 || was.lo >= block->leased, "lease");
        }
        if ((broken = positions(event, sequence, &was, self->block_size, copies, current)) != NULL ||
            (broken = tables(self, event, sequence, told, current)) != NULL) {
            return broken;
        }
        if (event->kind == K_SCHED) {
            sequence->sched_seq = self->first + i, sequence->sched_step = self->begun - 1;
        }
    }
    if (block == NULL) {
        return NULL;
    }
    if ((event->kind == K_HIT || event->kind == K_PUBLISH) &&
        (broken = publication(self, i, event, told, &was)) != NULL) {
        return broken;
    }
    if ((event->kind == K_COW || event->kind == K_COPY_DONE) &&
        (broken = copies_of(self, i, event, told, block)) != NULL) {
        return broken;
    }
    if (event->kind == K_RELEASE && given.since < sequence->sched_seq && sequence->sched_step + 1 > block->last_use) {
        block->last_use = sequence->sched_step + 1;
    }
    if (event->kind == K_ALLOC) {
        /* Handed out when the last step that used it has completed. */
        MUST(block->last_use <= self->ended, "fence");
        block->copying = 0;
    }
    MUST(event->kind != K_SETTLE || block->last_use <= self->ended + 1, "fence");

    int held = block->references - block->leases;
    int state = held > 1                      ? C_SHARED
                : held == 1                   ? C_PRIVATE
                : block->leases > 0           ? C_IN_TRANSIT
                : block->place == QUARANTINED ? C_QUARANTINED
                : block->published            ? C_CACHED
                                              : C_FREE;
    self->counts[block->state]--, self->counts[state]++;
    block->state = (uint8_t)state;
    return NULL;
}

/* The rule that this row breaks; NULL if none. */
static const char *
judge(Live *self, Py_ssize_t i, const Event *event)
{
    const char *broken = NULL;
    Told found, *told = NULL;
    for (Py_ssize_t k = 0; k < self->reserved_count; k++) {
        MUST(event->block != self->reserved[k], "reserved block");
    }
    const Traits *kind = &traits[event->kind];
    if (kind->values && told_of(self, self->first + i, &found)) {
        MUST(kind->exactly ? found.count == kind->values : found.count >= kind->values, "details");
        told = &found;
    }
    switch (event->kind) {
    case K_STEP_BEGIN:
        return step_begins(self, event);
    case K_STEP_END:
        return step_ends(self, event);
    case K_WITNESS:
        return witness(self, told);
    case K_MISMATCH:
        return "mismatch";
    case K_CHECK:
        MUST(event->aux < 0 || event->fill <= event->aux, "check");
        return NULL;
    case K_REFUSED:
    case K_WAIT:
        return asks(self, event, self->first + i);
    case K_GROW:
    case K_SHRINK:
        return resizes(self, event);
    case K_SCHED:
        broken = is_scheduled(self, event);
        break;
    case K_ADMIT:
        broken = is_admitted(self, i, event);
        /* fall through */
    case K_SUBMIT:
    case K_PREEMPT:
    case K_RESUME:
    case K_FORK:
    case K_FINISH:
    case K_ABORT:
        broken = broken != NULL ? broken : moves_on(self, event);
        break;
    case K_LEASE:
    case K_UNLEASE:
        broken = self->swaps ? NULL : lease_or_unlease(self, event);
        break;
    }
    return broken != NULL || !(kind->is & (OF_BLOCK | OF_SEQUENCE)) ? broken
                                                                    : of_block_and_sequence(self, i, event, kind, told);
}

/* -- a look -------------------------------------------------------------------------------------------------------- */

static void
end_look(Live *self)
{
    for (Py_ssize_t i = 0; i < self->parts_count; i++) {
        PyBuffer_Release(&self->parts[i].view);
    }
    for (Py_ssize_t i = 0; i < self->bulk_count; i++) {
        PyBuffer_Release(&self->bulk[i].view);
    }
    for (Py_ssize_t i = 0; i < self->kept.opened; i++) {
        PyBuffer_Release(&self->kept.views[i]);
    }
    PyMem_Free(self->parts);
    PyMem_Free(self->singles);
    PyMem_Free(self->bulk);
    memset(&self->kept, 0, sizeof self->kept);
    self->parts = NULL, self->singles = NULL, self->bulk = NULL;
    self->parts_count = self->bulk_count = self->singles_count = 0;
}

/* 0: an exception is set. */
static int
get_parts(Live *self, PyObject *parts)
{
    Py_ssize_t count = PyList_GET_SIZE(parts);
    self->parts = PyMem_Calloc((size_t)count + 1, sizeof(Part));
    if (self->parts == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    self->length = 0, self->layout = &row_layout;
    self->part = self->single = self->in_bulk = 0; /* they led into what the last look was given */
    for (Py_ssize_t i = 0; i < count; i++) {
        Part *part = &self->parts[i];
        if (PyObject_GetBuffer(PyList_GET_ITEM(parts, i), &part->view, PyBUF_C_CONTIGUOUS) < 0) {
            return 0;
        }
        self->parts_count++;
        self->layout = part->view.itemsize == event_layout.bytes ? &event_layout : &row_layout;
        if (part->view.itemsize != self->layout->bytes) {
            PyErr_Format(PyExc_TypeError, "rows of %zd bytes are neither EVENT_DTYPE nor ROW_DTYPE", part->view.itemsize);
            return 0;
        }
        part->begin = self->length;
        part->end = self->length += part->view.len / part->view.itemsize;
    }
    return 1;
}

/* How many of the rows are complete; -1: an exception is set. Those of which the recorder `marks` has taken the marks
away, for they are being sealed, were complete before. */
static Py_ssize_t
complete(Live *self, PyObject *marks)
{
    if (marks == Py_None || self->layout->mark < 0) {
        return self->length;
    }
    int64_t sealing = -1;
    for (Py_ssize_t p = 0, i = 0; p < self->parts_count; p++) {
        const char *row = (const char *)self->parts[p].view.buf + row_layout.mark;
        for (; i < self->parts[p].end; i++, row += row_layout.bytes) {
            if (__atomic_load_n((const int64_t *)row, __ATOMIC_ACQUIRE) == self->first + i + 1 || self->first + i < sealing) {
                continue;
            }
            PyObject *number = PyObject_GetAttrString(marks, "_sealing"); /* read after the mark was found missing */
            if (number == NULL || !whole(number, &sealing)) {
                Py_XDECREF(number);
                return PyErr_Occurred() ? -1 : i;
            }
            Py_DECREF(number);
            if (self->first + i >= sealing) {
                return i;
            }
        }
    }
    return self->length;
}

/* Looks at the rows; 0: an exception is set. */
static int
look_at_rows(Live *self, PyObject *beside)
{
    int swaps = self->swaps;
    for (Py_ssize_t i = 0; i < self->length && !swaps; i++) {
        int kind = kind_at(self, i);
        swaps = kind == K_SWAP_OUT || kind == K_SWAP_IN;
    }
    if (swaps && self->rule == NULL) {
        PyObject *suspicious = PyObject_CallFunction(beside, "n", self->length);
        int truth = suspicious == NULL ? -1 : PyObject_IsTrue(suspicious);
        Py_XDECREF(suspicious);
        if (truth < 0) {
            return 0;
        }
        self->swaps = 1;
        if (truth) {
            self->rule = "transfers", self->at = self->first;
        }
    }
    self->single = self->in_bulk = self->part = self->kept.at = 0;
    self->hit_row = -2;
    Event event;
    for (Py_ssize_t i = 0; i < self->length && self->rule == NULL; i++) {
        while (i >= self->parts[self->part].end) {
            self->part++;
        }
        read_row(self->layout, row_at(self, i), &event);
        self->rule = event.kind >= COUNT_OF_KINDS || event.kind == K_GAP ? "unknown kind" : judge(self, i, &event);
        self->at = self->first + i;
    }
    if (self->rule == no_memory) {
        PyErr_NoMemory();
        return 0;
    }
    return 1;
}

static PyObject *
look(Live *self, PyObject *args)
{
    PyObject *parts, *singles, *bulk, *marks, *beside;
    long long first;
    if (!PyArg_ParseTuple(args, "O!LO!OOO", &PyList_Type, &parts, &first, &PyDict_Type, &singles, &bulk, &marks, &beside)) {
        return NULL;
    }
    int kept = PyTuple_CheckExact(bulk) && PyTuple_GET_SIZE(bulk) == COLUMNS;
    if (!kept && !PyList_CheckExact(bulk)) {
        PyErr_SetString(PyExc_TypeError, "bulk is a list of (seq, int64 array), or (seqs, starts, lengths, values)");
        return NULL;
    }
    Py_ssize_t count = -1;
    self->first = first;
    if (get_parts(self, parts) && (count = complete(self, marks)) >= 0) {
        self->length = count;
        if (!(get_singles(self, singles) && (kept ? get_kept(self, bulk) : get_bulk(self, bulk)) &&
              look_at_rows(self, beside))) {
            count = -1;
        }
    }
    end_look(self);
    return count < 0 ? NULL : PyLong_FromSsize_t(count);
}

/* -- what else is asked -------------------------------------------------------------------------------------------- */

static PyObject *
learn(Live *self, PyObject *args)
{
    PyObject *reserved;
    long long window, most[4];
    double watermark;
    if (!PyArg_ParseTuple(args, "LdLLLLO!", &window, &watermark, &most[0], &most[1], &most[2], &most[3], &PyTuple_Type,
                          &reserved)) {
        return NULL;
    }
    int32_t *made = PyMem_Malloc(sizeof(int32_t) * (size_t)(PyTuple_GET_SIZE(reserved) + 1));
    if (made == NULL) {
        return PyErr_NoMemory();
    }
    Py_ssize_t count = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(reserved); i++) {
        int64_t block;
        if (whole(PyTuple_GET_ITEM(reserved, i), &block) && 0 <= block && block <= INT32_MAX) {
            made[count++] = (int32_t)block;
        }
    }
    self->counts[C_FREE] += never_free(self, self->num_blocks);
    PyMem_Free(self->reserved);
    self->reserved = made, self->reserved_count = count;
    self->counts[C_FREE] -= never_free(self, self->num_blocks);
    self->window = window, self->watermark = watermark;
    self->max_seqs = most[0], self->max_batched_tokens = most[1], self->max_model_len = most[2];
    self->max_blocks = most[3];
    Py_RETURN_NONE;
}

static PyObject *
left(Live *self, PyObject *Py_UNUSED(none))
{
    int entry = 0, block = 0, quarantine = 0;
    for (int64_t i = 0; i < self->known; i++) {
        entry |= self->sequences[i].over && self->sequences[i].entries > 0;
    }
    for (int64_t i = 0; i < self->rooms; i++) {
        const Block *at = &self->blocks[i];
        block |= at->touched && at->references == 0 && at->place == HELD && !at->published;
        quarantine |= at->place == QUARANTINED && at->last_use <= self->ended;
    }
    return Py_BuildValue("{s:O,s:O,s:O,s:O}", "entry left", entry ? Py_True : Py_False, "lease left",
                         self->leased && !self->swaps ? Py_True : Py_False, "block left", block ? Py_True : Py_False,
                         "quarantine left", quarantine ? Py_True : Py_False);
}

static PyObject *
leases(Live *self, PyObject *Py_UNUSED(none))
{
    PyObject *made = PyDict_New();
    for (int64_t i = 0; made != NULL && i < self->lease_room; i++) {
        const Lease *lease = &self->leases[i];
        if (lease->block < 0) {
            continue;
        }
        PyObject *key = Py_BuildValue("(Li)", (long long)lease->lease, (int)lease->block);
        PyObject *gen = PyLong_FromLong(lease->gen);
        if (key == NULL || gen == NULL || PyDict_SetItem(made, key, gen) < 0) {
            Py_CLEAR(made);
        }
        Py_XDECREF(key);
        Py_XDECREF(gen);
    }
    return made;
}

static PyObject *
last_step_of(Live *self, PyObject *seq_id)
{
    int64_t number;
    int known = whole(seq_id, &number) && 0 <= number && number < self->known;
    return PyLong_FromLongLong(known ? self->sequences[number].sched_step : -1);
}

static PyObject *
seen(Live *self, PyObject *Py_UNUSED(none))
{
    long long blocks = 0, written = 0;
    for (int64_t i = 0; i < self->rooms; i++) {
        blocks += self->blocks[i].touched, written += self->blocks[i].ever_written;
    }
    return Py_BuildValue("(LL)", blocks, written);
}

static PyObject *
suspect(Live *self, PyObject *Py_UNUSED(none))
{
    if (self->rule == NULL) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(sL)", self->rule, (long long)self->at);
}

/* -- the type ------------------------------------------------------------------------------------------------------ */

static PyObject *
new_live(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(named))
{
    long long num_blocks, block_size;
    int ordered = 1;
    if (!PyArg_ParseTuple(args, "LL|p", &num_blocks, &block_size, &ordered)) {
        return NULL;
    }
    if (num_blocks < 0 || num_blocks >= MOST_BLOCKS || block_size < 1 || block_size > INT16_MAX) {
        return PyErr_Format(PyExc_ValueError, "no pool of %lld blocks of %lld slots", num_blocks, block_size);
    }
    Live *self = (Live *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->num_blocks = num_blocks, self->block_size = block_size, self->ordered = ordered;
    self->last_step = -1, self->watermark = -1;
    self->counts[C_FREE] = num_blocks;
    self->blocks = PyMem_Calloc((size_t)num_blocks + 1, sizeof(Block));
    self->rooms = num_blocks;
    if (self->blocks == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void
free_live(Live *self)
{
    PyTypeObject *type = Py_TYPE(self);
    end_look(self);
    for (int64_t i = 0; i < self->known; i++) {
        PyMem_Free(self->sequences[i].table);
    }
    PyMem_Free(self->sequences);
    PyMem_Free(self->blocks);
    PyMem_Free(self->leases);
    PyMem_Free(self->open);
    PyMem_Free(self->reserved);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef live_methods[] = {
    {"look", (PyCFunction)look, METH_VARARGS,
     "look(rows, first, singles, bulk, marks, beside) -> rows that are complete, all of which were looked at"},
    {"learn", (PyCFunction)learn, METH_VARARGS,
     "learn(window, watermark, max_seqs, max_batched_tokens, max_model_len, max_blocks, reserved)"},
    {"left", (PyCFunction)left, METH_NOARGS, "what is left behind, by rule"},
    {"leases", (PyCFunction)leases, METH_NOARGS, "{(lease, block): life} of what is leased"},
    {"last_step_of", (PyCFunction)last_step_of, METH_O, "the last step that a sequence was in; -1: none"},
    {"seen", (PyCFunction)seen, METH_NOARGS, "(blocks that had an event, slots that were written)"},
    {"suspect", (PyCFunction)suspect, METH_NOARGS, "(rule, event) of the first event that breaks one, or None"},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef live_members[] = {
    {"begun", T_LONGLONG, offsetof(Live, begun), READONLY, "steps that have begun"},
    {"ended", T_LONGLONG, offsetof(Live, ended), READONLY, "steps that have ended"},
    {"num_blocks", T_LONGLONG, offsetof(Live, num_blocks), READONLY, "blocks of the pool"},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot live_slots[] = {
    {Py_tp_new, new_live}, {Py_tp_dealloc, free_live}, {Py_tp_methods, live_methods}, {Py_tp_members, live_members},
    {Py_tp_doc, "Live(num_blocks, block_size, ordered=True): what is known of a pool, and the rules over its next rows"},
    {0, NULL},
};

static PyType_Spec live_spec = {"kvscope.inspector._screen.Live", sizeof(Live), 0, Py_TPFLAGS_DEFAULT, live_slots};

static int
begin_module(PyObject *module)
{
    PyObject *kinds = PyTuple_New(COUNT_OF_KINDS);
    for (int i = 0; kinds != NULL && i < COUNT_OF_KINDS; i++) {
        PyObject *name = PyUnicode_FromString(kind_names[i]);
        if (name == NULL) {
            Py_CLEAR(kinds);
            break;
        }
        PyTuple_SET_ITEM(kinds, i, name);
    }
    PyObject *type = PyType_FromSpec(&live_spec);
    int failed = kinds == NULL || type == NULL || PyModule_AddObjectRef(module, "KINDS", kinds) < 0 ||
                 PyModule_AddObjectRef(module, "Live", type) < 0 || PyModule_AddIntMacro(module, EDITION) < 0;
    Py_XDECREF(kinds);
    Py_XDECREF(type);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, begin_module},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* `live.py` does not use it there */
#endif
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "kvscope.inspector._screen", .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit__screen(void)
{
    return PyModuleDef_Init(&module);
}
