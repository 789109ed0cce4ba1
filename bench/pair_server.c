#include "bench/pair_server.h"

#include "base/memory.h"
#include "bench/load/load_metrics.h"
#include "bench/load/load_plan.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WORDS_MAX       64
#define READY_TRIES     3000 /* at 100 ms */
#define REQUEST_SECONDS 600.0

/* A port that is currently free; 0: none. */
static unsigned free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && bind(fd, (struct sockaddr *)&address, len) == 0 &&
              getsockname(fd, (struct sockaddr *)&address, &len) == 0;
    if (fd >= 0)
        close(fd);
    return ok ? ntohs(address.sin_port) : 0;
}

/* Replaces the forked child with the program. */
static _Noreturn void execute(const char *program, char *const *argv) {
    int null = open("/dev/null", O_RDWR);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (null >= 0) {
        dup2(null, STDIN_FILENO);
        dup2(null, STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
    }
    execv(program, argv);
    _exit(127);
}

static int wait_ready(struct rp_pair_server *server, struct rp_error *err) {
    const struct rp_load_target target = {.base_url = server->url};
    const struct timespec interval = {.tv_nsec = 100000000};
    for (int i = 0; i < READY_TRIES; i++) {
        int how = 0;
        char *body = rp_load_get(&target, "/health/ready", NULL);
        bool ready = body != NULL;
        rp_free(body);
        if (ready)
            return RP_OK;
        if (waitpid(server->child, &how, WNOHANG) == server->child) {
            server->child = 0;
            return rp_error_set(err, RP_STATUS_DEVICE,
                                "the server exited during startup, with exit code %d",
                                WIFEXITED(how) ? WEXITSTATUS(how) : -1);
        }
        nanosleep(&interval, NULL);
    }
    return rp_error_set(err, RP_STATUS_DEVICE, "the server did not become ready");
}

int rp_pair_server_start(const char *program, const char *dir, char *const *words,
                         struct rp_pair_server *out, struct rp_error *err) {
    char port[16], *argv[WORDS_MAX + 8];
    size_t used = 0;
    unsigned number = free_port();
    memset(out, 0, sizeof *out);
    if (!number)
        return rp_error_set(err, RP_STATUS_IO, "no free port: %s", strerror(errno));
    snprintf(port, sizeof port, "%u", number);
    snprintf(out->url, sizeof out->url, "http://127.0.0.1:%u", number);
    argv[used++] = (char *)(uintptr_t)program;
    argv[used++] = (char *)(uintptr_t) "serve";
    argv[used++] = (char *)(uintptr_t)dir;
    argv[used++] = (char *)(uintptr_t) "--host";
    argv[used++] = (char *)(uintptr_t) "127.0.0.1";
    argv[used++] = (char *)(uintptr_t) "--port";
    argv[used++] = port;
    for (size_t i = 0; words[i] && used < RP_ARRAY_COUNT(argv) - 1; i++)
        argv[used++] = words[i];
    argv[used] = NULL;
    out->child = fork();
    if (out->child == 0)
        execute(program, argv);
    if (out->child < 0) {
        out->child = 0;
        return rp_error_set(err, RP_STATUS_IO, "fork: %s", strerror(errno));
    }
    return wait_ready(out, err);
}

void rp_pair_server_close(struct rp_pair_server *server) {
    if (server->child > 0) {
        kill(server->child, SIGTERM);
        while (waitpid(server->child, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    server->child = 0;
}

static int make_plan(const struct rp_pair_server *server, const struct rp_pair_load *load,
                     uint64_t seed, struct rp_load_plan *out, struct rp_error *err) {
    uint32_t vocab = server->about.vocab ? server->about.vocab : 30000;
    const struct rp_load_source source = {.dataset = RP_LOAD_RANDOM,
                                          .count = load->sequences,
                                          .seed = seed,
                                          .vocab_begin = vocab / 10,
                                          .vocab_end = vocab - vocab / 10,
                                          .input = {load->input - load->shared, 0},
                                          .output = {load->output, 0},
                                          .prefix_tokens = load->shared,
                                          .arrival = RP_LOAD_CLOSED,
                                          .time_scale = 1,
                                          .length_scale = 1};
    return rp_load_plan_make(&source, out, err);
}

/* Computes the sample; fails if any request failed. */
static int read_value(const struct rp_load_plan *plan, const struct rp_load_records *records,
                      enum rp_pair_measure measure, double *out, struct rp_error *err) {
    const struct rp_load_rules rules = {.exclude_warm_up = false};
    struct rp_load_summary summary;
    for (uint32_t i = 0; i < records->count; i++)
        if (records->records[i].outcome != RP_LOAD_OK)
            return rp_error_set(err, RP_STATUS_DEVICE, "a request failed: %s",
                                records->records[i].error[0] ? records->records[i].error
                                                             : "no answer");
    int status = rp_load_summarize(plan, records, &rules, &summary, err);
    if (status != RP_OK)
        return status;
    if (measure == RP_PAIR_STEP)
        *out = summary.latency[RP_LOAD_TPOT].p50;
    else
        *out = (double)(measure == RP_PAIR_OUTPUT ? summary.output_tokens : summary.input_tokens) /
               summary.seconds;
    return RP_OK;
}

int rp_pair_server_sample(struct rp_pair_server *server, const struct rp_pair_load *load,
                          uint64_t seed, double *out, struct rp_error *err) {
    struct rp_load_run_options options = {.target = {.base_url = server->url},
                                          .closed = true,
                                          .max_concurrency = load->sequences,
                                          .timeout_s = REQUEST_SECONDS};
    struct rp_load_plan plan = {.count = 0};
    struct rp_load_records records = {.count = 0};
    int status =
        server->about.model[0] ? RP_OK : rp_load_probe(&options.target, &server->about, err);
    options.target.model = server->about.model;
    if (status == RP_OK)
        status = make_plan(server, load, seed, &plan, err);
    if (status == RP_OK)
        status = rp_load_run(&options, &plan, &records, err);
    if (status == RP_OK)
        status = read_value(&plan, &records, load->measure, out, err);
    rp_load_records_free(&records);
    rp_load_plan_free(&plan);
    return status;
}
