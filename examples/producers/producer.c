/* Spools each line of standard input as work on a URI, without fastjournal:
 *     cc -o producer producer.c && ./producer SPOOL URI <lines */
#define _GNU_SOURCE
#include <ctype.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what) { perror(what); exit(1); }

static uint32_t crc32c(const unsigned char *data, size_t size) {
    uint32_t crc = 0xffffffff;
    while (size--) {
        crc ^= *data++;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0x82f63b78 & -(crc & 1));
    }
    return ~crc;
}

static unsigned char *put(unsigned char *at, uint64_t number, int bytes) { /* big endian */
    while (bytes--) *at++ = (unsigned char)(number >> 8 * bytes);
    return at;
}

static void domain_of(const char *uri, char *domain) { /* room: three times the URI */
    const char *host = strstr(uri, "://");
    if (host == NULL || strchr("/?#", host[3])) { fprintf(stderr, "no host in %s\n", uri); exit(64); }
    host += 3;
    size_t size = strcspn(host, "/?#");
    const char *user = memrchr(host, '@', size);
    if (user != NULL) { size -= (size_t)(user + 1 - host); host = user + 1; }
    for (; size--; host++) {
        if (*host == ':') domain += sprintf(domain, "%%3A");
        else if (*host != '[' && *host != ']') *domain++ = (char)tolower((unsigned char)*host);
    }
    *domain = 0;
}

int main(int count, char **arguments) {
    if (count != 3 || strlen(arguments[2]) > 4096) { fprintf(stderr, "usage: producer SPOOL URI <lines\n"); return 64; }
    const char *directory = arguments[1], *uri = arguments[2];
    size_t uri_size = strlen(uri), room = 0;
    char name[4096], path[4200], *domain = malloc(3 * uri_size + 1), *line = NULL;
    struct timespec now;
    if (domain == NULL) fail("malloc");
    domain_of(uri, domain);
    clock_gettime(CLOCK_REALTIME, &now);
    strftime(name, 32, "%Y%m%dT%H%M%SZ", gmtime(&now.tv_sec));
    sprintf(name + 16, "-c-%d-%ld.fjs", getpid(), now.tv_nsec);
    snprintf(path, sizeof path, "%s/.%s.tmp", directory, name);
    int descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "w");
    if (file == NULL) fail(path);
    fwrite("fjsp\0\0\0\1", 1, 8, file);
    uint64_t timestamp = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
    for (ssize_t size; (size = getline(&line, &room, stdin)) >= 0; timestamp++) {
        if (size && line[size - 1] == '\n') size--;
        char key[16384];
        int key_size = snprintf(key, sizeof key, "%s:128:%016llu:%llx-%d", domain,
            (unsigned long long)timestamp, (unsigned long long)timestamp, getpid());
        unsigned char *record = malloc((size_t)(40 + key_size) + uri_size + (size_t)size), *at = record;
        if (record == NULL) fail("malloc");
        *at++ = 'P';
        at = put(at, (uint64_t)(18 + 2 + key_size + 2 + 4 + 1) + uri_size + (uint64_t)size, 4);
        at = put(at, 0x464a00010002, 6); /* FJ, version 1, SET */
        at = put(at, 0x0287, 4); /* identifier 0; KEY16, VALUE u32, RANGE, PERSIST */
        at = put(at, timestamp, 8);
        at = mempcpy(put(at, (uint64_t)key_size, 2), key, (size_t)key_size);
        at = mempcpy(put(at, uri_size, 2), uri, uri_size);
        at = mempcpy(put(put(at, (uint64_t)size + 1, 4), 1, 1), line, (size_t)size);
        at = put(at, crc32c(record + 1, (size_t)(at - record) - 1), 4);
        fwrite(record, 1, (size_t)(at - record), file);
        free(record);
    }
    if (ferror(stdin)) fail("standard input");
    if (fflush(file) || ferror(file) || fchmod(descriptor, 0660) || fsync(descriptor)) fail(path);
    fclose(file);
    char to[4200];
    snprintf(to, sizeof to, "%s/%s", directory, name);
    if (rename(path, to)) fail(to);
    return 0;
}
