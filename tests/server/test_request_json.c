/* Goal: a record's texts are as documented: JSON, OTLP, Chrome's trace, an answer's timing,
 * Server-Timing. Byte for byte, on a virtual clock. In the expected texts ' is replaced by ". */
#include "engine/observe/step_record.h"
#include "tests/server/record_fixture.h"

#include <stdio.h>

static struct rp_request_record record;
static const struct rp_request_record *records[] = {&record, &record};

static bool graph(const void *ctx, uint32_t index, struct rp_engine_graph *out) {
    (void)ctx;
    memset(out, 0, sizeof *out);
    out->bucket = (struct rp_bucket){.tokens = index ? 16 : 8, .logit_rows = 8, .decode = !index};
    return index < 2;
}

/* Those before and after the request are not its own. */
static const struct rp_step_record steps[] = {
    {.step = 10, .begin_ns = 1015 * MS, .end_ns = 1019 * MS},
    {.step = 11,
     .begin_ns = 1020 * MS,
     .end_ns = 1030 * MS,
     .graph = 1,
     .rows = 2,
     .tokens = 12,
     .prompt_tokens = 11,
     .padded_tokens = 4},
    {.step = 15,
     .begin_ns = 1076 * MS,
     .end_ns = 1080 * MS,
     .rows = 1,
     .tokens = 1,
     .padded_tokens = 7,
     .decode_only = true},
    {.step = 16, .begin_ns = 1080 * MS, .end_ns = 1082 * MS}};
static const struct rp_record_context context = {.model = "demo \"x\"",
                                                 .now_ns = 2000 * MS,
                                                 .graph = graph,
                                                 .steps = steps,
                                                 .step_count = RP_ARRAY_COUNT(steps)};

static int setup(void **state) {
    (void)state;
    record_make(&record);
    record.sequence = 1;
    record.written_ns = 1081 * MS;
    record.stall_ns = MS / 2;
    record.worst_write_ns = 45 * MS;
    return 0;
}

static void check(struct rp_buffer *out, const char *expected) {
    rp_buffer_append(out, "", 1);
    assert_false(out->failed);
    for (char *at = out->data; *at; at++)
        *at = *at == '"' ? '\'' : *at;
    if (getenv("REPRISE_SHOW"))
        printf("%s\n", out->data);
    assert_string_equal(out->data, expected);
    rp_buffer_deinit(out);
}

#include "tests/server/record_goldens.h"

static void test_json(void **state) {
    struct rp_buffer out = {.data = NULL};
    struct rp_json json;
    (void)state;
    rp_json_init(&json, &out);
    rp_request_json(&json, &record, &context, true);
    check(&out, golden_json);
}

static void test_otlp(void **state) {
    struct rp_buffer out = {.data = NULL};
    struct rp_json json;
    (void)state;
    rp_json_init(&json, &out);
    rp_request_otlp(&json, records, 1, &context);
    check(&out, golden_otlp);
}

static void test_perfetto(void **state) {
    struct rp_buffer out = {.data = NULL};
    struct rp_json json;
    (void)state;
    rp_json_init(&json, &out);
    rp_request_perfetto(&json, records, 1, &context);
    check(&out, golden_perfetto);
}

static void test_timing_of_an_answer(void **state) {
    struct rp_buffer out = {.data = NULL};
    struct rp_json json;
    (void)state;
    rp_json_init(&json, &out);
    rp_request_timing_json(&json, records, 1, 1081 * MS);
    check(&out, golden_timing);
    rp_request_timing_header(&out, records, 2, 1081 * MS);
    check(&out, "Server-Timing: receive;dur=1.000, parse;dur=0.500, tokenize;dur=0.500, "
                "queue;dur=7.000, prefill;dur=20.000, ttft;dur=30.000, decode;dur=50.000, "
                "device;dur=24.000, total;dur=81.000\r\n");
}

/* What has not happened yet is absent or null, and no missing part is read. */
static void test_open_and_refused_records_have_texts_too(void **state) {
    struct rp_buffer out = {.data = NULL};
    struct rp_json json;
    (void)state;
    for (int phase = 0; phase < 6; phase++) {
        record_make(&record);
        record.sequence = phase == 5;
        record.status = phase == 5 ? 503 : 0;
        if (phase < 5)
            record.closed_ns = record.written_ns = 0, record.finish = RP_FINISH_NONE;
        if (phase < 4)
            record.first_token_ns = record.last_token_ns = 0, record.kept_tokens = 0;
        if (phase < 3)
            record.admitted_ns = 0;
        if (phase < 2)
            record.queued_ns = 0;
        if (phase < 1)
            record.received_ns = record.parsed_ns = record.tokenized_ns = 0;
        rp_json_init(&json, &out);
        rp_request_json(&json, &record, &context, true);
        rp_buffer_append(&out, "", 1);
        assert_int_equal(strstr(out.data, "\"first_token\":null") != NULL, phase < 4);
        assert_non_null(strstr(out.data, phase < 2   ? "\"state\":\"preparing\""
                                         : phase < 4 ? "\"state\":\"queued\""
                                         : phase < 5 ? "\"state\":\"decode\""
                                                     : "\"state\":\"finished\""));
        rp_buffer_clear(&out);
        rp_json_init(&json, &out);
        rp_request_otlp(&json, records, 1, &context);
        rp_buffer_append(&out, "", 1);
        assert_int_equal(strstr(out.data, "\"name\":\"decode\"") != NULL, phase >= 4);
        assert_int_equal(strstr(out.data, "\"code\":2") != NULL, phase == 5);
        rp_buffer_clear(&out);
        rp_json_init(&json, &out);
        rp_request_perfetto(&json, records, 1, &context);
        rp_buffer_append(&out, "", 1);
        assert_int_equal(strstr(out.data, "\"name\":\"prefill\"") != NULL, phase >= 4);
        rp_buffer_clear(&out);
    }
    rp_buffer_deinit(&out);
    memset(&record, 0, sizeof record);
    rp_request_timing_header(&out, records, 1, 0);
    assert_int_equal(out.len, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_json, setup),
        cmocka_unit_test_setup(test_otlp, setup),
        cmocka_unit_test_setup(test_perfetto, setup),
        cmocka_unit_test_setup(test_timing_of_an_answer, setup),
        cmocka_unit_test(test_open_and_refused_records_have_texts_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
