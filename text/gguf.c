#include "text/gguf.h"

#include "text/json_file.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The head is read in growing pieces: most have a few megabytes. */
#define FIRST_BYTES ((size_t)4 << 20)

bool rp_gguf_is_path(const char *path) {
    size_t len = strlen(path);
    return len > 5 && strcmp(path + len - 5, ".gguf") == 0;
}

/* Parses the file; its keys and tensors replace those in *gguf. */
static int read_head(struct rp_gguf *gguf, int fd, uint64_t file_bytes, unsigned char **out_head,
                     uint64_t *out_data_begin, struct rp_error *err) {
    size_t limit = (size_t)RP_MIN(file_bytes, (uint64_t)RP_GGUF_HEAD_BYTES_MAX);
    size_t len = RP_MIN(limit, FIRST_BYTES);
    for (;;) {
        bool is_short = false;
        unsigned char *head = rp_alloc(RP_MAX(len, (size_t)1));
        if (!head)
            return rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: out of memory", gguf->name);
        int status =
            rp_model_file_read(fd, head, len, 0) == (int64_t)len
                ? rp_gguf_parse(gguf, head, len, file_bytes, out_data_begin, &is_short, err)
                : rp_error_set(err, RP_STATUS_IO, "%s: cannot read the header", gguf->name);
        if (status == RP_OK && !is_short) {
            *out_head = head;
            return RP_OK;
        }
        rp_free(head);
        if (status != RP_OK)
            return status;
        if (len == limit)
            return rp_error_set(err, RP_STATUS_RANGE,
                                "%s: the header has more than %zu MiB, which is the limit",
                                gguf->name, RP_GGUF_HEAD_BYTES_MAX >> 20);
        len = RP_MIN(limit, len * 4);
    }
}

/* "NAME-00002-of-00004.gguf": the numbers, and where they begin. */
static bool split_name(const char *name, uint32_t *out_number, uint32_t *out_count,
                       size_t *out_at) {
    static const char form[] = "-00000-of-00000.gguf";
    size_t len = strlen(name), size = sizeof form - 1;
    if (len < size)
        return false;
    const char *end = name + len - size;
    for (size_t i = 0; i < size; i++)
        if (form[i] == '0' ? end[i] < '0' || end[i] > '9' : end[i] != form[i])
            return false;
    *out_number = (uint32_t)strtoul(end + 1, NULL, 10);
    *out_count = (uint32_t)strtoul(end + 10, NULL, 10);
    *out_at = len - size;
    return true;
}

static int open_file(struct rp_gguf *gguf, const char *dir, const char *name,
                     unsigned char **out_head, struct rp_error *err) {
    struct rp_gguf_file *file = &gguf->files[gguf->file_count];
    uint64_t bytes;
    file->name = rp_arena_strndup(&gguf->arena, name, strlen(name));
    if (!file->name)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: out of memory", name);
    int status = rp_model_file_open(dir, name, &file->fd, &bytes, err);
    if (status != RP_OK)
        return status;
    gguf->file_count++;
    gguf->name = file->name;
    return read_head(gguf, file->fd, bytes, out_head, &file->data_begin, err);
}

static int compare_names(const void *left, const void *right) {
    return strcmp(((const struct rp_gguf_tensor *)left)->name,
                  ((const struct rp_gguf_tensor *)right)->name);
}

/* Adds the tensors of the file opened last to `all`. */
static int add_tensors(const struct rp_gguf *gguf, struct rp_gguf_tensor *all, uint32_t *count,
                       struct rp_error *err) {
    if (gguf->tensor_count > RP_GGUF_TENSORS_MAX - *count)
        return rp_error_set(err, RP_STATUS_RANGE, "%s: more than %u tensors in all files",
                            gguf->name, RP_GGUF_TENSORS_MAX);
    for (uint32_t i = 0; i < gguf->tensor_count; i++) {
        all[*count] = gguf->tensors[i];
        all[(*count)++].file = gguf->file_count - 1;
    }
    return RP_OK;
}

/* Files 2 to `count`; the keys stay those of the first. */
static int open_rest(struct rp_gguf *gguf, const char *dir, uint32_t count, size_t at,
                     struct rp_error *err) {
    struct rp_gguf first = *gguf;
    char name[NAME_MAX + 1];
    uint32_t all_count = 0;
    struct rp_gguf_tensor *all = rp_arena_calloc(&gguf->arena, RP_GGUF_TENSORS_MAX, sizeof *all);
    if (!all)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: out of memory", gguf->name);
    int status = add_tensors(gguf, all, &all_count, err);
    for (uint32_t i = 2; i <= count && status == RP_OK; i++) {
        uint32_t number = UINT32_MAX;
        unsigned char *head = NULL;
        snprintf(name, sizeof name, "%.*s-%05u-of-%05u.gguf", (int)at, first.name, i, count);
        status = open_file(gguf, dir, name, &head, err);
        if (status == RP_OK)
            status = rp_gguf_u32(gguf, "split.no", &number, err);
        if (status == RP_OK && number != i - 1)
            status = rp_gguf_refuse(gguf, RP_STATUS_FORMAT, "split.no",
                                    "differs from the number in the file's name", err);
        if (status == RP_OK)
            status = add_tensors(gguf, all, &all_count, err);
        rp_free(head);
    }
    gguf->name = first.name;
    gguf->keys = first.keys;
    gguf->key_count = first.key_count;
    gguf->tensors = all;
    gguf->tensor_count = all_count;
    if (status != RP_OK)
        return status;
    if (all_count > 0)
        qsort(all, all_count, sizeof *all, compare_names);
    for (uint32_t i = 1; i < all_count; i++)
        if (strcmp(all[i - 1].name, all[i].name) == 0)
            return rp_error_set(err, RP_STATUS_FORMAT, "%s: a tensor is in two of the split files",
                                gguf->files[all[i].file].name);
    return RP_OK;
}

/* Whether the split keys agree with the file's name. */
static int open_split(struct rp_gguf *gguf, const char *dir, struct rp_error *err) {
    uint32_t count = 1, number = 0, tensors = UINT32_MAX, name_number, name_count;
    size_t at;
    int status = rp_gguf_u32(gguf, "split.count", &count, err);
    if (status == RP_OK)
        status = rp_gguf_u32(gguf, "split.no", &number, err);
    if (status == RP_OK)
        status = rp_gguf_u32(gguf, "split.tensors.count", &tensors, err);
    if (status != RP_OK || count <= 1)
        return status;
    if (count > RP_GGUF_FILES_MAX)
        return rp_gguf_refuse(gguf, RP_STATUS_RANGE, "split.count", "is above 512", err);
    if (!split_name(gguf->name, &name_number, &name_count, &at) || name_count != count) {
        status = rp_gguf_refuse(gguf, RP_STATUS_FORMAT, "split.count",
                                "says that the file is one of several, its name does not", err);
        rp_error_hint(err, "the files of a split model are called NAME-00001-of-0000N.gguf");
        return status;
    }
    if (number != 0 || name_number != 1) {
        status = rp_error_set(err, RP_STATUS_INVALID, "%s: not the first file of a split model",
                              gguf->name);
        rp_error_hint(err, "give the file whose name ends in -00001-of-%05u.gguf", count);
        return status;
    }
    status = open_rest(gguf, dir, count, at, err);
    if (status == RP_OK && tensors != UINT32_MAX && tensors != gguf->tensor_count)
        status = rp_gguf_refuse(gguf, RP_STATUS_FORMAT, "split.tensors.count",
                                "differs from the number of tensors in the files", err);
    return status;
}

int rp_gguf_open(struct rp_gguf *gguf, const char *path, struct rp_error *err) {
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    memset(gguf, 0, sizeof *gguf);
    int len =
        snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path + 1) : 1, slash ? path : ".");
    if (len < 0 || (size_t)len >= sizeof dir || strlen(name) > NAME_MAX)
        return rp_error_set(err, RP_STATUS_INVALID, "%.200s: the path is too long", path);
    gguf->files = rp_arena_calloc(&gguf->arena, RP_GGUF_FILES_MAX, sizeof *gguf->files);
    gguf->name = name;
    int status = gguf->files ? open_file(gguf, dir, name, &gguf->head, err)
                             : rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: out of memory", name);
    if (status == RP_OK)
        status = open_split(gguf, dir, err);
    if (status != RP_OK)
        rp_gguf_close(gguf);
    return status;
}

void rp_gguf_close(struct rp_gguf *gguf) {
    for (uint32_t i = 0; i < gguf->file_count; i++)
        close(gguf->files[i].fd);
    rp_free(gguf->head);
    rp_arena_deinit(&gguf->arena);
    memset(gguf, 0, sizeof *gguf);
}

int rp_gguf_read(const struct rp_gguf *gguf, const struct rp_gguf_tensor *tensor, uint64_t begin,
                 void *out, uint64_t len, struct rp_error *err) {
    const struct rp_gguf_file *file = &gguf->files[tensor->file];
    RP_ASSERT(begin <= tensor->bytes && len <= tensor->bytes - begin);
    int64_t got = rp_model_file_read(file->fd, out, len, file->data_begin + tensor->offset + begin);
    if (got == (int64_t)len)
        return RP_OK;
    char name[160];
    return rp_error_set(err, RP_STATUS_IO, "%s: tensor %s: %s", file->name,
                        rp_text_for_message(name, sizeof name, tensor->name),
                        got < 0 ? strerror(errno)
                                : "the file ends inside its data: was it cut short?");
}
