/* pair_server.h - a server as a side of a pair: a running one, or a child process.
 *
 * A sample sends all sequences at once, streamed, and waits until all have ended. RP_PAIR_STEP is
 * then the median over them of the time per output token: the step time as seen by a client. A
 * failed request ends the comparison.
 *
 * Thread: one. */
#ifndef RP_BENCH_PAIR_SERVER_H
#define RP_BENCH_PAIR_SERVER_H

#include "bench/load/load_run.h"
#include "bench/pair.h"

#include <sys/types.h>

struct rp_pair_server {
    char url[256];
    struct rp_load_server about; /* its self-description; without a model: not read yet */
    pid_t child;                 /* 0: not a child */
};

/* Starts `program serve DIR --host 127.0.0.1 --port N` with the extra arguments (NULL-terminated)
 * and waits until it is ready; its output is discarded. It gets a SIGTERM when this process dies.
 * Call close in any case. */
int rp_pair_server_start(const char *program, const char *dir, char *const *words,
                         struct rp_pair_server *out, struct rp_error *err) RP_MUST_USE;
/* Stops a child process and waits for it; legal on a zeroed struct. */
void rp_pair_server_close(struct rp_pair_server *server);

/* rp_pair_side.sample, by the wall clock. */
int rp_pair_server_sample(struct rp_pair_server *server, const struct rp_pair_load *load,
                          uint64_t seed, double *out, struct rp_error *err) RP_MUST_USE;

#endif
