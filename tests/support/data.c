#include "tests/support/data.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void rp_test_source(const char *relative, char *out, size_t size) {
    const char *root = getenv("REPRISE_SOURCE_DIR");
    snprintf(out, size, "%s/%s", root ? root : ".", relative);
}

bool rp_test_data(const char *relative, char *out, size_t size) {
    const char *root = getenv("REPRISE_TEST_DATA");
    if (root && *root) {
        snprintf(out, size, "%s/%s", root, relative);
    } else {
        char path[1024];
        snprintf(path, sizeof path, "../shared/data/%s", relative);
        rp_test_source(path, out, size);
    }
    if (access(out, R_OK) == 0)
        return true;
    printf("skipped: test data not found: %s (set REPRISE_TEST_DATA)\n", relative);
    return false;
}
