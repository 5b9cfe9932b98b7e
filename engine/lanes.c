/* The step of a lane in C: `traces/compiled.py` says what this is for and how it is held to the Python code.

Each function here is the common case of the method of `Lane` of the same name, on the same attributes. What is not
common (a prefix that is served already, a pool or a sink of another class, tokens of more than 4 bytes, no room in the
ring) it leaves to the method in Python, which is still there under its name with `_python` behind it; until it is known
that the case is common, nothing is changed. All of it runs inside the one critical section of the block manager.

References: what is read from a slot is borrowed. Nothing that is called here in between, but for what says so, runs
Python code that could set one. */

#include "ring.h"

#include "blake2.h"

#define EDITION 5 /* as in lane.py */

/* -- the slots of the Python objects ---------------------------------------------------------------------------- */

enum { L_BOUNDS, L_COUNT, L_DESK, L_GONE, L_IDS, L_INTACT, L_KEPT, L_LANDED, L_MATRIX, L_MEMBERS, L_ORDER, L_PLACES,
       L_POOL, L_PREFIXES, L_RAGGED, L_RECORD, L_ROWS, L_SEATS, L_SIZE, L_STALE, L_STRAIGHT, L_TOKENS, L_TOTALS,
       L_UNEVEN, L_BASE };
static Slot of_lane[] = {
    {"_bounds", 0}, {"count", 0}, {"_desk", 0}, {"_gone", 0}, {"ids", 0}, {"intact", 0}, {"_kept", 0}, {"_landed", 0},
    {"_matrix", 0}, {"members", 0}, {"_order", 0}, {"places", 0}, {"_pool", 0}, {"_prefixes", 0}, {"_ragged", 0},
    {"_record", 0}, {"rows", 0}, {"_seats", 0}, {"_size", 0}, {"_stale", 0}, {"_straight", 0}, {"_tokens", 0},
    {"_totals", 0}, {"_uneven", 0}, {"_base", 0}, {NULL, 0},
};
enum { P_CACHED, P_FENCED, P_FREE, P_INDEX, P_LAST_USE, P_NEWEST_USE, P_NUM_HELD, P_NUM_SHARED, P_OPEN_LEASES, P_PAIRS,
       P_QUARANTINED, P_SINK, P_USERS };
static Slot of_pool[] = {
    {"_cached", 0}, {"_fenced", 0}, {"_free", 0}, {"index", 0}, {"last_use_step", 0}, {"newest_use", 0},
    {"num_held", 0}, {"num_shared", 0}, {"open_leases", 0}, {"pairs", 0}, {"_quarantined", 0}, {"sink", 0},
    {"users", 0}, {NULL, 0},
};
enum { F_AHEAD, F_BEHIND, F_CAPACITY, F_FILED, F_HEAD, F_RING };
static Slot of_free[] = {
    {"ahead", 0}, {"behind", 0}, {"_capacity", 0}, {"_filed", 0}, {"_head", 0}, {"_ring", 0}, {NULL, 0},
};
static Slot of_ages[] = {{"count", 0}, {NULL, 0}};
enum { C_COMPUTING, C_SHARE };
static Slot of_cache[] = {{"_computing", 0}, {"share", 0}, {NULL, 0}};
enum { I_BEHIND, I_BLOCK_OF, I_DIGESTS, I_KEY, I_PARENTS, I_PLACE, I_PLAIN, I_TOKENS, I_WIDTH };
static Slot of_index[] = {
    {"_behind", 0}, {"_block_of", 0}, {"_digests", 0}, {"_key", 0}, {"_parents", 0}, {"_place", 0}, {"plain", 0},
    {"_tokens", 0}, {"_width", 0}, {NULL, 0},
};
enum { R_BLOCKS, R_GENS, R_HASHES, R_PUBLISHED };
static Slot of_row[] = {{"blocks", 0}, {"gens", 0}, {"hashes", 0}, {"published", 0}, {NULL, 0}};
enum { T_KEPT, T_NARROW, T_USED };
static Slot of_tokens[] = {{"_kept", 0}, {"_narrow", 0}, {"_used", 0}, {NULL, 0}};
static Slot of_matrix[] = {{"_entries", 0}, {NULL, 0}};
enum { D_LANE, D_IDS, D_MEMBERS, D_NTH, D_BASE, D_PLACES };
static Slot of_decodes[] = {
    {"lane", 0}, {"ids", 0}, {"members", 0}, {"nth", 0}, {"base", 0}, {"places", 0}, {NULL, 0},
};

/* Classes, words and numbers that `methods` is told, once. */
static PyTypeObject *lane_type, *pool_type, *free_type, *ages_type, *cache_type, *index_type, *row_type, *tokens_type,
    *matrix_type, *decodes_type, *recorder_type;
static long long writing, committed_word, published_word;
static uint8_t kind_alloc, kind_write, kind_commit, kind_publish, kind_step_begin, kind_sched, kind_step_end,
    kind_witness;
static uint8_t decode; /* a reason */
static PyObject *empty, *int64, *int32; /* of numpy */
static PyObject *name_committed, *name_renew, *name_catch_up, *name_reserve, *name_tell_appended, *name_tell_published;

static inline int
is_a(PyObject *object, PyTypeObject *type)
{
    return object != NULL && Py_TYPE(object) == type;
}

/* -- where the arrays lie ----------------------------------------------------------------------------------------- */

enum { AT_KEPT, AT_TOTALS, AT_ORDER, AT_TOKENS, AT_MATRIX, AT_PAIRS, AT_LAST_USE, AT_RING, AT_PLACE, AT_DIGESTS,
       AT_IN_FRONT, AT_CONTENT, AT_RECORDS, ARRAYS };

/* The arrays that a lane was seen with last, each with the hold on its memory. It is kept in `Lane._desk`, as a
capsule; it holds arrays and bytes, nothing that could hold a lane. */
typedef struct {
    Py_buffer of[ARRAYS];
} Desk;

static const char desk_name[] = "kvscope.engine._lanes.desk";

static void
clear_desk(PyObject *capsule)
{
    Desk *desk = PyCapsule_GetPointer(capsule, desk_name);
    for (int i = 0; i < ARRAYS; i++) {
        PyBuffer_Release(&desk->of[i]); /* does nothing to one that was not got */
    }
    PyMem_Free(desk);
}

static Desk *
desk_of(PyObject *lane)
{
    PyObject *known = slot(lane, &of_lane[L_DESK]);
    if (known != NULL && PyCapsule_CheckExact(known)) {
        return PyCapsule_GetPointer(known, desk_name);
    }
    Desk *desk = PyMem_Calloc(1, sizeof(Desk));
    PyObject *capsule = desk == NULL ? NULL : PyCapsule_New(desk, desk_name, clear_desk);
    if (capsule == NULL) {
        PyMem_Free(desk);
        return NULL;
    }
    put_slot(lane, &of_lane[L_DESK], capsule);
    return desk;
}

/* The memory of an array, `bytes` of it at least; got only when it is another array than the last time. NULL: it is
none, or a smaller one. No exception is left behind. */
static void *
look(Desk *desk, int which, PyObject *array, Py_ssize_t bytes)
{
    Py_buffer *view = &desk->of[which];
    if (array == NULL) {
        return NULL;
    }
    if (view->obj != array) {
        PyBuffer_Release(view);
        if (PyObject_GetBuffer(array, view, PyBUF_CONTIG) < 0) {
            PyErr_Clear();
            view->obj = NULL;
            return NULL;
        }
    }
    return view->len >= bytes ? view->buf : NULL;
}

/* A lane, as one call sees it. */
typedef struct {
    PyObject *lane, *pool;
    PyObject *sink; /* whose ring the rows go to; NULL for none, and for one that is told in Python */
    int recorded, told; /* whether there is any sink, and whether it is told in Python */
    Desk *desk;
    Py_ssize_t rows, known; /* known: blocks of the pool */
    long long size, count;
    int64_t *kept, *blocks, *lives, *lblocks, *base, *before, *words, *ranges, *expected, *who; /* Lane._kept */
    int64_t (*pairs)[2]; /* word and life of each block */
} Sight;

/* What is in slots of the lane, and of its pool; borrowed. */
static inline PyObject *
mine(Sight *s, int which)
{
    return slot(s->lane, &of_lane[which]);
}

static inline PyObject *
pools(Sight *s, int which)
{
    return slot(s->pool, &of_pool[which]);
}

enum { BLOCKS, LIVES, LBLOCKS, BASE, COMPUTED, FRONT, SEQ_IDS, SINCE, IDENTITIES, BEFORE, WORDS, RANGES, EXPECTED, WHO,
       DIGESTS, LENGTHS, PARENTS, PARENTS_END, KINDS }; /* as in lane_move.py */

/* Of one kind what is kept of each row. */
static inline int64_t *
kept(Sight *s, int kind)
{
    return s->kept + kind * s->rows;
}

static int
see_kept(Sight *s)
{
    s->kept = look(s->desk, AT_KEPT, mine(s, L_KEPT), 8 * KINDS * s->rows);
    if (s->kept == NULL) {
        return 0;
    }
    s->blocks = kept(s, BLOCKS), s->lives = kept(s, LIVES), s->lblocks = kept(s, LBLOCKS), s->base = kept(s, BASE);
    s->before = kept(s, BEFORE), s->words = kept(s, WORDS), s->ranges = kept(s, RANGES);
    s->expected = kept(s, EXPECTED), s->who = kept(s, WHO);
    return 1;
}

/* 1: seen. 0: it is nothing for the functions here. */
static int
see(PyObject *lane, Sight *s)
{
    PyObject *pool = slot(lane, &of_lane[L_POOL]), *ids = slot(lane, &of_lane[L_IDS]), *sink;
    s->lane = lane, s->pool = pool;
    if (!is_a(pool, pool_type) || ids == NULL || !PyList_CheckExact(ids) ||
        (sink = slot(pool, &of_pool[P_SINK])) == NULL || (s->desk = desk_of(lane)) == NULL ||
        !slot_int(lane, &of_lane[L_SIZE], 1, 1 << 15, &s->size) ||
        !slot_int(lane, &of_lane[L_COUNT], 0, INT64_MAX, &s->count)) {
        PyErr_Clear();
        return 0;
    }
    s->recorded = sink != Py_None;
    s->told = s->recorded &&
              (sink != slot(lane, &of_lane[L_STRAIGHT]) || !PyObject_TypeCheck(sink, recorder_type));
    s->sink = s->recorded && !s->told ? sink : NULL;
    s->rows = PyList_GET_SIZE(ids);
    s->pairs = look(s->desk, AT_PAIRS, slot(pool, &of_pool[P_PAIRS]), 0);
    if (s->rows == 0 || s->pairs == NULL || !see_kept(s)) {
        return 0;
    }
    s->known = s->desk->of[AT_PAIRS].len / 16;
    for (Py_ssize_t i = 0; i < s->rows; i++) {
        if ((uint64_t)s->blocks[i] >= (uint64_t)s->known) {
            return 0;
        }
    }
    return 1;
}

/* The rows of `Lane.full`: how many, and where they are; -1 where they are not to be had. */
static Py_ssize_t
look_at_turn(Sight *s, const int64_t **at)
{
    const int64_t *order = look(s->desk, AT_ORDER, mine(s, L_ORDER), 8 * s->rows);
    PyObject *bounds = mine(s, L_BOUNDS);
    Py_ssize_t turn = (Py_ssize_t)((s->size - s->count % s->size) % s->size);
    long long lo, hi;
    if (order == NULL || bounds == NULL || !PyList_CheckExact(bounds) || PyList_GET_SIZE(bounds) <= turn + 1 ||
        !int_of(PyList_GET_ITEM(bounds, turn), 0, s->rows, &lo) ||
        !int_of(PyList_GET_ITEM(bounds, turn + 1), lo, s->rows, &hi)) {
        return -1;
    }
    *at = order + lo;
    for (Py_ssize_t i = (Py_ssize_t)lo; i < hi; i++) {
        if ((uint64_t)order[i] >= (uint64_t)s->rows) {
            return -1;
        }
    }
    return (Py_ssize_t)(hi - lo);
}

/* The table row of a sequence; borrowed. */
static PyObject *
seat(Sight *s, Py_ssize_t at)
{
    PyObject *seats = mine(s, L_SEATS), *row;
    if (seats == NULL || !PyList_CheckExact(seats) || at >= PyList_GET_SIZE(seats)) {
        return NULL;
    }
    row = PyList_GET_ITEM(seats, at);
    return is_a(row, row_type) ? row : NULL;
}

static int
leases_open(Sight *s)
{
    long long open;
    return !slot_int(s->pool, &of_pool[P_OPEN_LEASES], 0, 0, &open);
}

/* -- rows of the trace --------------------------------------------------------------------------------------------- */

/* `claim`, of rows that may lie around the end of the ring. */
static int
claim_rows(PyObject *sink, long long count, Claim *made)
{
    int claimed = claim(sink, count, 0, made);
    if (claimed == 0) {
        PyObject *number = PyLong_FromLongLong(count);
        PyObject *done = number == NULL ? NULL : PyObject_CallMethodOneArg(sink, name_reserve, number); /* Python */
        claimed = done == Py_True ? claim(sink, count, 0, made) : 0;
        Py_XDECREF(number);
        Py_XDECREF(done);
        PyErr_Clear();
    }
    return claimed;
}

static inline uint64_t
facts_of(int before, int after, int64_t fill, uint8_t kind, uint8_t reason)
{
    return (uint16_t)before | (uint64_t)(uint16_t)after << 16 | (uint64_t)(uint16_t)fill << 32 | (uint64_t)kind << 48 |
           (uint64_t)reason << 56;
}

/* In words of 8 bytes, in their order, the mark last. */
static inline void
store_row(const Claim *made, int64_t seq, int64_t aux, int64_t life, int64_t who, uint64_t facts)
{
    uint64_t *to = (uint64_t *)&made->ring[seq & made->mask];
    memcpy(to, &made->common, 16); /* moment, step and place */
    to[2] = (uint64_t)aux, to[3] = (uint64_t)life, to[4] = (uint64_t)who, to[5] = facts;
    __atomic_store_n(&to[6], (uint64_t)(seq + 1), __ATOMIC_RELEASE); /* as `commit_row` */
}

static Record *
look_at_records(Sight *s)
{
    return look(s->desk, AT_RECORDS, get(s->sink, RECORDS), 0);
}

static inline void
store_detail(Record *records, const Claim *made, int64_t seq, const int64_t *values, int count)
{
    Record *record = &records[seq & made->mask];
    memcpy(record->values + 8 - count, values, (size_t)count * 8);
    record->mark = (seq + 1) * 16 + count;
}

static int64_t
store_commits(Sight *s, const Claim *made, int64_t seq)
{
    for (Py_ssize_t i = 0; i < s->rows; i++) {
        store_row(made, seq + i, 0, s->lives[i], s->who[i], facts_of(1, 1, s->words[i], kind_commit, 0));
    }
    return seq + s->rows;
}

/* -- Lane.writable ------------------------------------------------------------------------------------------------- */

/* 1, 0: whether it is. -1: to be asked in Python. */
static int
writable_common(Sight *s)
{
    if (leases_open(s)) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < s->rows; i++) {
        if (s->pairs[s->blocks[i]][0] >= published_word && (s->base[i] + s->count) % s->size != 0) {
            return 0;
        }
    }
    return 1;
}

static PyObject *
writable(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Sight s;
    int is = nargs == 0 && kwnames == NULL && see(self, &s) ? writable_common(&s) : -1;
    return is < 0 ? in_python("writable_python", self, args, nargs, kwnames) : PyBool_FromLong(is);
}

/* -- Lane.append --------------------------------------------------------------------------------------------------- */

static const int64_t NEXT_LIFE = 1LL << 32, NEXT_SLOT = 1LL << 32 | 1;

/* schema.digest_word */
static uint64_t
digest_word(int64_t life, int64_t lblock)
{
    uint64_t x = (uint64_t)life ^ (uint64_t)(lblock + 1) * 0x9E3779B97F4A7C15;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
    x = (x ^ x >> 27) * 0x94D049BB133111EB;
    return x ^ x >> 31;
}

/* TokenColumns.add, but for `_used`, which is `*used` after it. 0: not with these tokens. What is stored is not known
to be there before `_used` says so. */
static int
store_tokens(Sight *s, PyObject *tokens, long long *used)
{
    PyObject *columns = mine(s, L_TOKENS);
    int listed = PyList_CheckExact(tokens);
    if (!is_a(columns, tokens_type) || slot(columns, &of_tokens[T_NARROW]) != Py_True ||
        (!listed && !PyTuple_CheckExact(tokens)) || PySequence_Fast_GET_SIZE(tokens) != s->rows) {
        return 0;
    }
    int32_t *kept = look(s->desk, AT_TOKENS, slot(columns, &of_tokens[T_KEPT]), 0);
    Py_ssize_t room = kept == NULL ? 0 : s->desk->of[AT_TOKENS].len / (4 * s->rows);
    if (room == 0 || !slot_int(columns, &of_tokens[T_USED], 0, room, used)) {
        return 0;
    }
    if (*used == room) {
        PyObject *done = PyObject_CallMethodNoArgs(s->lane, name_catch_up); /* Python: appends to lists of tokens */
        Py_XDECREF(done);
        if (done == NULL || !slot_int(columns, &of_tokens[T_USED], 0, room - 1, used)) {
            return PyErr_Occurred() ? -1 : 0;
        }
    }
    int32_t *to = kept + *used * s->rows;
    PyObject **items = PySequence_Fast_ITEMS(tokens);
    for (Py_ssize_t i = 0; i < s->rows; i++) {
        long long token;
        if (!PyLong_CheckExact(items[i]) || !int_of(items[i], INT32_MIN, INT32_MAX, &token)) {
            return 0;
        }
        to[i] = (int32_t)token;
    }
    ++*used;
    return 1;
}

/* What the rows that take a fresh block change. */
typedef struct {
    Py_ssize_t count;
    const int64_t *at;
    PyObject *free;
    long long head, filed, capacity, held, last_use;
    int64_t *ring, *used_in; /* free blocks; by block the step that used it last, NULL where that need not be told */
    int64_t *totals;
    int32_t *entries; /* of the matrix, NULL if there is none */
    Py_ssize_t width;
} Taking;

/* 1: all of it is there. 0: it is to be done in Python. */
static int
look_at_blocks(Sight *s, Taking *t)
{
    PyObject *ahead, *users = pools(s, P_USERS), *matrix = mine(s, L_MATRIX);
    long long newest;
    t->free = pools(s, P_FREE);
    if (!is_a(t->free, free_type) || (ahead = slot(t->free, &of_free[F_AHEAD])) == NULL || !PyList_CheckExact(ahead) ||
        PyList_GET_SIZE(ahead) > 0 || !slot_int(t->free, &of_free[F_CAPACITY], 1, INT32_MAX, &t->capacity) ||
        !slot_int(t->free, &of_free[F_FILED], t->count, t->capacity, &t->filed) ||
        !slot_int(t->free, &of_free[F_HEAD], 0, t->capacity - 1, &t->head) ||
        !slot_int(s->pool, &of_pool[P_NUM_HELD], 0, INT32_MAX, &t->held) || users == NULL ||
        !PyList_CheckExact(users) ||
        (t->ring = look(s->desk, AT_RING, slot(t->free, &of_free[F_RING]), 8 * t->capacity)) == NULL) {
        return 0;
    }
    t->used_in = NULL;
    if (PyList_GET_SIZE(users) > 0) {
        t->used_in = look(s->desk, AT_LAST_USE, pools(s, P_LAST_USE), 8 * s->known);
        if (t->used_in == NULL || !slot_int(s->pool, &of_pool[P_NEWEST_USE], -1, INT64_MAX - 2, &newest)) {
            return 0;
        }
        t->last_use = -2 - newest;
    }
    t->entries = NULL;
    if (matrix != Py_None) {
        PyObject *entries = is_a(matrix, matrix_type) ? slot(matrix, &of_matrix[0]) : NULL;
        if ((t->entries = look(s->desk, AT_MATRIX, entries, 4 * s->rows)) == NULL) {
            return 0;
        }
        t->width = s->desk->of[AT_MATRIX].len / (4 * s->rows);
    }
    if (s->recorded) {
        if ((t->totals = look(s->desk, AT_TOTALS, mine(s, L_TOTALS), 16)) == NULL) {
            return 0;
        }
    }
    for (Py_ssize_t i = 0; i < t->count; i++) {
        PyObject *row = seat(s, t->at[i]), *blocks, *gens;
        if (row == NULL || (uint64_t)t->ring[(t->head + i) % t->capacity] >= (uint64_t)s->known ||
            (t->entries != NULL && s->lblocks[t->at[i]] + 1 >= t->width) ||
            (blocks = slot(row, &of_row[R_BLOCKS])) == NULL || !PyList_CheckExact(blocks) ||
            (gens = slot(row, &of_row[R_GENS])) == NULL || !PyList_CheckExact(gens)) {
            return 0;
        }
    }
    return 1;
}

static int
append_number(PyObject *list, long long number)
{
    PyObject *value = PyLong_FromLongLong(number);
    int failed = value == NULL || PyList_Append(list, value) < 0;
    Py_XDECREF(value);
    return failed ? -1 : 0;
}

/* Lane._take, for the i-th of the rows that take a block; its row of the trace goes to `seq`. */
static int
take(Sight *s, Taking *t, Py_ssize_t i, const Claim *made, int64_t seq)
{
    int64_t at = t->at[i], block = t->ring[(t->head + i) % t->capacity], lblock = s->lblocks[at] + 1;
    int64_t life = s->pairs[block][1] += NEXT_LIFE;
    PyObject *row = seat(s, at);
    if (t->used_in != NULL) {
        t->used_in[block] = t->last_use;
    }
    s->before[at] = s->blocks[at];
    s->blocks[at] = block, s->lives[at] = life, s->lblocks[at] = lblock;
    s->words[at] = writing, s->ranges[at] = -1; /* one slot before the first */
    s->who[at] += NEXT_LIFE;
    if (t->entries != NULL) {
        t->entries[at * t->width + lblock] = (int32_t)block;
    }
    if (s->recorded) {
        uint64_t digest = digest_word(life, lblock);
        kept(s, DIGESTS)[at] = (int64_t)((uint64_t)kept(s, DIGESTS)[at] + digest);
        kept(s, LENGTHS)[at] = lblock + 1;
        t->totals[0]++;
        t->totals[1] = (int64_t)((uint64_t)t->totals[1] + digest);
    }
    if (s->sink != NULL) {
        store_row(made, seq, 0, life, s->who[at], facts_of(0, 1, 0, kind_alloc, decode));
    }
    int failed = append_number(slot(row, &of_row[R_BLOCKS]), block);
    return append_number(slot(row, &of_row[R_GENS]), life >> 32) | failed;
}

/* The blocks that are taken leave the free list. */
static int
hand_out(Sight *s, Taking *t)
{
    put_slot(s->lane, &of_lane[L_STALE], Py_NewRef(Py_True));
    return put_int(t->free, &of_free[F_HEAD], (t->head + t->count) % t->capacity) < 0 ||
                   put_int(t->free, &of_free[F_FILED], t->filed - t->count) < 0 ||
                   put_int(s->pool, &of_pool[P_NUM_HELD], t->held + t->count) < 0
               ? -1
               : 0;
}

/* A step still to end knows the arrays as they are: `Lane._renew`. */
static int
have_own_arrays(Sight *s)
{
    long long landed;
    if (slot_int(s->lane, &of_lane[L_LANDED], s->count, s->count, &landed)) {
        return 1;
    }
    PyObject *done = PyObject_CallMethodNoArgs(s->lane, name_renew); /* Python: makes arrays */
    Py_XDECREF(done);
    return done == NULL ? -1 : see_kept(s);
}

/* Call a method of the lane with up to two arguments. */
static int
tell(PyObject *lane, PyObject *name, PyObject *first, PyObject *second)
{
    PyObject *done = PyObject_CallMethodObjArgs(lane, name, first, second, NULL);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* 1: done. 0: it is not the common case, and nothing was changed. -1: an exception is set. */
static int
append_common(Sight *s, PyObject *tokens)
{
    Claim made;
    Taking t = {.count = 0};
    long long used, uneven;
    int good = store_tokens(s, tokens, &used);
    if (good <= 0 || !slot_int(s->lane, &of_lane[L_UNEVEN], 0, INT64_MAX, &uneven) ||
        (t.count = look_at_turn(s, &t.at)) < 0) {
        return good < 0 ? -1 : 0;
    }
    if (t.count > 0 && ((good = have_own_arrays(s)) <= 0 || (good = look_at_blocks(s, &t)) <= 0)) {
        return good;
    }
    if (s->sink != NULL && (good = claim_rows(s->sink, t.count + s->rows, &made)) <= 0) {
        return good;
    }
    /* From here on everything is done, whatever fails: the rows of the trace are claimed. */
    int failed = 0;
    for (Py_ssize_t i = 0; i < t.count; i++) {
        failed |= take(s, &t, i, &made, made.seq + i);
    }
    failed |= t.count > 0 ? hand_out(s, &t) : 0;
    int even = ++s->count > uneven;
    for (Py_ssize_t i = 0; i < s->rows; i++) {
        int64_t range = s->ranges[i] += NEXT_SLOT, least = range >> 32 | writing, word = s->words[i];
        word = even ? word + 1 : word > least ? word : least;
        s->pairs[s->blocks[i]][0] = s->words[i] = word;
        if (s->sink != NULL) {
            uint64_t facts = facts_of(1, 1, word, kind_write, decode);
            store_row(&made, made.seq + t.count + i, range, s->lives[i], s->who[i], facts);
        }
    }
    failed |= put_int(mine(s, L_TOKENS), &of_tokens[T_USED], used);
    failed |= put_int(s->lane, &of_lane[L_COUNT], s->count);
    return failed || (s->told && tell(s->lane, name_tell_appended, NULL, NULL) < 0) ? -1 : 1;
}

static PyObject *
append(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Sight s;
    int done = nargs == 1 && kwnames == NULL && see(self, &s) ? append_common(&s, args[0]) : 0;
    if (done <= 0) {
        return done < 0 ? NULL : in_python("append_python", self, args, nargs, kwnames);
    }
    PyObject *facts[] = {self, mine(&s, L_IDS), mine(&s, L_MEMBERS), mine(&s, L_COUNT), mine(&s, L_BASE),
                         mine(&s, L_PLACES)};
    PyObject *made = decodes_type->tp_alloc(decodes_type, 0); /* Decodes(*facts) */
    for (int i = 0; made != NULL && i < (int)Py_ARRAY_LENGTH(facts); i++) {
        put_slot(made, &of_decodes[i], Py_XNewRef(facts[i]));
    }
    return made;
}

/* -- Lane.schedule ------------------------------------------------------------------------------------------------- */

static int
schedule_common(Sight *s, PyObject *number)
{
    Claim made;
    long long members;
    Record *records;
    if (s->sink == NULL || !int_of(number, 0, INT64_MAX, &members) ||
        (records = look_at_records(s)) == NULL) {
        return 0;
    }
    int claimed = claim_rows(s->sink, 1 + s->rows, &made);
    if (claimed <= 0) {
        return claimed;
    }
    const int64_t *digests = kept(s, DIGESTS), *lengths = kept(s, LENGTHS), *front = kept(s, FRONT);
    const int64_t *seq_ids = kept(s, SEQ_IDS);
    store_row(&made, made.seq, members, -1, -1, facts_of(-1, -1, -1, kind_step_begin, 0));
    for (Py_ssize_t i = 0; i < s->rows; i++) {
        int64_t end = s->base[i] + s->count, seq = made.seq + 1 + i, table[2] = {digests[i], lengths[i]};
        store_detail(records, &made, seq, table, 2);
        store_row(&made, seq, (int64_t)((uint32_t)front[i] | (uint64_t)end << 32), -1,
                  (int64_t)((uint32_t)seq_ids[i] | (uint64_t)(end - 1) << 32), facts_of(-1, -1, 1, kind_sched, 0));
    }
    return 1;
}

static PyObject *
schedule(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Sight s;
    int done = nargs == 1 && kwnames == NULL && see(self, &s) ? schedule_common(&s, args[0]) : 0;
    if (done == 0) {
        return in_python("schedule_python", self, args, nargs, kwnames);
    }
    return done < 0 ? NULL : Py_NewRef(Py_None);
}

/* -- Lane.commit, Lane.record_commit ------------------------------------------------------------------------------- */

/* 1: done. 0: nothing was changed, as it is not to be done. -1: to be done in Python. -2: an exception is set. */
static int
commit_common(Sight *s, PyObject *decodes)
{
    long long nth;
    if (Py_TYPE(decodes) != decodes_type || leases_open(s)) {
        return -1;
    }
    if (mine(s, L_INTACT) != Py_True || slot(decodes, &of_decodes[D_IDS]) != mine(s, L_IDS) ||
        !slot_int(decodes, &of_decodes[D_NTH], s->count, s->count, &nth)) {
        return 0; /* it is not the latest */
    }
    for (Py_ssize_t i = 0; i < s->rows; i++) {
        const int64_t *pair = s->pairs[s->blocks[i]];
        if (pair[0] != s->words[i] || pair[1] != s->lives[i]) {
            return 0;
        }
    }
    for (Py_ssize_t i = 0; i < s->rows; i++) {
        s->pairs[s->blocks[i]][0] = s->expected[i] = s->words[i] + (committed_word - writing);
    }
    return put_int(s->lane, &of_lane[L_LANDED], s->count) < 0 ? -2 : 1;
}

static PyObject *
commit(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Sight s;
    int done = nargs == 1 && kwnames == NULL && see(self, &s) ? commit_common(&s, args[0]) : -1;
    if (done == -1) {
        return in_python("commit_python", self, args, nargs, kwnames);
    }
    return done < 0 ? NULL : PyBool_FromLong(done);
}

/* As `append_common`. */
static int
record_commit_common(Sight *s)
{
    Claim made;
    int claimed = s->sink == NULL ? !s->told : claim_rows(s->sink, s->rows, &made);
    if (claimed > 0 && s->sink != NULL) {
        store_commits(s, &made, made.seq);
    }
    return claimed;
}

static PyObject *
record_commit(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Sight s;
    int done = nargs == 0 && kwnames == NULL && see(self, &s) ? record_commit_common(&s) : 0;
    if (done == 0) {
        return in_python("record_commit_python", self, args, nargs, kwnames);
    }
    return done < 0 ? NULL : Py_NewRef(Py_None);
}

/* -- Lane.publish -------------------------------------------------------------------------------------------------- */

enum { BEHIND = 2, KEY_BYTES = 7 };

/* The blocks that are full: where everything lies that is known of them. */
typedef struct {
    Py_ssize_t count, width; /* width: bytes of the tokens of a block */
    const int64_t *at;
    PyObject *block_of, *behind, *computing; /* dictionaries of the index and the cache; behind: or None */
    const char *key;
    Py_ssize_t key_size;
    const int32_t *kept; /* the tokens of the last steps, a row each */
    long long used;
    uint8_t *place, *digests, *parents, *content; /* of the index, by block */
    int64_t *details; /* room for, by row: what PUBLISH says, two hashes, what is hashed */
    uint8_t *chained, *alone, *messages;
} Turned;

/* 1: all of it is there. 0: it is to be done in Python. */
static int
look_at_index(Sight *s, PyObject *cache, Turned *t)
{
    PyObject *index = pools(s, P_INDEX), *columns = mine(s, L_TOKENS), *key;
    long long width;
    t->width = 4 * s->size;
    if (!is_a(index, index_type) || slot(index, &of_index[I_PLAIN]) != Py_True || !is_a(columns, tokens_type) ||
        !slot_int(index, &of_index[I_WIDTH], t->width + 1, t->width + 1, &width) ||
        slot(columns, &of_tokens[T_NARROW]) != Py_True) {
        return 0;
    }
    t->block_of = slot(index, &of_index[I_BLOCK_OF]), t->behind = slot(index, &of_index[I_BEHIND]);
    t->computing = slot(cache, &of_cache[C_COMPUTING]);
    key = slot(index, &of_index[I_KEY]);
    t->place = look(s->desk, AT_PLACE, slot(index, &of_index[I_PLACE]), s->known);
    t->digests = look(s->desk, AT_DIGESTS, slot(index, &of_index[I_DIGESTS]), DIGEST * s->known);
    t->parents = look(s->desk, AT_IN_FRONT, slot(index, &of_index[I_PARENTS]), DIGEST * s->known);
    t->content = look(s->desk, AT_CONTENT, slot(index, &of_index[I_TOKENS]), (t->width + 1) * s->known);
    t->kept = look(s->desk, AT_TOKENS, slot(columns, &of_tokens[T_KEPT]), t->width * s->rows);
    if (t->block_of == NULL || !PyDict_CheckExact(t->block_of) || t->behind == NULL ||
        (t->behind != Py_None && !PyDict_CheckExact(t->behind)) || t->computing == NULL ||
        !PyDict_CheckExact(t->computing) || key == NULL || !PyBytes_CheckExact(key) || PyBytes_GET_SIZE(key) > 64 ||
        t->place == NULL || t->digests == NULL || t->parents == NULL || t->content == NULL || t->kept == NULL ||
        !slot_int(columns, &of_tokens[T_USED], s->size, s->desk->of[AT_TOKENS].len / (4 * s->rows), &t->used)) {
        return 0;
    }
    t->key = PyBytes_AS_STRING(key), t->key_size = PyBytes_GET_SIZE(key);
    return 1;
}

/* The hash of the block in front of the last one of a row. */
static void
copy_parent(Sight *s, int64_t at, uint8_t *hash)
{
    memcpy(hash, &kept(s, PARENTS)[at], 8);
    memcpy(hash + 8, &kept(s, PARENTS_END)[at], 8);
}

/* 1: each of them is published behind its block in front, which the index still has. 0: not so. -1: an exception. */
static int
look_at_rows(Sight *s, Turned *t)
{
    PyObject *ragged = mine(s, L_RAGGED);
    if (ragged == NULL || !PySet_Check(ragged)) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < t->count; i++) {
        int64_t at = t->at[i], front = s->before[at];
        uint8_t parent[DIGEST];
        PyObject *row = seat(s, at), *hashes;
        copy_parent(s, at, parent);
        if ((uint64_t)front >= (uint64_t)s->known || row == NULL || (hashes = slot(row, &of_row[R_HASHES])) == NULL ||
            !PyList_CheckExact(hashes) || memcmp(t->digests + front * DIGEST, parent, DIGEST) != 0) {
            return 0;
        }
        if (PySet_GET_SIZE(ragged) > 0) {
            PyObject *number = PyLong_FromLongLong(at);
            int is = number == NULL ? -1 : PySet_Contains(ragged, number);
            Py_XDECREF(number);
            if (is != 0) {
                return is < 0 ? -1 : 0;
            }
        }
    }
    return 1;
}

/* The message whose hash a block is found by, as `PrefixIndex.children` makes it, and within it that of the tokens:

    16 as 4 bytes, the hash in front, `width` + 1 as 4 bytes, "i", the tokens
                     6 as 4 bytes, "tokens", `width` + 1 ...     the other hash */
enum { LETTER = 4 + DIGEST + 4, HEAD = LETTER + 1, OTHER = HEAD - 15 };

static void
put_head(uint8_t *message, Py_ssize_t width)
{
    uint32_t first = DIGEST, second = (uint32_t)width + 1;
    memcpy(message, &first, 4);
    memcpy(message + 4 + DIGEST, &second, 4);
    message[LETTER] = 'i';
}

static void
put_other_head(uint8_t *message)
{
    uint32_t first = 6;
    memcpy(message + OTHER, &first, 4);
    memcpy(message + OTHER + 4, "tokens", 6);
}

/* 1: hashed. 0: some prompt waits for one of these blocks. -1: an exception is set. */
static int
hash_blocks(Sight *s, Turned *t)
{
    Hash keyed;
    begin_hash(&keyed, t->key, (size_t)t->key_size);
    for (Py_ssize_t i = 0; i < t->count; i++) {
        int64_t at = t->at[i];
        uint8_t *message = t->messages + i * (HEAD + t->width), *chained = t->chained + i * DIGEST;
        put_head(message, t->width);
        copy_parent(s, at, message + 4);
        for (long long step = 0; step < s->size; step++) {
            memcpy(message + HEAD + 4 * step, &t->kept[(t->used - s->size + step) * s->rows + at], 4);
        }
        end_hash(keyed, message, (size_t)(HEAD + t->width), chained);
        if (s->recorded) {
            put_other_head(message);
            end_hash(keyed, message + OTHER, (size_t)(HEAD - OTHER + t->width), t->alone + i * DIGEST);
        }
        if (PyDict_GET_SIZE(t->computing) > 0) {
            PyObject *hash = PyBytes_FromStringAndSize((char *)chained, DIGEST);
            int awaited = hash == NULL ? -1 : PyDict_Contains(t->computing, hash);
            Py_XDECREF(hash);
            if (awaited != 0) {
                return awaited < 0 ? -1 : 0;
            }
        }
    }
    return 1;
}

static PyObject *
key_of(const uint8_t *digest)
{
    uint64_t key = 0;
    memcpy(&key, digest, KEY_BYTES);
    return PyLong_FromUnsignedLongLong(key);
}

/* Take the first `count` of the blocks out of the index again. */
static int
withdraw_prefixes(Turned *t, Py_ssize_t count)
{
    int failed = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *key = key_of(t->chained + i * DIGEST);
        failed |= key == NULL || PyDict_DelItem(t->block_of, key) < 0;
        Py_XDECREF(key);
    }
    return failed ? -1 : 0;
}

/* Enter the blocks under their hashes. 0, and nothing done: some prefix is served already. */
static int
claim_prefixes(Sight *s, Turned *t)
{
    for (Py_ssize_t i = 0; i < t->count; i++) {
        long long number = s->blocks[t->at[i]];
        PyObject *key = key_of(t->chained + i * DIGEST), *block = PyLong_FromLongLong(number);
        PyObject *entered = key == NULL || block == NULL ? NULL : PyDict_SetDefault(t->block_of, key, block);
        int result = entered == NULL ? -1 : entered == block || PyLong_AsLongLong(entered) == number;
        Py_XDECREF(key);
        Py_XDECREF(block);
        if (result <= 0) {
            return withdraw_prefixes(t, i) < 0 ? -1 : result;
        }
    }
    return 1;
}

/* PrefixIndex._stands_behind */
static int
stands_behind(PyObject *behind, const uint8_t *parent, int64_t block)
{
    PyObject *hash = PyBytes_FromStringAndSize((const char *)parent, DIGEST), *number = PyLong_FromLongLong(block);
    PyObject *known = hash == NULL || number == NULL ? NULL : PyDict_SetDefault(behind, hash, number); /* borrowed */
    int failed = known == NULL;
    if (!failed && PySet_Check(known)) {
        failed = PySet_Add(known, number) < 0;
    }
    else if (!failed && PyLong_AsLongLong(known) != block) {
        PyObject *both = PySet_New(NULL);
        failed = both == NULL || PySet_Add(both, known) < 0 || PySet_Add(both, number) < 0 ||
                 PyDict_SetItem(behind, hash, both) < 0;
        Py_XDECREF(both);
    }
    Py_XDECREF(hash);
    Py_XDECREF(number);
    return failed ? -1 : 0;
}

/* All that knows of the i-th block learns that it is published; its row of the trace goes to `seq`. */
static int
enter(Sight *s, Turned *t, Py_ssize_t i, const Claim *made, Record *records, int64_t seq)
{
    int64_t at = t->at[i], block = s->blocks[at];
    uint8_t *chained = t->chained + i * DIGEST, parent[DIGEST];
    const uint8_t *packed = t->messages + i * (HEAD + t->width) + LETTER;
    copy_parent(s, at, parent);
    if (s->recorded) {
        int64_t *values = t->details + 4 * i;
        memcpy(&values[0], parent, 8);
        memcpy(&values[1], t->alone + i * DIGEST, 8);
        memcpy(&values[2], chained, 8);
        values[3] = kept(s, IDENTITIES)[at];
    }
    if (s->sink != NULL) {
        store_detail(records, made, seq, t->details + 4 * i, 4);
        store_row(made, seq, 0, s->lives[at], s->who[at], facts_of(1, 1, s->size, kind_publish, 0));
    }
    int failed = t->behind != Py_None ? stands_behind(t->behind, parent, block) : 0;
    memcpy(t->digests + block * DIGEST, chained, DIGEST);
    memcpy(t->parents + block * DIGEST, parent, DIGEST);
    memcpy(t->content + block * (t->width + 1), packed, (size_t)t->width + 1);
    t->place[block] = BEHIND;
    s->pairs[block][0] = s->expected[at] = published_word | s->size;
    memcpy(&kept(s, PARENTS)[at], chained, 8);
    memcpy(&kept(s, PARENTS_END)[at], chained + 8, 8);
    PyObject *row = seat(s, at), *hash = PyBytes_FromStringAndSize((char *)chained, DIGEST);
    long long published;
    failed |= hash == NULL || PyList_Append(slot(row, &of_row[R_HASHES]), hash) < 0;
    Py_XDECREF(hash);
    int known = slot_int(row, &of_row[R_PUBLISHED], 0, INT32_MAX, &published);
    return failed || !known || put_int(row, &of_row[R_PUBLISHED], published + 1) < 0 ? -1 : 0;
}

static int
tell_published(Sight *s, Turned *t, int committed)
{
    Py_buffer view;
    PyObject *details = PyObject_CallFunction(empty, "(nn)O", t->count, (Py_ssize_t)4, int64);
    if (details == NULL || PyObject_GetBuffer(details, &view, PyBUF_CONTIG) < 0) {
        Py_XDECREF(details);
        return -1;
    }
    memcpy(view.buf, t->details, (size_t)t->count * 32);
    PyBuffer_Release(&view);
    int done = tell(s->lane, name_tell_published, details, committed ? Py_True : Py_False);
    Py_DECREF(details);
    return done;
}

/* With room for the hashes and tokens; as `append_common`. */
static int
publish_turned(Sight *s, Turned *t, int committed)
{
    Claim made;
    Record *records = s->sink == NULL ? NULL : look_at_records(s);
    int done = s->sink != NULL && records == NULL ? 0 : hash_blocks(s, t);
    if (done <= 0 || (done = claim_prefixes(s, t)) <= 0) {
        return done;
    }
    if (s->sink != NULL && (done = claim_rows(s->sink, t->count + (committed ? 0 : s->rows), &made)) <= 0) {
        return withdraw_prefixes(t, t->count) < 0 ? -1 : done;
    }
    /* From here on everything is done, whatever fails. */
    int64_t seq = s->sink == NULL ? 0 : committed ? made.seq : store_commits(s, &made, made.seq);
    int failed = 0;
    for (Py_ssize_t i = 0; i < t->count; i++) {
        failed |= enter(s, t, i, &made, records, seq + i);
    }
    return failed || (s->told && tell_published(s, t, committed) < 0) ? -1 : 1;
}

/* As `append_common`. */
static int
publish_common(Sight *s, int committed)
{
    Turned t;
    PyObject *cache = mine(s, L_PREFIXES);
    if (!is_a(cache, cache_type) || (t.count = look_at_turn(s, &t.at)) < 0) {
        return 0;
    }
    PyObject *share = slot(cache, &of_cache[C_SHARE]);
    if (t.count == 0 || share == Py_False) {
        return committed ? 1 : record_commit_common(s);
    }
    int good = share == Py_True && look_at_index(s, cache, &t) ? look_at_rows(s, &t) : 0;
    if (good <= 0) {
        return good;
    }
    t.details = PyMem_Malloc((size_t)(t.count * (32 + 2 * DIGEST + HEAD + t.width)));
    if (t.details == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    t.chained = (uint8_t *)(t.details + 4 * t.count), t.alone = t.chained + t.count * DIGEST;
    t.messages = t.alone + t.count * DIGEST;
    good = publish_turned(s, &t, committed);
    PyMem_Free(t.details);
    return good;
}

static PyObject *
publish(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Sight s;
    int committed = 0, common = nargs == 0;
    if (common && kwnames != NULL) {
        common = PyTuple_GET_SIZE(kwnames) == 1 && PyTuple_GET_ITEM(kwnames, 0) == name_committed &&
                 PyBool_Check(args[0]);
        committed = common && args[0] == Py_True;
    }
    int done = common && see(self, &s) ? publish_common(&s, committed) : 0;
    if (done == 0) {
        return in_python("publish_python", self, args, nargs, kwnames);
    }
    return done < 0 ? NULL : Py_NewRef(Py_None);
}

/* -- Lane.record_end ----------------------------------------------------------------------------------------------- */

/* BlockArrays.tally without leases, and the totals of the tables. 0: to be asked in Python. */
static int
count_all(Sight *s, int64_t values[8])
{
    PyObject *free = pools(s, P_FREE), *cached = pools(s, P_CACHED), *fenced = pools(s, P_FENCED);
    PyObject *quarantined = pools(s, P_QUARANTINED);
    const int64_t *totals = look(s->desk, AT_TOTALS, mine(s, L_TOTALS), 16);
    long long filed, held, shared, ages;
    if (leases_open(s) || totals == NULL || !is_a(free, free_type) || !is_a(cached, ages_type) ||
        !is_a(slot(free, &of_free[F_AHEAD]), &PyList_Type) || !is_a(slot(free, &of_free[F_BEHIND]), &PyList_Type) ||
        !is_a(fenced, &PyDict_Type) || !is_a(quarantined, &PyDict_Type) ||
        !slot_int(free, &of_free[F_FILED], 0, INT32_MAX, &filed) ||
        !slot_int(s->pool, &of_pool[P_NUM_HELD], 0, INT32_MAX, &held) ||
        !slot_int(s->pool, &of_pool[P_NUM_SHARED], 0, INT32_MAX, &shared) ||
        !slot_int(cached, &of_ages[0], 0, INT32_MAX, &ages)) {
        return 0;
    }
    values[0] = filed + PyList_GET_SIZE(slot(free, &of_free[F_AHEAD]));
    values[0] += PyList_GET_SIZE(slot(free, &of_free[F_BEHIND]));
    values[1] = held - shared, values[2] = shared, values[3] = ages + PyDict_GET_SIZE(fenced);
    values[4] = PyDict_GET_SIZE(quarantined), values[5] = 0;
    values[6] = totals[0], values[7] = totals[1];
    return 1;
}

/* As `append_common`. */
static int
record_end_common(Sight *s, PyObject *tokens, PyObject *sequences)
{
    Claim made;
    int64_t values[8];
    long long computed, count;
    Record *records;
    PyObject *rows = mine(s, L_ROWS), *gone = mine(s, L_GONE);
    if (s->sink == NULL || !is_a(rows, &PyDict_Type) || !is_a(gone, &PyList_Type) || PyList_GET_SIZE(gone) > 0 ||
        !int_of(sequences, PyDict_GET_SIZE(rows), PyDict_GET_SIZE(rows), &count) ||
        !int_of(tokens, 0, INT64_MAX, &computed) || !count_all(s, values) || (records = look_at_records(s)) == NULL) {
        return 0;
    }
    int claimed = claim_rows(s->sink, 2, &made);
    if (claimed > 0) {
        store_row(&made, made.seq, computed, -1, -1, facts_of(-1, -1, -1, kind_step_end, 0));
        store_detail(records, &made, made.seq + 1, values, 8);
        store_row(&made, made.seq + 1, 0, -1, -1, facts_of(-1, -1, -1, kind_witness, 0));
    }
    return claimed;
}

static PyObject *
record_end(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Sight s;
    int done = nargs == 2 && kwnames == NULL && see(self, &s) ? record_end_common(&s, args[0], args[1]) : 0;
    if (done == 0) {
        return in_python("record_end_python", self, args, nargs, kwnames);
    }
    return done < 0 ? NULL : Py_NewRef(Py_True);
}

/* -- Lane._move: who is in it has changed -------------------------------------------------------------------------- */

/* What is done to every array: which columns go, how many there were, and how many stay. */
typedef struct {
    Py_ssize_t before, stay, joining, count, *gone;
} Columns;

/* 1: known; `gone` is to be freed. 0: not straight, or nothing for the functions here. */
static int
look_at_move(PyObject *move, PyObject *facts, PyObject *tokens, Py_ssize_t before, Columns *c)
{
    PyObject *gone;
    if (!PyTuple_Check(move) || PyTuple_GET_SIZE(move) != 2 || PyTuple_GET_ITEM(move, 1) != Py_None ||
        !PyList_CheckExact(gone = PyTuple_GET_ITEM(move, 0)) || !PyList_CheckExact(facts) ||
        !PyList_CheckExact(tokens) || PyList_GET_SIZE(tokens) != PyList_GET_SIZE(facts)) {
        return 0;
    }
    c->before = before, c->joining = PyList_GET_SIZE(facts), c->count = PyList_GET_SIZE(gone);
    c->stay = before - c->count;
    c->gone = PyMem_Malloc((size_t)(c->count + 1) * sizeof(Py_ssize_t));
    int good = c->gone != NULL && c->stay > 0;
    long long at = -1;
    for (Py_ssize_t i = 0; good && i < c->count; i++) {
        good = int_of(PyList_GET_ITEM(gone, i), at + 1, before - 1, &at);
        c->gone[i] = (Py_ssize_t)at;
    }
    if (!good) {
        PyMem_Free(c->gone);
    }
    return good;
}

/* One row of an array without the columns that go. */
static void
move_row(const Columns *c, char *to, const char *from, Py_ssize_t size)
{
    Py_ssize_t lo = 0;
    for (Py_ssize_t i = 0; i <= c->count; i++) {
        Py_ssize_t hi = i < c->count ? c->gone[i] : c->before;
        memcpy(to, from + lo * size, (size_t)((hi - lo) * size));
        to += (hi - lo) * size, lo = hi + 1;
    }
}

/* The array after the move, and its memory; NULL: an exception is set. */
static PyObject *
moved(const Columns *c, const char *from, Py_ssize_t rows, Py_ssize_t room, PyObject *dtype, Py_ssize_t size,
      Py_buffer *view)
{
    Py_ssize_t after = c->stay + c->joining;
    PyObject *array = PyObject_CallFunction(empty, "(nn)O", room, after, dtype);
    if (array == NULL || PyObject_GetBuffer(array, view, PyBUF_CONTIG) < 0) {
        Py_XDECREF(array);
        return NULL;
    }
    for (Py_ssize_t row = 0; row < rows; row++) {
        move_row(c, (char *)view->buf + row * after * size, from + row * c->before * size, size);
    }
    return array;
}

/* The facts of the rows that join. 0: they are not such facts. */
static int
put_facts(const Columns *c, PyObject *facts, int64_t *array)
{
    for (Py_ssize_t i = 0; i < c->joining; i++) {
        PyObject *of = PyList_GET_ITEM(facts, i);
        if (!PyTuple_CheckExact(of) || PyTuple_GET_SIZE(of) != KINDS) {
            return 0;
        }
        for (int kind = 0; kind < KINDS; kind++) {
            long long fact;
            if (!int_of(PyTuple_GET_ITEM(of, kind), INT64_MIN, INT64_MAX, &fact)) {
                return 0;
            }
            array[kind * (c->stay + c->joining) + c->stay + i] = fact;
        }
    }
    return 1;
}

/* The last `size` tokens of each row that joins, 0 where there are fewer; they end with row `used` of the array. 0:
they do not fit. */
static int
put_tokens(const Columns *c, PyObject *tokens, long long size, long long used, int32_t *array)
{
    for (Py_ssize_t i = 0; i < c->joining; i++) {
        PyObject *of = PyList_GET_ITEM(tokens, i);
        if (!PyList_Check(of)) { /* a `Tokens`, too */
            return 0;
        }
        Py_ssize_t count = PyList_GET_SIZE(of);
        for (long long back = 1; back <= size; back++) {
            long long token = 0;
            if (back <= count && !int_of(PyList_GET_ITEM(of, count - back), INT32_MIN, INT32_MAX, &token)) {
                return 0;
            }
            array[(used - back) * (c->stay + c->joining) + c->stay + i] = (int32_t)token;
        }
    }
    return 1;
}

/* As `append_common`. */
static int
move_common(PyObject *lane, PyObject *move, PyObject *facts, PyObject *tokens)
{
    Columns c;
    Desk *desk = desk_of(lane);
    PyObject *of_kept = slot(lane, &of_lane[L_KEPT]), *columns = slot(lane, &of_lane[L_TOKENS]);
    long long size, used;
    if (desk == NULL || !is_a(columns, tokens_type) || slot(columns, &of_tokens[T_NARROW]) != Py_True ||
        !slot_int(lane, &of_lane[L_SIZE], 1, 1 << 15, &size)) {
        PyErr_Clear();
        return 0;
    }
    const char *kept = look(desk, AT_KEPT, of_kept, 8 * KINDS);
    const char *of_tokens_kept = look(desk, AT_TOKENS, slot(columns, &of_tokens[T_KEPT]), 4);
    Py_ssize_t before = kept == NULL ? 0 : desk->of[AT_KEPT].len / (8 * KINDS);
    Py_ssize_t room = of_tokens_kept == NULL || before == 0 ? 0 : desk->of[AT_TOKENS].len / (4 * before);
    if (room == 0 || !slot_int(columns, &of_tokens[T_USED], size, room, &used) ||
        !look_at_move(move, facts, tokens, before, &c)) {
        return 0;
    }
    Py_buffer kept_view = {.obj = NULL}, tokens_view = {.obj = NULL};
    PyObject *new_kept = moved(&c, kept, KINDS, KINDS, int64, 8, &kept_view);
    PyObject *new_tokens = new_kept == NULL ? NULL
                                            : moved(&c, of_tokens_kept, (Py_ssize_t)used, room, int32, 4, &tokens_view);
    int good = new_tokens == NULL ? -1 : put_facts(&c, facts, kept_view.buf) &&
                                             put_tokens(&c, tokens, size, used, tokens_view.buf);
    PyBuffer_Release(&kept_view);
    PyBuffer_Release(&tokens_view);
    PyMem_Free(c.gone);
    if (good <= 0) {
        Py_XDECREF(new_kept);
        Py_XDECREF(new_tokens);
        return good;
    }
    put_slot(lane, &of_lane[L_KEPT], new_kept);
    put_slot(columns, &of_tokens[T_KEPT], new_tokens);
    return 1;
}

static PyObject *
_move(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    int done = nargs == 3 && kwnames == NULL ? move_common(self, args[0], args[1], args[2]) : 0;
    if (done == 0) {
        return in_python("_move_python", self, args, nargs, kwnames);
    }
    return done < 0 ? NULL : Py_NewRef(Py_None);
}

/* -- Lane._arrange ------------------------------------------------------------------------------------------------- */

/* The rows by the turn at which they take a block, each turn in their order; `ends` has a number for each turn and one
more, all 0, and then where each turn ends. */
static void
sort_by_turn(Sight *s, int64_t *order, Py_ssize_t *ends)
{
    for (Py_ssize_t i = 0; i < s->rows; i++) {
        ends[(s->base[i] % s->size + s->size) % s->size + 1]++;
    }
    for (long long turn = 0; turn < s->size; turn++) {
        ends[turn + 1] += ends[turn];
    }
    for (Py_ssize_t i = 0; i < s->rows; i++) {
        order[ends[(s->base[i] % s->size + s->size) % s->size]++] = i;
    }
}

/* Rows without a known block in front of the last one. */
static PyObject *
ragged_rows(Sight *s, PyObject *share)
{
    PyObject *ragged = PySet_New(NULL);
    for (Py_ssize_t i = 0; ragged != NULL && share == Py_True && i < s->rows; i++) {
        if (s->before[i] < 0) {
            PyObject *at = PyLong_FromSsize_t(i);
            if (at == NULL || PySet_Add(ragged, at) < 0) {
                Py_CLEAR(ragged);
            }
            Py_XDECREF(at);
        }
    }
    return ragged;
}

/* As `append_common`. */
static int
arrange_common(Sight *s)
{
    PyObject *cache = mine(s, L_PREFIXES);
    if (!is_a(cache, cache_type)) {
        return 0;
    }
    PyObject *ragged = ragged_rows(s, slot(cache, &of_cache[C_SHARE])), *bounds = PyList_New(s->size + 1);
    PyObject *order = PyObject_CallFunction(empty, "(n)O", s->rows, int64);
    Py_ssize_t *ends = PyMem_Calloc((size_t)s->size + 1, sizeof(Py_ssize_t));
    int64_t *at = order == NULL ? NULL : look(s->desk, AT_ORDER, order, 8 * s->rows);
    int good = ragged != NULL && bounds != NULL && ends != NULL && at != NULL;
    if (good) {
        sort_by_turn(s, at, ends);
    }
    for (long long turn = 0; good && turn <= s->size; turn++) { /* a turn begins where the one before has ended */
        PyObject *begin = PyLong_FromSsize_t(turn == 0 ? 0 : ends[turn - 1]);
        good = begin != NULL;
        PyList_SET_ITEM(bounds, turn, begin);
    }
    PyMem_Free(ends);
    if (!good) {
        Py_XDECREF(ragged);
        Py_XDECREF(bounds);
        Py_XDECREF(order);
        return PyErr_Occurred() ? -1 : 0;
    }
    put_slot(s->lane, &of_lane[L_RAGGED], ragged);
    put_slot(s->lane, &of_lane[L_BOUNDS], bounds);
    put_slot(s->lane, &of_lane[L_ORDER], order);
    put_slot(s->lane, &of_lane[L_RECORD], Py_NewRef(Py_None));
    put_slot(s->lane, &of_lane[L_STALE], Py_NewRef(Py_False));
    return 1;
}

static PyObject *
_arrange(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Sight s;
    int done = nargs == 0 && kwnames == NULL && see(self, &s) ? arrange_common(&s) : 0;
    if (done == 0) {
        return in_python("_arrange_python", self, args, nargs, kwnames);
    }
    return done < 0 ? NULL : Py_NewRef(Py_None);
}

/* -- the module ---------------------------------------------------------------------------------------------------- */

static PyMethodDef lane_methods[] = {
    METHOD(writable), METHOD(append), METHOD(schedule), METHOD(commit), METHOD(record_commit), METHOD(publish),
    METHOD(record_end), METHOD(_move), METHOD(_arrange), {NULL, NULL, 0, NULL},
};

/* In the order in which `methods` is told the classes. */
static const struct {
    PyTypeObject **type;
    Slot *slots;
} classes[] = {
    {&lane_type, of_lane}, {&pool_type, of_pool}, {&free_type, of_free}, {&ages_type, of_ages},
    {&cache_type, of_cache}, {&index_type, of_index}, {&row_type, of_row}, {&tokens_type, of_tokens},
    {&matrix_type, of_matrix}, {&decodes_type, of_decodes}, {&recorder_type, of_recorder},
};

static int
find_all_slots(PyObject *types)
{
    for (size_t i = 0; i < Py_ARRAY_LENGTH(classes); i++) {
        PyObject *type = i < (size_t)PyTuple_GET_SIZE(types) ? PyTuple_GET_ITEM(types, (Py_ssize_t)i) : Py_None;
        if (!PyType_Check(type)) {
            PyErr_SetString(PyExc_TypeError, "a class is missing");
            return -1;
        }
        *classes[i].type = (PyTypeObject *)type;
        if (find_slots((PyTypeObject *)type, classes[i].slots) < 0) {
            return -1;
        }
    }
    return 0;
}

static PyObject *
methods(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *types;
    if (!PyArg_ParseTuple(args, "O!(LLL)(bbbbbbbb)bOOO", &PyTuple_Type, &types, &writing, &committed_word,
                          &published_word, &kind_alloc, &kind_write, &kind_commit, &kind_publish, &kind_step_begin,
                          &kind_sched, &kind_step_end, &kind_witness, &decode, &empty, &int64, &int32)) {
        return NULL;
    }
    Py_INCREF(types); /* for ever, and with it the classes */
    Py_INCREF(empty);
    Py_INCREF(int64);
    Py_INCREF(int32);
    name_committed = PyUnicode_InternFromString("committed");
    name_renew = PyUnicode_InternFromString("_renew");
    name_catch_up = PyUnicode_InternFromString("_all_catch_up");
    name_reserve = PyUnicode_InternFromString("_reserve");
    name_tell_appended = PyUnicode_InternFromString("_tell_appended");
    name_tell_published = PyUnicode_InternFromString("_tell_published");
    if (name_committed == NULL || name_renew == NULL || name_catch_up == NULL || name_reserve == NULL ||
        name_tell_appended == NULL || name_tell_published == NULL ||
        find_all_slots(types) < 0) {
        return NULL;
    }
    return methods_of(lane_type, lane_methods);
}

static PyMethodDef module_functions[] = {
    {"methods", methods, METH_VARARGS,
     "methods((classes of a lane and what it reads), (words of a written, committed, published block), "
     "(kinds), DECODE, numpy.empty, int64, int32) -> {name: method}"},
    {NULL, NULL, 0, NULL},
};

MODULE(_lanes, "kvscope.engine._lanes", module_functions)
