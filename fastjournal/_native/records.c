/* Records of the write-ahead log: new entries, completions and begun leases, packed and summed.

   A leaf looks at all that it is given before it changes anything, and returns None where that is
   not plain: its function in Python does all of it then. A MemoryError while it changes entries or
   the index leaves the rest unchanged, as in Python. Layouts: fastjournal/cmdlog/format. */
#include "leaf.h"

enum { ADD = 1, SCHEDULE = 2, COMPLETE = 3, START_ATTEMPT = 7 };
enum { SIMPLE_BODY_BYTES = 1 + ID_BYTES };
enum { JOB_BESIDES_BYTES = SIMPLE_BODY_BYTES + 2 * TIME_BYTES };
enum { START_BYTES = TIME_BYTES + 1 + SIMPLE_BODY_BYTES + CRC_BYTES };
/* More facts of an entry: the segment of its record, the rest of its job id, its serial number. */
enum { SEGMENT_AT = FACTS_BYTES, RUN_KEPT_BYTES = 9, ID_REST_AT = 10, SERIAL_AT = 11 };
/* Facts of an event (endings.py). */
enum { DUE_BYTES = 14, SERIAL_BYTES = 6, LEASED_BYTES = 21, ENDED_BYTES = 22 };
enum { REPLACED_BY_THE_ONE_BEFORE = 17 };
enum { ATTEMPT_MAX = 255, STARTS_MAX = 255, PRIORITIES = 256 };
/* More than the bytes of a record besides keys, value, header or facts. */
enum { BESIDES_MAX = 256 };
/* A larger bytes object is left to Python. */
#define BYTES_MAX (1 << 30)

/* ---- classes, bound once --------------------------------------------------------------------- */

static PyTypeObject *entry_class, *extra_class, *times_class;
static PyObject *nothing, *header_ends, *small_zero;
static uint64_t scheduled_back, arrival_max;
static struct { Py_ssize_t facts, key, uri, value, domain, extra, run; } entry_at;
static struct { Py_ssize_t changed, seen, leased, starts, attempts, first_due, due; } extra_at;
static struct { Py_ssize_t changed, seen; } times_at;
static struct { Py_ssize_t name, job_header; } domain_at;

static const Slot ENTRY_SLOTS[] = {
    {"facts", &entry_at.facts},   {"key", &entry_at.key},     {"uri", &entry_at.uri},
    {"value", &entry_at.value},   {"domain", &entry_at.domain}, {"extra", &entry_at.extra},
    {"run", &entry_at.run},       {NULL, NULL}};
static const Slot EXTRA_SLOTS[] = {
    {"changed", &extra_at.changed}, {"seen", &extra_at.seen},     {"leased", &extra_at.leased},
    {"starts", &extra_at.starts},   {"attempts", &extra_at.attempts},
    {"first_due", &extra_at.first_due}, {"due", &extra_at.due},   {NULL, NULL}};
static const Slot TIMES_SLOTS[] = {
    {"changed", &times_at.changed}, {"seen", &times_at.seen}, {NULL, NULL}};
static const Slot DOMAIN_SLOTS[] = {
    {"name", &domain_at.name}, {"job_header", &domain_at.job_header}, {NULL, NULL}};

/* bind_records(Entry, Extra, AccessTimes, Domain, NOTHING, header ends, SCHEDULED_US_BACK,
                ARRIVAL_MAX) */
static PyObject *bind_records(PyObject *module, PyObject *args) {
    PyObject *entry, *extra, *times, *domain, *no_extra, *ends;
    unsigned long long back, arrival;
    if (!PyArg_ParseTuple(args, "O!O!O!O!OO!KK", &PyType_Type, &entry, &PyType_Type, &extra,
                          &PyType_Type, &times, &PyType_Type, &domain, &no_extra, &PyList_Type,
                          &ends, &back, &arrival) ||
        slot_offsets(entry, ENTRY_SLOTS) || slot_offsets(extra, EXTRA_SLOTS) ||
        slot_offsets(times, TIMES_SLOTS) || slot_offsets(domain, DOMAIN_SLOTS))
        return NULL;
    if (PyList_GET_SIZE(ends) != PRIORITIES) {
        PyErr_SetString(PyExc_TypeError, "bind_records takes an end of each priority");
        return NULL;
    }
    if (small_zero == NULL && (small_zero = PyLong_FromLong(0)) == NULL)
        return NULL;
    Py_XSETREF(entry_class, (PyTypeObject *)Py_NewRef(entry));
    Py_XSETREF(extra_class, (PyTypeObject *)Py_NewRef(extra));
    Py_XSETREF(times_class, (PyTypeObject *)Py_NewRef(times));
    Py_XSETREF(nothing, Py_NewRef(no_extra));
    Py_XSETREF(header_ends, Py_NewRef(ends));
    scheduled_back = back, arrival_max = arrival;
    Py_RETURN_NONE;
}

/* ---- parts of a record ----------------------------------------------------------------------- */

static size_t uvarint_size(uint64_t v) {
    size_t size = 1;
    for (; v > 0x7F; v >>= 7)
        size++;
    return size;
}

static uint8_t *put_uvarint(uint8_t *p, uint64_t v) {
    for (; v > 0x7F; v >>= 7)
        *p++ = (uint8_t)(v | 0x80);
    *p++ = (uint8_t)v;
    return p;
}

/* records.encode_time */
static void put_time(uint8_t *p, uint64_t us) {
    p[0] = 1;
    put_u64(p + 1, us / 1000000 + 62135596800u);
    put_u32(p + 9, (uint32_t)(us % 1000000) * 1000);
    p[13] = p[14] = 0xFF;
}

static const uint8_t NO_TIME[TIME_BYTES] = {1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};

static uint8_t *put_object(uint8_t *p, PyObject *bytes) {
    return put_bytes(p, PyBytes_AS_STRING(bytes), (size_t)PyBytes_GET_SIZE(bytes));
}

static size_t size_of(PyObject *bytes) { return (size_t)PyBytes_GET_SIZE(bytes); }

static const uint8_t *data_of(PyObject *bytes) {
    return (const uint8_t *)PyBytes_AS_STRING(bytes);
}

static int is_bytes(PyObject *object) {
    return PyBytes_CheckExact(object) && PyBytes_GET_SIZE(object) <= BYTES_MAX;
}

/* MessagePack: unsigned integers and bytes, with their sizes. */
static size_t number_size(uint64_t v) {
    return v < 0x80 ? 1 : v <= 0xFF ? 2 : v <= 0xFFFF ? 3 : v <= 0xFFFFFFFFu ? 5 : 9;
}

static uint8_t *put_number(uint8_t *p, uint64_t v) {
    switch (number_size(v)) {
    case 1:
        *p = (uint8_t)v;
        return p + 1;
    case 2:
        p[0] = 0xCC, p[1] = (uint8_t)v;
        return p + 2;
    case 3:
        p[0] = 0xCD, put_u16(p + 1, (uint16_t)v);
        return p + 3;
    case 5:
        p[0] = 0xCE, put_u32(p + 1, (uint32_t)v);
        return p + 5;
    default:
        p[0] = 0xCF, put_u64(p + 1, v);
        return p + 9;
    }
}

static size_t packed_size(size_t size) {
    return size + (size <= 0xFF ? 2 : size <= 0xFFFF ? 3 : 5);
}

static uint8_t *put_packed(uint8_t *p, const void *data, size_t size) {
    switch (packed_size(size) - size) {
    case 2:
        p[0] = 0xC4, p[1] = (uint8_t)size;
        return put_bytes(p + 2, data, size);
    case 3:
        p[0] = 0xC5, put_u16(p + 1, (uint16_t)size);
        return put_bytes(p + 3, data, size);
    default:
        p[0] = 0xC6, put_u32(p + 1, (uint32_t)size);
        return put_bytes(p + 5, data, size);
    }
}

static uint8_t *put_crc(uint8_t *p, const uint8_t *record) {
    put_u32(p, crc32c(record, (size_t)(p - record)));
    return p + CRC_BYTES;
}

/* ---- removals: completion records, and the index of live entries ----------------------------- */

/* An entry that goes, and its job; EntryRecords.tables. */
typedef struct {
    PyObject *entry, *key;
    const uint8_t *facts;
    uint64_t timestamp;
    uint8_t id[ID_BYTES];
    /* Facts of the event, and the index of the entry whose record comes before it. */
    const uint8_t *ended;
    size_t ended_bytes, after;
} Removal;

typedef struct { PyObject *live, *amended, *superseded, *erasers, *trimmed; } Index;

/* The id of the job of an entry (Entry.job_id); -1: it has none. */
static int read_id(PyObject *entry, uint8_t *id) {
    PyObject *run = SLOT(entry, entry_at.run), *facts = SLOT(entry, entry_at.facts);
    if (!PyBytes_CheckExact(run) || !PyBytes_CheckExact(facts) || size_of(facts) < FACTS_BYTES)
        return -1;
    if (size_of(run) == ID_BYTES)
        put_object(id, run);
    else if (size_of(run) == RUN_KEPT_BYTES)
        put_bytes(put_object(id, run), data_of(facts) + ID_REST_AT, ID_BYTES - RUN_KEPT_BYTES);
    else
        return -1;
    return 0;
}

/* Read a tuple of an entry that has a record, and the timestamp of its tombstone; -1: another. */
static int read_removal(PyObject *pair, Removal *removal) {
    if (!PyTuple_CheckExact(pair) || PyTuple_GET_SIZE(pair) != 2)
        return -1;
    PyObject *entry = removal->entry = PyTuple_GET_ITEM(pair, 0);
    if (!Py_IS_TYPE(entry, entry_class) || read_id(entry, removal->id) ||
        size_of(SLOT(entry, entry_at.facts)) != RECORDED_BYTES)
        return -1;
    removal->key = SLOT(entry, entry_at.key);
    removal->facts = data_of(SLOT(entry, entry_at.facts));
    return is_bytes(removal->key)
               ? read_u64(PyTuple_GET_ITEM(pair, 1), &removal->timestamp)
               : -1;
}

/* The record that completes a job (RecordEncoder.completed_work, replacements). */
static uint8_t *put_completion(uint8_t *p, const uint8_t *time, const Removal *removal) {
    uint8_t *record = p;
    size_t size = 4 + number_size(removal->timestamp) + packed_size(size_of(removal->key)) +
                  packed_size(removal->ended_bytes);
    p = put_uvarint(put_bytes(p, time, TIME_BYTES), SIMPLE_BODY_BYTES + uvarint_size(size) + size);
    *p++ = COMPLETE;
    p = put_uvarint(put_bytes(p, removal->id, ID_BYTES), size);
    p = put_number(put_bytes(p, "FJ\x01\x93", 4), removal->timestamp);
    p = put_packed(p, PyBytes_AS_STRING(removal->key), size_of(removal->key));
    return put_crc(put_packed(p, removal->ended, removal->ended_bytes), record);
}

static int read_index(PyObject *tables, Index *index) {
    return PyArg_ParseTuple(tables, "O!O!O!O!O!", &PyDict_Type, &index->live, &PyDict_Type,
                            &index->amended, &PyDict_Type, &index->superseded, &PySet_Type,
                            &index->erasers, &PyDict_Type, &index->trimmed)
               ? 0
               : -1;
}

/* Remove a key from a dict. Returns whether it was there; -1: an exception. */
static int discard(PyObject *dict, PyObject *key) {
    if (PyDict_GetItemWithError(dict, key) == NULL)
        return PyErr_Occurred() ? -1 : 0;
    return PyDict_DelItem(dict, key) ? -1 : 1;
}

/* Count down the live bytes of a segment. */
static int uncount(PyObject *live, uint64_t segment, uint64_t bytes) {
    PyObject *key = PyLong_FromUnsignedLongLong(segment), *left = NULL;
    PyObject *before = key == NULL ? NULL : PyDict_GetItemWithError(live, key);
    long long count = before == NULL ? 0 : PyLong_AsLongLong(before);
    if (!PyErr_Occurred())
        left = PyLong_FromLongLong(count - (long long)bytes);
    int failed = left == NULL || PyDict_SetItem(live, key, left);
    Py_XDECREF(left);
    Py_XDECREF(key);
    return failed ? -1 : 0;
}

/* The job of a record that is dead is in no table any more. Returns 0; -1: an exception. */
static int forget_job(const Index *index, const Removal *removal) {
    PyObject *id = PyBytes_FromStringAndSize((const char *)removal->id, ID_BYTES);
    if (id == NULL)
        return -1;
    int failed = (PySet_GET_SIZE(index->erasers) && PySet_Discard(index->erasers, id) < 0) ||
                 (PyDict_GET_SIZE(index->trimmed) && discard(index->trimmed, id) < 0);
    int was_amended = failed ? -1 : discard(index->amended, id);
    failed = was_amended < 0 || (was_amended && discard(index->superseded, id) < 0);
    Py_DECREF(id);
    return failed ? -1 : 0;
}

/* EntryRecords.remove of each, where no capture is. Returns the bytes that are dead; -1: an
   exception. */
static int64_t drop_records(const Index *index, const Removal *removals, size_t count) {
    int64_t dead = 0;
    uint32_t segment = 0, other;
    uint64_t bytes = 0;
    for (size_t at = 0; at < count; at++) {
        other = get_u32(removals[at].facts + SEGMENT_AT);
        if (other != segment && bytes && uncount(index->live, segment, bytes))
            return -1;
        if (other != segment)
            segment = other, bytes = 0;
        bytes += get_u32(removals[at].facts + RECORDED_BYTES - 4);
        dead += get_u32(removals[at].facts + RECORDED_BYTES - 4);
        if (forget_job(index, removals + at))
            return -1;
    }
    return bytes && uncount(index->live, segment, bytes) ? -1 : dead;
}

/* Room for so many items, at least one; NULL with MemoryError. */
static void *room_for(size_t count, size_t size) {
    void *room = PyMem_Calloc(count ? count : 1, size);
    return room == NULL ? PyErr_NoMemory() : room;
}

/* pack_completions(done, now, tables) -> (records or None, bytes that are dead)
   Journal.completed_all: EntryRecords.remove and RecordEncoder.completed_work of tuples of a leased
   entry and the timestamp of its tombstone. None: an entry has no record, say. */
static PyObject *pack_completions(PyObject *module, PyObject *const *args, Py_ssize_t number) {
    uint64_t now;
    Index index;
    if (number != 3 || !PyList_Check(args[0]) || read_u64(args[1], &now)) {
        PyErr_SetString(PyExc_TypeError, "pack_completions takes a list, an instant, and tables");
        return NULL;
    }
    if (read_index(args[2], &index))
        return NULL;
    size_t count = (size_t)PyList_GET_SIZE(args[0]), room = 0;
    Removal *removals = room_for(count, sizeof *removals);
    PyObject *records = NULL, *result = NULL;
    if (removals == NULL)
        return NULL;
    for (size_t at = 0; at < count; at++) {
        Removal *removal = removals + at;
        PyObject *extra;
        if (read_removal(PyList_GET_ITEM(args[0], (Py_ssize_t)at), removal) ||
            !Py_IS_TYPE(extra = SLOT(removal->entry, entry_at.extra), extra_class) ||
            !is_bytes(SLOT(extra, extra_at.leased))) {
            result = Py_BuildValue("(Oi)", Py_None, 0);
            goto done;
        }
        removal->ended = data_of(SLOT(extra, extra_at.leased));
        removal->ended_bytes = size_of(SLOT(extra, extra_at.leased));
        room += size_of(removal->key) + removal->ended_bytes + BESIDES_MAX;
    }
    records = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)room);
    if (records == NULL)
        goto done;
    uint8_t *start = (uint8_t *)PyBytes_AS_STRING(records), *p = start, time[TIME_BYTES];
    put_time(time, now);
    for (size_t at = 0; at < count; at++)
        p = put_completion(p, time, removals + at);
    int64_t dead = drop_records(&index, removals, count);
    if (dead >= 0 && !_PyBytes_Resize(&records, p - start))
        result = Py_BuildValue("(OL)", records, (long long)dead);
done:
    Py_XDECREF(records);
    PyMem_Free(removals);
    return result;
}

/* ---- new entries ---------------------------------------------------------------------------- */

/* A new entry, as its record has it. */
typedef struct {
    PyObject *entry, *key, *uri, *value, *header, *end;
    const uint8_t *facts;
    uint64_t first_due, place, size;
} NewEntry;

/* What the records of one append have in common (RecordEncoder, JobIds). */
typedef struct {
    uint64_t now, serial;
    uint8_t time[TIME_BYTES];
    PyObject *prefix, *run, *plain_header, *header_of_domain;
} Append;

/* Read a new entry that has a later arrival than the one before. Returns 0; 1: it is not plain;
   -1: an exception. */
static int read_new(PyObject *entry, Append *append, NewEntry *new) {
    if (!Py_IS_TYPE(entry, entry_class))
        return 1;
    PyObject *facts = SLOT(entry, entry_at.facts), *domain = SLOT(entry, entry_at.domain);
    PyObject *extra = SLOT(entry, entry_at.extra), *name = SLOT(domain, domain_at.name);
    new->entry = entry;
    new->key = SLOT(entry, entry_at.key);
    new->uri = SLOT(entry, entry_at.uri);
    new->value = SLOT(entry, entry_at.value);
    if (!PyBytes_CheckExact(facts) || size_of(facts) != FACTS_BYTES || !is_bytes(new->key) ||
        !(new->uri == Py_None || is_bytes(new->uri)) || !is_bytes(new->value))
        return 1;
    new->facts = data_of(facts);
    uint64_t arrival = get_u64(new->facts + ARRIVAL_AT);
    if (arrival <= append->serial || arrival > arrival_max)
        return 1;
    append->serial = arrival;
    new->first_due = 0;
    if (Py_IS_TYPE(extra, extra_class)) {
        if (read_u64(SLOT(extra, extra_at.first_due), &new->first_due))
            return 1;
    } else if (extra != nothing && !Py_IS_TYPE(extra, times_class))
        return 1;
    if (size_of(name) == 0) {
        new->header = append->plain_header;
        new->end = NULL;
        return 0;
    }
    new->header = SLOT(domain, domain_at.job_header);
    new->end = PyList_GET_ITEM(header_ends, new->facts[0]);
    if (size_of(new->header) == 0) {
        PyObject *header = PyObject_CallOneArg(append->header_of_domain, domain);
        if (header == NULL)
            return -1;
        Py_DECREF(header);
        new->header = SLOT(domain, domain_at.job_header);
    }
    return 0;
}

static size_t packed_uri_size(const NewEntry *new) {
    return new->uri == Py_None ? 1 : packed_size(size_of(new->uri));
}

/* The payload of a new entry (envelope.Envelope); modified is now. */
static uint8_t *put_envelope(uint8_t *p, const NewEntry *new, uint64_t now) {
    const uint8_t *facts = new->facts;
    p = put_bytes(p, "FJ\x01\xDC\x00\x11", 6);
    p = put_packed(p, PyBytes_AS_STRING(new->key), size_of(new->key));
    if (new->uri == Py_None)
        *p++ = 0xC0;
    else
        p = put_packed(p, PyBytes_AS_STRING(new->uri), size_of(new->uri));
    *p++ = 0x90;
    p = put_number(p, facts[TYPE_AT]);
    p = put_packed(p, PyBytes_AS_STRING(new->value), size_of(new->value));
    p = put_number(p, get_u64(facts + TIMESTAMP_AT));
    p = put_number(p, get_u64(facts + CREATED_AT));
    p = put_number(p, now);
    p = put_number(p, get_u64(facts + ARRIVAL_AT));
    p = put_number(p, get_u64(facts + NOT_BEFORE_AT));
    return put_number(put_bytes(p, "\0\0\0\0\0\xC0", 6), new->first_due);
}

static size_t envelope_size(const NewEntry *new, uint64_t now) {
    const uint8_t *facts = new->facts;
    return 13 + packed_size(size_of(new->key)) + packed_uri_size(new) +
           packed_size(size_of(new->value)) + number_size(facts[TYPE_AT]) +
           number_size(get_u64(facts + TIMESTAMP_AT)) + number_size(get_u64(facts + CREATED_AT)) +
           number_size(now) + number_size(get_u64(facts + ARRIVAL_AT)) +
           number_size(get_u64(facts + NOT_BEFORE_AT)) + number_size(new->first_due);
}

/* The record of a new entry (an item of RecordEncoder.new_entries). */
static uint8_t *put_entry(uint8_t *p, const NewEntry *new, const Append *append) {
    uint8_t *record = p;
    uint64_t not_before = get_u64(new->facts + NOT_BEFORE_AT), now = append->now;
    uint64_t created = get_u64(new->facts + CREATED_AT);
    size_t size = envelope_size(new, now), head = size_of(new->header);
    head += new->end == NULL ? 0 : size_of(new->end);
    p = put_uvarint(put_bytes(p, append->time, TIME_BYTES),
                    JOB_BESIDES_BYTES + head + uvarint_size(size) + size);
    *p++ = new->end == NULL ? ADD : SCHEDULE;
    p = put_object(p, append->prefix);
    put_u64(p, 1ull << 63 | get_u64(new->facts + ARRIVAL_AT));
    p = put_object(p + 8, new->header);
    if (new->end != NULL)
        p = put_object(p, new->end);
    p = put_envelope(put_uvarint(p, size), new, now);
    if (new->end == NULL) {
        p = put_bytes(put_bytes(p, NO_TIME, TIME_BYTES), append->time, TIME_BYTES);
        return put_crc(p, record);
    }
    put_time(p, now < scheduled_back || not_before > now - scheduled_back ? not_before : now);
    put_time(p + TIME_BYTES, created);
    return put_crc(p + 2 * TIME_BYTES, record);
}

/* The removal of a waiting entry that the record before replaces (RecordEncoder.replacements). */
static uint8_t *put_replacement(uint8_t *p, const Append *append, Removal *removal) {
    uint8_t ended[ENDED_BYTES] = {0};
    memcpy(ended + DUE_BYTES - SERIAL_BYTES, removal->facts + SERIAL_AT, SERIAL_BYTES);
    ended[ENDED_BYTES - 1] = REPLACED_BY_THE_ONE_BEFORE;
    removal->ended = ended;
    removal->ended_bytes = ENDED_BYTES;
    return put_completion(p, append->time, removal);
}

/* Read the entries, and the entries that they replace. Returns the bytes that their records need at
   most; 0: one of them is not plain; -1: an exception. */
static int64_t read_entries(PyObject *entries, PyObject *replaced, Append *append, NewEntry *news,
                            Removal *removals) {
    int64_t room = 1;
    Py_ssize_t found = 0;
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(entries); at++) {
        int refused = read_new(PyList_GET_ITEM(entries, at), append, news + at);
        if (refused)
            return refused < 0 ? -1 : 0;
        room += BESIDES_MAX + (int64_t)(size_of(news[at].key) + size_of(news[at].value) +
                                        packed_uri_size(news + at) + size_of(news[at].header));
        if (found == PyDict_GET_SIZE(replaced))
            continue;
        PyObject *place = PyLong_FromSsize_t(at);
        PyObject *pair = place == NULL ? NULL : PyDict_GetItemWithError(replaced, place);
        Py_XDECREF(place);
        if (pair == NULL) {
            if (PyErr_Occurred())
                return -1;
            continue;
        }
        if (read_removal(pair, removals + found))
            return 0;
        removals[found].after = (size_t)at;
        room += BESIDES_MAX + (int64_t)size_of(removals[found].key);
        found++;
    }
    return found == PyDict_GET_SIZE(replaced) && room <= PY_SSIZE_T_MAX ? room : 0;
}

/* Write the records to ``p``; return their end. Each entry's place and size are kept in it. */
static uint8_t *put_entries(uint8_t *p, const Append *append, NewEntry *news, size_t count,
                            Removal *removals, size_t replaced) {
    uint8_t *start = p;
    size_t next = 0;
    for (size_t at = 0; at < count; at++) {
        uint8_t *end = put_entry(p, news + at, append);
        news[at].place = (uint64_t)(p - start);
        news[at].size = (uint64_t)(end - p);
        p = end;
        if (next < replaced && removals[next].after == at)
            p = put_replacement(p, append, removals + next++);
    }
    return p;
}

/* The position of a record: without its last byte, and that byte. Returns 0; -1: an exception. */
static int split_position(PyObject *position, uint64_t *high, uint64_t *low) {
    PyObject *bits = PyLong_FromLong(8), *mask = PyLong_FromLong(0xFF), *rest = NULL, *last = NULL;
    if (bits != NULL && mask != NULL && (rest = PyNumber_Rshift(position, bits)) != NULL &&
        (last = PyNumber_And(position, mask)) != NULL &&
        (read_u64(rest, high) || read_u64(last, low)))
        PyErr_SetString(PyExc_ValueError, "a position has 72 bits at most");
    Py_XDECREF(bits);
    Py_XDECREF(mask);
    Py_XDECREF(rest);
    Py_XDECREF(last);
    return PyErr_Occurred() ? -1 : 0;
}

/* EntryRecords.add_new: the position and size of each record become part of the entry's facts,
   which no append changes. Returns the bytes of the records; -1: an exception. */
static int64_t place_entries(const NewEntry *news, size_t count, PyObject *position) {
    uint64_t high = 0, low = 0;
    int64_t bytes = 0;
    if (split_position(position, &high, &low))
        return -1;
    for (size_t at = 0; at < count; at++) {
        PyObject *facts = PyBytes_FromStringAndSize(NULL, RECORDED_BYTES);
        if (facts == NULL)
            return -1;
        uint8_t *p = (uint8_t *)PyBytes_AS_STRING(facts);
        put_bytes(p, news[at].facts, FACTS_BYTES);
        put_place(p, high, low + news[at].place, (uint32_t)news[at].size);
        Py_SETREF(SLOT(news[at].entry, entry_at.facts), facts);
        bytes += (int64_t)news[at].size;
    }
    return bytes;
}

/* store_entries(entries, now, replaced, tables, prefix, run, serial, plain_header,
                 header_of_domain, append) -> (serial, position, bytes, bytes that are dead) | None
   Journal.stored_new: RecordEncoder.new_entries with JobIds.assign, and for those that are replaced
   EntryRecords.remove and RecordEncoder.replacements; the append; EntryRecords.add_new, but for its
   counts. None: an arrival is not later than those before, a value is no longer in memory, say. */
static PyObject *store_entries(PyObject *module, PyObject *const *args, Py_ssize_t number) {
    Append append;
    Index index;
    if (number != 10 || !PyList_Check(args[0]) || read_u64(args[1], &append.now) ||
        !PyDict_Check(args[2]) || !PyBytes_Check(args[4]) || size_of(args[4]) != RUN_BYTES ||
        !PyBytes_Check(args[5]) || read_u64(args[6], &append.serial) || !PyBytes_Check(args[7])) {
        PyErr_SetString(PyExc_TypeError, "store_entries takes entries, and what it needs");
        return NULL;
    }
    if (read_index(args[3], &index))
        return NULL;
    put_time(append.time, append.now);
    append.prefix = args[4];
    append.plain_header = args[7];
    append.header_of_domain = args[8];
    size_t count = (size_t)PyList_GET_SIZE(args[0]), replaced = (size_t)PyDict_GET_SIZE(args[2]);
    NewEntry *news = room_for(count, sizeof *news);
    Removal *removals = news == NULL ? NULL : room_for(replaced, sizeof *removals);
    PyObject *records = NULL, *position = NULL, *result = NULL;
    if (removals == NULL)
        goto done;
    int64_t room = read_entries(args[0], args[2], &append, news, removals), dead, bytes;
    if (room <= 0) {
        result = room ? NULL : Py_NewRef(Py_None);
        goto done;
    }
    records = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)room);
    if (records == NULL)
        goto done;
    uint8_t *start = (uint8_t *)PyBytes_AS_STRING(records);
    uint8_t *end = put_entries(start, &append, news, count, removals, replaced);
    if (_PyBytes_Resize(&records, end - start) ||
        (dead = drop_records(&index, removals, replaced)) < 0)
        goto done;
    for (size_t at = 0; at < count; at++)
        Py_XSETREF(SLOT(news[at].entry, entry_at.run), Py_NewRef(args[5]));
    position = PyObject_CallFunction(args[9], "OnO", records, (Py_ssize_t)(count + replaced),
                                     args[1]);
    if (position != NULL && (bytes = place_entries(news, count, position)) >= 0)
        result = Py_BuildValue("(KOLL)", (unsigned long long)append.serial, position,
                               (long long)bytes, (long long)dead);
done:
    Py_XDECREF(records);
    Py_XDECREF(position);
    PyMem_Free(news);
    PyMem_Free(removals);
    return result;
}

/* ---- begun leases ---------------------------------------------------------------------------- */

/* An entry that is about to be leased. */
typedef struct {
    PyObject *entry, *extra;
    uint64_t due, changed, seen, starts;
    uint8_t attempt;
} Begun;

/* Read an entry, and its next attempt; -1: it is not plain, or a new job has to carry it. */
static int read_begun(PyObject *entry, Begun *begun) {
    uint8_t id[ID_BYTES];
    uint64_t attempts = 0, due = 0;
    if (!Py_IS_TYPE(entry, entry_class) || read_id(entry, id))
        return -1;
    PyObject *extra = SLOT(entry, entry_at.extra);
    begun->entry = entry;
    begun->extra = extra;
    begun->changed = begun->seen = begun->starts = 0;
    if (Py_IS_TYPE(extra, extra_class)) {
        if (read_u64(SLOT(extra, extra_at.changed), &begun->changed) ||
            read_u64(SLOT(extra, extra_at.due), &due) ||
            read_u64(SLOT(extra, extra_at.attempts), &attempts) ||
            read_u64(SLOT(extra, extra_at.starts), &begun->starts) || begun->starts >= STARTS_MAX)
            return -1;
    } else if (Py_IS_TYPE(extra, times_class)) {
        if (read_u64(SLOT(extra, times_at.changed), &begun->changed) ||
            read_u64(SLOT(extra, times_at.seen), &begun->seen))
            return -1;
    } else if (extra != nothing)
        return -1;
    const uint8_t *facts = data_of(SLOT(entry, entry_at.facts));
    uint64_t not_before = get_u64(facts + NOT_BEFORE_AT);
    if (!due)
        due = begun->changed ? begun->changed : get_u64(facts + CREATED_AT);
    else
        not_before = 0;
    begun->due = due > not_before ? due : not_before;
    begun->attempt = (uint8_t)(attempts < ATTEMPT_MAX ? attempts + 1 : ATTEMPT_MAX);
    return 0;
}

/* Give an entry the facts of its lease, one start more, and its whole job id, as an amended one.
   Returns 0; -1: an exception. */
static int begin(const Begun *begun, PyObject *leased, PyObject *amended, const uint8_t *id) {
    PyObject *extra = begun->extra, *starts = PyLong_FromUnsignedLongLong(begun->starts + 1);
    PyObject *run = PyBytes_FromStringAndSize((const char *)id, ID_BYTES);
    int failed = starts == NULL || run == NULL;
    if (!failed && Py_IS_TYPE(extra, extra_class)) {
        Py_SETREF(SLOT(extra, extra_at.leased), Py_NewRef(leased));
        Py_SETREF(SLOT(extra, extra_at.starts), Py_NewRef(starts));
    } else if (!failed) {
        PyObject *zero = small_zero, *changed = PyLong_FromUnsignedLongLong(begun->changed);
        PyObject *seen = PyLong_FromUnsignedLongLong(begun->seen);
        PyObject *fields[] = {changed, seen, zero, zero, zero, leased, starts};
        extra = changed == NULL || seen == NULL
                    ? NULL
                    : PyObject_Vectorcall((PyObject *)extra_class, fields, 7, NULL);
        Py_XDECREF(changed);
        Py_XDECREF(seen);
        failed = extra == NULL;
        if (!failed)
            Py_SETREF(SLOT(begun->entry, entry_at.extra), extra);
    }
    if (!failed)
        Py_SETREF(SLOT(begun->entry, entry_at.run), Py_NewRef(run));
    failed = failed || PyDict_SetItem(amended, run, begun->entry);
    Py_XDECREF(run);
    Py_XDECREF(starts);
    return failed ? -1 : 0;
}

/* Names of the domains of the entries, each with the number of consecutive ones. */
static PyObject *runs_of_domains(const Begun *begun, size_t count) {
    PyObject *domains = PyList_New(0);
    for (size_t at = 0, first = 0; domains != NULL && at < count; at++) {
        PyObject *domain = SLOT(begun[at].entry, entry_at.domain);
        if (at + 1 < count && SLOT(begun[at + 1].entry, entry_at.domain) == domain)
            continue;
        PyObject *number = PyLong_FromSize_t(at + 1 - first);
        if (number == NULL || PyList_Append(domains, SLOT(domain, domain_at.name)) ||
            PyList_Append(domains, number))
            Py_CLEAR(domains);
        Py_XDECREF(number);
        first = at + 1;
    }
    return domains;
}

/* Write dues, priorities and starts of the entries, and begin their leases. Returns whether any of
   them was attempted before; -1: an exception. */
static int begin_all(const Begun *begun, size_t count, uint64_t now, PyObject *amended,
                     uint8_t *const *columns) {
    uint8_t start[LEASED_BYTES], time[TIME_BYTES], instant[8];
    uint8_t *dues = columns[0], *priorities = columns[1], *numbers = columns[2], *p = columns[3];
    int repeated = 0;
    put_time(time, now);
    put_u64(instant, now);
    for (size_t at = 0; at < count; at++) {
        const uint8_t *facts = data_of(SLOT(begun[at].entry, entry_at.facts));
        put_u64(start, begun[at].due);
        put_bytes(start + 8, facts + SERIAL_AT, SERIAL_BYTES);
        start[DUE_BYTES] = numbers[at] = begun[at].attempt;
        put_bytes(start + DUE_BYTES + 1, instant + 2, SERIAL_BYTES);
        dues = put_bytes(dues, start, DUE_BYTES);
        priorities[at] = facts[0];
        repeated |= begun[at].attempt > 1;
        uint8_t *record = p;
        p = put_bytes(p, time, TIME_BYTES);
        *p++ = SIMPLE_BODY_BYTES;
        *p++ = START_ATTEMPT;
        if (read_id(begun[at].entry, p))
            return -1;
        PyObject *leased = PyBytes_FromStringAndSize((const char *)start, LEASED_BYTES);
        if (leased == NULL || begin(begun + at, leased, amended, p)) {
            Py_XDECREF(leased);
            return -1;
        }
        Py_DECREF(leased);
        p = put_crc(p + ID_BYTES, record);
    }
    return repeated;
}

/* begin_leases(entries, now, amended) -> (dues, priorities, numbers, domains, starts) | None
   LeaseJournal._begin_each: the fields of the record of a lease, and the records of its starts.
   None: an entry needs a new job, say. */
static PyObject *begin_leases(PyObject *module, PyObject *const *args, Py_ssize_t number) {
    enum { DUES, PRIORITIES, NUMBERS, STARTS, COLUMNS };
    static const size_t WIDTHS[COLUMNS] = {DUE_BYTES, 1, 1, START_BYTES};
    uint64_t now;
    if (number != 3 || !PyList_Check(args[0]) || read_u64(args[1], &now) ||
        !PyDict_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "begin_leases takes entries, an instant, and a dict");
        return NULL;
    }
    size_t count = (size_t)PyList_GET_SIZE(args[0]);
    Begun *begun = room_for(count, sizeof *begun);
    PyObject *columns[COLUMNS] = {NULL}, *domains = NULL, *result = NULL;
    uint8_t *data[COLUMNS];
    if (begun == NULL)
        return NULL;
    for (size_t at = 0; at < count; at++)
        if (read_begun(PyList_GET_ITEM(args[0], (Py_ssize_t)at), begun + at)) {
            result = Py_NewRef(Py_None);
            goto done;
        }
    for (size_t column = 0; column < COLUMNS; column++) {
        columns[column] = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * WIDTHS[column]));
        if (columns[column] == NULL)
            goto done;
        data[column] = (uint8_t *)PyBytes_AS_STRING(columns[column]);
    }
    domains = runs_of_domains(begun, count);
    int repeated = domains == NULL ? -1 : begin_all(begun, count, now, args[2], data);
    if (repeated >= 0 && (repeated || !_PyBytes_Resize(&columns[NUMBERS], 0)))
        result = PyTuple_Pack(5, columns[DUES], columns[PRIORITIES], columns[NUMBERS], domains,
                              columns[STARTS]);
done:
    for (size_t column = 0; column < COLUMNS; column++)
        Py_XDECREF(columns[column]);
    Py_XDECREF(domains);
    PyMem_Free(begun);
    return result;
}

PyMethodDef record_methods[] = {
    {"bind_records", bind_records, METH_VARARGS, "Take the classes whose slots the leaves use."},
    {"store_entries", FASTCALL(store_entries),
     "Log new entries; Journal.stored_new is its function."},
    {"begin_leases", FASTCALL(begin_leases),
     "Facts and records of leases; LeaseJournal._begin_each is its function."},
    {"pack_completions", FASTCALL(pack_completions),
     "Records of completed jobs; Journal.completed_all is its function."},
    {NULL}};
