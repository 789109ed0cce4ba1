#include "tests/support/load_fixture.h"

#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SLOTS_MAX 64

void load_fixture_open(struct load_fixture *fixture, uint32_t requests, uint64_t chunks) {
    memset(fixture, 0, sizeof *fixture);
    fixture->plan.requests = rp_calloc(requests, sizeof *fixture->plan.requests);
    fixture->records.records = rp_calloc(requests, sizeof *fixture->records.records);
    fixture->records.chunk_ns = rp_calloc(chunks, sizeof *fixture->records.chunk_ns);
    fixture->chunk_room = chunks;
    RP_ASSERT(fixture->plan.requests && fixture->records.records && fixture->records.chunk_ns);
}

void load_fixture_close(struct load_fixture *fixture) {
    rp_free(fixture->plan.requests);
    rp_free(fixture->records.records);
    rp_free(fixture->records.chunk_ns);
    rp_free(fixture->records.lag_ns);
    memset(fixture, 0, sizeof *fixture);
}

static uint64_t to_ns(double ms) { return (uint64_t)(ms * 1e6 + 0.5); }

static struct rp_load_record *next(struct load_fixture *fixture, double intended_ms) {
    struct rp_load_records *records = &fixture->records;
    struct rp_load_record *record = &records->records[records->count];
    fixture->plan.requests[fixture->plan.count] = (struct rp_load_request){
        .at_ns = to_ns(intended_ms), .input_tokens = 10, .output_tokens = 4};
    fixture->plan.count++;
    *record = (struct rp_load_record){.request = records->count++,
                                      .intended_ns = to_ns(intended_ms),
                                      .sent_ns = to_ns(intended_ms),
                                      .chunks = records->chunk_total,
                                      .cached_tokens = UINT32_MAX};
    return record;
}

struct rp_load_record *load_fixture_add(struct load_fixture *fixture, double intended_ms,
                                        double sent_ms, double first_ms, double gap_ms,
                                        uint32_t output_tokens) {
    struct rp_load_records *records = &fixture->records;
    struct rp_load_record *record = next(fixture, intended_ms);
    RP_ASSERT(records->chunk_total + output_tokens <= fixture->chunk_room);
    record->outcome = RP_LOAD_OK;
    record->status = 200;
    record->sent_ns = to_ns(sent_ms);
    record->chunk_count = record->output_tokens = output_tokens;
    record->input_tokens = 10;
    record->usage_seen = true;
    for (uint32_t i = 0; i < output_tokens; i++)
        records->chunk_ns[records->chunk_total++] = to_ns(first_ms + i * gap_ms);
    if (output_tokens) {
        record->first_ns = to_ns(first_ms);
        record->last_ns = records->chunk_ns[records->chunk_total - 1];
    }
    record->end_ns = to_ns(first_ms + (output_tokens ? output_tokens - 1 : 0) * gap_ms);
    records->end_ns = RP_MAX(records->end_ns, record->end_ns);
    return record;
}

struct rp_load_record *load_fixture_fail(struct load_fixture *fixture, double intended_ms,
                                         double end_ms, enum rp_load_outcome outcome,
                                         const char *error) {
    struct rp_load_record *record = next(fixture, intended_ms);
    record->outcome = outcome;
    record->end_ns = to_ns(end_ms);
    fixture->records.end_ns = RP_MAX(fixture->records.end_ns, record->end_ns);
    snprintf(record->error, sizeof record->error, "%s", error);
    return record;
}

/* splitmix64 */
double load_fixture_uniform(struct load_fixture *fixture) {
    uint64_t z = (fixture->state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

double load_fixture_exponential(struct load_fixture *fixture) {
    return -log(1 - load_fixture_uniform(fixture));
}

double load_fixture_normal(struct load_fixture *fixture) {
    double radius = sqrt(2 * load_fixture_exponential(fixture));
    return radius * cos(6.283185307179586 * load_fixture_uniform(fixture));
}

void load_fixture_queue(struct load_fixture *fixture, uint32_t requests, double rate,
                        uint32_t slots, double service_ms, uint64_t seed) {
    double free_at[SLOTS_MAX] = {0}, now_ms = 0;
    RP_ASSERT(slots <= SLOTS_MAX);
    load_fixture_open(fixture, requests, 4 * (uint64_t)requests);
    fixture->state = seed;
    for (uint32_t i = 0; i < requests; i++) {
        uint32_t slot = 0;
        double service = service_ms * (0.5 + 0.5 * load_fixture_exponential(fixture));
        for (uint32_t s = 1; s < slots; s++)
            if (free_at[s] < free_at[slot])
                slot = s;
        double begin = RP_MAX(now_ms, free_at[slot]);
        free_at[slot] = begin + service;
        load_fixture_add(fixture, now_ms, now_ms, begin + service / 4, service / 4, 4);
        now_ms += load_fixture_exponential(fixture) * 1e3 / rate;
    }
}
