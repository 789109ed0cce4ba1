/* scripted_server [PORT]: the server of scripts (support/scripted_server.h) as a program; prints
 * its URL and serves until SIGTERM. */
#include "tests/support/scripted_server.h"

#include <stdio.h>
#include <stdlib.h>

static void print_url(void *context) {
    const struct scripted_shared *shared = context;
    printf("http://127.0.0.1:%u\n", (unsigned)shared->port);
    fflush(stdout);
}

int main(int argc, char **argv) {
    struct scripted_shared *shared = calloc(1, sizeof *shared);
    if (!shared)
        return 1;
    int code = scripted_serve((uint16_t)(argc > 1 ? atoi(argv[1]) : 0), shared, print_url, shared);
    free(shared);
    return code;
}
