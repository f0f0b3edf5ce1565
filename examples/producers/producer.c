/* Spools each line of standard input as work on a URI, durably and without fastjournal:
 *     cc -o producer producer.c && ./producer SPOOL URI <lines */
#define _GNU_SOURCE
#include <ctype.h>
#include <err.h>
#include <fcntl.h>
#include <regex.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static FILE *file;
static uint32_t crc;

static void put(const void *data, size_t size) { /* an error is kept for ferror() */
    const unsigned char *at = data;
    fwrite(data, 1, size, file);
    while (size--) {
        crc ^= *at++;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0x82f63b78 & -(crc & 1));
    }
}

static void number(uint64_t value, int bytes) { /* big endian */
    while (bytes--) put(&(unsigned char){ (unsigned char)(value >> 8 * bytes) }, 1);
}

static void domain_of(const char *uri, char *domain) { /* room: three times the URI */
    regex_t form;
    regmatch_t part[7]; /* 3: host, 6: port */
    if (regcomp(&form, "^([a-z][a-z0-9+.-]*:)?//([^/?#]*@)?"
                "(\\[[0-9a-f:.]+]|[0-9a-z_][0-9a-z_-]*(\\.[0-9a-z_-]+)*)\\.?(:([0-9]*))?([/?#]|$)",
                REG_EXTENDED | REG_ICASE)) errx(70, "regcomp");
    int is_found = regexec(&form, uri, 7, part, 0) == 0;
    int has_port = is_found && part[6].rm_so < part[6].rm_eo;
    unsigned long port = has_port ? strtoul(uri + part[6].rm_so, NULL, 10) : 0;
    if (!is_found || port > 65535) errx(64, "no host in %s (IDNA form, xn--..., if not ASCII)", uri);
    for (regoff_t at = part[3].rm_so; at < part[3].rm_eo; at++) {
        if (uri[at] == ':') domain = stpcpy(domain, "%3A");
        else if (!strchr("[]", uri[at])) *domain++ = (char)tolower((unsigned char)uri[at]);
    }
    *domain = 0;
    if (has_port) sprintf(domain, "%%3A%lu", port);
}

static void set_record(uint64_t timestamp, const char *key, const char *uri, const char *line,
                       size_t size) {
    size_t key_size = strlen(key), uri_size = strlen(uri);
    fputc('P', file);
    crc = 0xffffffff;
    number(27 + key_size + uri_size + size, 4);
    put("FJ\0\1\0\2\0\0", 8); /* version 1, SET, identifier 0 */
    number(0x0287, 2); /* KEY16, VALUE u32, RANGE (two keys), PERSIST */
    number(timestamp, 8);
    number(key_size, 2), put(key, key_size);
    number(uri_size, 2), put(uri, uri_size);
    number(size + 1, 4), number(1, 1), put(line, size); /* type 1: bytes */
    number(~crc, 4);
}

int main(int count, char **arguments) {
    if (count != 3) errx(64, "usage: producer SPOOL URI <lines");
    if (strlen(arguments[2]) > 4096) errx(64, "the URI is over 4096 bytes");
    const char *directory = arguments[1], *uri = arguments[2];
    char domain[3 * 4096 + 1], key[sizeof domain + 64], slot[32], path[4096], hidden[4096];
    char *line = NULL;
    struct timespec now;
    uint64_t random;
    size_t room = 0;
    domain_of(uri, domain);
    clock_gettime(CLOCK_REALTIME, &now);
    if (getrandom(&random, sizeof random, 0) != sizeof random) err(74, "getrandom");
    strftime(slot, sizeof slot, "%Y%m%dT%H%M%SZ", gmtime(&now.tv_sec));
    snprintf(path, sizeof path, "%s/%s-c-%016jx.fjs", directory, slot, (uintmax_t)random);
    snprintf(hidden, sizeof hidden, "%s/.%s-c-%016jx.fjs.tmp", directory, slot, (uintmax_t)random);
    int folder = open(directory, O_RDONLY | O_DIRECTORY);
    int descriptor = open(hidden, O_WRONLY | O_CREAT | O_EXCL, 0600);
    file = descriptor < 0 ? NULL : fdopen(descriptor, "w");
    if (folder < 0 || file == NULL) err(74, "%s", hidden);
    put("fjsp\0\0\0\1", 8);
    uint64_t timestamp = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
    for (ssize_t size; (size = getline(&line, &room, stdin)) >= 0; timestamp++) {
        if (size && line[size - 1] == '\n') size--;
        snprintf(key, sizeof key, "%s:128:%016ju:%jx-%jx", domain, (uintmax_t)timestamp,
                 (uintmax_t)timestamp, (uintmax_t)random);
        if (strlen(key) > 4096) { unlink(hidden); errx(64, "the key is over 4096 bytes"); }
        set_record(timestamp, key, uri, line, (size_t)size);
    }
    int failed = ferror(stdin) || fflush(file) || ferror(file) || fchmod(descriptor, 0660)
        || fsync(descriptor) || link(hidden, path) || fsync(folder); /* the name is durable, too */
    if (failed) warn("%s", path);
    unlink(hidden);
    return failed ? 74 : 0;
}
