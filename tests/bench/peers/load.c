/* Load generator of bench_peers: closed-loop clients of three protocols, every reply checked.
 *
 *   load PROTOCOL PORT FIRST BEFORE ROLE [ROLE ...]
 *
 * PROTOCOL  fj, redis (streams), lua (the scripts of redis_queue.py on Redis) or beanstalkd.
 * PORT      TCP port on 127.0.0.1.
 * FIRST     Number of the first job that this process puts; each job has a number of its own.
 * BEFORE    Number of the first job that an earlier process put: its URIs are those of `move`.
 * ROLE      KIND:CONNECTIONS:WINDOW:COUNT. COUNT 0: goes on until all other roles are done.
 *   put     Jobs with a 100-byte body; WINDOW requests are sent before the first reply is awaited.
 *   spread  As put, over 1,000 domains (fj).
 *   move    As put, but with the URIs of the waiting jobs from BEFORE on: each moves one (fj, lua).
 *   take    Lease WINDOW jobs with one request, or with WINDOW pipelined ones where the protocol has
 *           no other; then complete them all.
 *   empty   Ask for a job COUNT times, and find none.
 *   scan    Pages of WINDOW keys (0: as many as the server gives; fj), from the first key to the last,
 *           again and again (fj, redis, lua).
 *   search  The same of the keys that an expression matches, one in ten (fj).
 *
 * One thread waits for all sockets with poll(2). It prints one line of JSON: the seconds that it ran,
 * its own processor time of these, and for each role its operations, seconds, and the latencies of its
 * windows, leases or pages in microseconds. A reply that is not the one of success ends it with status
 * 1: no figure is made of errors.
 */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BODY_BYTES 100
#define CONNECTIONS_MAX 1024
#define ROLES_MAX 8
#define RECEIVE_BYTES (256 * 1024)

enum kind { PUT, MOVE, SPREAD, TAKE, EMPTY, SCAN, SEARCH, KINDS };
enum phase { PUTTING, LEASING, COMPLETING, FINDING_NONE, SCANNING };

static const char *const kind_names[] = {"put", "move", "spread", "take", "empty", "scan", "search"};
static const enum phase first_phases[] = {
    PUTTING, PUTTING, PUTTING, LEASING, FINDING_NONE, SCANNING, SCANNING
};

struct buffer {
    char *data;
    size_t used, room;
};

struct role {
    enum kind kind;
    unsigned connections, window;
    uint64_t count, started, done;
    double seconds;
    uint32_t *latencies;
    size_t latency_count, latency_room;
};

struct client {
    int fd;
    struct role *role;
    enum phase phase;
    struct buffer in, out, jobs; /* jobs: u32 size and bytes of each name */
    size_t sent;
    unsigned asked, replies_left, job_count; /* asked: jobs or pages of this window */
    uint16_t identifier, expected; /* fj: of the next request, of the next reply */
    uint64_t token, asked_ns;
    struct buffer cursor;
};

struct protocol {
    const char *name;
    int has_uris;
    void (*put)(struct client *, unsigned count);
    void (*lease)(struct client *, unsigned count);
    void (*complete)(struct client *);
    void (*scan)(struct client *); /* NULL: it has none */
    /* Take one reply; return its bytes, 0 if it is not whole yet. */
    size_t (*reply)(struct client *, const char *, size_t);
};

static const struct protocol *protocol;
static uint64_t next_number, move_back; /* move_back: from a job to the one that it moves */
static char body[BODY_BYTES];
static struct role roles[ROLES_MAX];
static unsigned role_count;
static uint64_t began_ns;
static char enqueue_sha[41], lease_sha[41], complete_sha[41];

/* --- basics -------------------------------------------------------------------------------------- */

__attribute__((format(printf, 1, 2), noreturn)) static void fail(const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    fputs("load: ", stderr);
    vfprintf(stderr, format, rest);
    fputc('\n', stderr);
    va_end(rest);
    exit(1);
}

static uint64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t epoch_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

static void *grown(void *data, size_t bytes) {
    void *fresh = realloc(data, bytes);
    if (!fresh) fail("no memory for %zu bytes", bytes);
    return fresh;
}

static void reserve(struct buffer *buffer, size_t more) {
    if (buffer->used + more <= buffer->room) return;
    while (buffer->used + more > buffer->room) buffer->room = buffer->room ? buffer->room * 2 : 4096;
    buffer->data = grown(buffer->data, buffer->room);
}

static void append(struct buffer *buffer, const void *data, size_t size) {
    reserve(buffer, size);
    memcpy(buffer->data + buffer->used, data, size);
    buffer->used += size;
}

__attribute__((format(printf, 2, 3))) static void print(struct buffer *buffer, const char *format, ...) {
    va_list rest;
    reserve(buffer, 1024);
    va_start(rest, format);
    int size = vsnprintf(buffer->data + buffer->used, 1024, format, rest);
    va_end(rest);
    if (size < 0 || size >= 1024) fail("a request of %d bytes is too large", size);
    buffer->used += (size_t)size;
}

static void add_job(struct client *client, const char *name, size_t size) {
    uint32_t length = (uint32_t)size;
    append(&client->jobs, &length, sizeof length);
    append(&client->jobs, name, size);
    client->job_count++;
}

static void check_body(const char *data, size_t size) {
    if (size != BODY_BYTES || memcmp(data, body, BODY_BYTES)) fail("another body of %zu bytes", size);
}

/* Number in the URI of a job that is put. */
static uint64_t uri_number(const struct client *client, uint64_t number) {
    return client->role->kind == MOVE ? number - move_back : number;
}

/* Take the next job's name at *at. */
static const char *job_at(const struct client *client, size_t *at, uint32_t *size) {
    memcpy(size, client->jobs.data + *at, sizeof *size);
    const char *name = client->jobs.data + *at + sizeof *size;
    *at += sizeof *size + *size;
    return name;
}

/* --- fj ------------------------------------------------------------------------------------------ */

enum { FJ_SET = 2, FJ_GET = 3, FJ_DELETE = 4, FJ_NEXT = 11 };
enum {
    KEY16 = 1, VALUE = 6, VALUE8 = 2, TIMEOUT = 8, WORKED_ON = 64, RANGE = 128, TWO_KEYS = 128, REGEX = 256,
    CURSOR = 256, CURSOR_QUERY = 384, PERSIST = 512, DATA = 1024, COUNT = 8192, TTL = 16384, META = 32768
};

static void big(struct buffer *buffer, uint64_t number, int bytes) {
    char field[8];
    for (int at = bytes; at--; number >>= 8) field[at] = (char)(number & 255);
    append(buffer, field, (size_t)bytes);
}

static uint64_t big_at(const char *data, int bytes) {
    uint64_t number = 0;
    for (int at = 0; at < bytes; at++) number = number << 8 | (unsigned char)data[at];
    return number;
}

static void fj_header(struct client *client, unsigned function, unsigned flags, uint64_t at) {
    append(&client->out, "FJ\0\1", 4);
    big(&client->out, function, 2);
    big(&client->out, client->identifier++, 2);
    big(&client->out, flags, 2);
    big(&client->out, at, 8);
}

static void short_bytes(struct buffer *buffer, const char *data, size_t size) {
    if (size > 255) fail("a key of %zu bytes is too large", size);
    big(buffer, size, 1);
    append(buffer, data, size);
}

static void fj_put(struct client *client, unsigned count) {
    char text[128], domain[32] = "example.org";
    uint64_t now = epoch_us();
    while (count--) {
        uint64_t number = next_number++;
        fj_header(client, FJ_SET, PERSIST | RANGE | VALUE8, now);
        if (client->role->kind == SPREAD) snprintf(domain, sizeof domain, "h%03" PRIu64 ".example.org", number % 1000);
        /* ready at once: far behind the present, in the order of the numbers */
        int size = snprintf(text, sizeof text, "%s:128:%016" PRIu64 ":%" PRIu64, domain,
                            UINT64_C(1000000000000000) + number, number);
        short_bytes(&client->out, text, (size_t)size);
        size = snprintf(text, sizeof text, "https://example.org/some/page/%" PRIu64 ".html",
                        uri_number(client, number));
        short_bytes(&client->out, text, (size_t)size);
        big(&client->out, BODY_BYTES + 1, 1);
        big(&client->out, 1, 1);
        append(&client->out, body, BODY_BYTES);
        client->replies_left++;
    }
}

static void fj_lease(struct client *client, unsigned count) {
    fj_header(client, FJ_NEXT, DATA | COUNT, 0);
    big(&client->out, count, 2);
    big(&client->out, 0, 1);
    client->replies_left++;
}

static void fj_complete(struct client *client) {
    uint64_t now = epoch_us();
    uint32_t size;
    for (size_t at = 0; at < client->jobs.used;) {
        const char *key = job_at(client, &at, &size);
        fj_header(client, FJ_DELETE, WORKED_ON | TIMEOUT, now);
        big(&client->out, client->token, 8);
        short_bytes(&client->out, key, size);
        client->replies_left++;
    }
}

static void fj_scan(struct client *client) {
    if (client->cursor.used) {
        fj_header(client, FJ_GET, CURSOR_QUERY | KEY16, 0);
        big(&client->out, client->cursor.used, 2);
        append(&client->out, client->cursor.data, client->cursor.used);
    } else if (client->role->kind == SEARCH) {
        fj_header(client, FJ_GET, REGEX | COUNT, 0);
        big(&client->out, client->role->window, 2);
        short_bytes(&client->out, "7(\\.html)?$", 11);
    } else {
        fj_header(client, FJ_GET, RANGE, 0);
        big(&client->out, client->role->window, 2);
        short_bytes(&client->out, "example.org:", 12);
        short_bytes(&client->out, "example.org;", 12);
    }
    client->replies_left++;
}

/* Take a sized field at *at; false: it is not whole yet. */
static int field_at(const char *data, size_t size, size_t *at, int width, const char **field, size_t *length) {
    if (*at + (size_t)width > size) return 0;
    *length = (size_t)big_at(data + *at, width);
    *at += (size_t)width;
    if (*at + *length > size) return 0;
    *field = data + *at;
    *at += *length;
    return 1;
}

static size_t fj_reply(struct client *client, const char *data, size_t size) {
    if (size < 17) return 0;
    if (memcmp(data, "JR\0\1", 4)) fail("no reply of version 1");
    unsigned flags = (unsigned)big_at(data + 6, 2);
    size_t at = 16, length;
    const char *field;
    int key_width = flags & KEY16 ? 2 : 1, value_width = (int[]){0, 1, 2, 4}[(flags & VALUE) >> 1];
    uint64_t token = 0;
    unsigned pairs = 0;
    size_t fixed = at + (flags & TIMEOUT ? 8 : 0) + (flags & TTL ? 8 : 0) + (flags & COUNT ? 2 : 0);
    if (size < fixed) return 0;
    if (flags & TIMEOUT) token = big_at(data + at, 8), at += 8;
    if (flags & TTL) at += 8;
    if (flags & COUNT) pairs = (unsigned)big_at(data + at, 2), at += 2;
    if (!field_at(data, size, &at, key_width, &field, &length)) return 0;
    if (length) fail("the daemon replied: %.*s", (int)length, field);
    const char *cursor = NULL;
    size_t cursor_size = 0;
    if (flags & CURSOR && !field_at(data, size, &at, key_width, &cursor, &cursor_size)) return 0;
    if (client->phase != COMPLETING) client->jobs.used = client->job_count = 0;
    for (unsigned pair = 0; pair < pairs; pair++) {
        const char *key;
        size_t key_size;
        if (!field_at(data, size, &at, key_width, &key, &key_size)) return 0;
        if (flags & TWO_KEYS && !field_at(data, size, &at, key_width, &field, &length)) return 0;
        if (value_width && !field_at(data, size, &at, value_width, &field, &length)) return 0;
        if (client->phase == LEASING) {
            if (!value_width) fail("a job without a body");
            check_body(field + 1, length - 1);
        }
        if (flags & META) at += 68;
        add_job(client, key, key_size);
    }
    if (at > size) return 0;
    if (client->phase == FINDING_NONE && pairs) fail("a job is left");
    uint16_t identifier = (uint16_t)big_at(data + 4, 2);
    if (identifier != client->expected++) fail("a reply to request %u came too early", identifier);
    if (client->phase == LEASING) client->token = token;
    client->cursor.used = 0;
    if (cursor) append(&client->cursor, cursor, cursor_size);
    return at;
}

/* --- Redis ---------------------------------------------------------------------------------------- */

/* Return the end of the reply at `at`, 0 if it is not whole yet. */
static size_t resp_end(const char *data, size_t size, size_t at) {
    const char *end = at < size ? memchr(data + at, '\n', size - at) : NULL;
    if (!end) return 0;
    size_t next = (size_t)(end - data) + 1;
    long number = atol(data + at + 1);
    switch (data[at]) {
    case '+': case ':': return next;
    case '-': fail("Redis replied: %.*s", (int)(end - data - (long)at), data + at);
    case '$':
        if (number < 0) return next;
        next += (size_t)number + 2;
        return next <= size ? next : 0;
    case '*':
        while (number-- > 0)
            if (!(next = resp_end(data, size, next))) return 0;
        return next;
    default: fail("no reply of Redis: %.20s", data + at);
    }
}

/* Return the number in the head of a reply, and go behind it. */
static long resp_head(const char *data, size_t *at, char kind) {
    if (data[*at] != kind) fail("Redis replied %c and not %c", data[*at], kind);
    long number = atol(data + *at + 1);
    *at = (size_t)((const char *)memchr(data + *at, '\n', 64) - data) + 1;
    return number;
}

static const char *resp_bulk(const char *data, size_t *at, size_t *size) {
    long length = resp_head(data, at, '$');
    if (length < 0) fail("Redis replied nothing");
    const char *text = data + *at;
    *size = (size_t)length;
    *at += (size_t)length + 2;
    return text;
}

static void bulk(struct buffer *buffer, const char *data, size_t size) {
    print(buffer, "$%zu\r\n", size);
    append(buffer, data, size);
    append(buffer, "\r\n", 2);
}

static void word(struct buffer *buffer, const char *text) { bulk(buffer, text, strlen(text)); }

static void number_word(struct buffer *buffer, uint64_t number) {
    char text[24];
    bulk(buffer, text, (size_t)snprintf(text, sizeof text, "%" PRIu64, number));
}

static void redis_put(struct client *client, unsigned count) {
    while (count--) {
        next_number++;
        append(&client->out, "*5\r\n", 4);
        word(&client->out, "XADD");
        word(&client->out, "jobs");
        word(&client->out, "*");
        word(&client->out, "body");
        bulk(&client->out, body, BODY_BYTES);
        client->replies_left++;
    }
}

static void redis_lease(struct client *client, unsigned count) {
    append(&client->out, "*9\r\n", 4);
    word(&client->out, "XREADGROUP");
    word(&client->out, "GROUP");
    word(&client->out, "workers");
    word(&client->out, "one");
    word(&client->out, "COUNT");
    number_word(&client->out, count);
    word(&client->out, "STREAMS");
    word(&client->out, "jobs");
    word(&client->out, ">");
    client->replies_left++;
}

static void redis_names(struct client *client) {
    uint32_t size;
    for (size_t at = 0; at < client->jobs.used;) {
        const char *name = job_at(client, &at, &size);
        bulk(&client->out, name, size);
    }
}

static void redis_complete(struct client *client) {
    print(&client->out, "*%u\r\n", client->job_count + 3);
    word(&client->out, "XACK");
    word(&client->out, "jobs");
    word(&client->out, "workers");
    redis_names(client);
    print(&client->out, "*%u\r\n", client->job_count + 2);
    word(&client->out, "XDEL");
    word(&client->out, "jobs");
    redis_names(client);
    client->replies_left = 2;
}

static void redis_scan(struct client *client) {
    append(&client->out, "*6\r\n", 4);
    word(&client->out, "XRANGE");
    word(&client->out, "jobs");
    if (client->cursor.used) bulk(&client->out, client->cursor.data, client->cursor.used);
    else word(&client->out, "-");
    word(&client->out, "+");
    word(&client->out, "COUNT");
    number_word(&client->out, client->role->window);
    client->replies_left++;
}

/* Keep where the next page begins: behind the last name of a full one. */
static void go_behind(struct client *client, long rows, const char *name, size_t length) {
    client->cursor.used = 0;
    if (rows != (long)client->role->window) return;
    append(&client->cursor, "(", 1);
    append(&client->cursor, name, length);
}

static size_t redis_reply(struct client *client, const char *data, size_t size) {
    size_t end = resp_end(data, size, 0), at = 0, length = 0;
    if (!end) return 0;
    if (client->phase == PUTTING) {
        resp_bulk(data, &at, &length);
    } else if (client->phase == COMPLETING) {
        if (resp_head(data, &at, ':') != (long)client->job_count) fail("not all were completed");
    } else if (client->phase == FINDING_NONE) {
        if (resp_head(data, &at, '*') >= 0) fail("a job is left");
    } else if (client->phase == SCANNING) {
        const char *name = "";
        long rows = resp_head(data, &at, '*');
        for (long row = 0; row < rows; row++) {
            resp_head(data, &at, '*');
            name = resp_bulk(data, &at, &length);
            at = resp_end(data, size, at);
        }
        go_behind(client, rows, name, length);
    } else {
        client->jobs.used = client->job_count = 0;
        if (resp_head(data, &at, '*') != 1 || resp_head(data, &at, '*') != 2) fail("no work is left");
        resp_bulk(data, &at, &length);
        for (long left = resp_head(data, &at, '*'); left--;) {
            resp_head(data, &at, '*');
            const char *name = resp_bulk(data, &at, &length);
            add_job(client, name, length);
            if (resp_head(data, &at, '*') != 2) fail("a job has other fields");
            resp_bulk(data, &at, &length);
            const char *text = resp_bulk(data, &at, &length);
            check_body(text, length);
        }
    }
    return end;
}

/* --- the scripts of redis_queue.py on Redis --------------------------------------------------------------- */

static void evalsha(struct client *client, const char *sha, unsigned arguments) {
    print(&client->out, "*%u\r\n", 3 + arguments);
    word(&client->out, "EVALSHA");
    word(&client->out, sha);
    word(&client->out, "0");
}

static void lua_put(struct client *client, unsigned count) {
    char text[64];
    uint64_t now = epoch_us();
    while (count--) {
        uint64_t number = next_number++;
        evalsha(client, enqueue_sha, 6);
        bulk(&client->out, text,
             (size_t)snprintf(text, sizeof text, "https://example.org/some/page/%" PRIu64 ".html",
                              uri_number(client, number)));
        word(&client->out, "128");
        number_word(&client->out, UINT64_C(1000000000000000) + number);
        number_word(&client->out, number);
        bulk(&client->out, body, BODY_BYTES);
        number_word(&client->out, now);
        client->replies_left++;
    }
}

static void lua_lease(struct client *client, unsigned count) {
    evalsha(client, lease_sha, 3);
    number_word(&client->out, count);
    number_word(&client->out, epoch_us());
    number_word(&client->out, 60000000);
    client->replies_left++;
}

static void lua_complete(struct client *client) {
    evalsha(client, complete_sha, client->job_count + 1);
    number_word(&client->out, client->token);
    redis_names(client);
    client->replies_left = 1;
}

static void lua_scan(struct client *client) {
    append(&client->out, "*7\r\n", 4);
    word(&client->out, "ZRANGEBYLEX");
    word(&client->out, "ready");
    if (client->cursor.used) bulk(&client->out, client->cursor.data, client->cursor.used);
    else word(&client->out, "-");
    word(&client->out, "+");
    word(&client->out, "LIMIT");
    word(&client->out, "0");
    number_word(&client->out, client->role->window);
    client->replies_left++;
}

static size_t lua_reply(struct client *client, const char *data, size_t size) {
    size_t end = resp_end(data, size, 0), at = 0, length = 0;
    if (!end) return 0;
    if (client->phase == PUTTING) {
        if (resp_head(data, &at, ':') != 1) fail("it was not added");
    } else if (client->phase == COMPLETING) {
        if (resp_head(data, &at, ':') != (long)client->job_count) fail("not all were completed");
    } else {
        client->jobs.used = client->job_count = 0;
        long left = resp_head(data, &at, '*');
        if (client->phase == SCANNING) {
            const char *name = "";
            for (long row = 0; row < left; row++) name = resp_bulk(data, &at, &length);
            go_behind(client, left, name, length);
            return end;
        }
        if (client->phase == FINDING_NONE) {
            if (left != 1) fail("a job is left");
            return end;
        }
        if (left < 3) fail("no work is left");
        client->token = strtoull(resp_bulk(data, &at, &length), NULL, 10);
        for (; left > 1; left -= 2) {
            const char *name = resp_bulk(data, &at, &length);
            add_job(client, name, length);
            const char *text = resp_bulk(data, &at, &length);
            check_body(text, length);
        }
    }
    return end;
}

/* --- beanstalkd ------------------------------------------------------------------------------------- */

static void beanstalkd_put(struct client *client, unsigned count) {
    while (count--) {
        next_number++;
        print(&client->out, "put 128 0 60 %d\r\n", BODY_BYTES);
        append(&client->out, body, BODY_BYTES);
        append(&client->out, "\r\n", 2);
        client->replies_left++;
    }
}

static void beanstalkd_lease(struct client *client, unsigned count) {
    client->jobs.used = client->job_count = 0;
    client->replies_left = count;
    /* without a wait where none is to be found */
    const char *command = client->phase == LEASING ? "reserve\r\n" : "reserve-with-timeout 0\r\n";
    while (count--) append(&client->out, command, strlen(command));
}

static void beanstalkd_complete(struct client *client) {
    uint32_t size;
    for (size_t at = 0; at < client->jobs.used;) {
        const char *name = job_at(client, &at, &size);
        print(&client->out, "delete %.*s\r\n", (int)size, name);
        client->replies_left++;
    }
}

static size_t beanstalkd_reply(struct client *client, const char *data, size_t size) {
    const char *end = memchr(data, '\n', size);
    if (!end) return 0;
    size_t line = (size_t)(end - data) + 1;
    const char *wanted = (const char *[]){"INSERTED ", "RESERVED ", "DELETED\r", "TIMED_OUT\r"}[client->phase];
    if (strncmp(data, wanted, strlen(wanted))) fail("beanstalkd replied: %.*s", (int)line, data);
    if (client->phase != LEASING) return line;
    const char *name = data + strlen("RESERVED ");
    const char *space = memchr(name, ' ', line - strlen("RESERVED "));
    if (!space) fail("beanstalkd replied: %.*s", (int)line, data);
    if (strtoul(space, NULL, 10) != BODY_BYTES) fail("a body of other size");
    if (line + BODY_BYTES + 2 > size) return 0;
    check_body(data + line, BODY_BYTES);
    add_job(client, name, (size_t)(space - name));
    return line + BODY_BYTES + 2;
}

static const struct protocol protocols[] = {
    {"fj", 1, fj_put, fj_lease, fj_complete, fj_scan, fj_reply},
    {"redis", 0, redis_put, redis_lease, redis_complete, redis_scan, redis_reply},
    {"lua", 1, lua_put, lua_lease, lua_complete, lua_scan, lua_reply},
    {"beanstalkd", 0, beanstalkd_put, beanstalkd_lease, beanstalkd_complete, NULL, beanstalkd_reply},
};

/* --- the loop ---------------------------------------------------------------------------------------- */

/* Send the next request or window of a client, if its role has any left. */
static void go_on(struct client *client) {
    struct role *role = client->role;
    uint64_t asked = role->kind >= SCAN ? 1 : role->window;
    if (role->count && role->count - role->started < asked) asked = role->count - role->started;
    client->asked = (unsigned)asked;
    client->asked_ns = monotonic_ns();
    role->started += asked;
    client->phase = first_phases[role->kind];
    if (!asked) return;
    if (client->phase == PUTTING) protocol->put(client, client->asked);
    else if (client->phase == SCANNING) protocol->scan(client);
    else protocol->lease(client, client->asked);
}

static void note_latency(struct client *client) {
    struct role *role = client->role;
    if (role->latency_count == role->latency_room) {
        role->latency_room = role->latency_room ? role->latency_room * 2 : 1024;
        role->latencies = grown(role->latencies, role->latency_room * sizeof *role->latencies);
    }
    role->latencies[role->latency_count++] = (uint32_t)((monotonic_ns() - client->asked_ns) / 1000);
}

/* All replies of a phase are there: take its figures, and begin the next one. */
static void phase_done(struct client *client) {
    struct role *role = client->role;
    if (client->phase != COMPLETING) note_latency(client);
    if (client->phase == LEASING) {
        if (!client->job_count) fail("no work is left");
        client->phase = COMPLETING;
        protocol->complete(client);
        return;
    }
    if (client->phase == COMPLETING) {
        /* a lease that was smaller than asked for leaves some to do */
        role->done += client->job_count;
        role->started -= client->asked - client->job_count;
    } else {
        role->done += client->asked;
    }
    if (role->count && role->done == role->count) role->seconds = (double)(monotonic_ns() - began_ns) / 1e9;
    go_on(client);
}

static void receive(struct client *client) {
    reserve(&client->in, RECEIVE_BYTES);
    ssize_t got = recv(client->fd, client->in.data + client->in.used, client->in.room - client->in.used, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) fail("the server hung up: %s", got ? strerror(errno) : "end of file");
    client->in.used += (size_t)got;
    size_t at = 0;
    while (client->replies_left) {
        size_t used = protocol->reply(client, client->in.data + at, client->in.used - at);
        if (!used) break;
        at += used;
        if (--client->replies_left == 0) phase_done(client);
    }
    if (!client->replies_left && at < client->in.used) fail("a reply too many");
    memmove(client->in.data, client->in.data + at, client->in.used - at);
    client->in.used -= at;
}

static void transmit(struct client *client) {
    while (client->sent < client->out.used) {
        ssize_t put = send(client->fd, client->out.data + client->sent, client->out.used - client->sent, MSG_NOSIGNAL);
        if (put < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (put < 0) fail("cannot send: %s", strerror(errno));
        client->sent += (size_t)put;
    }
    client->sent = client->out.used = 0;
}

static int all_done(void) {
    for (unsigned at = 0; at < role_count; at++)
        if (roles[at].count && roles[at].done < roles[at].count) return 0;
    return 1;
}

static int by_size(const void *one, const void *two) {
    uint32_t first = *(const uint32_t *)one, second = *(const uint32_t *)two;
    return (first > second) - (first < second);
}

static uint32_t quantile(const struct role *role, double share) {
    if (!role->latency_count) return 0;
    return role->latencies[(size_t)(share * (double)(role->latency_count - 1))];
}

static void report(void) {
    double seconds = (double)(monotonic_ns() - began_ns) / 1e9;
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf("{\"seconds\":%.6f,\"processor_seconds\":%.6f,\"roles\":[", seconds,
           (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6);
    for (unsigned at = 0; at < role_count; at++) {
        struct role *role = &roles[at];
        qsort(role->latencies, role->latency_count, sizeof *role->latencies, by_size);
        printf("%s{\"kind\":\"%s\",\"operations\":%" PRIu64 ",\"seconds\":%.6f,\"p50_us\":%u,\"p99_us\":%u,\"max_us\":%u}",
               at ? "," : "", kind_names[role->kind], role->done, role->count ? role->seconds : seconds,
               quantile(role, 0.5), quantile(role, 0.99), quantile(role, 1.0));
    }
    printf("]}\n");
}

static int connected(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) fail("cannot connect: %s", strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void read_role(const char *text) {
    char kind[8];
    if (role_count == ROLES_MAX) fail("more than %d roles", ROLES_MAX);
    struct role *role = &roles[role_count++];
    if (sscanf(text, "%7[a-z]:%u:%u:%" SCNu64, kind, &role->connections, &role->window, &role->count) != 4)
        fail("%s is no KIND:CONNECTIONS:WINDOW:COUNT", text);
    for (role->kind = PUT; role->kind < KINDS && strcmp(kind, kind_names[role->kind]);) role->kind++;
    if (role->kind == KINDS) fail("%s is no kind of role", kind);
    if (!role->connections) fail("%s: a connection at least", text);
    if (!role->window && role->kind < SCAN) fail("%s: a window of one at least", text);
}

int main(int argc, char **argv) {
    static struct client clients[CONNECTIONS_MAX];
    static struct pollfd sockets[CONNECTIONS_MAX];
    unsigned count = 0;
    if (argc < 6) fail("load PROTOCOL PORT FIRST BEFORE ROLE [ROLE ...]");
    for (size_t at = 0; at < sizeof protocols / sizeof *protocols; at++)
        if (!strcmp(argv[1], protocols[at].name)) protocol = &protocols[at];
    if (!protocol) fail("%s is no protocol", argv[1]);
    next_number = strtoull(argv[3], NULL, 10);
    move_back = next_number - strtoull(argv[4], NULL, 10);
    memset(body, 'x', sizeof body);
    const char *shas = getenv("LOAD_SCRIPTS");
    if (shas) sscanf(shas, "%40[0-9a-f],%40[0-9a-f],%40[0-9a-f]", enqueue_sha, lease_sha, complete_sha);
    for (int at = 5; at < argc; at++) read_role(argv[at]);
    for (unsigned at = 0; at < role_count; at++) {
        if (roles[at].kind >= SCAN && !protocol->scan) fail("%s has no scans", protocol->name);
        if (roles[at].kind == MOVE && !protocol->has_uris) fail("%s has no URIs", protocol->name);
        for (unsigned number = 0; number < roles[at].connections; number++) {
            if (count == CONNECTIONS_MAX) fail("more than %d connections", CONNECTIONS_MAX);
            clients[count].fd = sockets[count].fd = connected(atoi(argv[2]));
            clients[count++].role = &roles[at];
        }
    }
    began_ns = monotonic_ns();
    for (unsigned at = 0; at < count; at++) go_on(&clients[at]);
    while (!all_done()) {
        for (unsigned at = 0; at < count; at++) {
            if (clients[at].out.used) transmit(&clients[at]);
            sockets[at].events = (short)(POLLIN | (clients[at].out.used ? POLLOUT : 0));
        }
        if (poll(sockets, count, -1) < 0 && errno != EINTR) fail("poll: %s", strerror(errno));
        for (unsigned at = 0; at < count; at++)
            if (sockets[at].revents & (POLLIN | POLLHUP | POLLERR)) receive(&clients[at]);
    }
    report();
    return 0;
}
