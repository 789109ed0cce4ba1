#include "text/json_file.h"

#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* One read call at most; the kernel caps a call at 2 GiB, and progress should be visible. */
#define READ_PIECE_BYTES ((uint64_t)64 << 20)

const char *rp_text_for_message(char *out, size_t out_bytes, const char *text) {
    size_t len = 0;
    for (; text[len] && len + 4 < out_bytes; len++)
        out[len] = (unsigned char)text[len] < 0x20 || text[len] == 0x7F ? '?' : text[len];
    if (text[len]) {
        memcpy(out + len, "...", 3);
        len += 3;
    }
    out[len] = '\0';
    return out;
}

/* A pointer of git-lfs is a few lines of text in the place of the file. */
static bool is_lfs_pointer(int fd) {
    static const char begin[] = "version https://git-lfs.github.com/spec/";
    char text[sizeof begin - 1];
    return rp_model_file_read(fd, text, sizeof text, 0) == (int64_t)sizeof text &&
           memcmp(text, begin, sizeof text) == 0;
}

int rp_model_file_open(const char *dir, const char *name, int *out_fd, uint64_t *out_bytes,
                       struct rp_error *err) {
    char path[PATH_MAX];
    int len = snprintf(path, sizeof path, "%s/%s", dir, name);
    if (len < 0 || (size_t)len >= sizeof path)
        return rp_error_set(err, RP_STATUS_INVALID, "%s: the path of the model is too long", name);
    /* O_NONBLOCK: opening a FIFO must not wait for its writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        int reason = errno;
        return rp_error_set(
            err, reason == ENOENT || reason == ENOTDIR ? RP_STATUS_NOT_FOUND : RP_STATUS_IO,
            "%s: cannot open: %s", name, strerror(reason));
    }
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(fd);
        return rp_error_set(err, RP_STATUS_IO, "%s: not a regular file", name);
    }
    if (is_lfs_pointer(fd)) {
        close(fd);
        int status = rp_error_set(err, RP_STATUS_FORMAT,
                                  "%s: a git-lfs pointer, the file itself was not fetched", name);
        rp_error_hint(err, "run `git lfs pull` in the model directory");
        return status;
    }
    *out_fd = fd;
    *out_bytes = (uint64_t)info.st_size;
    return RP_OK;
}

int64_t rp_model_file_read(int fd, void *out, uint64_t len, uint64_t offset) {
    uint64_t done = 0;
    while (done < len) {
        size_t piece = (size_t)RP_MIN(len - done, READ_PIECE_BYTES);
        ssize_t got = pread(fd, (char *)out + done, piece, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        done += (uint64_t)got;
    }
    return (int64_t)done;
}

/* An upper bound, roughly, of what jansson allocates for the text: 64-bit glibc, jansson 2.14.
 * Every value but the first follows one of `{ [ , :`. */
static size_t tree_bytes(const char *text, size_t len) {
    size_t bytes = 0;
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{') {
            bytes += 232;
        } else if (c == '[') {
            bytes += 136;
        } else if (c == ',' || c == ':') {
            bytes += 48;
        }
    }
    return bytes;
}

/* An allocation of this thread's parse has failed. */
static _Thread_local bool no_memory;

void rp_json_note_no_memory(void) { no_memory = true; }

json_t *rp_json_parse(const char *text, size_t len, size_t flags, json_error_t *where,
                      bool *out_no_memory) {
    no_memory = false;
    json_t *root = json_loadb(text, len, flags, where);
    *out_no_memory = no_memory || (!root && json_error_code(where) == json_error_out_of_memory);
    if (*out_no_memory) {
        json_decref(root);
        root = NULL;
    }
    return root;
}

int rp_json_text_load(const char *text, size_t len, const char *name, json_t **out_root,
                      struct rp_error *err) {
    return rp_json_text_load_with(text, len, name, 0, out_root, err);
}

int rp_json_text_load_with(const char *text, size_t len, const char *name, size_t flags,
                           json_t **out_root, struct rp_error *err) {
    json_error_t where;
    char message[128];
    bool out_of_memory;
    if (tree_bytes(text, len) > RP_JSON_TREE_BYTES_MAX)
        return rp_error_set(err, RP_STATUS_RANGE, "%s: JSON with too many values", name);
    *out_root = rp_json_parse(text, len, JSON_REJECT_DUPLICATES | flags, &where, &out_of_memory);
    if (*out_root)
        return RP_OK;
    if (out_of_memory)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: out of memory", name);
    return rp_error_set(err, RP_STATUS_FORMAT, "%s: not valid JSON: line %d, column %d: %s", name,
                        where.line, where.column,
                        rp_text_for_message(message, sizeof message, where.text));
}

int rp_json_file_load(const char *dir, const char *name, json_t **out_root, struct rp_error *err) {
    int fd;
    uint64_t bytes;
    int status = rp_model_file_open(dir, name, &fd, &bytes, err);
    if (status != RP_OK)
        return status;
    if (bytes > RP_JSON_FILE_BYTES_MAX) {
        close(fd);
        return rp_error_set(err, RP_STATUS_RANGE, "%s: has %llu bytes, at most %zu are read", name,
                            (unsigned long long)bytes, RP_JSON_FILE_BYTES_MAX);
    }
    char *text = rp_alloc((size_t)bytes);
    int64_t got = text ? rp_model_file_read(fd, text, bytes, 0) : 0;
    int reason = errno;
    close(fd);
    if (!text)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: out of memory", name);
    if (got < 0)
        status = rp_error_set(err, RP_STATUS_IO, "%s: cannot read: %s", name, strerror(reason));
    else
        status = rp_json_text_load(text, (size_t)got, name, out_root, err);
    rp_free(text);
    return status;
}
