/* replay_main.c - gives files to a fuzz target with any compiler: `fuzz_NAME_replay FILE|DIRECTORY
 * ...`. Each entry of a corpus is a regression test this way. Fails when there is none. */
#include "base/memory.h"
#include "tests/fuzz/fuzz_input.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static uint32_t replayed;

static void replay(const char *path) {
    struct stat info;
    FILE *file = fopen(path, "rb");
    if (!file || fstat(fileno(file), &info) != 0) {
        fprintf(stderr, "%s: cannot be read\n", path);
        exit(1);
    }
    size_t len = (size_t)info.st_size;
    uint8_t *bytes = rp_alloc(len);
    RP_ASSERT(bytes && fread(bytes, 1, len, file) == len);
    fclose(file);
    printf("%s\n", path); /* the last line names the input of a crash */
    fflush(stdout);
    (void)LLVMFuzzerTestOneInput(bytes, len);
    rp_free(bytes);
    replayed++;
}

static void replay_folder(const char *folder) {
    struct dirent **entries;
    int count = scandir(folder, &entries, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.')
            replay(path);
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        struct stat info;
        if (stat(argv[i], &info) == 0 && S_ISDIR(info.st_mode))
            replay_folder(argv[i]);
        else
            replay(argv[i]);
    }
    printf("%u inputs\n", replayed);
    return replayed ? 0 : 1;
}
