/* failing_main.c - `failing_reprise N serve DIR ...`: the program's serve command, whose N-th
 * allocation fails (0: none). SIGUSR1 prints the number of allocations. */
#include "base/memory.h"
#include "server/cli/commands.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void on_usr1(int number) {
    char line[40];
    (void)number;
    int len =
        snprintf(line, sizeof line, "allocations %llu\n", (unsigned long long)rp_alloc_count());
    (void)!write(STDERR_FILENO, line, (size_t)len);
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    signal(SIGUSR1, on_usr1);
    rp_alloc_fail_at(strtoull(argv[1], NULL, 10));
    return rp_cmd_serve(argc - 2, argv + 2);
}
