/* The part of CPython's C interface that Triton's two modules in C use: cuda_utils and the launchers of kernels.

   It is written from the documentation of the interface, and declares functions of the stable ABI wherever there is
   one for what CPython's own header does by reading a structure. So one compiled module is right for CPython 3.11 to
   3.13 without the headers of any of them. The one structure that is laid out here beyond the stable ABI is
   PyTypeObject: a static type needs it. Its first 51 slots are those of every CPython since 3.8; what 3.12 and 3.13
   put behind them is room that the type must have. */

#ifndef NVLLM_PYTHON_H
#define NVLLM_PYTHON_H

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PY_VERSION_HEX 0x030b00f0

typedef ptrdiff_t Py_ssize_t;
typedef struct _typeobject PyTypeObject;

typedef struct _object {
  Py_ssize_t ob_refcnt;
  PyTypeObject *ob_type;
} PyObject;

typedef struct {
  PyObject ob_base;
  Py_ssize_t ob_size;
} PyVarObject;

typedef PyObject *(*PyCFunction)(PyObject *, PyObject *);
typedef PyObject *(*newfunc)(PyTypeObject *, PyObject *, PyObject *);
typedef PyObject *(*allocfunc)(PyTypeObject *, Py_ssize_t);
typedef void (*destructor)(PyObject *);
typedef void (*freefunc)(void *);

struct _typeobject {
  PyVarObject ob_base;
  const char *tp_name;
  Py_ssize_t tp_basicsize, tp_itemsize;
  destructor tp_dealloc;
  void *slots_from_vectorcall_offset[14];
  unsigned long tp_flags;
  const char *tp_doc;
  void *slots_from_traverse[15];
  allocfunc tp_alloc;
  newfunc tp_new;
  freefunc tp_free;
  void *slots_from_is_gc[10];
  void *room[1];
};

typedef struct {
  const char *ml_name;
  PyCFunction ml_meth;
  int ml_flags;
  const char *ml_doc;
} PyMethodDef;

typedef struct {
  PyObject ob_base;
  PyObject *(*m_init)(void);
  Py_ssize_t m_index;
  PyObject *m_copy;
} PyModuleDef_Base;

typedef struct PyModuleDef {
  PyModuleDef_Base m_base;
  const char *m_name;
  const char *m_doc;
  Py_ssize_t m_size;
  PyMethodDef *m_methods;
  void *m_slots, *m_traverse, *m_clear, *m_free;
} PyModuleDef;

#define PyObject_HEAD PyObject ob_base;
#define PyVarObject_HEAD_INIT(type, size) {{1, (type)}, (size)},
#define PyModuleDef_HEAD_INIT {{1, NULL}, NULL, 0, NULL}
#define PyMODINIT_FUNC __attribute__((visibility("default"))) PyObject *
#define METH_VARARGS 0x0001
#define Py_TPFLAGS_DEFAULT (1UL << 18)
#define PYTHON_ABI_VERSION 3

typedef enum { PyGILState_LOCKED, PyGILState_UNLOCKED } PyGILState_STATE;
typedef struct _ts PyThreadState;

extern PyObject _Py_NoneStruct;
extern PyObject *PyExc_RuntimeError, *PyExc_SystemError, *PyExc_TypeError, *PyExc_ValueError;

void Py_IncRef(PyObject *);
void Py_DecRef(PyObject *);
/* A length that "#" asks for is a Py_ssize_t: both modules define PY_SSIZE_T_CLEAN. */
#define PyArg_ParseTuple _PyArg_ParseTuple_SizeT
#define Py_BuildValue _Py_BuildValue_SizeT
int PyArg_ParseTuple(PyObject *, const char *, ...);
PyObject *Py_BuildValue(const char *, ...);
PyObject *PyErr_Format(PyObject *, const char *, ...);
PyObject *PyErr_NoMemory(void);
PyObject *PyErr_Occurred(void);
void PyErr_SetString(PyObject *, const char *);
PyThreadState *PyEval_SaveThread(void);
void PyEval_RestoreThread(PyThreadState *);
int PyFloat_Pack2(double, char *, int);
PyGILState_STATE PyGILState_Ensure(void);
void PyGILState_Release(PyGILState_STATE);
PyObject *PyImport_ImportModule(const char *);
PyObject *PyList_GetItem(PyObject *, Py_ssize_t);
long PyLong_AsLong(PyObject *);
long long PyLong_AsLongLong(PyObject *);
unsigned long long PyLong_AsUnsignedLongLong(PyObject *);
PyObject *PyLong_FromLong(long);
int PyModule_AddFunctions(PyObject *, PyMethodDef *);
int PyModule_AddObject(PyObject *, const char *, PyObject *);
PyObject *PyModule_Create2(PyModuleDef *, int);
PyObject *PyObject_CallFunctionObjArgs(PyObject *, ...);
PyObject *PyObject_CallMethodObjArgs(PyObject *, PyObject *, ...);
PyObject *PyObject_CallObject(PyObject *, PyObject *);
PyObject *PyObject_GetAttrString(PyObject *, const char *);
PyObject *PyObject_Init(PyObject *, PyTypeObject *);
PyObject *PySequence_Fast(PyObject *, const char *);
Py_ssize_t PySequence_Size(PyObject *);
PyObject *PyTuple_GetItem(PyObject *, Py_ssize_t);
unsigned long PyType_GetFlags(PyTypeObject *);
PyObject *PyType_GenericNew(PyTypeObject *, PyObject *, PyObject *);
int PyType_Ready(PyTypeObject *);
PyObject *PyUnicode_InternFromString(const char *);

#define Py_None (&_Py_NoneStruct)
#define Py_RETURN_NONE                                                                                                 \
  do {                                                                                                                 \
    Py_IncRef(Py_None);                                                                                                \
    return Py_None;                                                                                                    \
  } while (0)
#define Py_TYPE(object) (((PyObject *)(object))->ob_type)
#define Py_INCREF(object) Py_IncRef((PyObject *)(object))
#define Py_DECREF(object) Py_DecRef((PyObject *)(object))
#define Py_XDECREF(object) Py_DecRef((PyObject *)(object)) /* which takes NULL */
#define Py_BEGIN_ALLOW_THREADS                                                                                         \
  {                                                                                                                    \
    PyThreadState *_save = PyEval_SaveThread();
#define Py_END_ALLOW_THREADS                                                                                           \
  PyEval_RestoreThread(_save);                                                                                         \
  }
#define PyLong_Check(object) ((PyType_GetFlags(Py_TYPE(object)) & (1UL << 24)) != 0)
#define PyList_Check(object) ((PyType_GetFlags(Py_TYPE(object)) & (1UL << 25)) != 0)
#define PyModule_Create(definition) PyModule_Create2((definition), PYTHON_ABI_VERSION)
#define PyObject_INIT(object, type) PyObject_Init((PyObject *)(object), (type))
#define PyObject_CallMethodNoArgs(object, name) PyObject_CallMethodObjArgs((object), (name), NULL)
#define PyObject_CallOneArg(callable, argument) PyObject_CallFunctionObjArgs((callable), (argument), NULL)
/* Of the list or tuple that PySequence_Fast returns. */
#define PySequence_Fast_GET_SIZE(sequence) PySequence_Size(sequence)
#define PySequence_Fast_GET_ITEM(sequence, index)                                                                      \
  (PyList_Check(sequence) ? PyList_GetItem((sequence), (index)) : PyTuple_GetItem((sequence), (index)))

#endif
