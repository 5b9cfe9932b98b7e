/* The rules of the screen in C, row by row: for a look at the events of one step, or of a few.

The vectorised passes (`blocks.py`, `entries.py`, `sequences.py`, `numbers.py`, `transfers.py`) ask each question of all
rows of a chunk at once, which is fast for a hundred thousand rows and slow for two hundred: a hundred calls of numpy cost
the same for one row as for a thousand. Here the same questions are asked of one row after the other, against what is
known of its block, its sequence and its step, so that a look costs what its rows cost. Rule for rule this is what those
passes say, under the same names; `tests/property/test_screen.py` holds both to each other and to the detectors.

What is left to Python: which slots of the host tier are held, once there is a swap (`beside`).

    state.h      what is known of blocks, sequences, leases and steps
    details.h    the details of rows
    lost.h       what is known where events were lost
    rules.h      the rules
    live.c       looks, and what Python asks */

#include "rules.h"

#define EDITION 4 /* as in live.py */

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
    for (Py_ssize_t i = 0; i < self->length && !swaps && !lost(self); i++) {
        int kind = kind_at(self, i);
        swaps = kind == K_SWAP_OUT || kind == K_SWAP_IN;
    }
    if (swaps && self->rule == NULL && !lost(self)) {
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
    self->breaks_off = 0;
    if (!PyArg_ParseTuple(args, "O!LO!OOO|p", &PyList_Type, &parts, &first, &PyDict_Type, &singles, &bulk, &marks, &beside,
                          &self->breaks_off)) {
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
    self->resumes = self->resumes && count == 0;
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
        const Sequence *at = &self->sequences[i];
        entry |= at->stretch == self->stretch && at->over && at->entries > 0;
    }
    for (int64_t i = 0; i < self->rooms; i++) {
        const Block *at = &self->blocks[i];
        if (at->stretch != self->stretch || at->unknown) {
            continue;
        }
        block |= at->touched && at->references == 0 && at->place == HELD && !at->published;
        quarantine |= at->place == QUARANTINED && at->last_use <= self->ended && !lost(self);
    }
    return Py_BuildValue("{s:O,s:O,s:O,s:O}", "entry left", entry ? Py_True : Py_False, "lease left",
                         self->leased && !self->swaps && !lost(self) ? Py_True : Py_False, "block left", block ? Py_True : Py_False,
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
        const Block *at = &self->blocks[i];
        blocks += at->touched, written += at->ever_written;
        for (int64_t slot = at->ever_written; at->beyond != NULL && slot < self->block_size; slot++) {
            written += at->beyond[slot / 64] >> slot % 64 & 1;
        }
    }
    return Py_BuildValue("(LL)", blocks, written);
}

static PyObject *
begin(Live *self, PyObject *args)
{
    Py_buffer views[3];
    PyObject *columns[3], *made = NULL;
    int opened = 0;
    if (!PyArg_ParseTuple(args, "OOO", &columns[0], &columns[1], &columns[2])) {
        return NULL;
    }
    while (opened < 3 && PyObject_GetBuffer(columns[opened], &views[opened], PyBUF_C_CONTIGUOUS) == 0) {
        opened++;
    }
    if (opened == 3 && (views[0].itemsize != 4 || views[1].itemsize != 4 || views[2].itemsize != 4 ||
                        views[0].len != views[1].len || views[0].len != views[2].len)) {
        PyErr_SetString(PyExc_TypeError, "lives, references and leases are columns of int32, one of each for a block");
    }
    else if (opened == 3) {
        for (int64_t i = 0; i < self->rooms && i < views[0].len / 4; i++) {
            Block *block = &self->blocks[i];
            block->gen = ((const int32_t *)views[0].buf)[i];
            block->references = ((const int32_t *)views[1].buf)[i];
            block->leases = ((const int32_t *)views[2].buf)[i];
        }
        made = Py_NewRef(Py_None);
    }
    while (opened > 0) {
        PyBuffer_Release(&views[--opened]);
    }
    return made;
}

static PyObject *
lose(Live *self, PyObject *Py_UNUSED(none))
{
    lose_all(self);
    Py_RETURN_NONE;
}

static PyObject *
known(Live *self, PyObject *Py_UNUSED(none))
{
    return Py_BuildValue("(LLLLL)", (long long)self->unjudged, (long long)self->unknown, (long long)self->compared,
                         (long long)self->least_told, (long long)self->most_told);
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
    for (int64_t i = 0; self->blocks != NULL && i < self->rooms; i++) {
        PyMem_Free(self->blocks[i].beyond);
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
     "look(rows, first, singles, bulk, marks, beside, breaks_off=False) -> rows that are complete, all of which were "
     "looked at; `breaks_off`: the events just behind them are lost"},
    {"begin", (PyCFunction)begin, METH_VARARGS,
     "begin(lives, references, leases): of each block, as lost events left them; to be followed by `lose`"},
    {"lose", (PyCFunction)lose, METH_NOARGS, "events were lost: nothing is known of any block, sequence or step"},
    {"known", (PyCFunction)known, METH_NOARGS,
     "(events that could not be judged, blocks that are unknown, witnesses compared, least and most blocks these count)"},
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
