#include "tests/fuzz/fuzz_input.h"

#include "base/memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[] = "/dev/shm/reprise-fuzz-XXXXXX";
static int dir_fd = -1;
static const char *names[8]; /* of the files written, to remove them */

uint8_t fuzz_byte(struct fuzz_input *input) {
    if (input->len == 0)
        return 0;
    input->len--;
    return (uint8_t)*input->bytes++;
}

struct fuzz_part fuzz_until(struct fuzz_input *input, char separator) {
    const char *end = input->len ? memchr(input->bytes, separator, input->len) : NULL;
    struct fuzz_part part = {input->bytes, end ? (size_t)(end - input->bytes) : input->len};
    size_t used = part.len + (end != NULL);
    input->bytes += used;
    input->len -= used;
    return part;
}

char *fuzz_string(struct fuzz_part part) {
    char *copy = rp_strndup(part.text, part.len);
    RP_ASSERT(copy);
    return copy;
}

static void remove_dir(void) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(names) && names[i]; i++)
        fuzz_remove(names[i]);
    rmdir(dir);
}

const char *fuzz_dir(void) {
    if (dir_fd < 0) {
        RP_ASSERT(mkdtemp(dir));
        dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        RP_ASSERT(dir_fd >= 0);
        atexit(remove_dir);
    }
    return dir;
}

void fuzz_write(const char *name, const void *bytes, size_t len) {
    size_t i = 0;
    (void)fuzz_dir();
    while (names[i] && strcmp(names[i], name) != 0)
        RP_ASSERT(++i < RP_ARRAY_COUNT(names));
    names[i] = name;
    int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    RP_ASSERT(fd >= 0);
    RP_ASSERT(write(fd, bytes, len) == (ssize_t)len);
    close(fd);
}

void fuzz_remove(const char *name) { (void)unlinkat(dir_fd, name, 0); }
