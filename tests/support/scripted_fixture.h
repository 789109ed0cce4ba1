/* scripted_fixture.h - a plan of scripts, run against the scripted server. */
#ifndef RP_TESTS_SCRIPTED_FIXTURE_H
#define RP_TESTS_SCRIPTED_FIXTURE_H

#include "bench/load/load_run.h"
#include "tests/support/scripted_server.h"

#define FIXTURE_REQUESTS 4096u

struct scripted_fixture {
    struct scripted_server server;
    struct rp_load_request requests[FIXTURE_REQUESTS];
    char scripts[FIXTURE_REQUESTS][160];
    struct rp_load_plan plan;
    struct rp_load_run_options options;
    struct rp_load_records records;
    struct rp_error err;
};

/* A server and an empty plan; NULL when it does not start. */
struct scripted_fixture *scripted_fixture_start(void);
void scripted_fixture_free(struct scripted_fixture *fixture);
/* Discards plan, records and the server's stamps, and starts another server. */
bool scripted_fixture_again(struct scripted_fixture *fixture);
/* Adds a request; its number goes into the script as n=. */
void scripted_fixture_add(struct scripted_fixture *fixture, double at_ms, uint32_t tokens,
                          const char *script, ...) RP_PRINTF(4, 5);
int scripted_fixture_run(struct scripted_fixture *fixture);

/* As numpy.percentile; sorts the values. */
double scripted_fixture_percentile(double *values, size_t count, double percent);

#endif
