/* The details of rows, as a sink was given them or as a trace keeps them. */

#ifndef KVSCOPE_SCREEN_DETAILS_H
#define KVSCOPE_SCREEN_DETAILS_H

#include "state.h"

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

#endif
