/* cublaslt_file_cuda.c - stores the chosen algorithms on disk, as text:
 *
 *   reprise cublaslt 1, version 130100, NVIDIA H200, 132 SMs
 *   bf16 f32 m 8 n 4096 k 4096 in 4096 out 4096 align 256 bias 0 add 0 ns 9100 algo 1f 0 0 0 0 0 0 0
 *   ...
 *   end 35 6a09e667f3bcc908     lines between, and the hash of all that is before this line */
#include "base/hash.h"
#include "quant/cublaslt/cublaslt_internal_cuda.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_BYTES_MAX ((size_t)16 << 20)
#define HASH_SEED      0x6375626c61736c74u

static void put_header(const struct rp_cublaslt *lt, struct rp_buffer *out) {
    rp_buffer_printf(out, "reprise cublaslt 1, version %zu, %s\n", lt->version, lt->gpu);
}

static const char *dtype_text(uint32_t dtype) { return rp_dtype_name((enum rp_dtype)dtype); }

static void put_entry(const struct cublaslt_entry *entry, struct rp_buffer *out) {
    const struct cublaslt_problem *p = &entry->problem;
    rp_buffer_printf(out,
                     "%s %s m %u n %u k %u in %" PRIu64 " out %" PRIu64
                     " align %u bias %u add %u ns %" PRIu64 " algo",
                     dtype_text(p->dtype), dtype_text(p->out_dtype), p->m, p->n, p->k, p->in_stride,
                     p->out_stride, p->alignment, p->bias, p->accumulate, entry->time_ns);
    for (size_t i = 0; i < RP_ARRAY_COUNT(entry->algorithm.data); i++)
        rp_buffer_printf(out, " %" PRIx64, entry->algorithm.data[i]);
    rp_buffer_puts(out, "\n");
}

static bool parse_dtype(const char *text, uint32_t *out) {
    for (uint32_t dtype = RP_DTYPE_F32; dtype <= RP_DTYPE_BF16; dtype++)
        if (strcmp(text, dtype_text(dtype)) == 0) {
            *out = dtype;
            return true;
        }
    return false;
}

static bool parse_entry(const char *line, struct cublaslt_entry *out) {
    struct cublaslt_problem *p = &out->problem;
    uint64_t *a = out->algorithm.data;
    char dtype[8], out_dtype[8];
    memset(out, 0, sizeof *out);
    int count = sscanf(line,
                       "%7s %7s m %u n %u k %u in %" SCNu64 " out %" SCNu64
                       " align %u bias %u add %u ns %" SCNu64 " algo %" SCNx64 " %" SCNx64
                       " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64,
                       dtype, out_dtype, &p->m, &p->n, &p->k, &p->in_stride, &p->out_stride,
                       &p->alignment, &p->bias, &p->accumulate, &out->time_ns, &a[0], &a[1], &a[2],
                       &a[3], &a[4], &a[5], &a[6], &a[7]);
    return count == 19 && parse_dtype(dtype, &p->dtype) && parse_dtype(out_dtype, &p->out_dtype);
}

/* The whole file, with a zero after it; len 0 when there is none. */
static void read_all(const char *path, struct rp_buffer *out) {
    FILE *file = fopen(path, "rbe");
    size_t got = 0;
    if (!file)
        return;
    do {
        if (!rp_buffer_reserve(out, 65536))
            break;
        got = fread(out->data + out->len, 1, 65535, file);
        out->len += got;
    } while (got > 0);
    if (ferror(file) || out->failed || got > 0)
        out->len = 0;
    else
        out->data[out->len] = '\0';
    (void)fclose(file);
}

/* The entries of an undamaged file of this library and GPU, each line ended by a zero; 0: none. */
static uint32_t check(const struct rp_cublaslt *lt, struct rp_buffer *text, size_t *out_first) {
    struct rp_buffer header;
    uint64_t hash = 0;
    uint32_t count = 0, lines = 0;
    rp_buffer_init(&header, 0);
    put_header(lt, &header);
    bool good = !header.failed && text->len > header.len && strlen(text->data) == text->len &&
                memcmp(text->data, header.data, header.len) == 0;
    *out_first = header.len;
    rp_buffer_deinit(&header);
    if (!good)
        return 0;
    char *end = text->len > 1 ? memrchr(text->data, '\n', text->len - 1) : NULL;
    if (!end || sscanf(end + 1, "end %u %" SCNx64, &count, &hash) != 2)
        return 0;
    size_t len = (size_t)(end + 1 - text->data);
    for (size_t i = *out_first; i < len; i++)
        lines += text->data[i] == '\n';
    if (lines != count || rp_hash64(text->data, len, HASH_SEED) != hash)
        return 0;
    for (size_t i = *out_first; i < len; i++)
        if (text->data[i] == '\n')
            text->data[i] = '\0';
    return count;
}

void rp_cublaslt_file_read(struct rp_cublaslt *lt) {
    struct rp_buffer text;
    size_t at = 0;
    if (!lt->file[0])
        return;
    rp_buffer_init(&text, FILE_BYTES_MAX);
    read_all(lt->file, &text);
    uint32_t count = text.len ? check(lt, &text, &at) : 0;
    for (uint32_t i = 0; i < count; i++) {
        struct cublaslt_entry entry;
        if (parse_entry(text.data + at, &entry) && !rp_cublaslt_find(lt, &entry.problem) &&
            !rp_cublaslt_add(lt, &entry))
            break;
        at += strlen(text.data + at) + 1;
    }
    rp_buffer_deinit(&text);
}

static bool write_all(int fd, const char *data, size_t len) {
    while (len > 0) {
        ssize_t done = write(fd, data, len);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        data += done;
        len -= (size_t)done;
    }
    return true;
}

/* Written to a temporary file, then renamed: a reader sees the old file or the new one. */
static bool replace_file(const char *path, const struct rp_buffer *text) {
    char beside[600];
    snprintf(beside, sizeof beside, "%s.%ld", path, (long)getpid());
    int fd = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return false;
    bool good = write_all(fd, text->data, text->len);
    good = close(fd) == 0 && good;
    good = good && rename(beside, path) == 0;
    if (!good)
        (void)unlink(beside);
    return good;
}

/* Creates parent directories; the following open reports failures. */
static void make_folders(const char *file) {
    char folder[512];
    for (size_t i = 0; file[i] && i + 1 < sizeof folder; i++) {
        folder[i] = file[i];
        folder[i + 1] = '\0';
        if (i > 0 && file[i + 1] == '/')
            (void)mkdir(folder, 0755);
    }
}

bool rp_cublaslt_file_write(const struct rp_cublaslt *lt) {
    struct rp_buffer text;
    uint32_t count = 0;
    if (!lt->file[0])
        return false;
    make_folders(lt->file);
    rp_buffer_init(&text, FILE_BYTES_MAX);
    put_header(lt, &text);
    for (uint32_t i = 0; i < lt->entry_count; i++)
        if (lt->entries[i]->time_ns) { /* others were never timed */
            put_entry(lt->entries[i], &text);
            count++;
        }
    if (!text.failed)
        rp_buffer_printf(&text, "end %u %016" PRIx64 "\n", count,
                         rp_hash64(text.data, text.len, HASH_SEED));
    bool good = !text.failed && replace_file(lt->file, &text);
    rp_buffer_deinit(&text);
    return good;
}
