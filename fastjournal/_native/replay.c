/* Replay: valid records of a segment, and plain entries in them as ReplayedEntry objects. */
#include "leaf.h"

enum {
    JOB_ID_AT = 1,
    NAME_AT = JOB_ID_AT + ID_BYTES, /* of its length, in one byte */
    SHORT_MAX = 0x7F,
    SCHEDULE = 2, /* ADD is 1 */
    VARINT_BYTES_MAX = 10,
    HEAD_NUMBERS = 6, /* ttr, ttl, priority, attempts, fails, length of the payload */
    JOB_TAIL_BYTES = 34,
    FIELDS_MIN = 17, /* of an envelope; the others have defaults */
    FIELDS_MAX = 22,
    PRIORITY_DEFAULT = 128,
    NIL = 0xC0,
    FALSE = 0xC2,
    EMPTY_ARRAY = 0x90,
    BLOCK_MAX = 1024,
    TIME_VERSION = 1,
    SIZE_BYTES_MAX = 5,
    RECORD_BYTES_MIN = 37,
    TIMESTAMP_DIGITS = 16,
    SHARDS = 256
};
static const char MAGIC[] = "FJ\1", OPERATION[] = "\5fj.op";

/* A plain entry: what ReplayedEntry gets, as it stands in the segment. */
typedef struct {
    const uint8_t *key, *uri, *value, *job_id; /* uri: NULL, it has none */
    size_t key_size, uri_size, value_size;
    uint64_t timestamp, created, modified, arrival, not_before, start;
    uint32_t size;
    uint8_t type;
} Plain;

/* MessagePack that is not read yet. ``is_bad``: it is no plain entry. */
typedef struct {
    const uint8_t *at, *end;
    int is_bad;
} Reader;

static const uint8_t *take(Reader *from, size_t size) {
    if ((size_t)(from->end - from->at) < size) {
        from->is_bad = 1;
        return NULL;
    }
    const uint8_t *found = from->at;
    from->at += size;
    return found;
}

static void expect(Reader *from, uint8_t byte) {
    const uint8_t *found = take(from, 1);
    from->is_bad |= found == NULL || *found != byte;
}

/* An unsigned integer of so many bytes. */
static uint64_t take_wide(Reader *from, size_t size) {
    const uint8_t *found = take(from, size);
    uint64_t number = 0;
    for (size_t at = 0; found != NULL && at < size; at++)
        number = number << 8 | found[at];
    return number;
}

static uint64_t take_number(Reader *from) {
    const uint8_t *found = take(from, 1);
    if (found != NULL && *found <= SHORT_MAX)
        return *found;
    if (found != NULL && *found >= 0xCC && *found <= 0xCF)
        return take_wide(from, (size_t)1 << (*found - 0xCC));
    from->is_bad = 1;
    return 0;
}

static const uint8_t *take_bytes(Reader *from, size_t *size) {
    const uint8_t *found = take(from, 1);
    *size = 0;
    if (found == NULL || *found < 0xC4 || *found > 0xC6) {
        from->is_bad = 1;
        return NULL;
    }
    *size = (size_t)take_wide(from, (size_t)1 << (*found - 0xC4));
    return take(from, *size);
}

/* An envelope without anything rare (entry_blocks._read and _row); 0: there is none. */
static int read_envelope(Reader *from, Plain *entry) {
    expect(from, 0xDC);
    uint64_t fields = take_wide(from, 2);
    if (from->is_bad || fields < FIELDS_MIN || fields > FIELDS_MAX)
        return 0;
    entry->key = take_bytes(from, &entry->key_size);
    if (from->at < from->end && *from->at == NIL)
        from->at++, entry->uri = NULL;
    else
        entry->uri = take_bytes(from, &entry->uri_size);
    expect(from, EMPTY_ARRAY); /* links */
    uint64_t type = take_number(from);
    entry->type = (uint8_t)type;
    entry->value = take_bytes(from, &entry->value_size);
    entry->timestamp = take_number(from);
    entry->created = take_number(from);
    entry->modified = take_number(from);
    entry->arrival = take_number(from);
    entry->not_before = take_number(from);
    /* expires, ttl, attempts, token, superseded, reason, first_due, taken, erases, error, due */
    static const uint8_t defaults[] = {0, 0, 0, 0, 0, NIL, 0, EMPTY_ARRAY, FALSE, NIL, 0};
    for (size_t at = 0; at < sizeof defaults && at + 10 < fields; at++)
        expect(from, defaults[at]);
    if (fields == FIELDS_MAX && take_number(from) > UINT8_MAX) /* origin */
        return 0;
    return !from->is_bad && from->at == from->end && type <= UINT8_MAX && !(entry->arrival >> 47);
}

/* The record in data[start:end] with this body; 0: it is none of a plain entry. */
static int read_record(const uint8_t *data, size_t start, size_t body, size_t end, Plain *entry) {
    const uint8_t *at = data + body + NAME_AT, *tail = data + end - JOB_TAIL_BYTES;
    if (body < start || end < body + NAME_AT + 1 + JOB_TAIL_BYTES || data[body] > SCHEDULE ||
        *at > SHORT_MAX || !strncmp((const char *)at, OPERATION, sizeof OPERATION - 1))
        return 0;
    at += 1 + *at;
    for (int number = 0; number < HEAD_NUMBERS; number++) {
        const uint8_t *first = at;
        while (at < tail && *at > SHORT_MAX)
            at++;
        if (at >= tail || at++ - first >= VARINT_BYTES_MAX)
            return 0;
    }
    if (tail - at < 3 || memcmp(at, MAGIC, 3))
        return 0;
    entry->job_id = data + body + JOB_ID_AT;
    entry->start = start;
    entry->size = (uint32_t)(end - start);
    Reader payload = {at + 3, tail, 0};
    return read_envelope(&payload, entry);
}

static PyObject *facts_of(const Plain *entry, uint64_t segment) {
    PyObject *facts = PyBytes_FromStringAndSize(NULL, RECORDED_BYTES);
    if (facts == NULL)
        return NULL;
    uint8_t *at = (uint8_t *)PyBytes_AS_STRING(facts);
    put_facts(at, PRIORITY_DEFAULT, entry->not_before, entry->arrival, entry->timestamp,
              entry->created, entry->type);
    /* the position is segment << 40 | offset */
    put_place(at, segment << 32, entry->start, entry->size);
    return facts;
}

static PyObject *bytes_of(const uint8_t *data, size_t size) {
    return PyBytes_FromStringAndSize((const char *)data, (Py_ssize_t)size);
}

/* Make the arguments of ReplayedEntry. 0, or -1 with an exception; then all are NULL or owned. */
static int make_fields(const Plain *entry, uint64_t segment, PyObject **fields) {
    fields[0] = facts_of(entry, segment);
    fields[1] = bytes_of(entry->key, entry->key_size);
    fields[2] = entry->uri == NULL ? Py_NewRef(Py_None) : bytes_of(entry->uri, entry->uri_size);
    fields[3] = bytes_of(entry->value, entry->value_size);
    fields[4] = bytes_of(entry->job_id, ID_BYTES);
    fields[5] = PyLong_FromUnsignedLongLong(
        entry->modified == entry->created ? 0 : entry->modified);
    for (int at = 0; at < 6; at++)
        if (fields[at] == NULL)
            return -1;
    return 0;
}

/* One call of read_entries: the records, and what was made of them. */
typedef struct {
    const uint8_t *data;
    size_t size, begin; /* begin: offset of the first record */
    const uint32_t *bodies, *ends;
    Py_ssize_t total;
    uint64_t segment, highest;
    PyObject *(*fields)[6];
    Py_ssize_t count; /* of the fields that are made, in part or whole */
} Reading;

static int read_at(const Reading *from, Py_ssize_t index, Plain *entry) {
    size_t start = index ? from->ends[index - 1] : from->begin, end = from->ends[index];
    return end <= from->size && read_record(from->data, start, from->bodies[index], end, entry);
}

/* Make the fields of the plain entries from a record on, which is one: those of one run of the
   daemon. Returns how many, or -1 with an exception. */
static Py_ssize_t make_all(Reading *from, Py_ssize_t first, Plain *entry) {
    const uint8_t *run = entry->job_id;
    Py_ssize_t index = first;
    if ((from->fields = PyMem_Calloc(BLOCK_MAX, sizeof *from->fields)) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    do {
        if (from->highest < entry->arrival)
            from->highest = entry->arrival;
        if (make_fields(entry, from->segment, from->fields[from->count++]))
            return -1;
    } while (++index < from->total && from->count < BLOCK_MAX && read_at(from, index, entry) &&
             !memcmp(run, entry->job_id, RUN_BYTES));
    return from->count;
}

/* entry_blocks.row_blocks and ReplayedEntry: the next block of plain entries. Arguments: class,
   segment, its number, offset of the first record, offsets of bodies and ends (u32 arrays), index
   of the record to begin at. Returns the index of the first entry, all entries up to the first
   record that is none, or of another run of the daemon, and their highest arrival. The objects of
   entries are made behind all of their bytes: these stay, and objects between them leave holes. */
static PyObject *read_entries(PyObject *module, PyObject *args) {
    PyObject *class, *jobs = NULL, *result = NULL;
    Py_buffer data, bodies, ends;
    unsigned long segment;
    Py_ssize_t begin, index, count = 0;
    if (!PyArg_ParseTuple(args, "Oy*kny*y*n", &class, &data, &segment, &begin, &bodies, &ends,
                          &index))
        return NULL;
    Reading from = {.data = data.buf, .size = (size_t)data.len, .begin = (size_t)begin,
                    .bodies = bodies.buf, .ends = ends.buf, .segment = segment,
                    .total = Py_MIN(bodies.len, ends.len) / (Py_ssize_t)sizeof(uint32_t)};
    Plain entry = {0};
    index = Py_MAX(index, 0);
    while (index < from.total && !read_at(&from, index, &entry))
        index++;
    if (index < from.total)
        count = make_all(&from, index, &entry);
    if (count >= 0 && (jobs = PyList_New(count)) != NULL) {
        Py_ssize_t at = 0;
        for (PyObject *job; at < count; at++) {
            if ((job = PyObject_Vectorcall(class, from.fields[at], 6, NULL)) == NULL)
                break;
            PyList_SET_ITEM(jobs, at, job);
        }
        if (at == count)
            result = Py_BuildValue("nOK", index, jobs, from.highest);
    }
    for (Py_ssize_t at = 0; at < from.count; at++)
        for (int field = 0; field < 6; field++)
            Py_XDECREF(from.fields[at][field]);
    PyMem_Free(from.fields);
    Py_XDECREF(jobs);
    PyBuffer_Release(&data);
    PyBuffer_Release(&bodies);
    PyBuffer_Release(&ends);
    return result;
}

/* Find the end of a valid record (scan._scan_run) and its body; 0: there is none. */
static size_t valid_end(const uint8_t *data, size_t size, size_t at, size_t *body) {
    uint64_t length = 0;
    *body = at + TIME_BYTES;
    for (int shift = 0;; shift += 7) {
        if (*body >= size || shift >= 7 * SIZE_BYTES_MAX)
            return 0;
        uint8_t byte = data[(*body)++];
        length |= (uint64_t)(byte & SHORT_MAX) << shift;
        if (byte <= SHORT_MAX)
            break;
    }
    if (length < NAME_AT || length > size || *body + length + CRC_BYTES > size ||
        data[at] != TIME_VERSION)
        return 0;
    size_t end = *body + (size_t)length;
    return crc32c(data + at, end - at) == get_u32(data + end) ? end + CRC_BYTES : 0;
}

/* scan._scan_run, up to the first record that is not valid. Arguments: segment, offset of the first
   record, greatest offset of a record. Returns offsets of bodies and ends, as bytes of u32. */
static PyObject *scan_records(PyObject *module, PyObject *args) {
    Py_buffer data;
    Py_ssize_t start, last, count = 0;
    PyObject *bodies = NULL, *ends = NULL, *result = NULL;
    if (!PyArg_ParseTuple(args, "y*nn", &data, &start, &last))
        return NULL;
    last = Py_MIN(last, data.len - RECORD_BYTES_MIN);
    Py_ssize_t room = start < 0 || start > last ? 0 : (data.len - start) / RECORD_BYTES_MIN + 1;
    Py_ssize_t bytes = room * (Py_ssize_t)sizeof(uint32_t);
    if ((bodies = PyBytes_FromStringAndSize(NULL, bytes)) != NULL &&
        (ends = PyBytes_FromStringAndSize(NULL, bytes)) != NULL) {
        uint32_t *body_at = (uint32_t *)PyBytes_AS_STRING(bodies);
        uint32_t *end_at = (uint32_t *)PyBytes_AS_STRING(ends);
        size_t body, end;
        for (Py_ssize_t at = start; room && at <= last; at = (Py_ssize_t)end, count++) {
            if (!(end = valid_end(data.buf, (size_t)data.len, (size_t)at, &body)))
                break;
            body_at[count] = (uint32_t)body;
            end_at[count] = (uint32_t)end;
        }
        bytes = count * (Py_ssize_t)sizeof(uint32_t);
        if (!_PyBytes_Resize(&bodies, bytes) && !_PyBytes_Resize(&ends, bytes))
            result = PyTuple_Pack(2, bodies, ends);
    }
    Py_XDECREF(bodies);
    Py_XDECREF(ends);
    PyBuffer_Release(&data);
    return result;
}

/* ---- bulk load ----------------------------------------------------------------------------- */

/* Length of what a canonical key begins with, domain and priority with their colons; 0: the key is
   none. */
static size_t prefix_size(const char *key, size_t size) {
    const char *end = key + size, *at = memchr(key, ':', size);
    if (at == NULL || (at = memchr(at + 1, ':', (size_t)(end - at - 1))) == NULL)
        return 0;
    size_t prefix = (size_t)(++at - key);
    if (end - at <= TIMESTAMP_DIGITS || at[TIMESTAMP_DIGITS] != ':')
        return 0;
    for (int digit = 0; digit < TIMESTAMP_DIGITS; digit++)
        if (at[digit] < '0' || at[digit] > '9')
            return 0;
    return prefix;
}

/* bulk_load._Loading._queues_of. Arguments: queues by what keys begin with, keys. Returns the queue
   of each key; None: Python has to look. */
static PyObject *find_queues(PyObject *module, PyObject *args) {
    PyObject *known, *keys;
    if (!PyArg_ParseTuple(args, "O!O!", &PyDict_Type, &known, &PyList_Type, &keys))
        return NULL;
    PyObject *queues = PyList_New(PyList_GET_SIZE(keys));
    for (Py_ssize_t at = 0; queues != NULL && at < PyList_GET_SIZE(queues); at++) {
        PyObject *key = PyList_GET_ITEM(keys, at), *queue = NULL;
        size_t size = PyBytes_CheckExact(key) ? (size_t)PyBytes_GET_SIZE(key) : 0;
        if (size && (size = prefix_size(PyBytes_AS_STRING(key), size))) {
            PyObject *prefix = bytes_of((const uint8_t *)PyBytes_AS_STRING(key), size);
            queue = prefix == NULL ? NULL : PyDict_GetItemWithError(known, prefix);
            Py_XDECREF(prefix);
        }
        PyList_SET_ITEM(queues, at, Py_NewRef(queue == NULL ? Py_None : queue));
        if (queue == NULL && PyErr_Occurred())
            Py_CLEAR(queues);
    }
    return queues;
}

/* KeyTable.add_keys without the key index. Arguments: shards, keys, entries. */
static PyObject *put_keys(PyObject *module, PyObject *args) {
    PyObject *shards, *keys, *entries;
    if (!PyArg_ParseTuple(args, "O!O!O!", &PyList_Type, &shards, &PyList_Type, &keys,
                          &PyList_Type, &entries))
        return NULL;
    if (PyList_GET_SIZE(shards) != SHARDS || PyList_GET_SIZE(keys) != PyList_GET_SIZE(entries)) {
        PyErr_SetString(PyExc_ValueError, "another number of shards or entries");
        return NULL;
    }
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(keys); at++) {
        PyObject *key = PyList_GET_ITEM(keys, at);
        Py_hash_t hash = PyObject_Hash(key);
        if ((hash == -1 && PyErr_Occurred()) ||
            PyDict_SetItem(PyList_GET_ITEM(shards, hash & (SHARDS - 1)), key,
                           PyList_GET_ITEM(entries, at)))
            return NULL;
    }
    Py_RETURN_NONE;
}

PyMethodDef replay_methods[] = {
    {"find_queues", find_queues, METH_VARARGS, "Queues of loaded keys; see bulk_load._queues_of."},
    {"put_keys", put_keys, METH_VARARGS, "Add keys; KeyTable.add_keys is its function."},
    {"read_entries", read_entries, METH_VARARGS,
     "Entries of consecutive records; fastjournal.cmdlog.recovery.entry_blocks is its function."},
    {"scan_records", scan_records, METH_VARARGS,
     "Offsets of valid records; fastjournal.cmdlog.recovery.scan._scan_run is its function."},
    {NULL}};
