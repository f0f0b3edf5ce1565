/* Bulk insertion, delivery and bulk completion of entries: the loops of set_waiting,
   Scheduler.enqueue_new, next._take, LeaseTable.begin and complete.

   A leaf of SETs or DELETEs changes the tables for one request after the other, in the order of its
   function in Python. Of each it looks at everything first, then makes all objects, and then puts
   them into the tables; where that fails for want of memory, it takes back what it did for this
   request, and leaves the request to Python. So no key is in one table and not in the other.

   Rare steps are calls of Python: a new domain, or the last job of a domain, a lease or an end of
   leases. Where one of these, or a step of queues and leases, raises an exception, nothing is taken
   back, as in the functions. */
#include "leaf.h"

/* Functions and flags of the protocol (fastjournal/protocol/constants.py). */
enum { SET = 2, DELETE = 4 };
enum { OVERWRITE = 32, WORKED_ON = 64, PERSIST = 512, LISTEN = 2048 };
/* Bits of fastjournald/tables/signals.py, and states of fastjournald/tables/entry.py. */
enum { KEYS = 16 };
enum { PLAIN = 1, READY = 2, DELAYED = 3, LEASED = 4 };

/* ---- classes, bound once --------------------------------------------------------------------- */

static PyTypeObject *request_class, *entry_class, *extra_class, *times_class, *keys_class;
static PyTypeObject *sorted_class;
static PyObject *name_serial, *name_discard, *name_covers, *name_covers_new, *names_of_moved;
static PyObject *name_add_all, *name_append, *name_move_to_end, *name_own, *zero;
static struct {
    Py_ssize_t function, flags, timestamp, key, uri, type, value, timeout, ttl;
} request_at;
static struct {
    Py_ssize_t shards, signals, index;
} keys_at;
static struct {
    Py_ssize_t facts, key, uri, value, domain, extra, state, run;
} entry_at;
static struct {
    Py_ssize_t token, leased_until, token_before, superseded, links, first_due, lease, seen, starts;
} extra_at;
static struct {
    Py_ssize_t name, entries, ready, has_ready, held, delivered_at, leases, limit, wake;
} domain_at;
static struct {
    Py_ssize_t len, lasts, ranks, sublists;
} sorted_at;
static struct {
    Py_ssize_t number, holder;
} operation_at;
static Py_ssize_t index_fresh, index_gone, signals_bits, tombstones_items, leases_groups;
static Py_ssize_t holder_number;
/* Bounds of fastjournal/limits.py, the greatest type of a value, and SortedEntries.LOAD. */
static struct {
    Py_ssize_t key_bytes_max, value_bytes_max, fresh_max, gone_max, type_max, load;
} bounds;

static const struct {
    const char *name;
    PyTypeObject **class;
} CLASSES[] = {
    {"Request", &request_class},
    {"Entry", &entry_class},
    {"Extra", &extra_class},
    {"AccessTimes", &times_class},
    {"KeyTable", &keys_class},
    {"SortedEntries", &sorted_class},
};

static const struct {
    const char *class, *slot;
    Py_ssize_t *offset;
} SLOTS[] = {
    {"Request", "function", &request_at.function},
    {"Request", "flags", &request_at.flags},
    {"Request", "timestamp", &request_at.timestamp},
    {"Request", "key", &request_at.key},
    {"Request", "second_key", &request_at.uri},
    {"Request", "value_type", &request_at.type},
    {"Request", "value", &request_at.value},
    {"Request", "timeout", &request_at.timeout},
    {"Request", "ttl", &request_at.ttl},
    {"KeyTable", "_shards", &keys_at.shards},
    {"KeyTable", "_signals", &keys_at.signals},
    {"KeyTable", "index", &keys_at.index},
    {"KeyIndex", "fresh", &index_fresh},
    {"KeyIndex", "gone", &index_gone},
    {"Entry", "facts", &entry_at.facts},
    {"Entry", "key", &entry_at.key},
    {"Entry", "uri", &entry_at.uri},
    {"Entry", "value", &entry_at.value},
    {"Entry", "domain", &entry_at.domain},
    {"Entry", "extra", &entry_at.extra},
    {"Entry", "state", &entry_at.state},
    {"Entry", "run", &entry_at.run},
    {"Extra", "token", &extra_at.token},
    {"Extra", "leased_until", &extra_at.leased_until},
    {"Extra", "token_before", &extra_at.token_before},
    {"Extra", "superseded", &extra_at.superseded},
    {"Extra", "links", &extra_at.links},
    {"Extra", "first_due", &extra_at.first_due},
    {"Extra", "lease", &extra_at.lease},
    {"Extra", "seen", &extra_at.seen},
    {"Extra", "starts", &extra_at.starts},
    {"Domain", "name", &domain_at.name},
    {"Domain", "ready", &domain_at.ready},
    {"Domain", "has_ready", &domain_at.has_ready},
    {"Domain", "held", &domain_at.held},
    {"Domain", "delivered_at", &domain_at.delivered_at},
    {"Domain", "entries", &domain_at.entries},
    {"Domain", "leases", &domain_at.leases},
    {"Domain", "limit", &domain_at.limit},
    {"Domain", "wake", &domain_at.wake},
    {"Leases", "_groups", &leases_groups},
    {"LeaseOperation", "number", &operation_at.number},
    {"LeaseOperation", "holder", &operation_at.holder},
    {"LeaseHolder", "number", &holder_number},
    {"SortedEntries", "_len", &sorted_at.len},
    {"SortedEntries", "_lasts", &sorted_at.lasts},
    {"SortedEntries", "_ranks", &sorted_at.ranks},
    {"SortedEntries", "_sublists", &sorted_at.sublists},
    {"Signals", "bits", &signals_bits},
    {"Tombstones", "_items", &tombstones_items},
};

/* A class by its name, borrowed; NULL with TypeError. */
static PyObject *class_of(PyObject *classes, const char *name) {
    PyObject *class = PyDict_GetItemString(classes, name);
    if (class == NULL || !PyType_Check(class)) {
        PyErr_Format(PyExc_TypeError, "class %s is missing", name);
        return NULL;
    }
    return class;
}

/* bind_bulk(classes by name, key_bytes_max, value_bytes_max, fresh_max, gone_max, type_max,
             load) */
static PyObject *bind_bulk(PyObject *module, PyObject *args) {
    PyObject *classes, *class;
    if (!PyArg_ParseTuple(args, "O!nnnnnn", &PyDict_Type, &classes, &bounds.key_bytes_max,
                          &bounds.value_bytes_max, &bounds.fresh_max, &bounds.gone_max,
                          &bounds.type_max, &bounds.load))
        return NULL;
    for (size_t at = 0; at < sizeof SLOTS / sizeof *SLOTS; at++) {
        if ((class = class_of(classes, SLOTS[at].class)) == NULL ||
            (*SLOTS[at].offset = slot_offset(class, SLOTS[at].slot)) < 0)
            return NULL;
    }
    for (size_t at = 0; at < sizeof CLASSES / sizeof *CLASSES; at++) {
        if ((class = class_of(classes, CLASSES[at].name)) == NULL)
            return NULL;
        Py_XSETREF(*CLASSES[at].class, (PyTypeObject *)Py_NewRef(class));
    }
    Py_XSETREF(zero, PyLong_FromLong(0));
    Py_XSETREF(name_serial, PyUnicode_InternFromString("serial"));
    Py_XSETREF(name_discard, PyUnicode_InternFromString("discard"));
    Py_XSETREF(name_add_all, PyUnicode_InternFromString("add_all"));
    Py_XSETREF(name_move_to_end, PyUnicode_InternFromString("move_to_end"));
    Py_XSETREF(name_own, PyUnicode_InternFromString("own"));
    Py_XSETREF(name_append, PyUnicode_InternFromString("append"));
    Py_XSETREF(name_covers, PyUnicode_InternFromString("covers"));
    Py_XSETREF(name_covers_new, PyUnicode_InternFromString("covers_new"));
    Py_XSETREF(names_of_moved, Py_BuildValue("(sss)", "changed", "seen", "first_due"));
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* Value of a slot that has a small int or None, which is -1; -2: it is neither. */
static long small_int(PyObject *object) {
    if (object == Py_None)
        return -1;
    if (!PyLong_CheckExact(object))
        return -2;
    int overflow;
    long value = PyLong_AsLongAndOverflow(object, &overflow);
    return overflow || value < 0 ? -2 : value;
}

static int is_key(PyObject *key) {
    return PyBytes_CheckExact(key) && PyBytes_GET_SIZE(key) > 0 &&
           PyBytes_GET_SIZE(key) <= bounds.key_bytes_max;
}

/* The number in decimal digits, all of them; -1: it is none, or needs over 64 bits. */
static int read_digits(const char *digits, Py_ssize_t size, uint64_t *value) {
    *value = 0;
    for (Py_ssize_t at = 0; at < size; at++) {
        unsigned digit = (unsigned char)digits[at] - (unsigned)'0';
        if (digit > 9 || *value > (UINT64_MAX - digit) / 10)
            return -1;
        *value = *value * 10 + digit;
    }
    return size > 0 ? 0 : -1;
}

/* fastjournal.keys.split_journal_key: returns the size of the domain; 0: it is a plain key, which
   has neither priority nor instant. */
static Py_ssize_t split_key(PyObject *key, uint64_t *priority, uint64_t *not_before) {
    const char *start = PyBytes_AS_STRING(key), *end = start + PyBytes_GET_SIZE(key);
    const char *colon[3], *from = start;
    uint64_t rank, instant;
    *priority = *not_before = 0;
    for (int number = 0; number < 3; number++, from++) {
        from = colon[number] = memchr(from, ':', (size_t)(end - from));
        if (from == NULL)
            return 0;
    }
    Py_ssize_t digits = colon[1] - colon[0] - 1, more = colon[2] - colon[1] - 1;
    if (colon[0] == start || digits > 3 || read_digits(colon[0] + 1, digits, &rank) ||
        rank > 255 || more > 20 || read_digits(colon[1] + 1, more, &instant))
        return 0;
    *priority = rank;
    *not_before = instant;
    return colon[0] - start;
}

/* The shard of a key in the key table, borrowed (KeyTable); bytes have a hash at all times. */
static PyObject *shard_of(PyObject *shards, PyObject *key) {
    return PyList_GET_ITEM(shards, PyObject_Hash(key) & 255);
}

/* Signal that many keys have to be merged into the index. */
static int signal_keys(PyObject *keys) {
    PyObject **bits = &SLOT(SLOT(keys, keys_at.signals), signals_bits);
    PyObject *more = PyLong_FromLong(small_int(*bits) | KEYS);
    if (more == NULL)
        return -1;
    Py_SETREF(*bits, more);
    return 0;
}

/* Call a function in Python for a rare step; its result does not count. */
static int call(PyObject *function, PyObject *argument) {
    PyObject *result = PyObject_CallOneArg(function, argument);
    Py_XDECREF(result);
    return -(result == NULL);
}

/* Add to a slot that counts. */
static int add_to(PyObject *object, Py_ssize_t offset, long more) {
    PyObject *sum = PyLong_FromLong(small_int(SLOT(object, offset)) + more);
    if (sum == NULL)
        return -1;
    Py_SETREF(SLOT(object, offset), sum);
    return 0;
}

/* Drop the last item of a list, without an error. */
static void drop_last(PyObject *list) {
    Py_ssize_t last = PyList_GET_SIZE(list) - 1;
    PyObject *item = PyList_GET_ITEM(list, last);
    Py_SET_SIZE(list, last);
    Py_DECREF(item);
}

/* Whether a method of a grant says yes; a grant that is None covers all. -1: an exception. */
static int is_covered(PyObject *grant, PyObject *method, PyObject *one, PyObject *two) {
    if (grant == Py_None)
        return 1;
    PyObject *covered = PyObject_CallMethodObjArgs(grant, method, one, two, NULL);
    int truth = covered == NULL ? -1 : PyObject_IsTrue(covered);
    Py_XDECREF(covered);
    return truth;
}

static int is_equal(PyObject *key, PyObject *other) {
    return PyBytes_GET_SIZE(key) == PyBytes_GET_SIZE(other) &&
           !memcmp(PyBytes_AS_STRING(key), PyBytes_AS_STRING(other),
                   (size_t)PyBytes_GET_SIZE(key));
}

/* ---- bulk insertion -------------------------------------------------------------------------- */

/* One call of insert_waiting: the tables, what was made so far, and the domain of the last key. */
typedef struct {
    PyObject *shards, *fresh, *tombstones, *domains, *domain_of, *plain, *locked, *grant;
    PyObject *entries, *persistent, *replaced, *recorded, *replacing;
    uint64_t now, latest, postpone, serial;
    PyObject *name, *domain;
} Insertion;

/* A SET that is plain, so far as it goes by itself, and the waiting entry of its URI. */
typedef struct {
    PyObject *key, *uri, *value, *given_timestamp, *holder;
    long flags, type;
    uint64_t timestamp;
} Set;

/* Facts of a new entry. */
typedef struct {
    uint64_t priority, not_before, created, first_due;
} Facts;

/* Whether a request is a SET without anything rare, as set_waiting and validate look at it. */
static int read_set(PyObject *request, const Insertion *to, Set *set) {
    long timeout = small_int(SLOT(request, request_at.timeout));
    long ttl = small_int(SLOT(request, request_at.ttl));
    set->key = SLOT(request, request_at.key);
    set->uri = SLOT(request, request_at.uri);
    set->value = SLOT(request, request_at.value);
    set->flags = small_int(SLOT(request, request_at.flags));
    set->type = small_int(SLOT(request, request_at.type));
    set->given_timestamp = SLOT(request, request_at.timestamp);
    return small_int(SLOT(request, request_at.function)) == SET && set->flags >= 0 &&
           !(set->flags & LISTEN) && (timeout == 0 || timeout == -1) &&
           (ttl == 0 || ttl == -1) && is_key(set->key) &&
           (set->uri == Py_None || (is_key(set->uri) && !is_equal(set->key, set->uri))) &&
           PyBytes_CheckExact(set->value) &&
           PyBytes_GET_SIZE(set->value) <= bounds.value_bytes_max && set->type >= 0 &&
           set->type <= bounds.type_max && (set->type || !PyBytes_GET_SIZE(set->value)) &&
           !read_u64(set->given_timestamp, &set->timestamp) && set->timestamp <= to->latest;
}

/* Find the waiting entry of the URI of a SET, if any, as a new reference: a grant is code in Python,
   behind which the tables may have dropped it. 1: a bulk may carry the SET out; 0: Python
   has to look; -1: an exception. */
static int find_holder(const Insertion *to, Set *set) {
    PyObject *key = set->key, *uri = set->uri;
    if (PyDict_GetItemWithError(shard_of(to->shards, key), key) != NULL ||
        PyDict_GetItemWithError(to->tombstones, key) != NULL)
        return 0;
    if (uri != Py_None)
        set->holder = Py_XNewRef(PyDict_GetItemWithError(shard_of(to->shards, uri), uri));
    int covered = is_covered(to->grant, name_covers_new, key, uri);
    if (covered > 0 && set->holder != NULL)
        covered = is_covered(to->grant, name_covers, set->holder, NULL);
    return covered;
}

/* The domain of a key's first so many bytes, borrowed from ``to`` (set.place_of). */
static PyObject *domain_of(Insertion *to, PyObject *key, Py_ssize_t size) {
    const char *start = PyBytes_AS_STRING(key);
    if (to->name != NULL && PyBytes_GET_SIZE(to->name) == size &&
        !memcmp(PyBytes_AS_STRING(to->name), start, (size_t)size))
        return to->domain;
    PyObject *name = PyBytes_FromStringAndSize(start, size);
    if (name == NULL)
        return NULL;
    PyObject *domain = Py_XNewRef(PyDict_GetItemWithError(to->domains, name));
    if (domain == NULL && !PyErr_Occurred())
        domain = PyObject_CallOneArg(to->domain_of, name);
    if (domain == NULL) {
        Py_DECREF(name);
        return NULL;
    }
    Py_XSETREF(to->name, name);
    Py_XSETREF(to->domain, domain);
    return domain;
}

/* set.postponed of an entry that waits: the due time, and the first due time. */
static void postpone(const Insertion *to, Facts *facts, uint64_t first_due) {
    facts->first_due = first_due;
    if (!to->postpone)
        return;
    if (facts->not_before > to->now && facts->not_before - to->now > to->postpone)
        facts->first_due = 0;
    else if (first_due <= UINT64_MAX - to->postpone &&
             facts->not_before > first_due + to->postpone)
        facts->not_before = first_due + to->postpone;
}

/* set._moved: whether a SET moves the waiting entry of its URI within its domain, and no more.
   The key of the SET has a domain of this size. */
static int moves(const Insertion *to, const Set *set, Facts *facts, Py_ssize_t size) {
    PyObject *holder = set->holder;
    if (!Py_IS_TYPE(holder, entry_class))
        return 0;
    PyObject *domain = SLOT(holder, entry_at.domain), *extra = SLOT(holder, entry_at.extra);
    PyObject *name = SLOT(domain, domain_at.name), *key = SLOT(holder, entry_at.key);
    const uint8_t *before = (uint8_t *)PyBytes_AS_STRING(SLOT(holder, entry_at.facts));
    long state = small_int(SLOT(holder, entry_at.state));
    uint64_t first_due = 0;
    if (PyObject_TypeCheck(extra, extra_class)) {
        if (SLOT(extra, extra_at.links) != Py_None ||
            read_u64(SLOT(extra, extra_at.first_due), &first_due))
            return 0;
    } else if (!Py_IS_TYPE(extra, times_class)) {
        return 0;
    }
    if ((state != READY && state != DELAYED) || is_equal(key, set->uri) ||
        (PyDict_GET_SIZE(to->locked) && PyDict_Contains(to->locked, key)) ||
        set->timestamp < get_u64(before + TIMESTAMP_AT) ||
        (SLOT(holder, entry_at.run) != Py_None && !(set->flags & PERSIST)) || !size ||
        PyBytes_GET_SIZE(name) != size ||
        memcmp(PyBytes_AS_STRING(name), PyBytes_AS_STRING(set->key), (size_t)size))
        return 0;
    facts->created = get_u64(before + CREATED_AT);
    uint64_t due = get_u64(before + NOT_BEFORE_AT);
    if (due < facts->created)
        due = facts->created;
    postpone(to, facts, first_due ? first_due : due);
    return facts->not_before <= to->now || state == DELAYED ||
           small_int(SLOT(SLOT(domain, domain_at.ready), sorted_at.len)) >
               PyList_GET_SIZE(to->replaced) + 1;
}

/* The fields of an entry that moved, which few entries have; NULL without an exception: none. */
static PyObject *make_extra(const Insertion *to, const Facts *facts) {
    if (!facts->first_due && facts->created == to->now)
        return NULL;
    PyObject *extra = NULL;
    PyObject *changed = PyLong_FromUnsignedLongLong(facts->created == to->now ? 0 : to->now);
    PyObject *first_due = PyLong_FromUnsignedLongLong(facts->first_due);
    PyObject *fields[] = {changed, changed, first_due};
    if (changed != NULL && first_due != NULL)
        extra = facts->first_due
                    ? PyObject_Vectorcall((PyObject *)extra_class, fields, 0, names_of_moved)
                    : PyObject_Vectorcall((PyObject *)times_class, fields, 2, NULL);
    Py_XDECREF(changed);
    Py_XDECREF(first_due);
    return extra;
}

/* A new Entry of a SET, with the next serial number as its arrival; NULL: an exception. */
static PyObject *make_entry(const Insertion *to, const Set *set, const Facts *facts,
                            PyObject *domain) {
    PyObject *extra = make_extra(to, facts), *entry = NULL;
    PyObject *packed = PyErr_Occurred() ? NULL : PyBytes_FromStringAndSize(NULL, FACTS_BYTES);
    if (packed != NULL) {
        put_facts((uint8_t *)PyBytes_AS_STRING(packed), (uint8_t)facts->priority,
                  facts->not_before, to->serial + 1, set->timestamp, facts->created,
                  (uint8_t)set->type);
        PyObject *fields[] = {packed, set->key, set->uri, set->value, domain, extra};
        entry = PyObject_Vectorcall((PyObject *)entry_class, fields, extra == NULL ? 5 : 6, NULL);
        Py_DECREF(packed);
    }
    Py_XDECREF(extra);
    return entry;
}

/* Note an entry in the lists, and the one that it moves by its places there. */
static int list_entry(const Insertion *to, const Set *set, PyObject *entry) {
    PyObject *old = NULL, *place = NULL, *at = NULL;
    if (set->holder != NULL) {
        place = PyLong_FromSsize_t(PyList_GET_SIZE(to->entries));
        at = PyLong_FromSsize_t(PyList_GET_SIZE(to->persistent));
        old = PyTuple_Pack(2, set->holder, set->given_timestamp);
    }
    int failed = PyList_Append(to->entries, entry) ||
                 (set->flags & PERSIST && PyList_Append(to->persistent, entry));
    if (set->holder != NULL)
        /* ``recorded`` comes last: it is not taken back */
        failed = failed || place == NULL || at == NULL || old == NULL ||
                 PyList_Append(to->replacing, place) || PyList_Append(to->replaced, old) ||
                 (set->flags & PERSIST && PyDict_SetItem(to->recorded, at, old));
    Py_XDECREF(place);
    Py_XDECREF(at);
    Py_XDECREF(old);
    return failed;
}

/* Put an entry under its keys (KeyTable.add_new), and into the lists. */
static int put_entry(const Insertion *to, const Set *set, PyObject *entry) {
    PyObject *key = set->key, *uri = set->uri == Py_None ? NULL : set->uri, *fresh = to->fresh;
    return PyDict_SetItem(shard_of(to->shards, key), key, entry) ||
           (uri != NULL && PyDict_SetItem(shard_of(to->shards, uri), uri, entry)) ||
           (fresh != NULL && PyDict_SetItem(fresh, key, Py_True)) ||
           (fresh != NULL && uri != NULL && set->holder == NULL &&
            PyDict_SetItem(fresh, uri, Py_True)) ||
           list_entry(to, set, entry);
}

/* Take back what ``put_entry`` did in part: only a note is left that keys are gone, as of keys that
   were removed. What is in a dictionary already gets another value without memory. */
static void take_back(const Insertion *to, const Set *set, PyObject *entry,
                      const Py_ssize_t *sizes) {
    PyObject *keys[] = {set->key, set->uri == Py_None ? NULL : set->uri};
    PyObject *lists[] = {to->entries, to->persistent, to->replaced, to->replacing};
    PyErr_Clear();
    for (int at = 0; at < 2 && keys[at] != NULL; at++) {
        PyObject *shard = shard_of(to->shards, keys[at]);
        int moved = at == 1 && set->holder != NULL;
        if (PyDict_GetItemWithError(shard, keys[at]) == entry) {
            if (moved)
                PyDict_SetItem(shard, keys[at], set->holder);
            else
                PyDict_DelItem(shard, keys[at]);
        }
        if (!moved && to->fresh != NULL && PyDict_Contains(to->fresh, keys[at]))
            PyDict_SetItem(to->fresh, keys[at], Py_False);
    }
    for (int at = 0; at < 4; at++)
        if (PyList_GET_SIZE(lists[at]) > sizes[at])
            drop_last(lists[at]);
}

/* Add the entry of a SET, or move that of its URI. 1: done; 0: Python has to look; -1: an
   exception. */
static int insert_entry(Insertion *to, const Set *set) {
    Facts facts = {.created = to->now};
    Py_ssize_t size = split_key(set->key, &facts.priority, &facts.not_before);
    PyObject *domain = to->plain, *entry = NULL;
    if (set->holder != NULL) {
        if (!moves(to, set, &facts, size))
            return 0;
        domain = SLOT(set->holder, entry_at.domain);
    } else if (size) {
        domain = domain_of(to, set->key, size);
    }
    if (domain != NULL)
        entry = make_entry(to, set, &facts, domain);
    if (entry == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_MemoryError))
            return -1;
        PyErr_Clear();
        return 0;
    }
    Py_ssize_t sizes[] = {PyList_GET_SIZE(to->entries), PyList_GET_SIZE(to->persistent),
                          PyList_GET_SIZE(to->replaced), PyList_GET_SIZE(to->replacing)};
    int failed = put_entry(to, set, entry);
    if (failed)
        take_back(to, set, entry, sizes);
    Py_DECREF(entry);
    return !failed;
}

/* Carry out one SET. 1: done; 0: Python has to look; -1: an exception. */
static int insert_one(Insertion *to, PyObject *request) {
    Set set = {0};
    if (!Py_IS_TYPE(request, request_class) || !read_set(request, to, &set))
        return 0;
    int found = find_holder(to, &set);
    if (found > 0)
        found = insert_entry(to, &set);
    Py_XDECREF(set.holder);
    to->serial += found > 0;
    return found;
}

/* Read the arguments. 1: they are there; 0: Python has to do all; -1: an exception. */
static int begin_insertion(Insertion *to, PyObject *tables, PyObject *made, PyObject *now) {
    PyObject *ids, *keys, *tombstones, *latest, *longest;
    memset(to, 0, sizeof *to);
    if (!PyArg_ParseTuple(tables, "OOOOOOOOOO", &ids, &keys, &tombstones, &to->domains,
                          &to->domain_of, &to->plain, &to->locked, &to->grant, &latest, &longest) ||
        !PyArg_ParseTuple(made, "O!O!O!O!O!", &PyList_Type, &to->entries, &PyList_Type,
                          &to->persistent, &PyList_Type, &to->replaced, &PyDict_Type,
                          &to->recorded, &PyList_Type, &to->replacing))
        return -1;
    PyObject *serial = PyObject_GetAttr(ids, name_serial);
    if (serial == NULL)
        return -1;
    int known = !read_u64(serial, &to->serial) && !read_u64(now, &to->now) &&
                !read_u64(latest, &to->latest) && !read_u64(longest, &to->postpone);
    Py_DECREF(serial);
    PyObject *index = SLOT(keys, keys_at.index);
    to->shards = SLOT(keys, keys_at.shards);
    to->fresh = index == Py_None ? NULL : SLOT(index, index_fresh);
    to->tombstones = SLOT(tombstones, tombstones_items);
    return known;
}

/* Store the last serial number, and signal that there are many fresh keys. */
static int end_insertion(const Insertion *to, PyObject *ids, PyObject *keys) {
    PyObject *serial = PyLong_FromUnsignedLongLong(to->serial);
    int failed = serial == NULL || PyObject_SetAttr(ids, name_serial, serial);
    Py_XDECREF(serial);
    if (!failed && to->fresh != NULL && PyDict_GET_SIZE(to->fresh) > bounds.fresh_max)
        return signal_keys(keys);
    return failed;
}

/* insert_waiting(requests, at, stop, now, tables, made) -> place of the first request that is left
   The loop of set.set_waiting, up to the first SET that does more than to add an entry or to move
   a waiting one.
   tables: job ids, key table, tombstones, domains, domain_of, domain of plain entries, locked keys,
           grant or None, latest timestamp, longest postponement
   made: entries, persistent, replaced, recorded, replacing */
static PyObject *insert_waiting(PyObject *module, PyObject *const *args, Py_ssize_t number) {
    if (number != 6 || !PyList_Check(args[0]) || !PyTuple_Check(args[4]) ||
        !PyTuple_Check(args[5])) {
        PyErr_SetString(PyExc_TypeError, "insert_waiting takes requests, and what they change");
        return NULL;
    }
    PyObject *requests = args[0];
    Py_ssize_t at = PyLong_AsSsize_t(args[1]), stop = PyLong_AsSsize_t(args[2]);
    Insertion to;
    int done = PyErr_Occurred() ? -1 : begin_insertion(&to, args[4], args[5], args[3]);
    if (done <= 0)
        return done ? NULL : PyLong_FromSsize_t(at);
    while (done > 0 && at < stop && at < PyList_GET_SIZE(requests)) {
        PyObject *request = Py_NewRef(PyList_GET_ITEM(requests, at));
        done = insert_one(&to, request);
        Py_DECREF(request);
        at += done > 0;
    }
    Py_XDECREF(to.name);
    Py_XDECREF(to.domain);
    PyObject *exception[3];
    PyErr_Fetch(exception, exception + 1, exception + 2);
    if (end_insertion(&to, PyTuple_GET_ITEM(args[4], 0), PyTuple_GET_ITEM(args[4], 1)))
        done = -1;
    else
        PyErr_Restore(exception[0], exception[1], exception[2]);
    return done < 0 ? NULL : PyLong_FromSsize_t(at);
}

/* ---- bulk enqueue ---------------------------------------------------------------------------- */

static PyObject *facts_of(PyObject *entry) { return SLOT(entry, entry_at.facts); }

/* Whether the facts of an entry sort before those of another. */
static int is_before(PyObject *entry, PyObject *other) {
    PyObject *one = facts_of(entry), *two = facts_of(other);
    Py_ssize_t size = PyBytes_GET_SIZE(one), more = PyBytes_GET_SIZE(two);
    int order = memcmp(PyBytes_AS_STRING(one), PyBytes_AS_STRING(two),
                       (size_t)(size < more ? size : more));
    return order ? order < 0 : size < more;
}

/* SortedEntries._rank of facts. */
static double rank_of(PyObject *entry) {
    const uint8_t *facts = (uint8_t *)PyBytes_AS_STRING(facts_of(entry));
    uint64_t low = get_u64(facts + NOT_BEFORE_AT), most = (uint64_t)1 << 52;
    return (double)facts[0] * (double)most + (double)(low < most ? low : most);
}

/* SortedEntries.add_all of entries that come last in order, in one sublist. 1: done; 0: Python has
   to look; -1: an exception. */
static int append_ready(PyObject *ready, PyObject *entries) {
    Py_ssize_t number = PyList_GET_SIZE(entries);
    if (!Py_IS_TYPE(ready, sorted_class) || number > bounds.load)
        return 0;
    for (Py_ssize_t at = 1; at < number; at++)
        if (is_before(PyList_GET_ITEM(entries, at), PyList_GET_ITEM(entries, at - 1)))
            return 0;
    PyObject *sublists = SLOT(ready, sorted_at.sublists), *ranks = SLOT(ready, sorted_at.ranks);
    PyObject *lasts = SLOT(ready, sorted_at.lasts), *sublist = NULL, *done = NULL;
    Py_ssize_t last = PyList_GET_SIZE(sublists) - 1, size = 0;
    if (last >= 0) {
        sublist = PyList_GET_ITEM(sublists, last);
        size = PyList_GET_SIZE(sublist);
        if (is_before(PyList_GET_ITEM(entries, 0), PyList_GET_ITEM(sublist, size - 1)) ||
            (size < bounds.load && PyList_GET_ITEM(ranks, last) != Py_None))
            return 0;
    }
    PyObject *rank = PyFloat_FromDouble(rank_of(PyList_GET_ITEM(entries, number - 1)));
    int failed = rank == NULL || add_to(ready, sorted_at.len, number);
    if (!failed && sublist != NULL && size < bounds.load) {
        failed = PyList_SetSlice(sublist, size, size, entries) ||
                 PySequence_SetItem(lasts, last, rank);
    } else if (!failed) {
        PyObject *own = PyList_GetSlice(entries, 0, number);
        failed = own == NULL || PyList_Append(sublists, own) || PyList_Append(ranks, Py_None) ||
                 (done = PyObject_CallMethodOneArg(lasts, name_append, rank)) == NULL;
        Py_XDECREF(own);
        Py_XDECREF(done);
    }
    Py_XDECREF(rank);
    return failed ? -1 : 1;
}

/* Group the entries that are ready by their domain, and enqueue the others. */
static int group_by_domain(PyObject *entries, uint64_t now, PyObject *const *args,
                           PyObject *groups) {
    PyObject *last = NULL, *group = NULL;
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(entries); at++) {
        PyObject *entry = PyList_GET_ITEM(entries, at), *domain = SLOT(entry, entry_at.domain);
        const uint8_t *facts = (uint8_t *)PyBytes_AS_STRING(facts_of(entry));
        if (domain == args[2]) {
            if (add_to(domain, domain_at.entries, 1))
                return -1;
            Py_SETREF(SLOT(entry, entry_at.state), PyLong_FromLong(PLAIN));
            continue;
        }
        if (get_u64(facts + NOT_BEFORE_AT) > now) {
            PyObject *done = add_to(domain, domain_at.entries, 1)
                                 ? NULL
                                 : PyObject_CallFunctionObjArgs(args[4], entry, zero, args[1],
                                                                args[3], NULL);
            if (done == NULL)
                return -1;
            Py_DECREF(done);
            continue;
        }
        if (domain != last && (group = PyDict_GetItemWithError(groups, domain)) == NULL) {
            if ((group = PyList_New(0)) == NULL || PyDict_SetItem(groups, domain, group)) {
                Py_XDECREF(group);
                return -1;
            }
            Py_DECREF(group);
        }
        last = domain;
        if (PyList_Append(group, entry))
            return -1;
    }
    return 0;
}

/* Put the ready entries of a domain into its queue, and begin its turns. */
static int enqueue_ready(PyObject *domain, PyObject *entries, PyObject *begin_turns,
                         PyObject *hold_or_free) {
    PyObject *ready = SLOT(domain, domain_at.ready);
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(entries); at++)
        Py_SETREF(SLOT(PyList_GET_ITEM(entries, at), entry_at.state), PyLong_FromLong(READY));
    int done = add_to(domain, domain_at.entries, PyList_GET_SIZE(entries))
                   ? -1
                   : append_ready(ready, entries);
    if (done == 0) {
        PyObject *result = PyObject_CallMethodOneArg(ready, name_add_all, entries);
        done = result == NULL ? -1 : 1;
        Py_XDECREF(result);
    }
    return done < 0 ||
           (SLOT(domain, domain_at.has_ready) != Py_True && call(begin_turns, domain)) ||
           (SLOT(domain, domain_at.limit) != Py_None && call(hold_or_free, domain));
}

/* enqueue_new(entries, now, plain, cause, enqueue, begin_turns, hold_or_free)
   Scheduler.enqueue_new. Entries that are delayed or not the last in order, and domains that begin
   their turns or have a limit, take these steps in Python. */
static PyObject *enqueue_new(PyObject *module, PyObject *const *args, Py_ssize_t number) {
    uint64_t now;
    if (number != 7 || !PyList_Check(args[0]) || read_u64(args[1], &now)) {
        PyErr_SetString(PyExc_TypeError, "enqueue_new takes entries, and what they change");
        return NULL;
    }
    PyObject *groups = PyDict_New(), *domain, *entries;
    if (groups == NULL)
        return NULL;
    int failed = group_by_domain(args[0], now, args, groups);
    Py_ssize_t place = 0;
    while (!failed && PyDict_Next(groups, &place, &domain, &entries))
        failed = enqueue_ready(domain, entries, args[5], args[6]);
    Py_DECREF(groups);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

/* ---- delivery -------------------------------------------------------------------------------- */

enum { ATTEMPTS_MAX = 255 }; /* fastjournal/cmdlog/format/workq.py */

/* One call of take_ready. */
typedef struct {
    PyObject *turns, *named, *now, *pop_ready, *entries;
    Py_ssize_t count, room, overhead;
    int with_data;
} Delivery;

/* Bytes of an entry in a reply; -1: it is not plain. */
static Py_ssize_t reply_bytes(const Delivery *to, PyObject *entry) {
    PyObject *extra = SLOT(entry, entry_at.extra), *uri = SLOT(entry, entry_at.uri);
    if (!Py_IS_TYPE(extra, times_class) &&
        (!PyObject_TypeCheck(extra, extra_class) ||
         small_int(SLOT(extra, extra_at.starts)) >= ATTEMPTS_MAX))
        return -1;
    Py_ssize_t bytes = to->overhead + PyBytes_GET_SIZE(SLOT(entry, entry_at.key));
    if (uri != Py_None)
        bytes += PyBytes_GET_SIZE(uri);
    if (to->with_data) {
        /* another may be code in Python, and change the list */
        if (!PyBytes_CheckExact(SLOT(entry, entry_at.value)))
            return -1;
        bytes += PyBytes_GET_SIZE(SLOT(entry, entry_at.value));
    }
    return bytes;
}

/* Take the last entry of a sublist, by Scheduler.pop_ready. 1: done; -1: an exception. */
static Py_ssize_t take_last(Delivery *to, PyObject *domain) {
    PyObject *entry = PyObject_CallOneArg(to->pop_ready, domain);
    int failed = entry == NULL || PyList_Append(to->entries, entry);
    Py_XDECREF(entry);
    return failed ? -1 : 1;
}

/* Take so many of the first ready entries of a domain, if there is room, up to the end of a
   sublist. Returns how many; 0: Python has to look; -1: an exception. */
static Py_ssize_t take_first(Delivery *to, PyObject *domain, Py_ssize_t most) {
    PyObject *ready = SLOT(domain, domain_at.ready);
    if (SLOT(domain, domain_at.has_ready) != Py_True ||
        SLOT(domain, domain_at.held) != Py_False || SLOT(domain, domain_at.limit) != Py_None ||
        !Py_IS_TYPE(ready, sorted_class))
        return 0;
    PyObject *sublist = PyList_GET_ITEM(SLOT(ready, sorted_at.sublists), 0);
    PyObject *ranks = PyList_GET_ITEM(SLOT(ready, sorted_at.ranks), 0);
    Py_ssize_t size = PyList_GET_SIZE(sublist), number = 0, room = to->room;
    while (number < most && number < size - (size > 1)) {
        PyObject *entry = PyList_GET_ITEM(sublist, number);
        Py_ssize_t bytes = reply_bytes(to, entry);
        if (bytes < 0 || bytes > room || (size > 1 && PyList_Append(to->entries, entry)))
            break;
        room -= bytes;
        number++;
    }
    if (PyErr_Occurred())
        PyErr_Clear();
    if (number && size == 1) {
        number = take_last(to, domain);
    } else if (number && (PyList_SetSlice(sublist, 0, number, NULL) ||
                          (ranks != Py_None && PySequence_DelSlice(ranks, 0, number)) ||
                          add_to(ready, sorted_at.len, -(long)number))) {
        return -1;
    }
    if (number > 0) {
        to->room = room;
        Py_SETREF(SLOT(domain, domain_at.delivered_at), Py_NewRef(to->now));
    }
    return number;
}

/* The domain whose turn it is, a new reference; NULL: none, or an exception. */
static PyObject *next_domain(const Delivery *to) {
    if (to->named != Py_None)
        return Py_NewRef(to->named);
    PyObject *names = PyObject_GetIter(to->turns);
    PyObject *name = names == NULL ? NULL : PyIter_Next(names);
    PyObject *domain = name == NULL ? NULL : PyDict_GetItemWithError(to->turns, name);
    Py_XDECREF(names);
    Py_XDECREF(name);
    return Py_XNewRef(domain);
}

/* Take the entries of one turn. Returns how many, as ``take_first``. */
static Py_ssize_t take_turn(Delivery *to, Py_ssize_t most) {
    PyObject *domain = next_domain(to);
    if (domain == NULL)
        return PyErr_Occurred() ? -1 : 0;
    int alone = to->named != Py_None || PyDict_GET_SIZE(to->turns) == 1;
    Py_ssize_t number = take_first(to, domain, alone ? most : 1);
    if (number > 0 && !alone && SLOT(domain, domain_at.has_ready) == Py_True) {
        PyObject *done = PyObject_CallMethodOneArg(to->turns, name_move_to_end,
                                                   SLOT(domain, domain_at.name));
        number = done == NULL ? -1 : number;
        Py_XDECREF(done);
    }
    Py_DECREF(domain);
    return number;
}

/* take_ready(turns, domain or None, count, room, overhead, with_data, now, pop_ready, entries)
   -> room that is left
   The loop of next._take, of entries that are leased, up to the first one of a domain with a limit,
   one for which there is no room, or one that becomes a new job in the log. */
static PyObject *take_ready(PyObject *module, PyObject *args) {
    Delivery to;
    if (!PyArg_ParseTuple(args, "OOnnnpOOO!", &to.turns, &to.named, &to.count, &to.room,
                          &to.overhead, &to.with_data, &to.now, &to.pop_ready, &PyList_Type,
                          &to.entries))
        return NULL;
    Py_ssize_t taken = PyList_GET_SIZE(to.entries), number = PyDict_Check(to.turns);
    if (taken && SLOT(SLOT(PyList_GET_ITEM(to.entries, 0), entry_at.domain), domain_at.limit) !=
                     Py_None)
        number = 0;
    while (number > 0 && (taken = PyList_GET_SIZE(to.entries)) < to.count)
        number = take_turn(&to, to.count - taken);
    return number < 0 ? NULL : PyLong_FromSsize_t(to.room);
}

/* The Extra of an entry, borrowed (Entry.own); NULL: an exception. */
static PyObject *own_extra(PyObject *entry) {
    PyObject *extra = SLOT(entry, entry_at.extra);
    if (!Py_IS_TYPE(extra, extra_class)) {
        extra = PyObject_CallMethodNoArgs(entry, name_own);
        if (extra == NULL)
            return NULL;
        /* the entry has it */
        Py_DECREF(extra);
    }
    return extra;
}

/* Set the fields of an entry that is leased. */
static int lease_one(PyObject *entry, PyObject *token, PyObject *now, PyObject *operation) {
    PyObject *extra = own_extra(entry);
    if (extra == NULL)
        return -1;
    Py_SETREF(SLOT(entry, entry_at.state), PyLong_FromLong(LEASED));
    Py_SETREF(SLOT(extra, extra_at.token), Py_NewRef(token));
    Py_SETREF(SLOT(extra, extra_at.leased_until), Py_NewRef(token));
    Py_SETREF(SLOT(extra, extra_at.seen), Py_NewRef(now));
    Py_SETREF(SLOT(extra, extra_at.lease), Py_NewRef(operation));
    return 0;
}

/* lease_entries(entries, token, now, operation, plain, by_uri, group_of, domains)
   -> number of plain entries
   The loop of LeaseTable.begin. ``group_of`` adds the first entry of a domain to its leases, and
   returns those that end then. */
static PyObject *lease_entries(PyObject *module, PyObject *const *args, Py_ssize_t number) {
    if (number != 8 || !PyList_Check(args[0]) || !PyDict_Check(args[5])) {
        PyErr_SetString(PyExc_TypeError, "lease_entries takes entries, and what they change");
        return NULL;
    }
    PyObject *home = NULL, *group = NULL;
    long plain = 0;
    int failed = 0;
    for (Py_ssize_t at = 0; !failed && at < PyList_GET_SIZE(args[0]); at++) {
        PyObject *entry = PyList_GET_ITEM(args[0], at), *uri = SLOT(entry, entry_at.uri);
        PyObject *domain = SLOT(entry, entry_at.domain);
        failed = lease_one(entry, args[1], args[2], args[3]);
        plain += domain == args[4];
        if (!failed && domain == home) {
            failed = PyDict_SetItem(group, SLOT(entry, entry_at.key), entry);
        } else if (!failed) {
            Py_XSETREF(group,
                       PyObject_CallFunctionObjArgs(args[6], entry, args[1], args[7], NULL));
            home = domain;
            failed = group == NULL;
        }
        if (!failed && uri != Py_None)
            failed = PyDict_SetItem(args[5], uri, entry);
    }
    Py_XDECREF(group);
    return failed ? NULL : PyLong_FromLong(plain);
}

/* ---- bulk completion ------------------------------------------------------------------------- */

/* One call of complete_leased: the tables, and functions for rare steps. */
typedef struct {
    PyObject *keys, *shards, *fresh, *gone, *by_uri, *plain, *grant;
    PyObject *discard_value, *leave_domain, *refresh, *leave_operation, *completed, *runs;
    uint64_t now;
} Completion;

/* A job whose lease goes on, and what its removal needs. */
typedef struct {
    PyObject *entry, *key, *uri, *domain, *extra, *token, *operation, *group;
    PyObject *numbers[3];
    uint64_t timestamp;
} Job;

/* Whether an entry has all its keys, and no entry with links or a newer entry of its URI. */
static int has_its_keys(const Completion *in, const Job *job) {
    return PyDict_GetItemWithError(shard_of(in->shards, job->key), job->key) == job->entry &&
           (job->uri == Py_None ||
            (PyDict_GetItemWithError(shard_of(in->shards, job->uri), job->uri) == job->entry &&
             PyDict_GetItemWithError(in->by_uri, job->uri) == job->entry)) &&
           SLOT(job->extra, extra_at.superseded) == zero &&
           SLOT(job->extra, extra_at.links) == Py_None;
}

/* Whether a request is a DELETE of this entry by the token of its lease, as ``complete`` looks at
   it, but for the grant. */
static int read_job(const Completion *in, PyObject *request, PyObject *entry, Job *job) {
    long flags = small_int(SLOT(request, request_at.flags));
    uint64_t asked, own, until;
    if (small_int(SLOT(request, request_at.function)) != DELETE || flags < 0 ||
        (flags & (WORKED_ON | OVERWRITE)) != WORKED_ON ||
        read_u64(SLOT(request, request_at.timeout), &asked) || !Py_IS_TYPE(entry, entry_class))
        return 0;
    PyObject *extra = job->extra = SLOT(entry, entry_at.extra);
    if (!Py_IS_TYPE(extra, extra_class) || read_u64(SLOT(extra, extra_at.token), &own) ||
        own != asked || read_u64(SLOT(extra, extra_at.leased_until), &until) ||
        until <= in->now || small_int(SLOT(entry, entry_at.state)) != LEASED ||
        (SLOT(entry, entry_at.run) == Py_None && flags & PERSIST))
        return 0;
    job->entry = entry;
    job->key = SLOT(entry, entry_at.key);
    job->uri = SLOT(entry, entry_at.uri);
    job->domain = SLOT(entry, entry_at.domain);
    job->token = SLOT(extra, extra_at.token);
    job->operation = SLOT(extra, extra_at.lease);
    job->timestamp = get_u64((uint8_t *)PyBytes_AS_STRING(SLOT(entry, entry_at.facts)) +
                             TIMESTAMP_AT);
    job->group = PyDict_GetItemWithError(SLOT(SLOT(job->domain, domain_at.leases), leases_groups),
                                         SLOT(extra, extra_at.leased_until));
    return job->domain != in->plain && job->group != NULL && has_its_keys(in, job);
}

/* A new int of a slot that counts, one less; NULL: no memory. */
static PyObject *one_less(PyObject *object, Py_ssize_t offset) {
    return PyLong_FromLong(small_int(SLOT(object, offset)) - 1);
}

/* Make what the removal of a job needs, and append it to the lists; -1, with no exception set:
   there is no memory, and nothing is left of it. */
static int prepare(const Completion *in, Job *job) {
    PyObject *lists[] = {in->runs, in->completed, in->gone, in->gone}, *items[4] = {NULL};
    Py_ssize_t runs = PyList_GET_SIZE(in->runs);
    int at = 0;
    if (runs == 0 || PyTuple_GET_ITEM(PyList_GET_ITEM(in->runs, runs - 1), 0) != job->operation)
        items[0] = Py_BuildValue("(On)", job->operation, PyList_GET_SIZE(in->completed));
    items[1] = Py_BuildValue("(OK)", job->entry, (unsigned long long)job->timestamp);
    if (in->fresh != NULL && !PyDict_Contains(in->fresh, job->key))
        items[2] = Py_NewRef(job->key);
    if (in->fresh != NULL && job->uri != Py_None && !PyDict_Contains(in->fresh, job->uri))
        items[3] = Py_NewRef(job->uri);
    job->numbers[0] = one_less(job->domain, domain_at.entries);
    if (job->operation != Py_None) {
        job->numbers[1] = one_less(job->operation, operation_at.number);
        job->numbers[2] = one_less(SLOT(job->operation, operation_at.holder), holder_number);
    }
    int failed = PyErr_Occurred() != NULL;
    while (!failed && at < 4) {
        failed = items[at] != NULL && PyList_Append(lists[at], items[at]);
        at += !failed;
    }
    if (failed) {
        PyErr_Clear();
        while (at-- > 0)
            if (items[at] != NULL)
                drop_last(lists[at]);
    }
    for (at = 0; at < 4; at++)
        Py_XDECREF(items[at]);
    return -failed;
}

/* End the lease of a job (LeaseTable.end). */
static int end_lease(const Completion *in, const Job *job) {
    PyObject *extra = job->extra, *until = SLOT(extra, extra_at.leased_until);
    if (PyDict_GET_SIZE(job->group) > 1) {
        if (PyDict_DelItem(job->group, job->key))
            return -1;
    } else {
        PyObject *leases = SLOT(job->domain, domain_at.leases);
        PyObject *last = PyObject_CallMethodObjArgs(leases, name_discard, until, job->entry, NULL);
        int refreshes = last == NULL ? -1 : PyObject_IsTrue(last);
        Py_XDECREF(last);
        if (refreshes > 0)
            refreshes = PyObject_RichCompareBool(until, SLOT(job->domain, domain_at.wake), Py_EQ);
        if (refreshes < 0 || (refreshes && call(in->refresh, job->domain)))
            return -1;
    }
    if (job->operation != Py_None) {
        Py_SETREF(SLOT(extra, extra_at.lease), Py_NewRef(Py_None));
        if (small_int(job->numbers[1]) > 0) {
            PyObject *holder = SLOT(job->operation, operation_at.holder);
            Py_SETREF(SLOT(job->operation, operation_at.number), Py_NewRef(job->numbers[1]));
            Py_SETREF(SLOT(holder, holder_number), Py_NewRef(job->numbers[2]));
        } else if (call(in->leave_operation, job->operation)) {
            return -1;
        }
    }
    Py_SETREF(SLOT(extra, extra_at.token_before), SLOT(extra, extra_at.token));
    SLOT(extra, extra_at.token) = Py_NewRef(zero);
    Py_SETREF(SLOT(extra, extra_at.leased_until), Py_NewRef(zero));
    return job->uri == Py_None ? 0 : PyDict_DelItem(in->by_uri, job->uri);
}

/* Remove a key from the key table (KeyTable.remove); ``prepare`` noted it if it is not fresh. */
static int drop_key(const Completion *in, PyObject *key) {
    if (in->fresh != NULL && PyDict_Contains(in->fresh, key) &&
        PyDict_SetItem(in->fresh, key, Py_False))
        return -1;
    return PyDict_DelItem(shard_of(in->shards, key), key);
}

/* Remove a leased entry from all tables but those that count (Store.remove). */
static int remove_job(const Completion *in, const Job *job) {
    if (end_lease(in, job) || drop_key(in, job->key) ||
        (job->uri != Py_None && drop_key(in, job->uri)) ||
        (in->discard_value != Py_None && call(in->discard_value, job->entry)))
        return -1;
    Py_SETREF(SLOT(job->entry, entry_at.state), Py_NewRef(zero));
    if (SLOT(job->domain, domain_at.limit) != Py_None || small_int(job->numbers[0]) <= 0)
        return call(in->leave_domain, job->domain);
    Py_SETREF(SLOT(job->domain, domain_at.entries), Py_NewRef(job->numbers[0]));
    return 0;
}

/* Carry out a DELETE of an entry. 1: done; 0: Python has to look; -1: an exception. */
static int complete_job(const Completion *in, PyObject *request, PyObject *entry) {
    Job job = {0};
    if (!read_job(in, request, entry, &job))
        return 0;
    /* the tables drop what they have of these */
    PyObject *held[] = {job.domain, job.operation};
    for (int at = 0; at < 2; at++)
        Py_INCREF(held[at]);
    int done = !prepare(in, &job);
    if (done && remove_job(in, &job))
        done = -1;
    for (int at = 0; at < 3; at++)
        Py_XDECREF(job.numbers[at]);
    for (int at = 0; at < 2; at++)
        Py_DECREF(held[at]);
    return done;
}

/* Carry out one DELETE. 1: done; 0: Python has to look; -1: an exception. */
static int complete_one(const Completion *in, PyObject *request) {
    PyObject *key, *entry;
    if (!Py_IS_TYPE(request, request_class) ||
        !PyBytes_CheckExact(key = SLOT(request, request_at.key)) ||
        (entry = PyDict_GetItemWithError(shard_of(in->shards, key), key)) == NULL)
        return 0;
    /* a grant is code in Python, behind which all that is borrowed from the tables is read */
    Py_INCREF(entry);
    int found = is_covered(in->grant, name_covers, entry, NULL);
    if (found > 0)
        found = complete_job(in, request, entry);
    Py_DECREF(entry);
    return found;
}

/* Read the arguments; -1: an exception. */
static int begin_completion(Completion *in, PyObject *tables) {
    if (!PyArg_ParseTuple(tables, "O!OOOOOOOO!O!", keys_class, &in->keys, &in->by_uri, &in->plain,
                          &in->grant, &in->discard_value, &in->leave_domain, &in->refresh,
                          &in->leave_operation, &PyList_Type, &in->completed, &PyList_Type,
                          &in->runs))
        return -1;
    PyObject *index = SLOT(in->keys, keys_at.index);
    in->shards = SLOT(in->keys, keys_at.shards);
    in->fresh = index == Py_None ? NULL : SLOT(index, index_fresh);
    in->gone = index == Py_None ? NULL : SLOT(index, index_gone);
    return 0;
}

/* complete_leased(requests, at, stop, now, tables) -> place of the first request that is left
   The loop of delete.complete, up to the first DELETE that is not plain. The caller counts entries
   and leases.
   tables: key table, leased URIs, domain of plain entries, grant or None, functions for values or
           None, domains, the timer queue and lease operations; completed, runs */
static PyObject *complete_leased(PyObject *module, PyObject *const *args, Py_ssize_t number) {
    if (number != 5 || !PyList_Check(args[0]) || !PyTuple_Check(args[4])) {
        PyErr_SetString(PyExc_TypeError, "complete_leased takes requests, and what they change");
        return NULL;
    }
    PyObject *requests = args[0];
    Py_ssize_t at = PyLong_AsSsize_t(args[1]), stop = PyLong_AsSsize_t(args[2]);
    Completion in;
    if (PyErr_Occurred() || begin_completion(&in, args[4]))
        return NULL;
    int done = !read_u64(args[3], &in.now);
    while (done > 0 && at < stop && at < PyList_GET_SIZE(requests)) {
        PyObject *request = Py_NewRef(PyList_GET_ITEM(requests, at));
        done = complete_one(&in, request);
        Py_DECREF(request);
        at += done > 0;
    }
    if (done < 0 || (in.gone != NULL && PyList_GET_SIZE(in.gone) > bounds.gone_max &&
                     signal_keys(in.keys)))
        return NULL;
    return PyLong_FromSsize_t(at);
}

PyMethodDef bulk_methods[] = {
    {"bind_bulk", bind_bulk, METH_VARARGS, "Take the classes whose slots the leaves use."},
    {"insert_waiting", FASTCALL(insert_waiting),
     "Carry out SETs that add or move entries; set_waiting of fastjournald.engine.handlers.set."},
    {"enqueue_new", FASTCALL(enqueue_new),
     "Put new entries into their queues; Scheduler.enqueue_new of fastjournald.tables.scheduler."},
    {"take_ready", take_ready, METH_VARARGS,
     "Dequeue ready entries; _take of fastjournald.engine.handlers.next."},
    {"lease_entries", FASTCALL(lease_entries),
     "Lease entries; LeaseTable.begin of fastjournald.tables.leases."},
    {"complete_leased", FASTCALL(complete_leased),
     "Carry out DELETEs of leased jobs; complete of fastjournald.engine.handlers.delete."},
    {NULL}};
