/* Works off a domain: leases one entry after the other, runs a command for each with its value on
 * standard input and its URI in FASTJOURNAL_URI, extends the lease meanwhile, then completes or fails it.
 *     cc -o consumer consumer.c && ./consumer HOST:PORT|unix:PATH DOMAIN COMMAND [ARGUMENT...] */
#define _GNU_SOURCE
#include <netdb.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { DELETE = 4, NEXT = 11, RELEASE = 13, TOUCH = 14 };
enum { KEY16 = 1, VALUE_U32 = 6, TIMEOUT = 8, WORKED_ON = 0x40, TWO_KEYS = 0x80, CURSOR = 0x100,
       DATA = 0x400, LISTEN = 0x800, COUNT = 0x2000, TTL = 0x4000 };

struct bytes { size_t size; char *data; };
struct job { uint64_t token; char error[256]; struct bytes key, uri, value; int there; };
static int daemon_socket;
static uint64_t lease_us = 60000000;

static void fail(const char *what) { fprintf(stderr, "consumer: %s\n", what); exit(69); }

static void get(void *to, size_t size) {
    for (char *at = to; size > 0;) {
        ssize_t count = read(daemon_socket, at, size);
        if (count <= 0) fail(count ? "the connection is lost" : "the daemon closed the connection");
        at += count, size -= (size_t)count;
    }
}

static uint64_t number(int bytes) {
    unsigned char digits[8];
    uint64_t result = 0;
    get(digits, (size_t)bytes);
    for (int at = 0; at < bytes; at++) result = result << 8 | digits[at];
    return result;
}

static struct bytes sized(int width) { /* with a zero byte behind it; the caller frees it */
    struct bytes found = { (size_t)number(width), NULL };
    if ((found.data = malloc(found.size + 1)) == NULL) fail("no memory");
    get(found.data, found.size);
    found.data[found.size] = 0;
    return found;
}

static void put(FILE *file, uint64_t value, int bytes) {
    while (bytes--) fputc((int)(value >> 8 * bytes & 255), file);
}

/* Sends one request and waits for its reply; NEXT gives at most one job. */
static struct job request(int function, int flags, uint64_t token, uint64_t ttl, struct bytes key,
                          const char *value) {
    struct job reply = { 0 };
    struct timespec now;
    char *frame, head[16];
    size_t size;
    FILE *file = open_memstream(&frame, &size);
    if (file == NULL) fail("no memory");
    clock_gettime(CLOCK_REALTIME, &now);
    fwrite("FJ\0\1", 1, 4, file);
    put(file, (uint64_t)function, 2), put(file, 0, 2), put(file, (uint64_t)(flags | KEY16), 2);
    put(file, (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000, 8);
    if (flags & TIMEOUT) put(file, token, 8);
    if (flags & TTL) put(file, ttl, 8);
    put(file, key.size, 2), fwrite(key.data, 1, key.size, file);
    if (value != NULL) put(file, strlen(value) + 1, 4), put(file, 2, 1), fputs(value, file); /* string */
    fclose(file);
    for (size_t sent = 0; sent < size;) {
        ssize_t count = write(daemon_socket, frame + sent, size - sent);
        if (count < 0) fail("the connection is lost");
        sent += (size_t)count;
    }
    free(frame);

    get(head, 16); /* magic, version, identifier, flags, timestamp */
    if (memcmp(head, "JR", 2) != 0) fail("this is no fastjournald");
    flags = (unsigned char)head[6] << 8 | (unsigned char)head[7];
    int width = flags & KEY16 ? 2 : 1;
    if (flags & TIMEOUT) reply.token = number(8);
    if (flags & TTL) number(8);
    reply.there = flags & COUNT ? (int)number(2) : 0;
    struct bytes error = sized(width);
    snprintf(reply.error, sizeof reply.error, "%s", error.data);
    free(error.data);
    if (flags & CURSOR) free(sized(width).data);
    if (reply.there) {
        reply.key = sized(width);
        if (flags & TWO_KEYS) reply.uri = sized(width);
        reply.value = sized((flags & VALUE_U32) == VALUE_U32 ? 4 : (flags & VALUE_U32) >> 1);
    }
    return reply;
}

/* Runs the command for a job and extends its lease; returns the wait status of the command. */
static int work(struct job *job, char **command) {
    sigset_t ended;
    int input[2], status;
    sigemptyset(&ended), sigaddset(&ended, SIGCHLD), sigprocmask(SIG_BLOCK, &ended, NULL);
    if (pipe(input)) fail("pipe");
    pid_t child = fork(), feeder = child ? fork() : 0;
    if (child == 0) {
        sigprocmask(SIG_UNBLOCK, &ended, NULL);
        setenv("FASTJOURNAL_URI", job->uri.size ? job->uri.data : "", 1);
        dup2(input[0], 0), close(input[0]), close(input[1]), close(daemon_socket);
        execvp(command[0], command);
        perror(command[0]);
        _exit(127);
    }
    if (feeder == 0) { /* a value may be larger than a pipe, and the lease goes on meanwhile */
        signal(SIGPIPE, SIG_DFL), close(input[0]), close(daemon_socket);
        for (size_t at = 1; at < job->value.size;) { /* behind the type */
            ssize_t count = write(input[1], job->value.data + at, job->value.size - at);
            if (count < 0) break;
            at += (size_t)count;
        }
        _exit(0);
    }
    close(input[0]), close(input[1]);
    struct timespec third = { (time_t)(lease_us / 3000000), (long)(lease_us / 3 % 1000000) * 1000 };
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (sigtimedwait(&ended, NULL, &third) >= 0) continue;
        struct job reply = request(TOUCH, TIMEOUT | WORKED_ON | TTL, job->token, lease_us, job->key, NULL);
        if (!*reply.error) job->token = reply.token;
    }
    kill(feeder, SIGKILL), waitpid(feeder, NULL, 0);
    return status;
}

static void dial(char *address) {
    struct sockaddr_un path = { .sun_family = AF_UNIX };
    if (strncmp(address, "unix:", 5) == 0) {
        snprintf(path.sun_path, sizeof path.sun_path, "%s", address + 5);
        daemon_socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(daemon_socket, (struct sockaddr *)&path, sizeof path)) fail("cannot connect");
        return;
    }
    char *port = strrchr(address, ':');
    struct addrinfo *found, wanted = { .ai_socktype = SOCK_STREAM };
    if (port == NULL) fail("write HOST:PORT or unix:PATH");
    *port++ = 0;
    if (getaddrinfo(address, port, &wanted, &found)) fail("unknown host");
    daemon_socket = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(daemon_socket, found->ai_addr, found->ai_addrlen)) fail("cannot connect");
    freeaddrinfo(found);
}

int main(int count, char **arguments) {
    if (count < 4) fail("usage: consumer HOST:PORT|unix:PATH DOMAIN COMMAND [ARGUMENT...]");
    if (getenv("LEASE_MS") != NULL) lease_us = strtoull(getenv("LEASE_MS"), NULL, 10) * 1000;
    signal(SIGPIPE, SIG_IGN);
    dial(arguments[1]);
    for (;;) {
        struct bytes domain = { strlen(arguments[2]), arguments[2] };
        struct job job = request(NEXT, TIMEOUT | DATA | LISTEN, lease_us, 0, domain, NULL), end;
        if (*job.error) fail(job.error);
        if (!job.there) continue;
        int status = work(&job, arguments + 3);
        if (status == 0) {
            end = request(DELETE, TIMEOUT | WORKED_ON, job.token, 0, job.key, NULL);
        } else {
            char why[64];
            snprintf(why, sizeof why, "exit %d", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
            end = request(RELEASE, TIMEOUT | WORKED_ON | VALUE_U32, job.token, 0, job.key, why);
        }
        if (*end.error) fprintf(stderr, "consumer: %s: %s\n", job.key.data, end.error); /* lease-lost */
        free(job.key.data), free(job.uri.data), free(job.value.data);
    }
}
