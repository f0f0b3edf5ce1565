/* Frames of requests: their bytes to fields, fields to objects. Both modules include this: leaves
   (codec.c) and rounds. fastjournal/protocol/requests.py has the layout. */
#ifndef FASTJOURNAL_FRAMES_H
#define FASTJOURNAL_FRAMES_H

#include "leaf.h"

/* fastjournal/protocol/constants.py: Flag, and the fields VALUE and QUERY. */
enum {
    FLAG_KEY16 = 1 << 0,
    FLAG_VALUE = 3 << 1,
    FLAG_VALUE_U8 = 1 << 1,
    FLAG_VALUE_U16 = 2 << 1,
    FLAG_TIMEOUT = 1 << 3,
    FLAG_WORKED_ON = 1 << 6,
    FLAG_TWO_KEYS = 1 << 7,
    FLAG_CURSOR = 1 << 8,
    FLAG_QUERY = 3 << 7,
    FLAG_RANGE = 1 << 7,
    FLAG_PERSIST = 1 << 9,
    FLAG_LISTEN = 1 << 11,
    FLAG_PERSIST_ALIAS = 1 << 12,
    FLAG_COUNT = 1 << 13,
    FLAG_TTL = 1 << 14,
    FLAG_META = 1 << 15
};

enum { FUNCTION_GET = 3 };

#define REQUEST_WORD 0x464A0001u /* magic "FJ" and version 1 */
#define REQUEST_HEAD_BYTES 18
#define REQUEST_BYTES_MIN 19

/* One request, not copied: it points into the bytes that it was decoded from. */
typedef struct {
    uint16_t function, identifier, flags;
    uint16_t count;     /* with has_count */
    uint64_t timestamp; /* microseconds, as all times */
    uint64_t timeout;   /* with FLAG_TIMEOUT */
    uint64_t ttl;       /* with FLAG_TTL */
    const uint8_t *key, *second_key, *value;
    uint32_t key_size, second_key_size, value_size;
    uint8_t value_type; /* with FLAG_VALUE; else value is empty */
    uint8_t has_count, has_second_key;
} Frame;

/* Read a field of `width` bytes at `at` and step behind it; leave the decoder: it is cut short. */
#define TAKE(width, into, get)                                                                     \
    do {                                                                                           \
        if (end - at < (width))                                                                    \
            return 0;                                                                              \
        (into) = get(at);                                                                          \
        at += (width);                                                                             \
    } while (0)

static inline uint8_t get_u8(const uint8_t *p) { return p[0]; }

/* Take a key and its size; return where it ends, NULL: it is cut short. */
static inline const uint8_t *take_key(const uint8_t *at, const uint8_t *end, unsigned flags,
                                      const uint8_t **key, uint32_t *key_size) {
    Py_ssize_t width = flags & FLAG_KEY16 ? 2 : 1;
    if (end - at < width)
        return NULL;
    uint32_t size = width == 2 ? get_u16(at) : *at;
    at += width;
    if (end - at < (Py_ssize_t)size)
        return NULL;
    *key = at;
    *key_size = size;
    return at + size;
}

/* RequestReader.read: decode the request that starts at `data`. Returns its length in bytes; 0: it
   is not whole or not valid, Python says which. `value_size_max` counts the type byte. */
static inline Py_ssize_t frame_decode(const uint8_t *data, Py_ssize_t size, uint64_t value_size_max,
                                      Frame *frame) {
    const uint8_t *at = data + REQUEST_HEAD_BYTES, *end = data + size;
    if (size < REQUEST_BYTES_MIN || get_u32(data) != REQUEST_WORD)
        return 0;
    unsigned flags = get_u16(data + 8);
    int is_range = (flags & FLAG_QUERY) == FLAG_RANGE;
    if (flags & FLAG_PERSIST_ALIAS)
        flags = (flags & ~FLAG_PERSIST_ALIAS) | FLAG_PERSIST;
    uint16_t function = get_u16(data + 4);
    *frame = (Frame){
        .function = function,
        .identifier = get_u16(data + 6),
        .flags = (uint16_t)flags,
        .timestamp = get_u64(data + 10),
        .has_count = flags & FLAG_COUNT || (function == FUNCTION_GET && is_range),
        .has_second_key = (uint8_t)is_range,
    };
    if (flags & FLAG_TIMEOUT)
        TAKE(8, frame->timeout, get_u64);
    if (flags & FLAG_TTL)
        TAKE(8, frame->ttl, get_u64);
    if (frame->has_count)
        TAKE(2, frame->count, get_u16);
    at = take_key(at, end, flags, &frame->key, &frame->key_size);
    if (at != NULL && is_range)
        at = take_key(at, end, flags, &frame->second_key, &frame->second_key_size);
    if (at == NULL)
        return 0;
    if (flags & FLAG_VALUE) {
        uint32_t value_size;
        if ((flags & FLAG_VALUE) == FLAG_VALUE_U8)
            TAKE(1, value_size, get_u8);
        else if ((flags & FLAG_VALUE) == FLAG_VALUE_U16)
            TAKE(2, value_size, get_u16);
        else
            TAKE(4, value_size, get_u32);
        if (value_size == 0 || value_size > value_size_max || end - at < (Py_ssize_t)value_size)
            return 0;
        frame->value_type = *at;
        frame->value = at + 1;
        frame->value_size = value_size - 1;
        at += value_size;
    }
    return at - data;
}

/* ---- class Request -------------------------------------------------------------------------- */

#define SMALL_INTEGERS 1024

/* The class and the offsets of its slots. Each module has its own. */
static struct {
    PyTypeObject *type;
    Py_ssize_t function, identifier, flags, timestamp, key, second_key, value_type, value, timeout,
        ttl, count;
    PyObject *empty;                    /* b"" */
    PyObject *integers[SMALL_INTEGERS]; /* identifiers and flags come again; made when first used */
} request_class;

/* Learn the class; call it once before request_of_frame. Returns 0, or -1 with an exception. */
static inline int bind_request_class(PyObject *type) {
    const Slot slots[] = {
        {"function", &request_class.function},     {"identifier", &request_class.identifier},
        {"flags", &request_class.flags},           {"timestamp", &request_class.timestamp},
        {"key", &request_class.key},               {"second_key", &request_class.second_key},
        {"value_type", &request_class.value_type}, {"value", &request_class.value},
        {"timeout", &request_class.timeout},       {"ttl", &request_class.ttl},
        {"count", &request_class.count},           {NULL, NULL},
    };
    if (slot_offsets(type, slots))
        return -1;
    if (request_class.empty == NULL &&
        (request_class.empty = PyBytes_FromStringAndSize(NULL, 0)) == NULL)
        return -1;
    Py_XSETREF(request_class.type, (PyTypeObject *)Py_NewRef(type));
    return 0;
}

static inline PyObject *integer_object(uint64_t value) {
    if (value >= SMALL_INTEGERS)
        return PyLong_FromUnsignedLongLong(value);
    PyObject **known = &request_class.integers[value];
    if (*known == NULL && (*known = PyLong_FromUnsignedLongLong(value)) == NULL)
        return NULL;
    return Py_NewRef(*known);
}

static inline PyObject *bytes_object(const uint8_t *data, uint32_t size) {
    if (size == 0)
        return Py_NewRef(request_class.empty);
    return PyBytes_FromStringAndSize((const char *)data, (Py_ssize_t)size);
}

/* Return a new Request with the fields of a frame, all copied; NULL with an exception. Its slots
   are set without a call: the class has neither __init__ nor __post_init__. */
static inline PyObject *request_of_frame(const Frame *frame) {
    PyTypeObject *type = request_class.type;
    PyObject *request = type->tp_alloc(type, 0);
    if (request == NULL)
        return NULL;
    int complete = 1;
#define SET_FIELD(name, object)                                                                    \
    complete &= (SLOT(request, request_class.name) = (object)) != NULL
#define SET_OPTION(name, given, object) SET_FIELD(name, (given) ? (object) : Py_NewRef(Py_None))
    SET_FIELD(function, integer_object(frame->function));
    SET_FIELD(identifier, integer_object(frame->identifier));
    SET_FIELD(flags, integer_object(frame->flags));
    SET_FIELD(timestamp, integer_object(frame->timestamp));
    SET_FIELD(key, bytes_object(frame->key, frame->key_size));
    SET_OPTION(second_key, frame->has_second_key,
               bytes_object(frame->second_key, frame->second_key_size));
    SET_OPTION(value_type, frame->flags & FLAG_VALUE, integer_object(frame->value_type));
    SET_FIELD(value, bytes_object(frame->value, frame->value_size));
    SET_OPTION(timeout, frame->flags & FLAG_TIMEOUT, integer_object(frame->timeout));
    SET_OPTION(ttl, frame->flags & FLAG_TTL, integer_object(frame->ttl));
    SET_OPTION(count, frame->has_count, integer_object(frame->count));
#undef SET_OPTION
#undef SET_FIELD
    if (!complete)
        Py_CLEAR(request);
    return request;
}

#undef TAKE
#endif
