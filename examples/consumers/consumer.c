/* Works off a domain: leases one entry after the other, runs a command for each with its value on
 * standard input and its URI in FASTJOURNAL_URI, extends the lease, then completes or fails it.
 *     cc -o consumer consumer.c && ./consumer HOST PORT DOMAIN LEASE_S COMMAND... */
#define _GNU_SOURCE
#include <err.h>
#include <netdb.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { DELETE = 4, NEXT = 11, RELEASE = 13, TOUCH = 14 };
enum { KEY16 = 1, VALUE_U32 = 6, TIMEOUT = 8, WORKED_ON = 0x40, TWO_KEYS = 0x80, CURSOR = 0x100,
       DATA = 0x400, LISTEN = 0x800, COUNT = 0x2000, TTL = 0x4000 };

struct bytes { size_t size; char *data; };
static FILE *requests, *replies;
static uint64_t lease_us, token;
static struct bytes error, key, uri, value; /* of the last reply that had them */

static void put(uint64_t number, int bytes) { /* big endian; flush() sees an error */
    while (bytes--) fputc((int)(number >> 8 * bytes & 255), requests);
}

static void get(void *to, size_t size) {
    if (fread(to, 1, size, replies) != size) errx(69, "the daemon closed the connection");
}

static uint64_t number(int bytes) {
    unsigned char digits[8];
    uint64_t result = 0;
    get(digits, (size_t)bytes);
    for (int at = 0; at < bytes; at++) result = result << 8 | digits[at];
    return result;
}

static void sized(int width, struct bytes *found) { /* with a zero byte behind it */
    found->size = (size_t)number(width);
    if ((found->data = realloc(found->data, found->size + 1)) == NULL) err(69, "realloc");
    get(found->data, found->size);
    found->data[found->size] = 0;
}

/* Sends one request and waits for its reply. Whether that has a job: NEXT gives one at most. */
static int request(int function, int flags, struct bytes of, const char *text) {
    struct timespec now;
    struct bytes cursor = { 0, NULL };
    clock_gettime(CLOCK_REALTIME, &now);
    fwrite("FJ\0\1", 1, 4, requests);
    put((uint64_t)function, 2), put(0, 2), put((uint64_t)(flags | KEY16), 2); /* identifier 0 */
    put((uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000, 8);
    put(function == NEXT ? lease_us : token, 8);
    if (flags & TTL) put(lease_us, 8);
    put(of.size, 2), fwrite(of.data, 1, of.size, requests);
    if (flags & VALUE_U32) put(strlen(text) + 1, 4), put(2, 1), fputs(text, requests); /* string */
    if (fflush(requests) || ferror(requests)) err(69, "the connection is lost");

    char magic[4];
    get(magic, 4);
    if (memcmp(magic, "JR", 2) != 0) errx(69, "this is no fastjournald");
    number(2); /* identifier */
    flags = (int)number(2);
    int width = flags & KEY16 ? 2 : 1, count = 0;
    number(8); /* timestamp */
    if (flags & TIMEOUT) token = number(8);
    if (flags & TTL) number(8);
    if (flags & COUNT) count = (int)number(2);
    sized(width, &error);
    if (flags & CURSOR) sized(width, &cursor), free(cursor.data);
    if (count == 0) return 0;
    sized(width, &key);
    uri.size = 0;
    if (flags & TWO_KEYS) sized(width, &uri);
    sized((flags & VALUE_U32) == VALUE_U32 ? 4 : (flags & VALUE_U32) >> 1, &value);
    return 1;
}

/* Runs the command for the job and extends its lease; returns the wait status of the command. */
static int work(char **command) {
    int status;
    sigset_t ended;
    sigemptyset(&ended), sigaddset(&ended, SIGCHLD), sigprocmask(SIG_BLOCK, &ended, NULL);
    FILE *input = tmpfile(); /* not a pipe: a value may be larger than one */
    if (input == NULL) err(69, "tmpfile");
    if (value.size > 1) fwrite(value.data + 1, 1, value.size - 1, input); /* behind the type */
    if (fflush(input) || ferror(input) || fseek(input, 0, SEEK_SET)) err(69, "tmpfile");
    pid_t child = fork();
    if (child < 0) err(69, "fork");
    if (child == 0) {
        sigprocmask(SIG_UNBLOCK, &ended, NULL), signal(SIGPIPE, SIG_DFL);
        setenv("FASTJOURNAL_URI", uri.size ? uri.data : "", 1);
        dup2(fileno(input), 0);
        execvp(command[0], command);
        warn("%s", command[0]);
        _exit(127);
    }
    fclose(input);
    struct timespec third = { (time_t)(lease_us / 3000000), (long)(lease_us / 3 % 1000000) * 1000 };
    while (waitpid(child, &status, WNOHANG) == 0)
        if (sigtimedwait(&ended, NULL, &third) < 0)
            request(TOUCH, TIMEOUT | WORKED_ON | TTL, key, NULL);
    return status;
}

int main(int count, char **arguments) {
    struct addrinfo *to, wanted = { .ai_socktype = SOCK_STREAM };
    if (count < 6 || (lease_us = strtoul(arguments[4], NULL, 10) * 1000000) == 0)
        errx(64, "usage: consumer HOST PORT DOMAIN LEASE_S COMMAND...");
    if (getaddrinfo(arguments[1], arguments[2], &wanted, &to)) errx(69, "unknown host or port");
    int daemon = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    while (connect(daemon, to->ai_addr, to->ai_addrlen)) {
        if ((to = to->ai_next) == NULL) err(69, "%s", arguments[1]);
        close(daemon), daemon = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    }
    requests = fdopen(daemon, "w"), replies = fdopen(daemon, "r");
    signal(SIGPIPE, SIG_IGN);
    for (;;) {
        struct bytes domain = { strlen(arguments[3]), arguments[3] };
        int is_job = request(NEXT, TIMEOUT | DATA | LISTEN, domain, NULL);
        if (*error.data) errx(69, "%s", error.data);
        if (!is_job) continue;
        int status = work(arguments + 5);
        char why[32];
        snprintf(why, sizeof why, "exit %d",
                 WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
        if (status == 0) request(DELETE, TIMEOUT | WORKED_ON, key, NULL);
        else request(RELEASE, TIMEOUT | WORKED_ON | VALUE_U32, key, why);
        if (*error.data) warnx("%s: %s", key.data, error.data); /* lease-lost: done twice */
    }
}
