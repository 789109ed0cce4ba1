#include "device/nvrtc_internal_cuda.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CODE_BYTES_MAX ((size_t)64 << 20)
#define LINE_BYTES_MAX 160
#define HASH_SEED      0x6e76727463u

static int put_line(char line[LINE_BYTES_MAX], struct rp_hash128 source, size_t bytes,
                    uint64_t hash) {
    return snprintf(line, LINE_BYTES_MAX,
                    "reprise nvrtc 1, source %016" PRIx64 "%016" PRIx64
                    ", %zu bytes, hash %016" PRIx64 "\n",
                    source.high, source.low, bytes, hash);
}

/* The rest of the file is `bytes` long, hashes to what its first line says, and is of this
 * source. */
static bool read_code(FILE *file, struct rp_hash128 source, struct rp_buffer *out) {
    char line[LINE_BYTES_MAX], expected[LINE_BYTES_MAX];
    size_t bytes = 0;
    if (!fgets(line, sizeof line, file) ||
        sscanf(line, "reprise nvrtc 1, source %*32[0-9a-f], %zu bytes", &bytes) != 1 ||
        bytes == 0 || bytes > CODE_BYTES_MAX || !rp_buffer_reserve(out, bytes + 1))
        return false;
    char *to = out->data + out->len;
    if (fread(to, 1, bytes + 1, file) != bytes)
        return false;
    put_line(expected, source, bytes, rp_hash64(to, bytes, HASH_SEED));
    if (strcmp(line, expected) != 0)
        return false;
    out->len += bytes;
    return true;
}

bool rp_nvrtc_file_read(const char *path, struct rp_hash128 source, struct rp_buffer *out) {
    FILE *file = fopen(path, "rbe");
    if (!file)
        return false;
    bool good = read_code(file, source, out);
    (void)fclose(file);
    return good;
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

/* Those above the file; the open that follows says whether they are there. */
static void make_folders(const char *file) {
    char folder[PATH_MAX];
    for (size_t i = 0; file[i] && i + 1 < sizeof folder; i++) {
        folder[i] = file[i];
        folder[i + 1] = '\0';
        if (i > 0 && file[i + 1] == '/')
            (void)mkdir(folder, 0755);
    }
}

bool rp_nvrtc_file_write(const char *path, struct rp_hash128 source, const void *code,
                         size_t bytes) {
    char beside[PATH_MAX], line[LINE_BYTES_MAX];
    int len = put_line(line, source, bytes, rp_hash64(code, bytes, HASH_SEED));
    if (snprintf(beside, sizeof beside, "%s.%ld", path, (long)getpid()) >= (int)sizeof beside)
        return false;
    make_folders(path);
    int fd = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return false;
    bool good = write_all(fd, line, (size_t)len) && write_all(fd, code, bytes);
    good = close(fd) == 0 && good;
    good = good && rename(beside, path) == 0;
    if (!good)
        (void)unlink(beside);
    return good;
}
