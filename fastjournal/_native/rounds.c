/* Round of the poller: receive from all ready sockets, and send to all, with the interpreter lock
   released once; join the shared batch, and put its replies. The modules poller, session, outbox
   and shared_batch of fastjournald/net have the rules: a connection is handled here only while its
   session is in the stage IDLE, or SHARED behind that, where nothing but this can happen. */
#include "frames.h"

#include <errno.h>
#include <sys/socket.h>

/* ---- what Python hands over once ------------------------------------------------------------- */

enum { CLIENT, SESSION, OUTBOX, ACCOUNT, CLASSES };

static PyTypeObject *classes[CLASSES];

static struct {
    Py_ssize_t session, descriptor, state, step, unsettled, evict, registered, receive_until;
} client_at;
static struct {
    Py_ssize_t stage, left, arrived, batch_bytes, partial_bytes, abandoned, mark, outbox,
        account, receiving_since, partial_since;
} session_at;
static struct {
    Py_ssize_t pieces, leaving, pushed_work;
} outbox_at;
static struct {
    Py_ssize_t bytes, closed;
} account_at;

static const struct {
    int class;
    const char *name;
    Py_ssize_t *offset;
} SLOTS[] = {
    {CLIENT, "session", &client_at.session},
    {CLIENT, "_descriptor", &client_at.descriptor},
    {CLIENT, "_state", &client_at.state},
    {CLIENT, "_step", &client_at.step},
    {CLIENT, "_unsettled", &client_at.unsettled},
    {CLIENT, "_evict", &client_at.evict},
    {CLIENT, "registered", &client_at.registered},
    {CLIENT, "_receive_until", &client_at.receive_until},
    {SESSION, "_stage", &session_at.stage},
    {SESSION, "_left", &session_at.left},
    {SESSION, "_arrived", &session_at.arrived},
    {SESSION, "_batch_bytes", &session_at.batch_bytes},
    {SESSION, "partial_bytes", &session_at.partial_bytes},
    {SESSION, "_abandoned", &session_at.abandoned},
    {SESSION, "mark", &session_at.mark},
    {SESSION, "_outbox", &session_at.outbox},
    {SESSION, "account", &session_at.account},
    {SESSION, "receiving_since", &session_at.receiving_since},
    {SESSION, "partial_since", &session_at.partial_since},
    {OUTBOX, "pieces", &outbox_at.pieces},
    {OUTBOX, "_leaving", &outbox_at.leaving},
    {OUTBOX, "_pushed_work", &outbox_at.pushed_work},
    {ACCOUNT, "bytes", &account_at.bytes},
    {ACCOUNT, "closed", &account_at.closed},
};

/* Objects that are compared by identity. */
static PyObject *LISTENING, *SETTLING, *COMMIT, *IDLE, *LEFT, *SHARED, *ANSWERED, *NEVER;

static PyObject *zero; /* there is one object of this value in CPython */
static PyObject *name_append, *name_popleft, *name_hold, *name_now, *name_offer;

static PyObject *bind_rounds(PyObject *module, PyObject *arguments) {
    PyObject *request, *found[CLASSES], *constants[8];
    static const struct {
        PyObject **name;
        const char *text;
    } names[] = {
        {&name_append, "append"}, {&name_popleft, "popleft"}, {&name_hold, "hold"},
        {&name_now, "now"},       {&name_offer, "offer"},
    };
    if (!PyArg_ParseTuple(arguments, "O(OOOO)(OOOOOOOO)", &request, &found[CLIENT],
                          &found[SESSION], &found[OUTBOX], &found[ACCOUNT], &constants[0],
                          &constants[1], &constants[2], &constants[3], &constants[4],
                          &constants[5], &constants[6], &constants[7]) ||
        bind_request_class(request))
        return NULL;
    for (size_t i = 0; i < sizeof SLOTS / sizeof *SLOTS; i++)
        if ((*SLOTS[i].offset = slot_offset(found[SLOTS[i].class], SLOTS[i].name)) < 0)
            return NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (*names[i].name == NULL &&
            (*names[i].name = PyUnicode_InternFromString(names[i].text)) == NULL)
            return NULL;
    if (zero == NULL && (zero = PyLong_FromLong(0)) == NULL)
        return NULL;
    PyObject **places[] = {&LISTENING, &SETTLING, &COMMIT,   &IDLE,
                           &LEFT,      &SHARED,   &ANSWERED, &NEVER};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        Py_XSETREF(*places[i], Py_NewRef(constants[i]));
    for (int i = 0; i < CLASSES; i++)
        Py_XSETREF(classes[i], (PyTypeObject *)Py_NewRef(found[i]));
    Py_RETURN_NONE;
}

/* ---- slots and attributes -------------------------------------------------------------------- */

/* Set a slot to a new reference; -1 with an exception: it is NULL. */
static int set_new(PyObject *object, Py_ssize_t offset, PyObject *value) {
    if (value == NULL)
        return -1;
    Py_XSETREF(SLOT(object, offset), value);
    return 0;
}

static void set(PyObject *object, Py_ssize_t offset, PyObject *value) {
    Py_XSETREF(SLOT(object, offset), Py_NewRef(value));
}

static int add_to_slot(PyObject *object, Py_ssize_t offset, long long change) {
    long long value = PyLong_AsLongLong(SLOT(object, offset));
    if (value == -1 && PyErr_Occurred())
        return -1;
    return set_new(object, offset, PyLong_FromLongLong(value + change));
}

static int call(PyObject *object, PyObject *name, PyObject *argument) {
    PyObject *given[] = {object, argument}, *result;
    result = PyObject_VectorcallMethod(name, given, argument == NULL ? 1 : 2, NULL);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* MemoryBudget.hold, once for several connections. */
static int hold(PyObject *memory, long long change) {
    PyObject *number = change ? PyLong_FromLongLong(change) : NULL;
    int result = change == 0 ? 0 : number == NULL ? -1 : call(memory, name_hold, number);
    Py_XDECREF(number);
    return result;
}

/* Whether it is a polled connection whose session waits for bytes, in the stage IDLE. */
static int is_idle(PyObject *client) {
    if (!Py_IS_TYPE(client, classes[CLIENT]) || SLOT(client, client_at.state) != LISTENING)
        return 0;
    PyObject *session = SLOT(client, client_at.session);
    return Py_IS_TYPE(session, classes[SESSION]) && SLOT(session, session_at.stage) == IDLE;
}

static int descriptor_of(PyObject *client) {
    return (int)PyLong_AsLong(SLOT(client, client_at.descriptor));
}

static int is_bound(void) {
    if (classes[CLIENT] == NULL)
        PyErr_SetString(PyExc_TypeError, "bind_rounds was not called");
    return classes[CLIENT] != NULL;
}

/* ---- receive --------------------------------------------------------------------------------- */

typedef struct {
    Py_ssize_t place;
    int descriptor;
    ssize_t result; /* bytes, or minus the number of an error */
} Received;

/* The recv of PolledTransport.receive, for all idle clients, as long as the buffer has room for
   what one may send. In the list: bytes, the number of an error, or None: Python receives. A
   MemoryError loses what was received; it ends the daemon. */
static PyObject *receive(PyObject *module, PyObject *arguments) {
    PyObject *clients, *received = NULL;
    Py_buffer buffer;
    Py_ssize_t bytes_max, used = 0, idle = 0, done = 0;
    if (!PyArg_ParseTuple(arguments, "O!w*n", &PyList_Type, &clients, &buffer, &bytes_max))
        return NULL;
    Py_ssize_t count = PyList_GET_SIZE(clients);
    Received *all = PyMem_Calloc((size_t)count + 1, sizeof *all);
    if (all == NULL)
        PyErr_NoMemory();
    else if (is_bound() && (received = PyList_New(count)) != NULL) {
        for (Py_ssize_t i = 0; i < count; i++) {
            PyObject *client = PyList_GET_ITEM(clients, i);
            PyList_SET_ITEM(received, i, Py_NewRef(Py_None));
            if (is_idle(client) && (all[idle].descriptor = descriptor_of(client)) >= 0)
                all[idle++].place = i;
        }
        Py_BEGIN_ALLOW_THREADS
        for (; done < idle && bytes_max <= buffer.len - used; done++) {
            ssize_t size = recv(all[done].descriptor, (char *)buffer.buf + used, (size_t)bytes_max,
                                MSG_DONTWAIT);
            all[done].result = size < 0 ? -errno : size;
            used += size < 0 ? 0 : size;
        }
        Py_END_ALLOW_THREADS
        const char *data = buffer.buf;
        for (Py_ssize_t i = 0; i < done && received != NULL; i++) {
            ssize_t result = all[i].result;
            if (result == -EAGAIN || result == -EWOULDBLOCK || result == -EINTR)
                continue;
            PyObject *item = result < 0 ? PyLong_FromLong((long)-result)
                                        : PyBytes_FromStringAndSize(data, result);
            data += result < 0 ? 0 : result;
            if (item == NULL)
                Py_CLEAR(received);
            else
                PyList_SetItem(received, all[i].place, item);
        }
    }
    PyMem_Free(all);
    PyBuffer_Release(&buffer);
    return received;
}

/* ---- join ------------------------------------------------------------------------------------ */

typedef struct {
    PyObject *runs, *together, *arrived, *unsettled;
    uint64_t value_size_max;
    int alone;
} Batch;

/* Session.offer, which asks the turn budget and the shared batch. Returns 1, 0, or -1 with an
   exception. */
static int offer(const Batch *batch, PyObject *session, PyObject *request, PyObject *size) {
    PyObject *given[] = {session, batch->together, request, size,
                         batch->alone ? Py_True : Py_False};
    PyObject *taken = PyObject_VectorcallMethod(name_offer, given, 5, NULL);
    int result = taken == NULL ? -1 : PyObject_IsTrue(taken);
    Py_XDECREF(taken);
    return result;
}

/* PolledTransport._settle(COMMIT), and the fields of Session.receive_data and join. */
static int await_commit(const Batch *batch, PyObject *client, PyObject *request, PyObject *size) {
    PyObject *session = SLOT(client, client_at.session);
    set(session, session_at.batch_bytes, size);
    set(session, session_at.receiving_since, NEVER);
    set(session, session_at.arrived, batch->arrived);
    set(session, session_at.left, request);
    set(session, session_at.stage, LEFT);
    set(client, client_at.state, SETTLING);
    set(client, client_at.step, COMMIT);
    if (SLOT(client, client_at.unsettled) == Py_True)
        return 0;
    set(client, client_at.unsettled, Py_True);
    return PyList_Append(batch->unsettled, client);
}

/* PolledTransport.receive behind the recv. Returns 1; 0: it is not plain, or was not taken, and
   Python asks again; -1 with an exception. */
static int join_one(const Batch *batch, PyObject *client, PyObject *data) {
    Frame frame = {0};
    if (!PyBytes_CheckExact(data) || !is_idle(client))
        return 0;
    Py_ssize_t size = PyBytes_GET_SIZE(data);
    const uint8_t *bytes = (const uint8_t *)PyBytes_AS_STRING(data);
    if (size == 0 || frame_decode(bytes, size, batch->value_size_max, &frame) != size)
        return 0;
    PyObject *function = integer_object(frame.function);
    int has_run = function == NULL ? -1 : PyDict_Contains(batch->runs, function);
    Py_XDECREF(function);
    if (has_run <= 0)
        return has_run;
    PyObject *request = request_of_frame(&frame), *length = PyLong_FromSsize_t(size);
    PyObject *session = Py_NewRef(SLOT(client, client_at.session));
    int joined = request == NULL || length == NULL ? -1 : offer(batch, session, request, length);
    if (joined > 0 && await_commit(batch, client, request, length))
        joined = -1;
    Py_DECREF(session);
    Py_XDECREF(request);
    Py_XDECREF(length);
    return joined;
}

/* The clients from `at` on that are plain join; returns the place of the first that is not. */
static PyObject *join(PyObject *module, PyObject *arguments) {
    PyObject *clients, *received;
    Py_ssize_t at;
    Batch batch = {NULL};
    unsigned long long value_size_max;
    if (!PyArg_ParseTuple(arguments, "O!O!nO!OOKO!p", &PyList_Type, &clients, &PyList_Type,
                          &received, &at, &PyDict_Type, &batch.runs, &batch.together,
                          &batch.arrived, &value_size_max, &PyList_Type, &batch.unsettled,
                          &batch.alone) ||
        !is_bound())
        return NULL;
    batch.value_size_max = value_size_max;
    int joined = at >= 0;
    /* looked at anew each time: offer is Python */
    while (joined > 0 && at < PyList_GET_SIZE(clients) && at < PyList_GET_SIZE(received)) {
        PyObject *client = Py_NewRef(PyList_GET_ITEM(clients, at));
        PyObject *data = Py_NewRef(PyList_GET_ITEM(received, at));
        joined = join_one(&batch, client, data);
        at += joined > 0;
        Py_DECREF(client);
        Py_DECREF(data);
    }
    return joined < 0 ? NULL : PyLong_FromSsize_t(at);
}

/* ---- answer ---------------------------------------------------------------------------------- */

/* Session.answer and Outbox.put, without the count in the budget of all. */
static int answer_one(PyObject *session, PyObject *reply, PyObject *mark, long long *held) {
    PyObject *account = SLOT(session, session_at.account);
    PyObject *pieces = SLOT(SLOT(session, session_at.outbox), outbox_at.pieces);
    PyObject *size = PyLong_FromSsize_t(PyBytes_GET_SIZE(reply));
    PyObject *piece = size ? PyTuple_Pack(5, reply, mark, size, Py_None, Py_False) : NULL;
    int failed = piece == NULL || call(pieces, name_append, piece);
    Py_XDECREF(size);
    Py_XDECREF(piece);
    if (failed)
        return -1;
    if (SLOT(account, account_at.closed) == Py_False) {
        if (add_to_slot(account, account_at.bytes, PyBytes_GET_SIZE(reply)))
            return -1;
        *held += PyBytes_GET_SIZE(reply);
    }
    int more = SLOT(session, session_at.partial_bytes) != zero ||
               SLOT(session, session_at.abandoned) != Py_False;
    set(session, session_at.left, Py_None);
    set(session, session_at.mark, mark);
    set(session, session_at.stage, more ? ANSWERED : SHARED);
    return 0;
}

/* Session.answer for members of a shared batch, from `at` on. Returns how many: Python answers from
   the first on that is no session, or whose reply is no bytes. */
static PyObject *answer(PyObject *module, PyObject *arguments) {
    PyObject *members, *replies, *mark, *memory;
    Py_ssize_t at, done = 0;
    long long held = 0;
    if (!PyArg_ParseTuple(arguments, "O!nO!OO", &PyList_Type, &members, &at, &PyList_Type, &replies,
                          &mark, &memory) ||
        !is_bound())
        return NULL;
    if (at < 0)
        return PyErr_Format(PyExc_IndexError, "member %zd", at);
    Py_ssize_t number = Py_MIN(PyList_GET_SIZE(replies), PyList_GET_SIZE(members) - at);
    int failed = 0;
    for (; !failed && done < number; done++) {
        PyObject *session = PyList_GET_ITEM(members, at + done);
        PyObject *reply = PyList_GET_ITEM(replies, done);
        if (!Py_IS_TYPE(session, classes[SESSION]) || !PyBytes_Check(reply))
            break;
        failed = answer_one(session, reply, mark, &held);
    }
    if (failed || hold(memory, held))
        return NULL;
    return PyLong_FromSsize_t(done);
}

/* ---- send ------------------------------------------------------------------------------------ */

typedef struct {
    PyObject *client, *data; /* owned */
    int descriptor;
    ssize_t sent; /* bytes, or minus the number of an error */
} Sent;

/* The reply of a client whose session only has to send it, where its mark is settled, as a new
   reference; NULL without an exception: Python sends. The stage SHARED says that this is all that
   its session waits for. */
static PyObject *only_reply(PyObject *client, long long settled) {
    if (!Py_IS_TYPE(client, classes[CLIENT]) || SLOT(client, client_at.state) != SETTLING ||
        SLOT(client, client_at.step) != COMMIT || SLOT(client, client_at.evict) != Py_None ||
        SLOT(client, client_at.registered) != Py_True ||
        SLOT(client, client_at.receive_until) != NEVER)
        return NULL;
    PyObject *session = SLOT(client, client_at.session);
    if (!Py_IS_TYPE(session, classes[SESSION]) || SLOT(session, session_at.stage) != SHARED)
        return NULL;
    PyObject *outbox = SLOT(session, session_at.outbox), *pieces = SLOT(outbox, outbox_at.pieces);
    if (SLOT(outbox, outbox_at.leaving) != zero || SLOT(outbox, outbox_at.pushed_work) != zero ||
        PyObject_Size(pieces) != 1)
        return NULL;
    PyObject *piece = PySequence_GetItem(pieces, 0), *data = NULL;
    if (piece != NULL && PyLong_AsLongLong(PyTuple_GET_ITEM(piece, 1)) <= settled)
        data = Py_NewRef(PyTuple_GET_ITEM(piece, 0));
    Py_XDECREF(piece);
    return data;
}

/* Outbox.data_sent and Session.listen_again, without the count in the budget of all. */
static int listen_again(PyObject *client, Py_ssize_t size, PyObject *now) {
    PyObject *session = SLOT(client, client_at.session);
    PyObject *account = SLOT(session, session_at.account);
    if (call(SLOT(SLOT(session, session_at.outbox), outbox_at.pieces), name_popleft, NULL) ||
        add_to_slot(account, account_at.bytes, -size))
        return -1;
    set(session, session_at.stage, IDLE);
    set(session, session_at.partial_since, now);
    set(session, session_at.receiving_since, now);
    set(client, client_at.state, LISTENING);
    return 0;
}

static int leave(PyObject *left, PyObject *client, PyObject *result) {
    PyObject *pair = result == NULL ? NULL : PyTuple_Pack(2, client, result);
    int failed = pair == NULL || PyList_Append(left, pair);
    Py_XDECREF(pair);
    Py_XDECREF(result);
    return failed;
}

/* PolledTransport.settled for many: send to all that wait for nothing but this. Returns the others
   in pairs: with None, nothing was done; with a number, so many bytes were sent, or minus the
   number of an error. */
static PyObject *send_all(PyObject *module, PyObject *arguments) {
    PyObject *clients, *memory, *now = NULL, *left = NULL;
    long long settled, freed = 0;
    Py_ssize_t ready = 0;
    if (!PyArg_ParseTuple(arguments, "O!LO", &PyList_Type, &clients, &settled, &memory) ||
        !is_bound())
        return NULL;
    Py_ssize_t count = PyList_GET_SIZE(clients);
    Sent *all = PyMem_Calloc((size_t)count + 1, sizeof *all);
    if (all == NULL)
        return PyErr_NoMemory();
    int failed =
        (left = PyList_New(0)) == NULL || (now = PyObject_GetAttr(memory, name_now)) == NULL;
    for (Py_ssize_t i = 0; i < count && !failed; i++) {
        PyObject *client = PyList_GET_ITEM(clients, i), *data = only_reply(client, settled);
        int descriptor = data == NULL ? -1 : descriptor_of(client);
        if (descriptor >= 0)
            all[ready++] = (Sent){Py_NewRef(client), data, descriptor, 0};
        else {
            Py_XDECREF(data);
            failed = PyErr_Occurred() || leave(left, client, Py_NewRef(Py_None));
        }
    }
    if (!failed) {
        Py_BEGIN_ALLOW_THREADS
        for (Sent *each = all; each < all + ready; each++) {
            each->sent = send(each->descriptor, PyBytes_AS_STRING(each->data),
                              (size_t)PyBytes_GET_SIZE(each->data), MSG_DONTWAIT | MSG_NOSIGNAL);
            if (each->sent < 0)
                each->sent = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -errno;
        }
        Py_END_ALLOW_THREADS
    }
    for (Sent *each = all; each < all + ready; each++) {
        Py_ssize_t size = PyBytes_GET_SIZE(each->data);
        if (!failed) {
            set(each->client, client_at.unsettled, Py_False);
            if (each->sent != size)
                failed = leave(left, each->client, PyLong_FromSsize_t(each->sent));
            else if (!(failed = listen_again(each->client, size, now)))
                freed += size;
        }
        Py_DECREF(each->client);
        Py_DECREF(each->data);
    }
    PyMem_Free(all);
    Py_XDECREF(now);
    if (failed || hold(memory, -freed))
        Py_CLEAR(left);
    return left;
}

/* ---- module ---------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"bind_rounds", bind_rounds, METH_VARARGS, "Learn classes and constants."},
    {"receive", receive, METH_VARARGS, "receive(clients, buffer, bytes_max) -> [bytes|errno|None]"},
    {"join", join, METH_VARARGS,
     "join(clients, received, at, runs, together, arrived, value_size_max, unsettled, alone)\n"
     "-> at"},
    {"answer", answer, METH_VARARGS, "answer(members, at, replies, mark, memory) -> number"},
    {"send", send_all, METH_VARARGS, "send(clients, settled, memory) -> [(client, sent|None)]"},
    {NULL}};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, begin_module}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_rounds",
    .m_doc = "Native round of the poller; see fastjournal._native.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__rounds(void) { return PyModuleDef_Init(&definition); }
