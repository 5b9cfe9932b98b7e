/* What the screen in C knows of blocks, sequences, leases and steps, and how it reads rows. */

#ifndef KVSCOPE_SCREEN_STATE_H
#define KVSCOPE_SCREEN_STATE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <structmember.h>

#if PY_BIG_ENDIAN || !defined(__GNUC__)
#error "rows are little endian, and marks are read with the atomics of GCC and clang"
#endif

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
    int32_t stretch; /* this and `unknown` to `told_leases`: see lost.h */
    uint8_t place, published, unbound, touched, named, worded, copying, unknown, odd;
    uint8_t state; /* what a WITNESS counts it as */
    uint64_t keys; /* sum of the keys of its table entries */
    int64_t last_use; /* 1 + the last step that used it */
    int64_t words[4]; /* `named`: it was published, `worded`: as this */
    int64_t published_at;
    int64_t copied[3]; /* `copying`: source, its life, slots of this life's COW */
    int32_t ever_written; /* slots below, and those of `beyond`: a bit per slot, where any were written behind others */
    uint64_t *beyond;
    int32_t told, told_leases;
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
    int64_t doubled; /* places with two blocks in them */
    uint64_t digest;
    int64_t issued_to; /* positions below it has issued, or has of a fork's parent; asked where events were lost */
    int32_t parent; /* 1 + whose fork it is; 0: nobody's */
    int32_t stretch; /* this and what is `unknown` and `met`: see lost.h */
    uint8_t over, fresh, holding, submitted, unknown, met;
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
    /* after lost events, see lost.h */
    int32_t stretch; /* how often events were lost */
    int resumes, breaks_off; /* they were lost just before this look, are just behind it */
    int64_t unknown, odd; /* blocks */
    int64_t met, sure; /* sequences of whose table or end an event spoke, and those of them that are known */
    int64_t unjudged, compared; /* events; witnesses */
    int64_t least_told, most_told; /* blocks that those count in all; 0: none did */
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

#define MUST(kept, rule) \
    do { \
        if (!(kept)) { \
            return rule; \
        } \
    } while (0)

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

#endif
