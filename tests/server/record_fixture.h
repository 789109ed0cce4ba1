/* record_fixture.h - a request's times on a virtual clock, for the tests of records. Included once
 * per test program. */
#ifndef RP_TESTS_SERVER_RECORD_FIXTURE_H
#define RP_TESTS_SERVER_RECORD_FIXTURE_H

#include "engine/engine.h"
#include "server/observe/request_json.h"
#include "server/observe/request_log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MS ((uint64_t)1000000)

/* Begins at 1,000 ms; 20 tokens in, 4 out; one swap; its third token is 40 ms late. */
static void record_make(struct rp_request_record *record) {
    static const uint64_t token_ms[] = {1030, 1035, 1075, 1080};
    struct rp_request request = {.id = 7,
                                 .prompt_count = 20,
                                 .submit_ns = 1003 * MS,
                                 .scheduled_ns = 1010 * MS,
                                 .cached_tokens = 16,
                                 .max_tokens = 4,
                                 .swap_count = 1,
                                 .closed_ns = 1080 * MS,
                                 .sampling = {.seed = 42}};
    memset(record, 0, sizeof *record);
    snprintf(record->request_id, sizeof record->request_id, "req-1");
    snprintf(record->completion_id, sizeof record->completion_id, "cmpl-0011223344556677");
    record->trace = (struct rp_trace_context){.trace_high = 0x4bf92f3577b34da6u,
                                              .trace_low = 0xa3ce929d0e0e4736u,
                                              .parent = 0x00f067aa0ba902b7u,
                                              .span = 0x1122334455667788u,
                                              .flags = 1};
    record->prompt_count = 1;
    record->price_per_hour = 3;
    record->key_index = 2;
    record->unix_offset_ns = 1700000000000000000;
    record->first_byte_ns = 1000 * MS;
    record->received_ns = 1001 * MS;
    record->parsed_ns = 1001 * MS + 500000;
    record->tokenized_ns = 1002 * MS;
    record->max_tokens = 4;
    record->temperature = 0.8;
    record->top_p = 1;
    record->stream = true;
    rp_record_queued(record, &request);
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(token_ms); i++) {
        struct rp_event event = {.request = &request, .time_ns = token_ms[i] * MS};
        rp_record_token(record, &event);
    }
    request.stats = (struct rp_request_stats){
        .device_ns = 12 * MS,
        .prefill_device_ns = 5 * MS,
        .energy_pj = 4200000000000u, /* 12 ms at 350 W */
        .bytes = 1000,
        .flops = 2000,
        .first_step = 11,
        .last_step = 15,
        .steps = 4,
        .decode_steps = 3,
        .bucket_tokens = 40,
        .padded_tokens = 10,
        .tokens = 4,
        .chunk_count = 1,
        .chunks = {{.begin_ns = 1020 * MS, .end_ns = 1030 * MS, .start = 16, .tokens = 4}},
        .buckets = {{.graph = 1, .steps = 1}, {.graph = 0, .steps = 3}},
        .bucket_count = 2,
        .pages_peak = 2,
        .page_ns = 60 * MS,
        .gap_ns = {[RP_GAP_STEP] = 10 * MS, [RP_GAP_SWAP] = 40 * MS},
        .worst_gap_ns = 40 * MS,
        .worst_gap_step = 14,
        .worst_gap_token = 2,
        .worst_gap_cause = RP_GAP_SWAP};
    rp_record_closed(record, &request, RP_FINISH_LENGTH);
    record->status = 200;
}

#endif
