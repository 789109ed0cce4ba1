#include "server/auth.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

int rp_auth_add(struct rp_auth *auth, const char *key, size_t len, struct rp_error *err) {
    if (auth->count == RP_KEYS_MAX)
        return rp_error_set(err, RP_STATUS_RANGE, "more than %d API keys", RP_KEYS_MAX);
    if (len < 1 || len > RP_KEY_BYTES_MAX)
        return rp_error_set(err, RP_STATUS_RANGE, "an API key has 1 to %d characters, not %zu",
                            RP_KEY_BYTES_MAX, len);
    for (size_t i = 0; i < len; i++)
        if (key[i] <= ' ' || key[i] > '~')
            return rp_error_set(err, RP_STATUS_FORMAT,
                                "an API key holds a space or a character that is not ASCII");
    memcpy(auth->keys[auth->count].bytes, key, len);
    auth->keys[auth->count++].len = len;
    return RP_OK;
}

static int add_lines(struct rp_auth *auth, const char *path, const char *text, size_t len,
                     struct rp_error *err) {
    uint32_t before = auth->count;
    for (size_t i = 0; i < len;) {
        const char *newline = memchr(text + i, '\n', len - i);
        size_t end = newline ? (size_t)(newline - text) : len, n = end - i;
        while (n && (text[i + n - 1] == '\r' || text[i + n - 1] == ' '))
            n--;
        if (n && text[i] != '#') {
            int status = rp_auth_add(auth, text + i, n, err);
            if (status != RP_OK)
                return status;
        }
        i = end + 1;
    }
    if (auth->count == before)
        return rp_error_set(err, RP_STATUS_FORMAT, "%s holds no key", path);
    return RP_OK;
}

int rp_auth_read_file(struct rp_auth *auth, const char *path, struct rp_error *err) {
    char text[RP_KEYS_MAX * (RP_KEY_BYTES_MAX + 8)];
    struct stat info;
    size_t len = 0;
    int status = RP_OK, fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return rp_error_set(err, RP_STATUS_NOT_FOUND, "%s: %s", path, strerror(errno));
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        status = rp_error_set(err, RP_STATUS_IO, "%s is not a file", path);
    } else if (info.st_mode & (S_IRWXG | S_IRWXO)) {
        status =
            rp_error_set(err, RP_STATUS_INVALID, "%s: group or others may read the keys", path);
        rp_error_hint(err, "chmod 600 %s", path);
    }
    while (status == RP_OK && len < sizeof text) {
        ssize_t n = read(fd, text + len, sizeof text - len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            status = rp_error_set(err, RP_STATUS_IO, "%s: %s", path, strerror(errno));
        if (n <= 0)
            break;
        len += (size_t)n;
    }
    close(fd);
    if (status == RP_OK && len == sizeof text)
        status = rp_error_set(err, RP_STATUS_RANGE, "%s: too long for %d keys", path, RP_KEYS_MAX);
    if (status == RP_OK)
        status = add_lines(auth, path, text, len, err);
    explicit_bzero(text, sizeof text);
    return status;
}

int32_t rp_auth_check(const struct rp_auth *auth, const char *authorization) {
    static const char scheme[] = "Bearer ";
    size_t len = authorization ? strlen(authorization) : 0;
    int32_t found = -1;
    if (len < sizeof scheme || strncasecmp(authorization, scheme, sizeof scheme - 1) != 0)
        return -1;
    const char *given = authorization + sizeof scheme - 1;
    while (*given == ' ')
        given++;
    len = strlen(given);
    /* All keys, every byte sent: nothing ends early. */
    for (uint32_t k = 0; k < auth->count; k++) {
        const volatile struct rp_auth_key *key = &auth->keys[k];
        unsigned char differs = (unsigned char)(key->len != len);
        for (size_t i = 0; i < len; i++)
            differs |= (unsigned char)(given[i] ^ key->bytes[i % RP_KEY_BYTES_MAX]);
        int32_t mask = -(int32_t)(differs == 0);
        found = (found & ~mask) | ((int32_t)k & mask);
    }
    return found;
}

void rp_auth_deinit(struct rp_auth *auth) { explicit_bzero(auth, sizeof *auth); }
