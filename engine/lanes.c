/* The hot methods of a lane in C: `traces/compiled.py` says what this is for and how it is held to the Python code.

Each function here is the common case of the method of the same name, on the same attributes. What is not common (a
prefix that is served already, a row that is ahead of the others, tokens of more than 4 bytes) it leaves to the method in
Python, which is still there under its name with `_python` behind it; until it is known that the case is common, nothing
is changed. All of it runs inside the one critical section of the block manager. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#if PY_BIG_ENDIAN
#error "tokens and hashes are little endian"
#endif

#define EDITION 1 /* as in lane_compiled.py */

/* -- attributes and arrays of Python objects -------------------------------------------------------------------- */

#define NAMES(X) \
    X(_before) X(_behind) X(_block_of) X(_bytes) X(_computing) X(_digests) X(_expected) X(_fills) X(_from) \
    X(_identities) X(_kept) X(_key) X(_matrix) X(_most) X(_of_landed) X(_of_taken) X(_of_written) X(_parents) \
    X(_place) X(_pool) X(_prefixes) X(_ragged) X(_ranges) X(_size) X(_tokens) X(_turned) X(_turning) X(_turns) \
    X(_used) X(_who) X(_width) X(_words) X(blocks) X(committed) X(computed) X(copy) X(count) X(digest) \
    X(entries) X(gens) X(hashes) X(index) X(issued) X(lblocks) X(lives) X(pairs) X(places) X(plain) X(publish) \
    X(published) X(record) X(record_commit) X(share) X(sink) X(tables) X(turn)

#define AS_ENUM(name) N_##name,
#define AS_TEXT(name) #name,
enum { NAMES(AS_ENUM) COUNT_OF_NAMES };
static const char *const texts[] = {NAMES(AS_TEXT)};
static PyObject *names[COUNT_OF_NAMES]; /* set once, by `methods` */

enum { MOST_OBJECTS = 48, MOST_BUFFERS = 24 };

/* What a call has got and gives back at its end: objects, and buffers of arrays. */
typedef struct {
    int objects, buffers, failed;
    PyObject *object[MOST_OBJECTS];
    Py_buffer buffer[MOST_BUFFERS];
} Got;

static void
begin_getting(Got *got)
{
    got->objects = got->buffers = got->failed = 0;
}

static void
give_back(Got *got)
{
    while (got->buffers > 0) {
        PyBuffer_Release(&got->buffer[--got->buffers]);
    }
    while (got->objects > 0) {
        Py_DECREF(got->object[--got->objects]);
    }
}

/* Keep a new reference until `give_back`; NULL is a failure. */
static PyObject *
keep(Got *got, PyObject *object)
{
    if (object == NULL || got->objects == MOST_OBJECTS) {
        Py_XDECREF(object);
        got->failed = 1;
        return NULL;
    }
    got->object[got->objects++] = object;
    return object;
}

static PyObject *
attribute(Got *got, PyObject *owner, int name)
{
    return owner == NULL || got->failed ? NULL : keep(got, PyObject_GetAttr(owner, names[name]));
}

static long long
number(Got *got, PyObject *owner, int name)
{
    PyObject *value = owner == NULL || got->failed ? NULL : PyObject_GetAttr(owner, names[name]);
    long long result = value == NULL ? -1 : PyLong_AsLongLong(value);
    if (value == NULL || (result == -1 && PyErr_Occurred())) {
        got->failed = 1;
    }
    Py_XDECREF(value);
    return result;
}

static int
set_number(PyObject *owner, int name, long long number)
{
    PyObject *value = PyLong_FromLongLong(number);
    int failed = value == NULL ? -1 : PyObject_SetAttr(owner, names[name], value);
    Py_XDECREF(value);
    return failed;
}

/* An array of one dimension (or two, looked at as rows): element i lies at `at + i * step`. */
typedef struct {
    char *at;
    Py_ssize_t step, count, across;
} Column;

static Column
column_of(Got *got, PyObject *array, Py_ssize_t itemsize, int dimensions)
{
    Column column = {NULL, 0, 0, 0};
    if (array == NULL || got->failed) {
        return column;
    }
    Py_buffer *view = &got->buffer[got->buffers];
    if (got->buffers == MOST_BUFFERS || PyObject_GetBuffer(array, view, PyBUF_STRIDED) < 0) {
        got->failed = 1;
        return column;
    }
    got->buffers++;
    if (view->itemsize != itemsize || view->ndim != dimensions) {
        got->failed = 1;
        return column;
    }
    column.at = view->buf, column.step = view->strides[0], column.count = view->shape[0];
    column.across = dimensions == 2 ? view->shape[1] : 1;
    return column;
}

static Column
column(Got *got, PyObject *owner, int name, Py_ssize_t itemsize)
{
    return column_of(got, attribute(got, owner, name), itemsize, 1);
}

static inline void *
item(Column column, Py_ssize_t i)
{
    return column.at + i * column.step;
}

static inline int64_t *
word(Column column, Py_ssize_t i)
{
    return (int64_t *)item(column, i);
}

/* Whether all numbers of a column lie in 0 .. end - 1. */
static int
below(Column column, Py_ssize_t end)
{
    for (Py_ssize_t i = 0; i < column.count; i++) {
        if (*word(column, i) < 0 || *word(column, i) >= end) {
            return 0;
        }
    }
    return 1;
}

static PyObject *
in_python(const char *name, PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyErr_Clear();
    PyObject *method = PyObject_GetAttrString(self, name);
    if (method == NULL) {
        return NULL;
    }
    PyObject *result = PyObject_Vectorcall(method, args, (size_t)nargs, kwnames);
    Py_DECREF(method);
    return result;
}

/* -- keyed BLAKE2b (RFC 7693), digests of 16 bytes, as hashlib makes them ----------------------------------------- */

enum { DIGEST = 16, CHUNK = 128 };

static const uint64_t initial[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};
static const uint8_t sigma[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

typedef struct {
    uint64_t h[8], hashed;
    size_t used; /* bytes that wait in `chunk`: the last chunk is not hashed before it is known to be the last */
    uint8_t chunk[CHUNK];
} Hash;

static inline uint64_t
turned(uint64_t x, int by)
{
    return x >> by | x << (64 - by);
}

#define MIX(a, b, c, d, x, y) \
    a += b + (x), d = turned(d ^ a, 32), c += d, b = turned(b ^ c, 24); \
    a += b + (y), d = turned(d ^ a, 16), c += d, b = turned(b ^ c, 63)

static void
compress(Hash *hash, uint64_t last)
{
    uint64_t v[16], m[16];
    memcpy(m, hash->chunk, sizeof(m));
    memcpy(v, hash->h, sizeof(hash->h));
    memcpy(v + 8, initial, sizeof(initial));
    v[12] ^= hash->hashed;
    v[14] ^= last;
#pragma GCC unroll 12 /* so that what is mixed with what is known at compile time */
    for (int round = 0; round < 12; round++) {
        const uint8_t *s = sigma[round % 10];
        MIX(v[0], v[4], v[8], v[12], m[s[0]], m[s[1]]);
        MIX(v[1], v[5], v[9], v[13], m[s[2]], m[s[3]]);
        MIX(v[2], v[6], v[10], v[14], m[s[4]], m[s[5]]);
        MIX(v[3], v[7], v[11], v[15], m[s[6]], m[s[7]]);
        MIX(v[0], v[5], v[10], v[15], m[s[8]], m[s[9]]);
        MIX(v[1], v[6], v[11], v[12], m[s[10]], m[s[11]]);
        MIX(v[2], v[7], v[8], v[13], m[s[12]], m[s[13]]);
        MIX(v[3], v[4], v[9], v[14], m[s[14]], m[s[15]]);
    }
    for (int i = 0; i < 8; i++) {
        hash->h[i] ^= v[i] ^ v[i + 8];
    }
}

static void
update(Hash *hash, const void *data, size_t size)
{
    const uint8_t *from = data;
    while (size > 0) {
        if (hash->used == CHUNK) {
            hash->hashed += CHUNK;
            compress(hash, 0);
            hash->used = 0;
        }
        size_t part = size < CHUNK - hash->used ? size : CHUNK - hash->used;
        memcpy(hash->chunk + hash->used, from, part);
        hash->used += part, from += part, size -= part;
    }
}

static void
begin_hash(Hash *hash, const uint8_t *key, size_t key_size)
{
    memset(hash, 0, sizeof(*hash));
    memcpy(hash->h, initial, sizeof(initial));
    hash->h[0] ^= 0x01010000 ^ key_size << 8 ^ DIGEST;
    memcpy(hash->chunk, key, key_size);
    hash->used = key_size > 0 ? CHUNK : 0;
    if (key_size > 0) { /* every message has a byte at least: the chunk of the key is never the last */
        hash->hashed = CHUNK;
        compress(hash, 0);
        hash->used = 0;
    }
}

static void
end_hash(Hash hash, uint8_t *digest)
{
    memset(hash.chunk + hash.used, 0, CHUNK - hash.used);
    hash.hashed += hash.used;
    compress(&hash, UINT64_MAX);
    memcpy(digest, hash.h, DIGEST);
}

/* -- the prefix index --------------------------------------------------------------------------------------------- */

static void
length_of(Hash *hash, uint32_t size)
{
    update(hash, &size, sizeof(size));
}

/* The hashes of `PrefixIndex.children`: of `width` bytes of tokens behind a parent, and of these tokens alone. */
static void
hash_block(const Hash *keyed, const uint8_t *parent, const uint8_t *tokens, uint32_t width, uint8_t *chained,
           uint8_t *alone)
{
    Hash hash = *keyed;
    length_of(&hash, DIGEST);
    update(&hash, parent, DIGEST);
    length_of(&hash, width + 1);
    update(&hash, "i", 1);
    update(&hash, tokens, width);
    end_hash(hash, chained);
    if (alone != NULL) {
        hash = *keyed;
        length_of(&hash, 6);
        update(&hash, "tokens", 6);
        length_of(&hash, width + 1);
        update(&hash, "i", 1);
        update(&hash, tokens, width);
        end_hash(hash, alone);
    }
}

/* -- Lane.publish --------------------------------------------------------------------------------------------------- */

static long long published_word; /* set once, by `methods`, as are these: of the block manager and of numpy */
static PyObject *empty, *int64;

enum { BEHIND = 2, KEY_BYTES = 7 };

/* Of the rows whose blocks are full. */
typedef struct {
    Py_ssize_t count, width; /* bytes of the tokens of a block */
    Column at;
    uint8_t *tokens, *chained, *alone; /* of each, side by side */
} Turned;

static uint8_t *
bytes_of(Got *got, PyObject *owner, int name, Py_ssize_t width, Py_ssize_t *count)
{
    Column column = column_of(got, attribute(got, owner, name), 1, 1);
    *count = column.count / width;
    return (uint8_t *)column.at;
}

/* The tokens of the last block of each of these rows. 0: they are not known in 4 bytes each. */
static int
collect_tokens(Got *got, PyObject *tokens, const Turned *turned)
{
    Column kept = column_of(got, attribute(got, tokens, N__kept), 4, 2);
    long long used = number(got, tokens, N__used), size = turned->width / 4;
    if (got->failed || attribute(got, tokens, N__bytes) == Py_None || used < size || used > kept.count ||
        kept.step != kept.across * 4 || !below(turned->at, kept.across)) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < turned->count; i++) {
        int32_t *out = (int32_t *)(turned->tokens + i * turned->width);
        for (long long slot = 0; slot < size; slot++) {
            out[slot] = ((int32_t *)item(kept, used - size + slot))[*word(turned->at, i)];
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

/* Enter these blocks under their hashes. 0, and nothing done: some prefix is served already. */
static int
claim_prefixes(PyObject *block_of, const uint8_t *digests, const int64_t *blocks, Py_ssize_t count)
{
    Py_ssize_t done = 0;
    int result = 1;
    for (; result == 1 && done < count; done++) {
        PyObject *key = key_of(digests + done * DIGEST), *block = PyLong_FromLongLong(blocks[done]);
        PyObject *entered = key == NULL || block == NULL ? NULL : PyDict_SetDefault(block_of, key, block);
        result = entered == NULL ? -1 : entered == block || PyLong_AsLongLong(entered) == blocks[done];
        Py_XDECREF(key);
        Py_XDECREF(block);
    }
    for (done -= result != 1; result != 1 && done > 0; done--) { /* not the one that could not be entered */
        PyObject *key = key_of(digests + (done - 1) * DIGEST);
        if (key == NULL || PyDict_DelItem(block_of, key) < 0) {
            result = -1;
        }
        Py_XDECREF(key);
    }
    return result;
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

/* The rows at these places: Lane._turned. */
static PyObject *
rows_of_turn(Got *got, PyObject *lane, PyObject *full)
{
    PyObject *known = attribute(got, lane, N__turning);
    long long count = number(got, lane, N_count), size = number(got, lane, N__size);
    PyObject *turn = got->failed ? NULL : keep(got, PyLong_FromLongLong(count % size));
    PyObject *rows = turn == NULL || !PyDict_CheckExact(known) ? NULL : PyDict_GetItemWithError(known, turn);
    if (rows != NULL) {
        return keep(got, Py_NewRef(rows));
    }
    return got->failed || PyErr_Occurred() ? NULL : keep(got, PyObject_CallMethodOneArg(lane, names[N__turned], full));
}

/* 1: done. 0: it is not the common case, and nothing was changed. -1: an exception is set. */
static int
publish_common(PyObject *self, int committed, Got *got)
{
    Turned turned;
    PyObject *turns = attribute(got, self, N__turns), *prefixes = attribute(got, self, N__prefixes);
    PyObject *pool = attribute(got, self, N__pool), *index = attribute(got, pool, N_index);
    PyObject *sink = attribute(got, pool, N_sink), *ragged = attribute(got, self, N__ragged);
    PyObject *computing = attribute(got, prefixes, N__computing), *block_of = attribute(got, index, N__block_of);
    PyObject *key = attribute(got, index, N__key), *behind = attribute(got, index, N__behind);
    long long count = number(got, self, N_count), size = number(got, self, N__size);
    PyObject *share = attribute(got, prefixes, N_share);
    if (got->failed || (share != Py_True && share != Py_False) || attribute(got, index, N_plain) != Py_True ||
        !PyList_CheckExact(turns) || PyList_GET_SIZE(turns) != size ||
        !PySet_Check(ragged) || PySet_GET_SIZE(ragged) > 0 || !PyDict_CheckExact(computing) ||
        !PyDict_CheckExact(block_of) || (behind != Py_None && !PyDict_CheckExact(behind)) ||
        !PyBytes_CheckExact(key) || PyBytes_GET_SIZE(key) > 64) {
        return 0;
    }
    PyObject *full = PyList_GET_ITEM(turns, (size - count % size) % size); /* Lane.full */
    turned.at = column_of(got, full, 8, 1);
    turned.count = turned.at.count, turned.width = 4 * size;
    if (!got->failed && (turned.count == 0 || share == Py_False)) {
        return committed || keep(got, PyObject_CallMethodNoArgs(self, names[N_record_commit])) != NULL ? 1 : -1;
    }
    if (got->failed || number(got, index, N__width) != turned.width + 1) {
        return 0;
    }
    /* Where everything lies. */
    Py_ssize_t known, digests_known, parents_known, tokens_known;
    PyObject *places = attribute(got, self, N_places);
    Column blocks = column(got, places, N_blocks, 8), before = column(got, self, N__before, 8);
    Column parents = column(got, self, N__parents, DIGEST), expected = column(got, self, N__expected, 8);
    Column pairs = column_of(got, attribute(got, pool, N_pairs), 8, 2);
    uint8_t *place = bytes_of(got, index, N__place, 1, &known);
    uint8_t *digest_of = bytes_of(got, index, N__digests, DIGEST, &digests_known);
    uint8_t *parent_of = bytes_of(got, index, N__parents, DIGEST, &parents_known);
    uint8_t *tokens_of = bytes_of(got, index, N__tokens, turned.width + 1, &tokens_known);
    PyObject *row_list = got->failed ? NULL : rows_of_turn(got, self, full);
    if (got->failed || !below(turned.at, blocks.count) || before.count != blocks.count || digests_known < known ||
        parents.count != blocks.count || expected.count != blocks.count || parents_known < known ||
        tokens_known < known || !PyList_CheckExact(row_list) || PyList_GET_SIZE(row_list) != turned.count) {
        return 0;
    }
    Py_ssize_t each = turned.width + 2 * DIGEST + 8;
    PyObject *room = keep(got, PyBytes_FromStringAndSize(NULL, turned.count * each));
    PyObject *hashes = keep(got, PyList_New(turned.count));
    if (got->failed) {
        return -1;
    }
    int64_t *numbers = (int64_t *)PyBytes_AS_STRING(room);
    turned.chained = (uint8_t *)(numbers + turned.count);
    turned.alone = turned.chained + turned.count * DIGEST, turned.tokens = turned.alone + turned.count * DIGEST;
    if (!collect_tokens(got, attribute(got, self, N__tokens), &turned)) {
        return 0;
    }
    Hash keyed;
    begin_hash(&keyed, (uint8_t *)PyBytes_AS_STRING(key), (size_t)PyBytes_GET_SIZE(key));
    for (Py_ssize_t i = 0; i < turned.count; i++) {
        int64_t at = *word(turned.at, i), front = *word(before, at);
        numbers[i] = *word(blocks, at);
        if (front < 0 || front >= known || numbers[i] < 0 || numbers[i] >= known || numbers[i] >= pairs.count ||
            memcmp(digest_of + front * DIGEST, item(parents, at), DIGEST) != 0) {
            return 0; /* among others: the block in front is not in the index any more */
        }
        uint8_t *chained = turned.chained + i * DIGEST;
        hash_block(&keyed, item(parents, at), turned.tokens + i * turned.width, (uint32_t)turned.width, chained,
                   sink != Py_None ? turned.alone + i * DIGEST : NULL);
        PyObject *hash = PyBytes_FromStringAndSize((char *)chained, DIGEST);
        if (hash == NULL) {
            return -1;
        }
        PyList_SET_ITEM(hashes, i, hash);
        int awaited = PyDict_GET_SIZE(computing) == 0 ? 0 : PyDict_Contains(computing, hash);
        if (awaited) {
            return awaited < 0 ? -1 : 0;
        }
    }
    int64_t *details = NULL;
    PyObject *detail_rows = NULL;
    Column identities = {0};
    if (sink != Py_None) {
        detail_rows = keep(got, PyObject_CallFunction(empty, "((ni)O)", turned.count, 4, int64));
        details = (int64_t *)column_of(got, detail_rows, 8, 2).at;
        identities = column(got, self, N__identities, 8);
        if (got->failed || identities.count != blocks.count) {
            return got->failed ? -1 : 0;
        }
    }
    int claimed = claim_prefixes(block_of, turned.chained, numbers, turned.count);
    if (claimed <= 0) {
        return claimed;
    }
    /* From here on everything is done. */
    for (Py_ssize_t i = 0; i < turned.count; i++) {
        int64_t at = *word(turned.at, i), block = numbers[i];
        uint8_t *chained = turned.chained + i * DIGEST, *packed = tokens_of + block * (turned.width + 1);
        if (details != NULL) {
            memcpy(details + 4 * i, item(parents, at), 8);
            memcpy(details + 4 * i + 1, turned.alone + i * DIGEST, 8);
            memcpy(details + 4 * i + 2, chained, 8);
            details[4 * i + 3] = *word(identities, at);
        }
        if (behind != Py_None && stands_behind(behind, item(parents, at), block) < 0) {
            return -1;
        }
        memcpy(digest_of + block * DIGEST, chained, DIGEST);
        memcpy(parent_of + block * DIGEST, item(parents, at), DIGEST);
        packed[0] = 'i';
        memcpy(packed + 1, turned.tokens + i * turned.width, (size_t)turned.width);
        place[block] = BEHIND;
        *word(pairs, block) = *word(expected, at) = published_word | size;
        memcpy(item(parents, at), chained, DIGEST);
    }
    for (Py_ssize_t i = 0; i < turned.count; i++) {
        PyObject *row = PyList_GET_ITEM(row_list, i), *of_row = attribute(got, row, N_hashes);
        long long published = number(got, row, N_published);
        if (got->failed || !PyList_CheckExact(of_row) || PyList_Append(of_row, PyList_GET_ITEM(hashes, i)) < 0 ||
            set_number(row, N_published, published + 1) < 0) {
            return -1;
        }
        Py_DECREF(got->object[--got->objects]);
    }
    if (sink != Py_None) {
        PyObject *record = attribute(got, self, N_record), *fills = committed ? Py_None : attribute(got, self, N__fills);
        if (got->failed || keep(got, PyObject_CallMethodObjArgs(record, names[N_publish], full, detail_rows, fills, NULL)) == NULL) {
            return -1;
        }
    }
    return 1;
}

static PyObject *
publish(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Got got;
    int done = 0, committed = 0;
    begin_getting(&got);
    if (nargs == 0 && kwnames == NULL) {
        done = publish_common(self, 0, &got);
    }
    else if (nargs == 0 && PyTuple_GET_SIZE(kwnames) == 1 && PyTuple_GET_ITEM(kwnames, 0) == names[N_committed] &&
             (committed = PyObject_IsTrue(args[0])) >= 0) {
        done = publish_common(self, committed, &got);
    }
    give_back(&got);
    if (done == 0) {
        return in_python("publish_python", self, args, nargs, kwnames);
    }
    return done < 0 ? NULL : Py_NewRef(Py_None);
}

/* -- Lane._take ----------------------------------------------------------------------------------------------------- */

static long long fresh_word;
static const long long NEXT = 1LL << 32; /* the upper half of a number, one further */

/* schema.digest_word */
static uint64_t
digest_word(int64_t life, int64_t lblock)
{
    uint64_t x = (uint64_t)life ^ (uint64_t)(lblock + 1) * 0x9E3779B97F4A7C15;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
    x = (x ^ x >> 27) * 0x94D049BB133111EB;
    return x ^ x >> 31;
}

/* The arrays of a `LaneRows` that a fresh block goes to. */
typedef struct {
    Column who, taken, written, landed, tables;
    long long most, entries;
    PyObject *object, *digest;
} Recorded;

static void
look_at_record(Got *got, PyObject *lane, Recorded *record)
{
    record->object = attribute(got, lane, N_record);
    record->who = column(got, record->object, N__who, 8);
    record->taken = column(got, record->object, N__of_taken, 16);
    record->written = column(got, record->object, N__of_written, 16);
    record->landed = column(got, record->object, N__of_landed, 16);
    record->tables = column_of(got, attribute(got, record->object, N_tables), 8, 2);
    record->most = number(got, record->object, N__most);
    record->entries = number(got, record->object, N_entries);
    record->digest = got->failed ? NULL : PyObject_GetAttr(record->object, names[N_digest]);
    got->failed |= record->digest == NULL;
}

/* LaneRows.turn, for the i-th of those that are turned. */
static int
record_turn(Recorded *record, Py_ssize_t at, Py_ssize_t i, int64_t life, int64_t lblock)
{
    *word(record->who, at) += NEXT;
    int64_t both[2] = {life, *word(record->who, at)};
    memcpy(item(record->taken, i), both, sizeof(both));
    memcpy(item(record->written, at), both, sizeof(both));
    memcpy(item(record->landed, at), both, sizeof(both));
    int64_t *table = word(record->tables, at), digest = (int64_t)digest_word(life, lblock);
    table[0] = (int64_t)((uint64_t)table[0] + (uint64_t)digest);
    table[1] = lblock + 1;
    PyObject *part = PyLong_FromLongLong(digest), *sum = part == NULL ? NULL : PyNumber_Add(record->digest, part);
    Py_XDECREF(part);
    Py_XSETREF(record->digest, sum);
    return sum == NULL ? -1 : 0;
}

static int
take_common(PyObject *self, PyObject *full, Got *got)
{
    PyObject *pool = attribute(got, self, N__pool), *sink = attribute(got, pool, N_sink);
    PyObject *matrix = attribute(got, self, N__matrix), *places = attribute(got, self, N_places);
    if (!got->failed && attribute(got, self, N_computed) != attribute(got, self, N_issued)) {
        /* A step still to end knows the places as they were. */
        places = keep(got, PyObject_CallMethodNoArgs(places, names[N_copy]));
        got->failed |= places != NULL && PyObject_SetAttr(self, names[N_places], places) < 0;
    }
    Column at = column_of(got, full, 8, 1);
    PyObject *lblock_array = attribute(got, places, N_lblocks);
    Column blocks = column(got, places, N_blocks, 8), lives = column(got, places, N_lives, 8);
    Column lblocks = column_of(got, lblock_array, 8, 1), before = column(got, self, N__before, 8);
    Column words = column(got, self, N__words, 8), ranges = column(got, self, N__ranges, 8);
    PyObject *row_list = got->failed ? NULL : rows_of_turn(got, self, full);
    Recorded record = {.digest = NULL};
    Py_ssize_t count = blocks.count;
    if (sink != Py_None) {
        look_at_record(got, self, &record);
    }
    if (got->failed || !below(at, count) || lives.count != count || lblocks.count != count || before.count != count ||
        words.count != count || ranges.count != count || !PyList_CheckExact(row_list) ||
        PyList_GET_SIZE(row_list) != at.count ||
        (sink != Py_None && (record.who.count != count || record.written.count != count || record.landed.count != count ||
                             record.tables.count != count || record.tables.across != 2 || record.most < at.count ||
                             record.taken.count < record.most))) {
        Py_XDECREF(record.digest);
        return 0;
    }
    PyObject *handed = PyObject_CallMethod(pool, "hand_out", "n", at.count);
    if (handed == NULL) {
        Py_XDECREF(record.digest);
        return -1;
    }
    keep(got, handed);
    PyObject *block_array = PyTuple_GET_ITEM(handed, 0);
    Column new_blocks = column_of(got, block_array, 8, 1);
    Column new_lives = column_of(got, PyTuple_GET_ITEM(handed, 1), 8, 1);
    int failed = got->failed || new_blocks.count != at.count || new_lives.count != at.count;
    for (Py_ssize_t i = 0; !failed && i < at.count; i++) {
        int64_t row_at = *word(at, i), life = *word(new_lives, i), lblock = *word(lblocks, row_at) + 1;
        *word(before, row_at) = *word(blocks, row_at);
        *word(blocks, row_at) = *word(new_blocks, i), *word(lives, row_at) = life, *word(lblocks, row_at) = lblock;
        *word(words, row_at) = fresh_word, *word(ranges, row_at) = -1;
        PyObject *row = PyList_GET_ITEM(row_list, i);
        PyObject *row_blocks = PyObject_GetAttr(row, names[N_blocks]), *gens = PyObject_GetAttr(row, names[N_gens]);
        PyObject *block = PyLong_FromLongLong(*word(new_blocks, i)), *gen = PyLong_FromLongLong(life >> 32);
        failed = row_blocks == NULL || gens == NULL || block == NULL || gen == NULL ||
                 PyList_Append(row_blocks, block) < 0 || PyList_Append(gens, gen) < 0 ||
                 (sink != Py_None && record_turn(&record, row_at, record.most - at.count + i, life, lblock) < 0);
        Py_XDECREF(row_blocks);
        Py_XDECREF(gens);
        Py_XDECREF(block);
        Py_XDECREF(gen);
    }
    if (!failed && sink != Py_None) {
        failed = set_number(record.object, N__from, record.most - at.count) < 0 ||
                 set_number(record.object, N_entries, record.entries + at.count) < 0 ||
                 PyObject_SetAttr(record.object, names[N_digest], record.digest) < 0;
    }
    Py_XDECREF(record.digest);
    if (!failed && matrix != Py_None) {
        PyObject *now = keep(got, PyObject_GetItem(lblock_array, full));
        failed = now == NULL || keep(got, PyObject_CallMethodObjArgs(matrix, names[N_turn], full, now, block_array, NULL)) == NULL;
    }
    if (failed && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_SystemError, "a pool handed out other blocks than it was asked for");
    }
    return failed ? -1 : 1;
}

static PyObject *
_take(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Got got;
    begin_getting(&got);
    int done = nargs == 1 && kwnames == NULL ? take_common(self, args[0], &got) : 0;
    give_back(&got);
    if (done == 0) {
        return in_python("_take_python", self, args, nargs, kwnames);
    }
    return done < 0 ? NULL : Py_NewRef(Py_None);
}

/* -- the module ----------------------------------------------------------------------------------------------------- */

#define METHOD(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL | METH_KEYWORDS, NULL}

static PyMethodDef lane_methods[] = {METHOD(publish), METHOD(_take), {NULL, NULL, 0, NULL}};

static PyObject *
methods(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyTypeObject *type;
    if (!PyArg_ParseTuple(args, "O!(LL)OO", &PyType_Type, &type, &fresh_word, &published_word, &empty, &int64)) {
        return NULL;
    }
    Py_INCREF(empty);
    Py_INCREF(int64);
    for (int i = 0; i < COUNT_OF_NAMES; i++) {
        names[i] = PyUnicode_InternFromString(texts[i]);
        if (names[i] == NULL) {
            return NULL;
        }
    }
    PyObject *made = PyDict_New();
    for (PyMethodDef *def = lane_methods; made != NULL && def->ml_name != NULL; def++) {
        PyObject *method = PyDescr_NewMethod(type, def);
        if (method == NULL || PyDict_SetItemString(made, def->ml_name, method) < 0) {
            Py_CLEAR(made);
        }
        Py_XDECREF(method);
    }
    return made;
}

static PyMethodDef module_functions[] = {
    {"methods", methods, METH_VARARGS, "methods(Lane, (word of a fresh block, of a published one), numpy.empty, int64) -> {name: method}"},
    {NULL, NULL, 0, NULL},
};

static int
begin_module(PyObject *module)
{
    return PyModule_AddIntMacro(module, EDITION);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, begin_module},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "kvscope.engine._lanes", .m_methods = module_functions, .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit__lanes(void)
{
    return PyModuleDef_Init(&module);
}
