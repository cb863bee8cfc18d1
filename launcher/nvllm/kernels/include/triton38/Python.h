/* What the one module in C of Triton 3.8 uses of CPython's C interface beyond the modules of 3.6.

   Two things are laid out here that the stable ABI does not have, as every CPython from 3.11 to 3.13 has them: where
   the items of a list and of a tuple lie, for PySequence_Fast_ITEMS, and the slot tp_init of a static type. */

#ifndef NVLLM_TRITON38_PYTHON_H
#define NVLLM_TRITON38_PYTHON_H

#include "../Python.h"

#include <alloca.h>
#include <assert.h>

typedef int (*initproc)(PyObject *, PyObject *, PyObject *);

/* The last of the slots that ../Python.h has no name for, in front of tp_alloc. */
#define tp_init slots_from_traverse[14]

typedef struct {
  PyVarObject ob_base;
  PyObject **ob_item;
} PyListObject;

typedef struct {
  PyVarObject ob_base;
  PyObject *ob_item[1];
} PyTupleObject;

typedef struct {
  void *buf;
  PyObject *obj;
  Py_ssize_t len, itemsize;
  int readonly, ndim;
  char *format;
  Py_ssize_t *shape, *strides, *suboffsets;
  void *internal;
} Py_buffer;

extern PyObject *PyExc_MemoryError;

#define PyArg_ParseTupleAndKeywords _PyArg_ParseTupleAndKeywords_SizeT
int PyArg_ParseTupleAndKeywords(PyObject *, PyObject *, const char *, char **, ...);
void PyBuffer_Release(Py_buffer *);
char *PyBytes_AsString(PyObject *);
PyObject *PyBytes_FromStringAndSize(const char *, Py_ssize_t);
double PyFloat_AsDouble(PyObject *);
unsigned long PyLong_AsUnsignedLong(PyObject *);
PyObject *PyLong_FromUnsignedLongLong(unsigned long long);
int PyModule_AddIntConstant(PyObject *, const char *, long);
const char *PyUnicode_AsUTF8AndSize(PyObject *, Py_ssize_t *);

#define Py_XINCREF(object) Py_IncRef((PyObject *)(object)) /* which takes NULL */
#define PyBytes_AS_STRING(bytes) PyBytes_AsString(bytes)
/* Of the list or tuple that PySequence_Fast returns. */
#define PySequence_Fast_ITEMS(sequence)                                                                                \
  (PyList_Check(sequence) ? ((PyListObject *)(sequence))->ob_item : ((PyTupleObject *)(sequence))->ob_item)

#endif
