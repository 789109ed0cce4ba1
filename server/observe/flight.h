/* flight.h - automatic trace dumps: when a trigger fires (flight_watch.h) or SIGUSR2 arrives, the
 * last seconds of the trace are written to a file, with a second file that gives the cause. At most
 * one dump per trigger and minute, in a directory of bounded size (metrics/dump_dir.h); a process
 * killed by a signal also writes its rings there (metrics/crash_dump.h).
 *
 * Thread: its own low-priority thread, which polls twice a second, copies the rings and writes;
 * it also samples the run-queue waits of the threads that compute steps (metrics/sched_waits.h),
 * every 10 ms while steps run and every 50 ms otherwise. Neither the loop nor the engine
 * thread waits for it. start, stop, request and describe: the loop thread.
 * Memory: one piece of a trace, and the copied events while it is written. */
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
    uint32_t interval_s; /* minimum between dumps of a trigger; for SIGUSR2: one second */
    double seconds;      /* length of trace in a dump */
    double step_factor;  /* as in struct rp_flight_rules */
    uint32_t preemptions;
};
#define RP_FLIGHT_DUMPS_MAX 16 /* a quarter of them for one trigger */

/* Checks before a model is loaded that dumps can be written to the directory. */
int rp_flight_check(const struct rp_flight_config *config, struct rp_error *err) RP_MUST_USE;
/* Without a directory *out is NULL and the result RP_OK. The engine must exist. */
int rp_flight_start(struct rp_server *server, struct rp_flight **out,
                    struct rp_error *err) RP_MUST_USE;
/* Finishes a dump in progress. NULL is allowed. */
void rp_flight_stop(struct rp_flight *flight);
/* Requests a dump (SIGUSR2). NULL: logs that there is no directory. */
void rp_flight_request(struct rp_flight *flight);
/* Writes the members of GET /debug/flight. NULL is allowed. */
void rp_flight_describe(struct rp_flight *flight, struct rp_json *json);
/* Registers reprise_flight_dumps_total{trigger}; call before the first scrape. NULL: zeros. */
void rp_flight_register(struct rp_flight *flight, struct rp_registry *registry);

#endif
