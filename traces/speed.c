/* The hot methods of a recorder in C: `compiled.py` says what this is for and how it is held to the Python code.

Each function here is the common case of the Python method of the same name, on the same attributes, and leaves the
same bytes. Whatever is not common (no room in the ring, a value that its column cannot hold, an argument that is no
int) it leaves to that method, untouched: it is still there under its name with `_python` behind it.

Nothing here lets another thread in between the look at `_next` and the commit mark of the row; on a free-threaded
interpreter the recorder's own lock lies around these calls (`row_ring.guard`). */

#include "ring.h"

#include <time.h>

#define EDITION 4 /* as in compiled.py */

static PyObject *name_last, *name_raw, *name_closed, *monotonic_ns, *getframe; /* set once, by `methods` */

static inline Row *
rows_of(const Claim *made)
{
    return made->ring + (made->seq & made->mask);
}

/* -- single rows ------------------------------------------------------------------------------------------------ */

enum { A_KIND, A_REASON, A_BLOCK, A_GEN, A_BEFORE, A_AFTER, A_FILL, A_SEQ_ID, A_LBLOCK, A_AUX, ARGUMENTS };

static const struct {
    const char *name;
    long long lo, hi, otherwise;
} columns[ARGUMENTS] = {
    {"kind", 0, UINT8_MAX, 0},
    {"reason", 0, UINT8_MAX, 0},
    {"block", INT32_MIN, INT32_MAX, -1},
    {"gen", INT32_MIN, INT32_MAX, -1},
    {"ref_before", INT16_MIN, INT16_MAX, -1},
    {"ref_after", INT16_MIN, INT16_MAX, -1},
    {"fill", INT16_MIN, INT16_MAX, -1},
    {"seq_id", INT32_MIN, INT32_MAX, -1},
    {"lblock", INT32_MIN, INT32_MAX, -1},
    {"aux", INT64_MIN, INT64_MAX, 0},
};

static inline int
column_of(PyObject *value, int which, long long *out)
{
    return int_of(value, columns[which].lo, columns[which].hi, out);
}

static PyObject *
emit(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    long long v[ARGUMENTS];
    Claim made;
    int fits = 1 <= nargs && nargs <= ARGUMENTS;
    for (int i = 0; fits && i < ARGUMENTS; i++) {
        if (i < nargs) {
            fits = column_of(args[i], i, &v[i]);
        }
        else {
            v[i] = columns[i].otherwise;
        }
    }
    for (Py_ssize_t k = 0; fits && kwnames != NULL && k < PyTuple_GET_SIZE(kwnames); k++) {
        int i = (int)nargs; /* a name given twice is the method's to refuse */
        while (i < ARGUMENTS && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, k), columns[i].name) != 0) {
            i++;
        }
        fits = i < ARGUMENTS && column_of(args[nargs + k], i, &v[i]);
    }
    int claimed = fits ? claim(self, 1, 1, &made) : 0;
    if (claimed <= 0) {
        return claimed < 0 ? NULL : in_python("emit_python", self, args, nargs, kwnames);
    }
    Row *row = rows_of(&made);
    *row = made.common;
    row->aux = v[A_AUX];
    row->block = (int32_t)v[A_BLOCK], row->gen = (int32_t)v[A_GEN];
    row->seq_id = (int32_t)v[A_SEQ_ID], row->lblock = (int32_t)v[A_LBLOCK];
    row->ref_before = (int16_t)v[A_BEFORE], row->ref_after = (int16_t)v[A_AFTER], row->fill = (int16_t)v[A_FILL];
    row->kind = (uint8_t)v[A_KIND], row->reason = (uint8_t)v[A_REASON];
    commit_row(row, made.seq);
    return PyLong_FromLongLong(made.seq);
}

enum { KIND_ALLOC, KIND_RELEASE, KIND_FREE, KINDS };
static uint8_t kinds[KINDS]; /* set once, by `methods` */

static PyObject *
emit_alloc(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    long long reason, block, gen, seq_id, lblock;
    Claim made;
    int claimed = 0;
    if (kwnames == NULL && nargs == 5 && column_of(args[0], A_REASON, &reason) && column_of(args[1], A_BLOCK, &block) &&
        column_of(args[2], A_GEN, &gen) && column_of(args[3], A_SEQ_ID, &seq_id) &&
        column_of(args[4], A_LBLOCK, &lblock)) {
        claimed = claim(self, 1, 1, &made);
    }
    if (claimed <= 0) {
        return claimed < 0 ? NULL : in_python("emit_alloc_python", self, args, nargs, kwnames);
    }
    Row *row = rows_of(&made);
    *row = made.common;
    row->block = (int32_t)block, row->gen = (int32_t)gen, row->seq_id = (int32_t)seq_id, row->lblock = (int32_t)lblock;
    row->ref_after = 1;
    row->kind = kinds[KIND_ALLOC], row->reason = (uint8_t)reason;
    commit_row(row, made.seq);
    return PyLong_FromLongLong(made.seq);
}

static PyObject *
emit_end(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    long long reason, block, gen, fill, seq_id, lblock;
    Claim made;
    int claimed = 0;
    if (kwnames == NULL && nargs == 6 && column_of(args[0], A_REASON, &reason) && column_of(args[1], A_BLOCK, &block) &&
        column_of(args[2], A_GEN, &gen) && column_of(args[3], A_FILL, &fill) &&
        column_of(args[4], A_SEQ_ID, &seq_id) && column_of(args[5], A_LBLOCK, &lblock)) {
        claimed = claim(self, 2, 1, &made);
    }
    if (claimed <= 0) {
        return claimed < 0 ? NULL : in_python("emit_end_python", self, args, nargs, kwnames);
    }
    made.common.block = (int32_t)block, made.common.gen = (int32_t)gen, made.common.reason = (uint8_t)reason;
    Row *released = rows_of(&made), *freed = released + 1;
    *released = *freed = made.common;
    released->seq_id = (int32_t)seq_id, released->lblock = (int32_t)lblock;
    released->ref_before = 1, released->fill = (int16_t)fill, released->kind = kinds[KIND_RELEASE];
    commit_row(released, made.seq);
    freed->seq_id = freed->lblock = -1, freed->kind = kinds[KIND_FREE];
    commit_row(freed, made.seq + 1);
    return PyLong_FromLongLong(made.seq);
}

/* -- many rows at once ------------------------------------------------------------------------------------------- */

/* A column of many rows: one number for all of them, or an array of signed integers of 2, 4 or 8 bytes. */
typedef struct {
    Py_buffer view; /* obj is NULL: it is one number */
    const char *at;
    Py_ssize_t step;
    int64_t value;
} Many;

static int
look_at_column(PyObject *given, int which, Py_ssize_t count, Many *column)
{
    long long value;
    if (PyLong_CheckExact(given)) {
        int saturates = which == A_BEFORE || which == A_AFTER;
        if (!int_of(given, columns[which].lo, saturates ? INT64_MAX : columns[which].hi, &value)) {
            return 0;
        }
        column->value = saturates && value > INT16_MAX ? INT16_MAX : value;
        column->step = 0;
        return 1;
    }
    if (PyObject_GetBuffer(given, &column->view, PyBUF_STRIDED_RO | PyBUF_FORMAT) < 0) {
        PyErr_Clear();
        return 0;
    }
    const char *format = column->view.format;
    column->at = column->view.buf;
    return column->view.ndim == 1 && column->view.shape[0] == count && (column->step = column->view.strides[0], 1) &&
           format != NULL && format[0] != 0 && format[1] == 0 && strchr("hilq", format[0]) != NULL;
}

static inline int64_t
value_of(const Many *column, Py_ssize_t i)
{
    const char *at = column->at + i * column->step;
    switch (column->view.obj == NULL ? 0 : column->view.itemsize) {
    case 2:
        return *(const int16_t *)at;
    case 4:
        return *(const int32_t *)at;
    case 8:
        return *(const int64_t *)at;
    default:
        return column->value;
    }
}

static inline uint64_t
reference(const Many *column, Py_ssize_t i)
{
    int64_t value = value_of(column, i);
    return (uint16_t)(value > INT16_MAX ? INT16_MAX : value);
}

/* Block and life of a row lie in one number of `lives`, or in `block` and `gen`. */
enum { M_LIVES, M_BEFORE, M_AFTER, M_FILL, M_SEQ_ID, M_LBLOCK, M_BLOCK, M_GEN, M_AUX, MANY };
static const int column_at[MANY] = {A_AUX, A_BEFORE, A_AFTER, A_FILL, A_SEQ_ID, A_LBLOCK, A_BLOCK, A_GEN, A_AUX};

/* The columns given, and what stands for those that are not. 0: it has to be done the long way. */
static int
look_at_columns(PyObject *const given[MANY], Many many[MANY], Py_ssize_t count)
{
    memset(many, 0, sizeof(Many) * MANY);
    int good = count >= 0;
    for (int i = 0; good && i < MANY; i++) {
        many[i].value = columns[column_at[i]].otherwise;
        good = given[i] == NULL || look_at_column(given[i], column_at[i], count, &many[i]);
    }
    PyErr_Clear();
    return good;
}

/* The same of what is given by `lives`, an array of 8 bytes each. */
static int
look_at_lives(PyObject *const given[MANY], Many many[MANY], Py_ssize_t *count)
{
    *count = PyObject_Size(given[M_LIVES]);
    return look_at_columns(given, many, *count) && many[M_LIVES].view.obj != NULL && many[M_LIVES].view.itemsize == 8;
}

static void
let_go_of_columns(Many many[MANY])
{
    for (int i = 0; i < MANY; i++) {
        PyBuffer_Release(&many[i].view);
    }
}

/* In words of 8 bytes: stores of single fields into a row that is then copied would wait for each other. */
static void
fill_rows(Row *rows, const Row *common, const Many many[MANY], Py_ssize_t count, int64_t seq)
{
    uint64_t *to = (uint64_t *)rows, begin[2], kind = (uint64_t)common->kind << 48 | (uint64_t)common->reason << 56;
    int lives = many[M_LIVES].view.obj != NULL;
    memcpy(begin, common, sizeof(begin));
    for (Py_ssize_t i = 0; i < count; i++, to += sizeof(Row) / 8) {
        to[0] = begin[0], to[1] = begin[1]; /* moment, step and place */
        to[2] = (uint64_t)value_of(&many[M_AUX], i);
        to[3] = lives ? (uint64_t)value_of(&many[M_LIVES], i)
                      : (uint32_t)value_of(&many[M_BLOCK], i) | (uint64_t)value_of(&many[M_GEN], i) << 32;
        to[4] = (uint32_t)value_of(&many[M_SEQ_ID], i) | (uint64_t)value_of(&many[M_LBLOCK], i) << 32;
        to[5] = reference(&many[M_BEFORE], i) | reference(&many[M_AFTER], i) << 16 |
                (uint64_t)(uint16_t)value_of(&many[M_FILL], i) << 32 | kind;
        __atomic_store_n(&to[6], (uint64_t)(seq + i + 1), __ATOMIC_RELEASE); /* as `commit_row` */
    }
}

/* The arguments of `emit_many` by their column, borrowed; 0: it has to be done the long way. */
static int
find_columns(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, long long kind[2], PyObject *given[MANY])
{
    int fits = 1 <= nargs && nargs <= 2 && column_of(args[0], A_KIND, &kind[0]) &&
               (nargs < 2 || column_of(args[1], A_REASON, &kind[1]));
    for (Py_ssize_t k = 0; fits && kwnames != NULL && k < PyTuple_GET_SIZE(kwnames); k++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, k), *value = args[nargs + k];
        if (nargs < 2 && PyUnicode_CompareWithASCIIString(name, "reason") == 0) {
            fits = column_of(value, A_REASON, &kind[1]);
            continue;
        }
        int i = M_BEFORE;
        while (i < MANY && PyUnicode_CompareWithASCIIString(name, columns[column_at[i]].name) != 0) {
            i++;
        }
        if (i < MANY) {
            given[i] = value;
        }
        else { /* no details, said out loud */
            fits = value == Py_None && PyUnicode_CompareWithASCIIString(name, "details") == 0;
        }
    }
    return fits;
}

/* How many rows the first array asks for; -1 where none is given that has a length. */
static Py_ssize_t
rows_asked(PyObject *const given[MANY])
{
    for (int i = M_BEFORE; i < MANY; i++) {
        if (given[i] != NULL && !PyLong_CheckExact(given[i])) {
            Py_ssize_t count = PyObject_Size(given[i]);
            PyErr_Clear();
            return count;
        }
    }
    return -1;
}

static PyObject *
emit_many(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    long long kind[2] = {0, 0};
    PyObject *given[MANY] = {NULL};
    Many many[MANY];
    Claim made;
    int claimed = 0;
    if (find_columns(args, nargs, kwnames, kind, given)) {
        Py_ssize_t count = rows_asked(given);
        claimed = look_at_columns(given, many, count) && count > 0 ? claim(self, count, 1, &made) : 0;
        if (claimed > 0) {
            made.common.kind = (uint8_t)kind[0], made.common.reason = (uint8_t)kind[1];
            fill_rows(rows_of(&made), &made.common, many, count, made.seq);
        }
        let_go_of_columns(many);
    }
    if (claimed <= 0) {
        return claimed < 0 ? NULL : in_python("emit_many_python", self, args, nargs, kwnames);
    }
    return PyLong_FromLongLong(made.seq);
}

static PyObject *
emit_lives(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    long long kind, reason;
    Many many[MANY];
    Claim made;
    Py_ssize_t count = 0;
    int claimed = 0, good = 0;
    if (kwnames == NULL && 6 <= nargs && nargs <= 8 && column_of(args[0], A_KIND, &kind) &&
        column_of(args[1], A_REASON, &reason)) {
        PyObject *given[MANY] = {args[2], args[3], args[4], args[5], nargs > 6 ? args[6] : NULL,
                                 nargs > 7 ? args[7] : NULL};
        good = look_at_lives(given, many, &count);
        claimed = good ? claim(self, count, 1, &made) : 0;
        if (claimed > 0) {
            made.common.kind = (uint8_t)kind, made.common.reason = (uint8_t)reason;
            fill_rows(rows_of(&made), &made.common, many, count, made.seq);
        }
        let_go_of_columns(many);
    }
    if (claimed <= 0) {
        return claimed < 0 ? NULL : in_python("emit_lives_python", self, args, nargs, kwnames);
    }
    return PyLong_FromLongLong(made.seq);
}

static PyObject *
emit_ends(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    long long reason;
    Many many[MANY];
    Claim made;
    Py_ssize_t count = 0;
    int claimed = 0, good = 0;
    if (kwnames == NULL && 3 <= nargs && nargs <= 5 && column_of(args[0], A_REASON, &reason)) {
        PyObject *given[MANY] = {args[1], NULL, NULL, args[2], nargs > 3 ? args[3] : NULL, nargs > 4 ? args[4] : NULL};
        good = look_at_lives(given, many, &count);
        claimed = good ? claim(self, 2 * count, 1, &made) : 0;
        if (claimed > 0) {
            made.common.kind = kinds[KIND_RELEASE], made.common.reason = (uint8_t)reason;
            many[M_BEFORE].value = 1, many[M_AFTER].value = 0;
            fill_rows(rows_of(&made), &made.common, many, count, made.seq);
            Many freed[MANY] = {many[M_LIVES], [M_SEQ_ID] = {.value = -1}, [M_LBLOCK] = {.value = -1}};
            made.common.kind = kinds[KIND_FREE];
            fill_rows(rows_of(&made) + count, &made.common, freed, count, made.seq + count);
        }
        let_go_of_columns(many);
    }
    if (claimed <= 0) {
        return claimed < 0 ? NULL : in_python("emit_ends_python", self, args, nargs, kwnames);
    }
    return PyLong_FromLongLong(made.seq);
}

/* -- sheets of rows ---------------------------------------------------------------------------------------------- */

/* Buffers of a sheet, its details and the records that they go to; `details` and `records` may be absent. */
typedef struct {
    Py_buffer sheet, details, records;
} SheetBuffers;

static void
let_go(SheetBuffers *of)
{
    PyBuffer_Release(&of->sheet); /* does nothing to one that was not got */
    PyBuffer_Release(&of->details);
    PyBuffer_Release(&of->records);
}

/* 1: got. 0: it has to be done the long way. No exception is left behind. */
static int
look_at_sheet(PyObject *self, PyObject *sheet, PyObject *details, SheetBuffers *of)
{
    memset(of, 0, sizeof(*of));
    PyObject *raw = PyObject_GetAttr(sheet, name_raw), *records = get(self, RECORDS);
    int good = raw != NULL && PyObject_GetBuffer(raw, &of->sheet, PyBUF_SIMPLE) == 0 &&
               of->sheet.len % (Py_ssize_t)sizeof(Row) == 0;
    if (good && details != Py_None) {
        good = records != NULL && records != Py_None &&
               PyObject_GetBuffer(records, &of->records, PyBUF_WRITABLE) == 0 &&
               PyObject_GetBuffer(details, &of->details, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) == 0 &&
               of->details.ndim == 2 && of->details.itemsize == 8 && of->details.format != NULL &&
               strcmp(of->details.format, "l") == 0 &&
               1 <= of->details.shape[1] && of->details.shape[1] <= 8 &&
               of->details.shape[0] <= of->sheet.len / (Py_ssize_t)sizeof(Row);
    }
    Py_XDECREF(raw);
    if (!good) {
        PyErr_Clear();
        let_go(of);
    }
    return good;
}

static PyObject *
emit_sheet(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    SheetBuffers of;
    Claim made;
    int claimed = 0;
    int good = kwnames == NULL && 1 <= nargs && nargs <= 2 &&
               look_at_sheet(self, args[0], nargs == 2 ? args[1] : Py_None, &of);
    Py_ssize_t count = good ? of.sheet.len / (Py_ssize_t)sizeof(Row) : 0;
    if (good && (claimed = claim(self, count, 1, &made)) <= 0) {
        let_go(&of);
    }
    if (claimed <= 0) {
        return claimed < 0 ? NULL : in_python("emit_sheet_python", self, args, nargs, kwnames);
    }
    if (of.details.obj != NULL) {
        Py_ssize_t rows = of.details.shape[0], values = of.details.shape[1], first = count - rows;
        Record *record = (Record *)of.records.buf + (made.seq & made.mask) + first;
        const int64_t *value = of.details.buf;
        for (Py_ssize_t i = 0; i < rows; i++, record++, value += values) {
            memcpy(record->values + 8 - values, value, (size_t)values * 8);
            record->mark = (made.seq + first + i + 1) * 16 + values;
        }
    }
    const Row *from = of.sheet.buf;
    Row *row = rows_of(&made);
    for (Py_ssize_t i = 0; i < count; i++, row++, from++) {
        memcpy(row, from, offsetof(Row, mark));
        memcpy(row, &made.common, offsetof(Row, aux)); /* moment, step and place */
        commit_row(row, made.seq + i);
    }
    let_go(&of);
    return PyLong_FromLongLong(made.seq);
}

/* -- the beginning of an operation ------------------------------------------------------------------------------ */

/* The place of the call in `frame`, a new reference; NULL where it is not known yet. No exception is left behind. */
static PyObject *
known_place(PyObject *self, PyFrameObject *frame)
{
    PyObject *local = get(self, LOCAL), *place = NULL, *at = NULL;
    PyObject *last = local == NULL ? NULL : PyObject_GetAttr(local, name_last);
    PyCodeObject *code = PyFrame_GetCode(frame);
    if (last != NULL && PyTuple_CheckExact(last) && PyTuple_GET_SIZE(last) == 2 &&
        PyTuple_GET_ITEM(last, 0) == (PyObject *)code && PyDict_CheckExact(PyTuple_GET_ITEM(last, 1))) {
        at = PyLong_FromLong(PyFrame_GetLasti(frame));
        place = at == NULL ? NULL : PyDict_GetItemWithError(PyTuple_GET_ITEM(last, 1), at);
        Py_XINCREF(place);
    }
    if (place == NULL) {
        PyErr_Clear();
    }
    Py_XDECREF(at);
    Py_XDECREF(last);
    Py_DECREF(code);
    return place;
}

static PyObject *
begin(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    long long above = 1, start;
    PyObject *place = NULL;
    int common = get(self, CLOCK) == monotonic_ns && get(self, SHALLOW) == Py_True && kwnames == NULL && nargs <= 1 &&
                 (nargs == 0 || int_of(args[0], 1, INT32_MAX, &above)) &&
                 get_int(self, CLOCK_START, INT64_MIN, INT64_MAX, &start);
    if (common) {
        /* This function has no frame of its own. */
        PyObject *upwards = PyLong_FromLongLong(above - 1);
        PyObject *frame = upwards == NULL ? NULL : PyObject_CallOneArg(getframe, upwards);
        Py_XDECREF(upwards);
        if (frame != NULL) {
            place = known_place(self, (PyFrameObject *)frame);
            Py_DECREF(frame);
        }
        PyErr_Clear();
    }
    if (place == NULL) {
        return in_python("begin_python", self, args, nargs, kwnames);
    }
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    put_slot(self, &of_recorder[PLACE], place);
    if (put_int(self, &of_recorder[T], (long long)now.tv_sec * 1000000000 + now.tv_nsec - start) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* -- details of one row ------------------------------------------------------------------------------------------- */

/* Of a recorder whose details lie beside the rows (Recorder). */
static PyObject *
detail(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    long long seq, end, sealing, mask, values[8];
    Py_buffer view;
    int common = kwnames == NULL && nargs == 2 && PyTuple_CheckExact(args[1]) && PyTuple_GET_SIZE(args[1]) <= 8 &&
                 get_int(self, NEXT, 0, INT64_MAX, &end) && int_of(args[0], 0, end - 1, &seq) &&
                 get_int(self, SEALING, 0, seq, &sealing) && get_int(self, MASK, 0, INT64_MAX, &mask) &&
                 get(self, RECORDS) != NULL;
    Py_ssize_t count = common ? PyTuple_GET_SIZE(args[1]) : 0;
    for (Py_ssize_t i = 0; common && i < count; i++) {
        common = int_of(PyTuple_GET_ITEM(args[1], i), INT64_MIN, INT64_MAX, &values[i]);
    }
    PyObject *closed = common ? PyObject_GetAttr(self, name_closed) : NULL;
    Py_XDECREF(closed);
    if (closed != Py_False || PyObject_GetBuffer(get(self, RECORDS), &view, PyBUF_WRITABLE) < 0) {
        PyErr_Clear();
        return in_python("detail_python", self, args, nargs, kwnames);
    }
    Record *record = (Record *)view.buf + (seq & mask);
    memcpy(record->values + 8 - count, values, (size_t)count * 8);
    record->mark = (seq + 1) * 16 + count;
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

/* -- the module ------------------------------------------------------------------------------------------------- */

static PyMethodDef recorder_methods[] = {
    METHOD(emit), METHOD(emit_alloc), METHOD(emit_end), METHOD(emit_many), METHOD(emit_lives), METHOD(emit_ends),
    METHOD(emit_sheet), METHOD(begin), {NULL, NULL, 0, NULL},
};
static PyMethodDef detail_methods[] = {METHOD(detail), {NULL, NULL, 0, NULL}};

static PyObject *
methods(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyTypeObject *type;
    if (!PyArg_ParseTuple(args, "O!(bbb)OO", &PyType_Type, &type, &kinds[0], &kinds[1], &kinds[2], &monotonic_ns,
                          &getframe)) {
        return NULL;
    }
    Py_INCREF(monotonic_ns);
    Py_INCREF(getframe);
    name_last = PyUnicode_InternFromString("last");
    name_raw = PyUnicode_InternFromString("raw");
    name_closed = PyUnicode_InternFromString("_closed");
    if (name_last == NULL || name_raw == NULL || name_closed == NULL || find_slots(type, of_recorder) < 0) {
        return NULL;
    }
    return methods_of(type, recorder_methods);
}

static PyObject *
details(PyObject *Py_UNUSED(module), PyObject *type)
{
    if (!PyType_Check(type)) {
        PyErr_SetString(PyExc_TypeError, "it takes a class");
        return NULL;
    }
    return methods_of((PyTypeObject *)type, detail_methods);
}

static PyMethodDef module_functions[] = {
    {"methods", methods, METH_VARARGS,
     "methods(recorder type, (ALLOC, RELEASE, FREE), time.monotonic_ns, sys._getframe) -> {name: method}"},
    {"details", details, METH_O, "details(recorder type, known to `methods`) -> {name: method}"},
    {NULL, NULL, 0, NULL},
};

MODULE(_speed, "kvscope.traces._speed", module_functions)
