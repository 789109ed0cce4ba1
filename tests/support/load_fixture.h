/* load_fixture.h - invented plans and records of load runs, for the tests of bench/. */
#ifndef RP_TESTS_SUPPORT_LOAD_FIXTURE_H
#define RP_TESTS_SUPPORT_LOAD_FIXTURE_H

#include "bench/load/load.h"

struct load_fixture {
    struct rp_load_plan plan;
    struct rp_load_records records;
    uint64_t chunk_room;
    uint64_t state; /* of load_fixture_uniform */
};

void load_fixture_open(struct load_fixture *fixture, uint32_t requests, uint64_t chunks);
void load_fixture_close(struct load_fixture *fixture);

/* The next request ended well: 10 prompt tokens, a chunk for each output token, the first at
 * first_ms and the others gap_ms apart. Times are of the run. */
struct rp_load_record *load_fixture_add(struct load_fixture *fixture, double intended_ms,
                                        double sent_ms, double first_ms, double gap_ms,
                                        uint32_t output_tokens);
/* The next request failed. */
struct rp_load_record *load_fixture_fail(struct load_fixture *fixture, double intended_ms,
                                         double end_ms, enum rp_load_outcome outcome,
                                         const char *error);

/* [0, 1), standard normal, exponential of mean 1; from fixture->state. */
double load_fixture_uniform(struct load_fixture *fixture);
double load_fixture_normal(struct load_fixture *fixture);
double load_fixture_exponential(struct load_fixture *fixture);

/* `requests` arrive as a Poisson process at `slots` servers that each serve one at a time: 4
 * tokens, the first after a quarter of a service time of mean service_ms. All times can be
 * scaled afterwards. */
void load_fixture_queue(struct load_fixture *fixture, uint32_t requests, double rate,
                        uint32_t slots, double service_ms, uint64_t seed);

#endif
