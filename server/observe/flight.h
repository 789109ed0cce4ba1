/* flight.h - keeps the past on its own: when something goes wrong (flight_watch.h) or SIGUSR2
 * comes, the last seconds go into a file, with a second file that says why. At most one dump a
 * minute, and a directory of bounded size (metrics/dump_dir.h); a process that dies of a signal
 * leaves its rings there too (metrics/crash_dump.h).
 *
 * Thread: one of its own, of low priority, which looks twice a second, copies the rings and writes:
 * neither the loop nor the engine thread waits for it. start, stop, request and describe: the loop
 * thread.
 * Memory: a trace in pieces; its events while it is written. */
#ifndef RP_SERVER_FLIGHT_H
#define RP_SERVER_FLIGHT_H

#include "base/json_writer.h"
#include "metrics/metrics.h"
#include "server/observe/flight_watch.h"

struct rp_server;
struct rp_flight;

struct rp_flight_config {
    const char *dir; /* NULL or "": no dumps */
    uint64_t bytes_max;
    uint32_t interval_s; /* between dumps; SIGUSR2: one second */
    double seconds;      /* of the past in a dump */
    double step_factor;  /* as in struct rp_flight_rules */
    uint32_t preemptions;
};
#define RP_FLIGHT_DUMPS_MAX 16

/* Whether dumps can be written there, before a model is loaded. */
int rp_flight_check(const struct rp_flight_config *config, struct rp_error *err) RP_MUST_USE;
/* Without a directory *out is NULL and all is well. The engine is there. */
int rp_flight_start(struct rp_server *server, struct rp_flight **out,
                    struct rp_error *err) RP_MUST_USE;
/* Finishes the dump in work. NULL is allowed. */
void rp_flight_stop(struct rp_flight *flight);
/* SIGUSR2. NULL: says in the log that there is no directory. */
void rp_flight_request(struct rp_flight *flight);
/* The members of GET /debug/flight. NULL is allowed. */
void rp_flight_describe(struct rp_flight *flight, struct rp_json *json);
/* reprise_flight_dumps_total{trigger}; before the first scrape. NULL: zeros. */
void rp_flight_register(struct rp_flight *flight, struct rp_registry *registry);

#endif
