/* Goal: the critical path of a request and of a step gives every nanosecond to one part, the right
 * one; copies say how much of them ran beside steps.
 * Method: a made-up timeline whose parts are worked out by hand; random spans, of which only the
 * sums are known. */
#include "base/memory.h"
#include "metrics/trace_path.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct rp_trace_spans spans; /* freed in teardown, as is out */
static struct rp_buffer out;

static int teardown(void **state) {
    (void)state;
    rp_trace_spans_deinit(&spans);
    rp_buffer_deinit(&out);
    return 0;
}

static void add(enum rp_trace_span_kind kind, const char *name, uint64_t number, uint64_t step,
                uint64_t begin, uint64_t end) {
    const struct rp_trace_span span = {.begin_ns = begin,
                                       .end_ns = end,
                                       .number = number,
                                       .step = step,
                                       .name = name,
                                       .kind = (uint8_t)kind};
    rp_trace_spans_add(&spans, &span);
}

/* Request 7: received 0, tokenized 10-30, queued 40-100, in the batch 100-1000, written 1000-1100.
 * Steps: 1 its chunk, 2 without it, 3 its last chunk, 4 and 5 decode; 5 was launched during 4. */
static void make_timeline(void) {
    add(RP_SPAN_REQUEST, "request", 7, 0, 0, 1100);
    add(RP_SPAN_PHASE, "tokenize", 7, 0, 10, 30);
    add(RP_SPAN_PHASE, "queued", 7, 0, 40, 100);
    add(RP_SPAN_PHASE, "prefill", 7, 0, 100, 610);
    add(RP_SPAN_PHASE, "decode", 7, 0, 610, 1000);
    add(RP_SPAN_PHASE, "stream wait", 7, 0, 1000, 1100);
    add(RP_SPAN_CHUNK, "prefill chunk", 7, 1, 150, 250);
    add(RP_SPAN_CHUNK, "prefill chunk", 7, 3, 400, 600);
    add(RP_SPAN_TOKEN, "token", 7, 3, 610, 610);
    add(RP_SPAN_TOKEN, "token", 7, 4, 805, 805);
    add(RP_SPAN_TOKEN, "token", 7, 5, 990, 990);
    add(RP_SPAN_STEP, "mixed 16", 1, 0, 150, 250);
    add(RP_SPAN_STEP, "mixed 16", 2, 0, 250, 350);
    add(RP_SPAN_STEP, "mixed 16", 3, 0, 400, 600);
    add(RP_SPAN_STEP, "decode 1", 4, 0, 700, 800);
    add(RP_SPAN_STEP, "decode 1", 5, 0, 800, 980);
    add(RP_SPAN_IDLE, "idle: plan", 1, 0, 80, 120);
    add(RP_SPAN_IDLE, "idle: launch", 1, 0, 120, 150);
    add(RP_SPAN_IDLE, "idle: result", 3, 0, 350, 370);
    add(RP_SPAN_IDLE, "idle: launch", 3, 0, 370, 400);
    add(RP_SPAN_IDLE, "idle: plan", 4, 0, 600, 640);
    add(RP_SPAN_IDLE, "idle: start", 4, 0, 640, 700);
    add(RP_SPAN_COPY, "copy in", 4, 0, 650, 700);
    add(RP_SPAN_NODE, "layer.0.attn.qkv", 5, 0, 800, 900);
    add(RP_SPAN_NODE, "sample", 5, 0, 950, 980);
    add(RP_SPAN_HOST, "plan", 5, 0, 710, 720);
    add(RP_SPAN_HOST, "launch", 5, 0, 720, 725);
    add(RP_SPAN_HOST, "wait", 4, 0, 725, 805);
    add(RP_SPAN_HOST, "wait", 5, 0, 810, 990);
    rp_trace_spans_finish(&spans);
}

static void test_every_part_of_a_request_is_what_it_waited_for(void **state) {
    struct rp_request_path path;
    (void)state;
    make_timeline();
    assert_true(rp_trace_request_path(&spans, 7, &path));
    static const uint64_t parts[RP_PART_COUNT] = {
        [RP_PART_RECEIVE] = 10 + 10,  [RP_PART_TOKENIZE] = 20,       [RP_PART_QUEUE] = 60,
        [RP_PART_CHUNKS] = 100 + 200, [RP_PART_DECODE] = 100 + 180,  [RP_PART_OTHERS] = 100,
        [RP_PART_COPIES] = 50,        [RP_PART_HOST] = 50 + 50 + 50, [RP_PART_RESULT] = 20,
        [RP_PART_WRITE] = 100};
    for (int part = 0; part < RP_PART_COUNT; part++)
        if (path.parts[part] != parts[part])
            fail_msg("%s: %llu, not %llu", rp_request_parts[part],
                     (unsigned long long)path.parts[part], (unsigned long long)parts[part]);
    assert_int_equal(path.gaps[RP_IDLE_PLAN], 20 + 40);
    assert_int_equal(path.gaps[RP_IDLE_LAUNCH], 30 + 30);
    assert_int_equal(path.gaps[RP_IDLE_RESULT], 20);
    assert_int_equal(path.gaps[RP_IDLE_START], 10); /* the copy is not the host's */
    assert_int_equal(path.own_steps, 4);
    assert_int_equal(path.tokens, 3);
    assert_int_equal(path.pieces[RP_PART_CHUNKS], 2);
    assert_int_equal(path.pieces[RP_PART_DECODE], 1); /* 4 and 5 without a break */
    assert_false(rp_trace_request_path(&spans, 8, &path));
}

static void test_every_part_of_a_step_is_what_it_waited_for(void **state) {
    struct rp_step_path paths[4];
    (void)state;
    make_timeline();
    assert_int_equal(rp_trace_step_paths(&spans, paths, 4), 2);
    const struct rp_step_path *decode = &paths[0], *mixed = &paths[1];
    assert_string_equal(decode->name, "decode 1");
    assert_int_equal(decode->steps, 2);
    assert_int_equal(decode->stamped, 1);
    assert_int_equal(decode->parts[RP_STEP_PART_PLAN], 40);
    assert_int_equal(decode->parts[RP_STEP_PART_START], 10);
    assert_int_equal(decode->parts[RP_STEP_PART_COPIES], 50);
    assert_int_equal(decode->parts[RP_STEP_PART_DEVICE], 100); /* of 4, that has no stamps */
    assert_int_equal(decode->parts[RP_STEP_PART_FORWARD], 150);
    assert_int_equal(decode->parts[RP_STEP_PART_SAMPLE], 30);
    assert_int_equal(decode->parts[RP_STEP_PART_READ], 5 + 10);
    assert_int_equal(decode->hidden_ns, 15);
    assert_string_equal(mixed->name, "mixed 16");
    assert_int_equal(mixed->steps, 3);
    assert_int_equal(mixed->parts[RP_STEP_PART_RESULT], 20);
    assert_int_equal(mixed->parts[RP_STEP_PART_UPLOAD], 30);
    assert_int_equal(mixed->parts[RP_STEP_PART_DEVICE], 400);
    assert_int_equal(mixed->hidden_ns, 0);
    assert_int_equal(rp_trace_step_paths(&spans, paths, 1), 1); /* no more than there is room */
}

static void test_copies_say_how_much_of_them_ran_beside_steps(void **state) {
    struct rp_trace_overlap overlap;
    (void)state;
    rp_trace_spans_finish(&spans);
    rp_trace_spans_overlap(&spans, &overlap);
    assert_int_equal(overlap.copies, 0);
    rp_trace_spans_deinit(&spans);
    make_timeline();
    rp_trace_spans_overlap(&spans, &overlap);
    assert_int_equal(overlap.copy_ns, 50);
    assert_int_equal(overlap.overlapped_ns, 0);    /* in order, on one stream */
    add(RP_SPAN_COPY, "copy out", 5, 0, 780, 880); /* on a stream of its own */
    add(RP_SPAN_COPY, "copy out", 6, 0, 960, 1000);
    rp_trace_spans_finish(&spans);
    rp_trace_spans_overlap(&spans, &overlap);
    assert_int_equal(overlap.copies, 3);
    assert_int_equal(overlap.copy_ns, 50 + 100 + 40);
    assert_int_equal(overlap.overlapped_ns, 100 + 20);
    assert_true(rp_trace_path_write(&spans, NULL, &out));
    rp_buffer_append(&out, "", 1);
    assert_non_null(strstr(out.data, "copies      3, 190ns between host and device; steps ran "
                                     "during 63.2 % of that time\n"));
}

static void test_a_request_that_the_window_cuts_is_left_out(void **state) {
    struct rp_request_path path;
    (void)state;
    make_timeline();
    for (uint32_t i = 0; i < spans.count; i++)
        spans.spans[i].cut = spans.spans[i].kind == RP_SPAN_REQUEST;
    uint64_t request = 7;
    assert_false(rp_trace_request_path(&spans, 7, &path));
    assert_false(rp_trace_path_write(&spans, &request, &out));
    assert_true(rp_trace_path_write(&spans, NULL, &out));
    rp_buffer_append(&out, "", 1);
    assert_non_null(strstr(out.data, "requests    0 of 1 are whole in the trace"));
}

/* A file may say anything: the parts of a request still add up to its time. */
static void test_parts_add_up_whatever_the_spans_are(void **state) {
    uint64_t random = 5;
    (void)state;
    for (int round = 0; round < 300; round++) {
        struct rp_request_path path;
        struct rp_step_path paths[8];
        static const char *const names[] = {"idle: plan", "prefill", "decode", "swapped",
                                            "queued",     "wait",    "sample", "idle: ?"};
        add(RP_SPAN_REQUEST, "request", 1, 0, 20, 900);
        for (int i = 0; i < 60; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            uint64_t begin = (random >> 33) % 1000, kind = (random >> 43) % RP_SPAN_KIND_COUNT;
            if (kind == RP_SPAN_REQUEST)
                continue;
            bool instant = kind == RP_SPAN_TOKEN || kind == RP_SPAN_WRITTEN;
            add((enum rp_trace_span_kind)kind, names[(random >> 48) % RP_ARRAY_COUNT(names)],
                kind >= RP_SPAN_REQUEST ? 1 : (random >> 53) % 8, (random >> 56) % 8, begin,
                instant ? begin : begin + (random >> 58) * 4);
        }
        rp_trace_spans_finish(&spans);
        assert_true(rp_trace_request_path(&spans, 1, &path));
        uint64_t sum = 0, gaps = 0;
        for (int part = 0; part < RP_PART_COUNT; part++)
            sum += path.parts[part];
        for (int cause = 0; cause < RP_IDLE_CAUSE_COUNT; cause++)
            gaps += path.gaps[cause];
        assert_int_equal(sum, 880);
        assert_int_equal(gaps, path.parts[RP_PART_HOST]);
        assert_true(rp_trace_step_paths(&spans, paths, 8) <= 8);
        assert_true(rp_trace_path_write(&spans, NULL, &out));
        teardown(NULL);
    }
}

static void test_memory_that_runs_out_makes_it_fail_and_nothing_else(void **state) {
    (void)state;
    for (uint64_t n = 1; n < 6; n++) {
        rp_alloc_fail_at(n);
        make_timeline();
        rp_alloc_fail_at(0);
        assert_true(spans.failed);
        rp_trace_spans_deinit(&spans);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_every_part_of_a_request_is_what_it_waited_for, teardown),
        cmocka_unit_test_teardown(test_every_part_of_a_step_is_what_it_waited_for, teardown),
        cmocka_unit_test_teardown(test_copies_say_how_much_of_them_ran_beside_steps, teardown),
        cmocka_unit_test_teardown(test_a_request_that_the_window_cuts_is_left_out, teardown),
        cmocka_unit_test_teardown(test_parts_add_up_whatever_the_spans_are, teardown),
        cmocka_unit_test_teardown(test_memory_that_runs_out_makes_it_fail_and_nothing_else,
                                  teardown),
    };
    return cmocka_run_group_tests_name("trace_path", tests, NULL, NULL);
}
