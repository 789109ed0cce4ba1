/* The scripted server as a process of a test. */
#include "tests/support/scripted_server.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void tell_ready(void *context) {
    const int *fd = context;
    if (write(*fd, "!", 1) != 1)
        _exit(1);
}

bool scripted_start(struct scripted_server *server) {
    int ready[2];
    char byte;
    server->shared = mmap(NULL, sizeof *server->shared, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (server->shared == MAP_FAILED || pipe(ready) != 0)
        return false;
    server->pid = fork();
    if (server->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ready[0]);
        _exit(scripted_serve(0, server->shared, tell_ready, &ready[1]));
    }
    close(ready[1]);
    bool is_ready = server->pid > 0 && read(ready[0], &byte, 1) == 1;
    close(ready[0]);
    server->port = server->shared->port;
    snprintf(server->url, sizeof server->url, "http://127.0.0.1:%u", (unsigned)server->port);
    return is_ready;
}

void scripted_stop(struct scripted_server *server) {
    if (server->pid > 0) {
        kill(server->pid, SIGTERM);
        waitpid(server->pid, NULL, 0);
    }
    server->pid = 0;
}

void scripted_free(struct scripted_server *server) {
    scripted_stop(server);
    if (server->shared && server->shared != MAP_FAILED)
        munmap(server->shared, sizeof *server->shared);
    server->shared = NULL;
}
