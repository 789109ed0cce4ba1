/* cmd_chat_server.c - `reprise chat DIR`: the same server as `reprise serve DIR`, as a child
 * process that nobody else can use: it listens on a free port of 127.0.0.1 and requires a random
 * key. */
#include "base/hash.h"
#include "base/memory.h"
#include "server/cli/cmd_chat.h"
#include "server/cli/flags.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ARGUMENTS_MAX = 128 };

static bool make_key(char out[65]) {
    unsigned char bytes[32];
    if (!rp_random_fill(bytes, sizeof bytes))
        return false;
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    return true;
}

/* Replaces the forked child with the program. It leaves the terminal's foreground group, so that
 * Ctrl-C ends an answer and not the server. */
static _Noreturn void execute(const char *const *argv, const char *key, int log, pid_t parent) {
    int null = open("/dev/null", O_RDWR);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(0);
    signal(SIGINT, SIG_DFL);
    setenv("REPRISE_API_KEY", key, 1);
    if (null >= 0) {
        dup2(null, STDIN_FILENO);
        dup2(null, STDOUT_FILENO);
    }
    dup2(log, STDERR_FILENO);
    execv("/proc/self/exe", (char *const *)(uintptr_t)argv);
    _exit(127);
}

static int launch(const char *dir, char *const *flags, struct rp_chat_server *out,
                  struct rp_error *err) {
    const char *argv[ARGUMENTS_MAX] = {"reprise", "serve",       dir,    "--max-num-seqs",
                                       "4",       "--log-level", "error"};
    static const char *const last[] = {"--host", "127.0.0.1",  "--port", "0",         "--uds",
                                       "",       "--tls-cert", "",       "--tls-key", ""};
    size_t used = 7;
    int ends[2];
    for (; *flags && used < ARGUMENTS_MAX - RP_ARRAY_COUNT(last) - 1; flags++)
        argv[used++] = *flags;
    if (*flags)
        return rp_error_set(err, RP_STATUS_RANGE, "chat: too many arguments");
    memcpy(argv + used, last, sizeof last); /* the last one of a flag is in force */
    if (!make_key(out->key))
        return rp_error_set(err, RP_STATUS_IO, "no system source of random numbers");
    if (pipe2(ends, O_CLOEXEC) != 0)
        return rp_error_set(err, RP_STATUS_IO, "pipe: %s", strerror(errno));
    fcntl(ends[1], F_SETFL, O_NONBLOCK); /* the child never waits for a reader */
    pid_t parent = getpid();
    out->child = fork();
    if (out->child == 0)
        execute(argv, out->key, ends[1], parent);
    close(ends[1]);
    out->log = ends[0];
    if (out->child < 0) {
        out->child = 0;
        return rp_error_set(err, RP_STATUS_IO, "fork: %s", strerror(errno));
    }
    return RP_OK;
}

/* Reads the child's messages until it is ready. A terminal shows the last one as progress; if the
 * child ends instead, all of them are printed. True: ready, and url is filled. */
static bool wait_ready(struct rp_chat_server *server) {
    struct rp_buffer all;
    bool show = isatty(STDERR_FILENO), ready = false;
    char line[1024];
    int copy = dup(server->log); /* the original stays open: a child that writes needs a reader */
    FILE *log = copy >= 0 ? fdopen(copy, "r") : NULL;
    rp_buffer_init(&all, (size_t)1 << 20);
    while (log && !ready && fgets(line, sizeof line, log)) {
        if (sscanf(line, "ready: %63s serves", server->url) == 1) {
            ready = true;
            break;
        }
        if (show)
            fprintf(stderr, "\r\x1b[K%.*s", (int)RP_MIN(strcspn(line, "\n"), (size_t)78), line);
        rp_buffer_puts(&all, line);
    }
    if (show)
        fputs("\r\x1b[K", stderr);
    if (!ready)
        fprintf(stderr, "%.*s", (int)all.len, all.data ? all.data : "");
    if (log)
        fclose(log);
    rp_buffer_deinit(&all);
    return ready;
}

int rp_chat_server_start(const char *dir, char *const *flags, struct rp_chat_server *out,
                         int *out_code, struct rp_error *err) {
    int how = 0;
    memset(out, 0, sizeof *out);
    out->log = -1;
    *out_code = RP_EXIT_FAILURE;
    int status = launch(dir, flags, out, err);
    if (status != RP_OK || wait_ready(out)) {
        /* Its later messages stay in the pipe: at this log level they are few. */
        if (status == RP_OK)
            fcntl(out->log, F_SETFL, O_NONBLOCK);
        return status;
    }
    while (waitpid(out->child, &how, 0) < 0 && errno == EINTR) {
    }
    out->child = 0;
    *out_code = WIFEXITED(how) && WEXITSTATUS(how) ? WEXITSTATUS(how) : RP_EXIT_FAILURE;
    return RP_STATUS_CANCELLED;
}

void rp_chat_server_close(struct rp_chat_server *server) {
    char text[4096];
    if (server->child > 0) {
        bool ended = waitpid(server->child, NULL, WNOHANG) == server->child;
        if (ended) { /* by itself: the reason */
            ssize_t len = read(server->log, text, sizeof text);
            if (len > 0)
                fprintf(stderr, "%.*s", (int)len, text);
        } else {
            kill(server->child, SIGTERM);
            while (waitpid(server->child, NULL, 0) < 0 && errno == EINTR) {
            }
        }
    }
    if (server->log >= 0)
        close(server->log);
    server->child = 0;
    server->log = -1;
}
