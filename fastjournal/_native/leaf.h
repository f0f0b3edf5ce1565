/* Common to the native leaves: byte order, slots of Python objects, integers, CRC-32C. */
#ifndef FASTJOURNAL_LEAF_H
#define FASTJOURNAL_LEAF_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <stdint.h>
#include <string.h>

/* Fingerprint of these sources as a string, by hatch_build.py; fastjournal._native compares it. */
#ifndef FJ_NATIVE_BUILD
#error "compile by hatch_build.py, which gives FJ_NATIVE_BUILD"
#endif
#ifdef Py_GIL_DISABLED
#error "the leaves need the GIL: a free-threaded Python runs the functions in Python"
#endif

/* ---- big-endian integers ------------------------------------------------------------------- */

static inline uint16_t get_u16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }

static inline uint32_t get_u32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline uint64_t get_u64(const uint8_t *p) {
    return (uint64_t)get_u32(p) << 32 | get_u32(p + 4);
}

static inline void put_u16(uint8_t *p, uint16_t v) {
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

static inline void put_u32(uint8_t *p, uint32_t v) {
    put_u16(p, (uint16_t)(v >> 16));
    put_u16(p + 2, (uint16_t)v);
}

static inline void put_u64(uint8_t *p, uint64_t v) {
    put_u32(p, (uint32_t)(v >> 32));
    put_u32(p + 4, (uint32_t)v);
}

static inline uint8_t *put_bytes(uint8_t *p, const void *data, size_t size) {
    memcpy(p, data, size);
    return p + size;
}

/* ---- layouts of fastjournal/cmdlog/format -------------------------------------------------------- */

enum { TIME_BYTES = 15, RUN_BYTES = 8, ID_BYTES = 16, CRC_BYTES = 4 };
/* Facts of an entry (packed_entry.py), after its priority; behind them those of its record. */
enum { NOT_BEFORE_AT = 1, ARRIVAL_AT = 9, TIMESTAMP_AT = 17, CREATED_AT = 25, TYPE_AT = 33 };
enum { FACTS_BYTES = 34, RECORDED_BYTES = 47 };

/* pack_facts */
static inline void put_facts(uint8_t *p, uint8_t priority, uint64_t not_before, uint64_t arrival,
                             uint64_t timestamp, uint64_t created, uint8_t type) {
    p[0] = priority;
    put_u64(p + NOT_BEFORE_AT, not_before);
    put_u64(p + ARRIVAL_AT, arrival);
    put_u64(p + TIMESTAMP_AT, timestamp);
    put_u64(p + CREATED_AT, created);
    p[TYPE_AT] = type;
}

/* Facts of the record of an entry: its position, which is ``high`` and 8 bits more, plus ``low``. */
static inline void put_place(uint8_t *facts, uint64_t high, uint64_t low, uint32_t size) {
    put_u64(facts + FACTS_BYTES, high + (low >> 8));
    facts[FACTS_BYTES + 8] = (uint8_t)low;
    put_u32(facts + FACTS_BYTES + 9, size);
}

/* ---- Python objects ------------------------------------------------------------------------ */

/* The object in a slot (__slots__), borrowed; NULL where it was never set. */
#define SLOT(object, offset) (*(PyObject **)((char *)(object) + (offset)))

/* Offset of a slot of a class, by its name; -1 with TypeError: the class has no such slot. */
static inline Py_ssize_t slot_offset(PyObject *type, const char *name) {
    PyObject *member = PyObject_GetAttrString(type, name);
    if (member == NULL)
        return -1;
    if (!Py_IS_TYPE(member, &PyMemberDescr_Type)) {
        PyErr_Format(PyExc_TypeError, "%R has no slot %s", type, name);
        Py_DECREF(member);
        return -1;
    }
    Py_ssize_t offset = ((PyMemberDescrObject *)member)->d_member->offset;
    Py_DECREF(member);
    return offset;
}

/* Name of a slot, and where its offset is kept. A table of them ends with a name of NULL. */
typedef struct {
    const char *name;
    Py_ssize_t *offset;
} Slot;

/* Learn the offsets of slots of a class. Returns 0, or -1 with TypeError. */
static inline int slot_offsets(PyObject *type, const Slot *slots) {
    for (; slots->name != NULL; slots++)
        if ((*slots->offset = slot_offset(type, slots->name)) < 0)
            return -1;
    return 0;
}

/* Value of an exact int that fits 64 bits. Returns 0; -1, with no exception set: it is another, or
   the slot was never set. */
static inline int read_u64(PyObject *object, uint64_t *value) {
    if (object == NULL || !PyLong_CheckExact(object))
        return -1;
    unsigned long long found = PyLong_AsUnsignedLongLong(object);
    if (found == (unsigned long long)-1 && PyErr_Occurred()) {
        PyErr_Clear();
        return -1;
    }
    *value = found;
    return 0;
}

/* ---- checksum ------------------------------------------------------------------------------ */

uint32_t crc32c(const uint8_t *data, size_t size);

/* ---- modules --------------------------------------------------------------------------------- */

/* Begin a module. What a leaf keeps (classes, offsets of slots, integers) is of one interpreter, so
   others run the functions in Python. */
static inline int begin_module(PyObject *module) {
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "native leaves run in the main interpreter only");
        return -1;
    }
    return PyModule_AddStringConstant(module, "BUILD", FJ_NATIVE_BUILD);
}

/* ---- tables of methods, one a source file ---------------------------------------------------- */

#define FASTCALL(function) (PyCFunction)(void (*)(void))(function), METH_FASTCALL

extern PyMethodDef codec_methods[], record_methods[], bulk_methods[], replay_methods[];

#endif
