/* The ring of a recorder: how rows and details lie there, and how they are claimed (`row_ring.py` says why so). */

#ifndef KVSCOPE_RING_H
#define KVSCOPE_RING_H

#include "module.h"

/* A row, as row_layout.py has it. */
typedef struct {
    int64_t t_ns;
    int32_t step;
    uint8_t place[4]; /* site, actor, tier */
    int64_t aux;
    int32_t block, gen, seq_id, lblock;
    int16_t ref_before, ref_after, fill;
    uint8_t kind, reason;
    int64_t mark; /* seq + 1, stored last: the row exists from then on */
} Row;

_Static_assert(sizeof(Row) == 56, "a row has 56 bytes");

static inline void
commit_row(Row *row, int64_t seq)
{
    __atomic_store_n(&row->mark, seq + 1, __ATOMIC_RELEASE);
}

/* A detail record, as hot.py has it: the values end where the mark begins. */
typedef struct {
    int64_t values[8];
    int64_t mark; /* (seq + 1) * 16 + number of values */
} Record;

/* -- the slots of a recorder (SheetWriter) ------------------------------------------------------------------------- */

enum { NEXT, LIMIT, MASK, T, STEP, PLACE, BUFFER, CLOCK, CLOCK_START, SHALLOW, LOCAL, RECORDS, SEALING };

static Slot of_recorder[] = {
    {"_next", 0}, {"_limit", 0}, {"_mask", 0}, {"_t", 0}, {"step", 0}, {"_place", 0}, {"_buffer", 0}, {"_clock", 0},
    {"_clock_start", 0}, {"_shallow", 0}, {"_local", 0}, {"_records", 0}, {"_sealing", 0}, {NULL, 0},
};

static inline PyObject *
get(PyObject *recorder, int which)
{
    return slot(recorder, &of_recorder[which]);
}

static inline int
get_int(PyObject *recorder, int which, long long lo, long long hi, long long *out)
{
    return slot_int(recorder, &of_recorder[which], lo, hi, out);
}

/* Room for rows, claimed, and what all of them have in common. Row `seq` lies at `ring[seq & mask]`. */
typedef struct {
    long long seq, mask;
    Row *ring;
    Row common;
} Claim;

/* 1: claimed. 0: it has to be done the long way, and nothing was changed. -1: an exception is set.

together: the rows must lie side by side. */
static int
claim(PyObject *recorder, long long count, int together, Claim *made)
{
    long long limit, t, step;
    PyObject *place = get(recorder, PLACE), *buffer = get(recorder, BUFFER);
    Py_buffer view;
    if (!get_int(recorder, T, INT64_MIN, INT64_MAX, &t) || !get_int(recorder, STEP, INT32_MIN, INT32_MAX, &step) ||
        !get_int(recorder, LIMIT, 0, INT64_MAX, &limit) || !get_int(recorder, MASK, 0, INT64_MAX, &made->mask) ||
        !get_int(recorder, NEXT, 0, INT64_MAX - count, &made->seq) || made->seq + count > limit ||
        (together && (made->seq & made->mask) + count > made->mask + 1) || count > made->mask + 1 || place == NULL ||
        !PyBytes_CheckExact(place) || PyBytes_GET_SIZE(place) != 4 || buffer == NULL) {
        return 0;
    }
    if (PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE) < 0) {
        PyErr_Clear();
        return 0;
    }
    int fits = view.len / (Py_ssize_t)sizeof(Row) > made->mask;
    made->ring = view.buf;
    PyBuffer_Release(&view); /* the recorder holds the buffer */
    if (!fits) {
        return 0;
    }
    memset(&made->common, 0, sizeof(Row));
    made->common.t_ns = t;
    made->common.step = (int32_t)step;
    memcpy(made->common.place, PyBytes_AS_STRING(place), 4);
    return put_int(recorder, &of_recorder[NEXT], made->seq + count) < 0 ? -1 : 1;
}

#endif
