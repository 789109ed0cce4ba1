#include "server/http/auth.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
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
    SHA256((const unsigned char *)key, len, auth->keys[auth->count++].digest);
    return RP_OK;
}

/* The next word of a line. */
struct word {
    const char *text;
    size_t len;
};

static struct word next_word(const char **line, const char *end) {
    struct word word = {.len = 0};
    while (*line < end && (**line == ' ' || **line == '\t'))
        (*line)++;
    word.text = *line;
    while (*line < end && **line != ' ' && **line != '\t')
        (*line)++;
    word.len = (size_t)(*line - word.text);
    return word;
}

static bool set_name(struct rp_auth *auth, struct rp_auth_key *key, const char *name, size_t len) {
    static const char others[] = "_-.";
    if (len < 1 || len > RP_KEY_NAME_MAX || key->name[0])
        return false;
    for (size_t i = 0; i < len; i++)
        if (!isalnum((unsigned char)name[i]) && !memchr(others, name[i], sizeof others - 1))
            return false;
    for (uint32_t i = 0; i < auth->count; i++)
        if (strlen(auth->keys[i].name) == len && memcmp(auth->keys[i].name, name, len) == 0)
            return false;
    memcpy(key->name, name, len);
    return true;
}

/* A positive number; 0 when malformed. */
static uint64_t read_count(const char *digits, size_t len, size_t digits_max) {
    uint64_t count = 0;
    if (len < 1 || len > digits_max)
        return 0;
    for (size_t i = 0; i < len; i++) {
        if (digits[i] < '0' || digits[i] > '9')
            return 0;
        count = count * 10 + (uint64_t)(digits[i] - '0');
    }
    return count;
}

static bool set_limit(struct rp_auth_key *key, const char *digits, size_t len) {
    uint32_t limit = key->limit ? 0 : (uint32_t)read_count(digits, len, 6);
    key->limit = limit;
    return limit > 0;
}

static bool set_token_limit(struct rp_auth_key *key, const char *digits, size_t len) {
    uint64_t limit = key->token_limit ? 0 : read_count(digits, len, 12);
    key->token_limit = limit;
    return limit > 0;
}

/* KEY [name=NAME] [limit=N] [tokens=N] */
static int add_line(struct rp_auth *auth, const char *line, size_t len, struct rp_error *err) {
    const char *end = line + len;
    struct word word = next_word(&line, end);
    int status = rp_auth_add(auth, word.text, word.len, err);
    while (status == RP_OK && (word = next_word(&line, end)).len) {
        struct rp_auth_key *key = &auth->keys[auth->count - 1];
        bool good = false;
        if (word.len > 5 && memcmp(word.text, "name=", 5) == 0)
            good = set_name(auth, key, word.text + 5, word.len - 5);
        else if (word.len > 6 && memcmp(word.text, "limit=", 6) == 0)
            good = set_limit(key, word.text + 6, word.len - 6);
        else if (word.len > 7 && memcmp(word.text, "tokens=", 7) == 0)
            good = set_token_limit(key, word.text + 7, word.len - 7);
        if (!good)
            status = rp_error_set(err, RP_STATUS_FORMAT,
                                  "API key %" PRIu32
                                  " of the file: a key may be followed by a unique name=NAME, "
                                  "limit=N and tokens=N, nothing else",
                                  auth->count);
    }
    return status;
}

static int add_lines(struct rp_auth *auth, const char *path, const char *text, size_t len,
                     struct rp_error *err) {
    uint32_t before = auth->count;
    for (size_t i = 0; i < len;) {
        const char *newline = memchr(text + i, '\n', len - i);
        size_t end = newline ? (size_t)(newline - text) : len, n = end - i;
        while (n && (text[i + n - 1] == '\r' || text[i + n - 1] == ' ' || text[i + n - 1] == '\t'))
            n--;
        if (n && text[i] != '#') {
            int status = add_line(auth, text + i, n, err);
            if (status != RP_OK) {
                explicit_bzero(&auth->keys[before], (RP_KEYS_MAX - before) * sizeof auth->keys[0]);
                auth->count = before;
                return status;
            }
        }
        i = end + 1;
    }
    if (auth->count == before)
        return rp_error_set(err, RP_STATUS_FORMAT, "%s contains no key", path);
    return RP_OK;
}

int rp_auth_read_file(struct rp_auth *auth, const char *path, struct rp_error *err) {
    char text[RP_KEYS_MAX * (RP_KEY_BYTES_MAX + 72)];
    struct stat info;
    size_t len = 0;
    int status = RP_OK, fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return rp_error_set(err, RP_STATUS_NOT_FOUND, "%s: %s", path, strerror(errno));
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        status = rp_error_set(err, RP_STATUS_IO, "%s is not a file", path);
    } else if (info.st_mode & (S_IRWXG | S_IRWXO)) {
        status =
            rp_error_set(err, RP_STATUS_INVALID, "%s: group or others can read the keys", path);
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

/* Index of the digest, -1: absent. Compares with all keys: no early exit. */
static int32_t find_digest(const struct rp_auth *auth, const unsigned char *digest) {
    int32_t found = -1;
    for (uint32_t k = 0; k < auth->count; k++)
        if (CRYPTO_memcmp(auth->keys[k].digest, digest, RP_KEY_DIGEST_BYTES) == 0)
            found = (int32_t)k;
    return found;
}

int32_t rp_auth_check_key(const struct rp_auth *auth, const char *key) {
    unsigned char digest[RP_KEY_DIGEST_BYTES];
    SHA256((const unsigned char *)key, strlen(key), digest);
    return find_digest(auth, digest);
}

int32_t rp_auth_check(const struct rp_auth *auth, const char *authorization) {
    static const char scheme[] = "Bearer ";
    size_t len = authorization ? strlen(authorization) : 0;
    if (len < sizeof scheme || strncasecmp(authorization, scheme, sizeof scheme - 1) != 0)
        return -1;
    const char *given = authorization + sizeof scheme - 1;
    while (*given == ' ')
        given++;
    return rp_auth_check_key(auth, given);
}

int32_t rp_auth_same(const struct rp_auth *auth, int32_t index, const struct rp_auth *other) {
    return index < 0 ? -1 : find_digest(other, auth->keys[index].digest);
}

void rp_auth_deinit(struct rp_auth *auth) { explicit_bzero(auth, sizeof *auth); }
