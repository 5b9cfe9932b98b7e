/* What the modules in C have in common: how they read Python objects, hand out methods, and end. */

#ifndef KVSCOPE_MODULE_H
#define KVSCOPE_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <structmember.h>

#if PY_BIG_ENDIAN || !defined(__GNUC__)
#error "rows, tokens and hashes are little endian, and marks are stored with the atomics of GCC and clang"
#endif

/* -- slots: attributes of classes with __slots__, which lie side by side in their objects ------------------------- */

/* Where a slot lies in the objects of a class; asked for once, when the module is told of the class. */
typedef struct {
    const char *name;
    Py_ssize_t at;
} Slot;

/* Find slots of a class, up to the one without a name. */
static int
find_slots(PyTypeObject *type, Slot *slots)
{
    for (; slots->name != NULL; slots++) {
        PyObject *slot = PyObject_GetAttrString((PyObject *)type, slots->name);
        if (slot == NULL) {
            return -1;
        }
        PyMemberDef *member = Py_IS_TYPE(slot, &PyMemberDescr_Type) ? ((PyMemberDescrObject *)slot)->d_member : NULL;
        int good = member != NULL && member->type == T_OBJECT_EX;
        slots->at = good ? member->offset : 0;
        Py_DECREF(slot);
        if (!good) {
            PyErr_Format(PyExc_TypeError, "%s.%s is no slot", type->tp_name, slots->name);
            return -1;
        }
    }
    return 0;
}

/* What is in the slot of an object of that class: borrowed, valid until it is set or the object ends; NULL if unset. */
static inline PyObject *
slot(PyObject *owner, const Slot *which)
{
    return *(PyObject **)((char *)owner + which->at);
}

/* Takes the reference. */
static inline void
put_slot(PyObject *owner, const Slot *which, PyObject *value)
{
    PyObject **at = (PyObject **)((char *)owner + which->at), *old = *at;
    *at = value;
    Py_XDECREF(old);
}

/* An int within lo..hi; 0 where it is something else. No exception is left behind. */
static inline int
int_of(PyObject *value, long long lo, long long hi, long long *out)
{
    int overflow;
    if (value == NULL || !PyLong_Check(value)) {
        return 0;
    }
    *out = PyLong_AsLongLongAndOverflow(value, &overflow);
    return !overflow && lo <= *out && *out <= hi;
}

static inline int
slot_int(PyObject *owner, const Slot *which, long long lo, long long hi, long long *out)
{
    return int_of(slot(owner, which), lo, hi, out);
}

static inline int
put_int(PyObject *owner, const Slot *which, long long number)
{
    PyObject *value = PyLong_FromLongLong(number);
    if (value == NULL) {
        return -1;
    }
    put_slot(owner, which, value);
    return 0;
}

/* -- methods ------------------------------------------------------------------------------------------------------- */

/* The method in Python that a function here stands in for; no exception may be set. */
static PyObject *
in_python(const char *name, PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *method = PyObject_GetAttrString(self, name);
    if (method == NULL) {
        return NULL;
    }
    PyObject *result = PyObject_Vectorcall(method, args, (size_t)nargs, kwnames);
    Py_DECREF(method);
    return result;
}

#define METHOD(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL | METH_KEYWORDS, NULL}

/* {name: method} for objects of this class. */
static PyObject *
methods_of(PyTypeObject *type, PyMethodDef *defs)
{
    PyObject *made = PyDict_New();
    for (PyMethodDef *def = defs; made != NULL && def->ml_name != NULL; def++) {
        PyObject *method = PyDescr_NewMethod(type, def);
        if (method == NULL || PyDict_SetItemString(made, def->ml_name, method) < 0) {
            Py_CLEAR(made);
        }
        Py_XDECREF(method);
    }
    return made;
}

/* -- the module ---------------------------------------------------------------------------------------------------- */

#ifdef Py_GIL_DISABLED
#define WITHOUT_GIL {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#else
#define WITHOUT_GIL
#endif

/* The end of a module: its functions, and EDITION, which its Python half compares. */
#define MODULE(short_name, full_name, functions) \
    static int begin_module(PyObject *module) { return PyModule_AddIntMacro(module, EDITION); } \
    static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, begin_module}, WITHOUT_GIL {0, NULL}}; \
    static struct PyModuleDef module = { \
        PyModuleDef_HEAD_INIT, .m_name = full_name, .m_methods = functions, .m_slots = module_slots}; \
    PyMODINIT_FUNC PyInit_##short_name(void) { return PyModuleDef_Init(&module); }

#endif
