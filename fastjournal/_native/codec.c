/* Codec: frames of requests to objects, replies to bytes. fastjournal/protocol/requests.py and
   replies.py, which have the layouts. */
#include "frames.h"

/* ---- requests -------------------------------------------------------------------------------- */

static PyObject *extend; /* the name of the method */

/* Append every request that is whole and valid at the start of `data`; return the bytes used, or -1
   with an exception. */
static Py_ssize_t append_requests(PyObject *requests, const uint8_t *data, Py_ssize_t size,
                                  uint64_t value_size_max) {
    Py_ssize_t used = 0, length;
    Frame frame;
    while ((length = frame_decode(data + used, size - used, value_size_max, &frame)) > 0) {
        PyObject *request = request_of_frame(&frame);
        if (request == NULL)
            return -1;
        int failed = PyList_Append(requests, request);
        Py_DECREF(request);
        if (failed)
            return -1;
        used += length;
    }
    return used;
}

/* RequestReader.read: stops before the first request that is cut short or not valid. */
static PyObject *read_requests(PyObject *module, PyObject *const *arguments, Py_ssize_t number) {
    uint64_t value_size_max;
    if (number != 3 || request_class.type == NULL) {
        PyErr_SetString(PyExc_TypeError, "read_requests(data, value_size_max, ready)");
        return NULL;
    }
    PyObject *data = arguments[0], *ready = arguments[2];
    if (!PyBytes_CheckExact(data) || read_u64(arguments[1], &value_size_max))
        return PyLong_FromLong(0);
    PyObject *requests = PyList_New(0);
    if (requests == NULL)
        return NULL;
    Py_ssize_t used = append_requests(requests, (const uint8_t *)PyBytes_AS_STRING(data),
                                      PyBytes_GET_SIZE(data), value_size_max);
    PyObject *done = NULL;
    if (used > 0)
        done = PyObject_CallMethodOneArg(ready, extend, requests);
    else if (used == 0)
        done = Py_NewRef(Py_None);
    Py_DECREF(requests);
    if (done == NULL)
        return NULL;
    Py_DECREF(done);
    return PyLong_FromSsize_t(used);
}

/* ---- replies --------------------------------------------------------------------------------- */

#define REPLY_WORD 0x4A520001u /* magic "JR" and version 1 */
#define REPLY_HEAD_BYTES 16
#define SUCCESS_BYTES 17
#define META_BYTES 68
#define META_FIELDS 11
#define ERROR_BYTES_MAX 1024 /* fastjournal/limits.py: ERROR_SENTENCE_BYTES_MAX */

static struct {
    PyTypeObject *type;
    Py_ssize_t identifier, flags, timestamp, error, timeout, ttl, cursor, pairs;
} reply_class;

static struct {
    PyTypeObject *type;
    Py_ssize_t key, value_type, value, second_key, meta;
} pair_class;

static struct {
    PyTypeObject *type;
    Py_ssize_t fields[META_FIELDS]; /* in the order of the block */
} meta_class;

/* encode_successes: None where an identifier or the timestamp does not fit its field. */
static PyObject *encode_successes(PyObject *module, PyObject *const *arguments, Py_ssize_t number) {
    uint64_t identifier, timestamp;
    if (number != 2 || !PyList_CheckExact(arguments[0]) || read_u64(arguments[1], &timestamp))
        Py_RETURN_NONE;
    Py_ssize_t size = PyList_GET_SIZE(arguments[0]);
    PyObject *replies = PyList_New(size);
    for (Py_ssize_t i = 0; replies != NULL && i < size; i++) {
        PyObject *request = PyList_GET_ITEM(arguments[0], i), *reply;
        if (!Py_IS_TYPE(request, request_class.type) ||
            read_u64(SLOT(request, request_class.identifier), &identifier) || identifier > 0xFFFF) {
            Py_DECREF(replies);
            Py_RETURN_NONE;
        }
        if ((reply = PyBytes_FromStringAndSize(NULL, SUCCESS_BYTES)) == NULL) {
            Py_DECREF(replies);
            return NULL;
        }
        uint8_t *at = (uint8_t *)PyBytes_AS_STRING(reply);
        put_u32(at, REPLY_WORD);
        put_u16(at + 4, (uint16_t)identifier);
        put_u16(at + 6, 0);
        put_u64(at + 8, timestamp);
        at[16] = 0;
        PyList_SET_ITEM(replies, i, reply);
    }
    return replies;
}

/* What a reply is made of, and its size. */
typedef struct {
    uint64_t identifier, flags, timestamp, timeout, ttl;
    PyObject *error, *cursor, *pairs; /* cursor and pairs: NULL is None */
    size_t error_size, cursor_size, number;
    size_t key_size_max;   /* of all that KEY16 widens: keys, error, cursor */
    size_t value_size_max; /* without the type byte */
    size_t bytes;          /* all but the size fields, whose width the flags say */
} Parts;

static inline size_t larger(size_t one, size_t other) { return one > other ? one : other; }

/* Size of a slot that must be bytes; SIZE_MAX: it is another. */
static inline size_t bytes_size(PyObject *object) {
    return object != NULL && PyBytes_CheckExact(object) ? (size_t)PyBytes_GET_SIZE(object)
                                                        : SIZE_MAX;
}

/* An optional u64: sets its flag where it is given. Returns 0; -1: it is no such number. */
static int take_option(PyObject *object, unsigned flag, uint64_t *value, Parts *parts) {
    if (object == Py_None)
        return 0;
    parts->flags |= flag;
    parts->bytes += 8;
    return object == NULL ? -1 : read_u64(object, value);
}

/* Measure the pairs. Until they are written, no code of Python runs that could change them.
   Returns 0; -1: one is not plain. */
static int measure_pairs(Parts *parts) {
    int two_keys = (parts->flags & FLAG_TWO_KEYS) != 0, with_meta = -1;
    for (size_t i = 0; i < parts->number; i++) {
        PyObject *pair = PyList_GET_ITEM(parts->pairs, i);
        if (!Py_IS_TYPE(pair, pair_class.type))
            return -1;
        size_t key = bytes_size(SLOT(pair, pair_class.key));
        size_t value = bytes_size(SLOT(pair, pair_class.value));
        size_t second = two_keys ? bytes_size(SLOT(pair, pair_class.second_key)) : 0;
        PyObject *meta = SLOT(pair, pair_class.meta);
        if (key > 0xFFFF || second > 0xFFFF || value >= 0xFFFFFFFFu || meta == NULL)
            return -1;
        if (with_meta < 0)
            with_meta = meta != Py_None;
        if (with_meta ? !Py_IS_TYPE(meta, meta_class.type) : meta != Py_None)
            return -1;
        parts->key_size_max = larger(parts->key_size_max, larger(key, second));
        parts->value_size_max = larger(parts->value_size_max, value);
        parts->bytes += key + second + 1 + value;
    }
    if (with_meta > 0) {
        parts->flags |= FLAG_META;
        parts->bytes += META_BYTES * parts->number;
    }
    return 0;
}

/* Take a reply apart. Returns 0; -1: something in it is for Python. */
static int measure_reply(PyObject *reply, Parts *parts) {
    memset(parts, 0, sizeof *parts);
    parts->bytes = REPLY_HEAD_BYTES;
    if (!Py_IS_TYPE(reply, reply_class.type) ||
        read_u64(SLOT(reply, reply_class.identifier), &parts->identifier) ||
        read_u64(SLOT(reply, reply_class.flags), &parts->flags) ||
        read_u64(SLOT(reply, reply_class.timestamp), &parts->timestamp) ||
        parts->identifier > 0xFFFF)
        return -1;
    parts->flags &= FLAG_WORKED_ON | FLAG_TWO_KEYS | FLAG_LISTEN;
    if (take_option(SLOT(reply, reply_class.timeout), FLAG_TIMEOUT, &parts->timeout, parts) ||
        take_option(SLOT(reply, reply_class.ttl), FLAG_TTL, &parts->ttl, parts))
        return -1;
    PyObject *error = SLOT(reply, reply_class.error), *cursor = SLOT(reply, reply_class.cursor);
    if (error == NULL || !PyUnicode_CheckExact(error) || !PyUnicode_IS_COMPACT_ASCII(error))
        return -1;
    parts->error = error;
    parts->error_size = (size_t)PyUnicode_GET_LENGTH(error);
    if (cursor != Py_None) {
        parts->flags |= FLAG_CURSOR;
        parts->cursor = cursor;
        parts->cursor_size = bytes_size(cursor);
    }
    if (parts->error_size > ERROR_BYTES_MAX || parts->cursor_size > 0xFFFF)
        return -1;
    parts->bytes += parts->error_size + parts->cursor_size;
    parts->key_size_max = larger(parts->error_size, parts->cursor_size);
    PyObject *pairs = SLOT(reply, reply_class.pairs);
    if (pairs == Py_None)
        return 0;
    if (pairs == NULL || !PyList_CheckExact(pairs) || PyList_GET_SIZE(pairs) > 0xFFFF)
        return -1;
    parts->flags |= FLAG_COUNT;
    parts->bytes += 2;
    parts->pairs = pairs;
    parts->number = (size_t)PyList_GET_SIZE(pairs);
    return measure_pairs(parts);
}

/* Write an integer, big endian. */
static inline uint8_t *put_size(uint8_t *at, size_t size, int width) {
    if (width == 1)
        *at = (uint8_t)size;
    else if (width == 2)
        put_u16(at, (uint16_t)size);
    else
        put_u32(at, (uint32_t)size);
    return at + width;
}

static inline uint8_t *put_key(uint8_t *at, PyObject *key, int width) {
    size_t size = (size_t)PyBytes_GET_SIZE(key);
    return put_bytes(put_size(at, size, width), PyBytes_AS_STRING(key), size);
}

/* Write a metadata block; NULL: a number does not fit its field. */
static uint8_t *put_meta(uint8_t *at, PyObject *meta) {
    static const int widths[META_FIELDS] = {8, 8, 8, 8, 8, 8, 8, 8, 1, 1, 2};
    for (int i = 0; i < META_FIELDS; i++) {
        uint64_t number;
        int width = widths[i];
        if (read_u64(SLOT(meta, meta_class.fields[i]), &number) ||
            (width < 8 && number >> 8 * width))
            return NULL;
        if (width == 8)
            put_u64(at, number);
        else
            put_size(at, number, width);
        at += width;
    }
    return at;
}

/* Write the pairs; NULL: a number does not fit its field. */
static uint8_t *put_pairs(uint8_t *at, const Parts *parts, int key_width, int value_width) {
    for (size_t i = 0; i < parts->number; i++) {
        PyObject *pair = PyList_GET_ITEM(parts->pairs, i), *value = SLOT(pair, pair_class.value);
        uint64_t value_type;
        if (read_u64(SLOT(pair, pair_class.value_type), &value_type) || value_type > 0xFF)
            return NULL;
        at = put_key(at, SLOT(pair, pair_class.key), key_width);
        if (parts->flags & FLAG_TWO_KEYS)
            at = put_key(at, SLOT(pair, pair_class.second_key), key_width);
        size_t size = (size_t)PyBytes_GET_SIZE(value);
        at = put_size(at, size + 1, value_width);
        *at++ = (uint8_t)value_type;
        at = put_bytes(at, PyBytes_AS_STRING(value), size);
        if (parts->flags & FLAG_META && (at = put_meta(at, SLOT(pair, pair_class.meta))) == NULL)
            return NULL;
    }
    return at;
}

/* encode_reply: None where something in the reply is not plain, or does not fit. */
static PyObject *encode_reply(PyObject *module, PyObject *reply) {
    Parts parts;
    if (measure_reply(reply, &parts))
        Py_RETURN_NONE;
    int key_width = 1, value_width = 0;
    if (parts.key_size_max > 0xFF) {
        parts.flags |= FLAG_KEY16;
        key_width = 2;
    }
    if (parts.number) {
        value_width = parts.value_size_max < 0xFF ? 1 : parts.value_size_max < 0xFFFF ? 2 : 4;
        parts.flags |= value_width == 1   ? FLAG_VALUE_U8
                       : value_width == 2 ? FLAG_VALUE_U16
                                          : FLAG_VALUE;
    }
    size_t sizes = 1 + (parts.cursor != NULL);
    sizes += parts.number * (parts.flags & FLAG_TWO_KEYS ? 2 : 1);
    size_t bytes = parts.bytes + sizes * (size_t)key_width + parts.number * (size_t)value_width;
    PyObject *data = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes);
    if (data == NULL)
        return NULL;
    uint8_t *at = (uint8_t *)PyBytes_AS_STRING(data);
    put_u32(at, REPLY_WORD);
    put_u16(at + 4, (uint16_t)parts.identifier);
    put_u16(at + 6, (uint16_t)parts.flags);
    put_u64(at + 8, parts.timestamp);
    at += REPLY_HEAD_BYTES;
    if (parts.flags & FLAG_TIMEOUT) {
        put_u64(at, parts.timeout);
        at += 8;
    }
    if (parts.flags & FLAG_TTL) {
        put_u64(at, parts.ttl);
        at += 8;
    }
    if (parts.flags & FLAG_COUNT)
        at = put_size(at, parts.number, 2);
    at = put_size(at, parts.error_size, key_width);
    at = put_bytes(at, PyUnicode_1BYTE_DATA(parts.error), parts.error_size);
    if (parts.cursor != NULL)
        at = put_key(at, parts.cursor, key_width);
    if (put_pairs(at, &parts, key_width, value_width) == NULL) {
        Py_DECREF(data);
        Py_RETURN_NONE;
    }
    return data;
}

/* ---- classes --------------------------------------------------------------------------------- */

static int bind_reply_classes(PyObject *reply, PyObject *pair, PyObject *meta) {
    static const char *const meta_names[META_FIELDS] = {
        "timestamp_us", "created_us",         "modified_us",   "accessed_us", "expires_us",
        "ttl_us",       "worked_on_until_us", "not_before_us", "priority",    "state",
        "attempts"};
    const Slot reply_slots[] = {
        {"identifier", &reply_class.identifier}, {"flags", &reply_class.flags},
        {"timestamp", &reply_class.timestamp},   {"error", &reply_class.error},
        {"timeout", &reply_class.timeout},       {"ttl", &reply_class.ttl},
        {"cursor", &reply_class.cursor},         {"pairs", &reply_class.pairs},
        {NULL, NULL},
    };
    const Slot pair_slots[] = {
        {"key", &pair_class.key},     {"value_type", &pair_class.value_type},
        {"value", &pair_class.value}, {"second_key", &pair_class.second_key},
        {"meta", &pair_class.meta},   {NULL, NULL},
    };
    for (int i = 0; i < META_FIELDS; i++)
        if ((meta_class.fields[i] = slot_offset(meta, meta_names[i])) < 0)
            return -1;
    if (slot_offsets(reply, reply_slots) || slot_offsets(pair, pair_slots))
        return -1;
    Py_XSETREF(reply_class.type, (PyTypeObject *)Py_NewRef(reply));
    Py_XSETREF(pair_class.type, (PyTypeObject *)Py_NewRef(pair));
    Py_XSETREF(meta_class.type, (PyTypeObject *)Py_NewRef(meta));
    return 0;
}

static PyObject *bind_codec(PyObject *module, PyObject *const *types, Py_ssize_t number) {
    if (number != 4) {
        PyErr_SetString(PyExc_TypeError, "bind_codec(Request, Reply, Pair, Meta)");
        return NULL;
    }
    if (extend == NULL && (extend = PyUnicode_InternFromString("extend")) == NULL)
        return NULL;
    if (bind_request_class(types[0]) || bind_reply_classes(types[1], types[2], types[3]))
        return NULL;
    Py_RETURN_NONE;
}

PyMethodDef codec_methods[] = {
    {"bind_codec", FASTCALL(bind_codec), "bind_codec(Request, Reply, Pair, Meta): their slots."},
    {"read_requests", FASTCALL(read_requests),
     "read_requests(data, value_size_max, ready) -> bytes used; RequestReader.read."},
    {"encode_successes", FASTCALL(encode_successes),
     "encode_successes(requests, timestamp) -> replies or None; the function of replies.py."},
    {"encode_reply", encode_reply, METH_O,
     "encode_reply(reply) -> bytes or None; the function of replies.py."},
    {NULL}};
