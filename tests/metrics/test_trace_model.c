/* Goal: the trace model of the scripted scenario is correct, any events are handled, and both
 * writers give the same bytes in pieces of any size. `--write json|perfetto FILE`
 * writes the scenario for tests/cli/test_trace_files.py. */
#include "base/memory.h"
#include "metrics/trace_json.h"
#include "metrics/trace_pb.h"
#include "tests/support/trace_scenario.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct rp_trace_event events[RP_SCENARIO_EVENTS_MAX];
static struct rp_trace_model model;
static struct rp_buffer text, again;

static int setup(void **state) {
    struct rp_trace_info info = rp_scenario_info();
    (void)state;
    uint64_t count = rp_scenario_events(events);
    return rp_trace_model_build(&model, &info, events, count);
}

static int teardown(void **state) {
    (void)state;
    rp_trace_model_deinit(&model);
    rp_buffer_deinit(&text);
    rp_buffer_deinit(&again);
    return 0;
}

static const struct rp_trace_track *track_named(const char *wanted) {
    char name[RP_TRACE_NAME_MAX];
    for (uint32_t i = 0; i < model.track_count; i++) {
        rp_trace_track_name(&model, &model.tracks[i], name);
        if (strcmp(name, wanted) == 0)
            return &model.tracks[i];
    }
    fail_msg("no track %s", wanted);
    return NULL;
}

/* "name begin-end" of its slices, in us since the window began; a star: truncated. */
static void expect_slices(const char *track_name, const char *wanted) {
    const struct rp_trace_track *track = track_named(track_name);
    char name[RP_TRACE_NAME_MAX];
    rp_buffer_clear(&text);
    for (uint32_t i = 0; i < track->item_count; i++) {
        const struct rp_trace_item *item = &model.items[track->first_item + i];
        if (item->flags & RP_ITEM_INSTANT)
            continue;
        rp_trace_item_name(&model, item, name);
        rp_buffer_printf(&text, "%s%*s%s %u-%u%s", text.len ? "\n" : "", item->depth, "", name,
                         (unsigned)((item->begin_ns - RP_SCENARIO_BEGIN_NS) / 1000),
                         (unsigned)((item->end_ns - RP_SCENARIO_BEGIN_NS) / 1000),
                         item->flags & (RP_ITEM_BEGAN_EARLIER | RP_ITEM_UNFINISHED) ? "*" : "");
    }
    rp_buffer_append(&text, "", 1);
    assert_string_equal(text.data, wanted);
}

static void test_a_request_is_split_into_its_phases(void **state) {
    (void)state;
    expect_slices("request 17", "request 17 110-11200\n"
                                " tokenize 150-460\n"
                                " queued 470-920\n"
                                " prefill 920-5010\n"
                                "  prefill chunk 1010-3000\n"
                                "  prefill chunk 3000-5000\n"
                                " decode 5010-11010\n"
                                " stream wait 11010-11200");
}

static void test_a_swap_stands_between_two_phases(void **state) {
    (void)state;
    expect_slices("request 9", "request 9 0-14000*\n"
                               " decode 0-7100*\n"
                               " swapped 7100-8100\n"
                               " decode 8100-11010\n"
                               " stream wait 11010-14000");
}

static void test_what_is_not_over_reaches_the_end_of_the_window(void **state) {
    (void)state;
    expect_slices("request 18", "request 18 1210-20000*\n"
                                " tokenize 1220-1240\n"
                                " queued 1245-5060\n"
                                " prefill 5060-8010\n"
                                "  prefill chunk 7000-8000\n"
                                " decode 8010-20000*");
}

static void test_a_place_of_the_batch_is_given_to_the_next_one(void **state) {
    (void)state;
    expect_slices("place 0", "decode 9 0-7100*\ndecode 9 8100-11010");
    expect_slices("place 1", "prefill 17 920-5010\ndecode 17 5010-11010");
    expect_slices("place 2", "prefill 18 5060-8010\ndecode 18 8010-20000*");
}

static void test_replays_do_not_overlap_and_jitter_is_cut(void **state) {
    (void)state;
    expect_slices("replays", "mixed 64 1010-3000\nmixed 64 3000-5000\ndecode 4 7000-7999\n"
                             "decode 4 7999-9000\ndecode 4 9000-10000\ndecode 4 10000-11000\n"
                             "decode 4 11000-12000\ndecode 4 19500-20000*");
}

static void test_nodes_that_overlap_take_turns_on_two_rows(void **state) {
    (void)state;
    expect_slices("nodes", "embed 7000-7200\nlayer.0.\"attn\"? 7380-7580\nnode 4 7760-7960");
    expect_slices("nodes (2)", "layer.0.qkv 7190-7390\nsample 7570-7770");
}

static void test_idle_time_has_its_cause(void **state) {
    (void)state;
    expect_slices("idle", "idle: no_work 0-1010*\nidle: result 5000-5060\nidle: plan 5060-5200\n"
                          "idle: launch 5200-7000\nidle: client 12000-19500");
}

static void test_counters_begin_with_the_values_in_force(void **state) {
    (void)state;
    assert_int_equal(model.sample_count, 1 + 3 * 3 + 1);
    assert_int_equal(model.samples[0].ns, RP_SCENARIO_BEGIN_NS);
    assert_int_equal(model.events[model.samples[0].event].kind, RP_TRACE_LOAD);
}

static void test_every_row_flows_through_its_step_to_its_token(void **state) {
    uint32_t whole = 0, tokens = 0, outside = 0;
    (void)state;
    for (uint32_t i = 0; i < model.flow_count; i++) {
        const struct rp_trace_flow *flow = &model.flows[i];
        if (!flow->whole)
            continue;
        whole++;
        tokens += flow->has_token;
        assert_int_equal(model.events[model.items[flow->launch_item].source].id, flow->step);
        assert_int_equal(model.events[model.items[flow->replay_item].source].id, flow->step);
        assert_true(flow->start_ns <= flow->launch_ns && flow->launch_ns <= flow->replay_ns);
        assert_true(!flow->has_token || flow->replay_ns <= flow->token_ns);
        /* Inside their slices, not at an edge shared with the preceding slice. */
        const struct rp_trace_item *launch = &model.items[flow->launch_item];
        const struct rp_trace_item *replay = &model.items[flow->replay_item];
        assert_true(launch->begin_ns < flow->launch_ns && flow->launch_ns < launch->end_ns);
        assert_true(replay->begin_ns < flow->replay_ns && flow->replay_ns < replay->end_ns);
        if (flow->has_token && !flow->token_in_batch) {
            outside++;
            assert_int_equal(model.requests[flow->request].id, 9);
            assert_int_equal(flow->step, 4);
        }
    }
    /* Rows of the steps 2 to 8. The first chunk of 17 has no token; that of 9 in step 4 arrives
     * when it is swapped out. */
    assert_int_equal(whole, 1 + 2 + 3 + 2 + 3 + 3 + 1);
    assert_int_equal(tokens, whole - 1);
    assert_int_equal(outside, 1);
}

/* Nothing before the window is known (a trace cut to its size): a request with a token was in the
 * token's step. */
static void test_a_request_met_as_it_decodes_was_in_the_step_of_its_token(void **state) {
    struct rp_trace_info info = rp_scenario_info();
    const uint64_t t = RP_SCENARIO_BEGIN_NS;
    const struct rp_trace_event few[] = {
        {.ns = t + 500, .kind = RP_TRACE_TOKEN, .id = 3, .v = 6},
        {.ns = t + 600, .kind = RP_TRACE_CLOSED, .id = 3},
        {.ns = t + 1000, .kind = RP_TRACE_LAUNCH, .id = 7, .v = 200},
        {.ns = t + 1100, .kind = RP_TRACE_WRITTEN, .id = 1, .v = 4},
        {.ns = t + 1300, .kind = RP_TRACE_REPLAY, .id = 7, .v = 2000},
        {.ns = t + 2500, .kind = RP_TRACE_SWAP_OUT, .id = 2, .v = 8},
        {.ns = t + 4000, .kind = RP_TRACE_TOKEN, .id = 1, .v = 7},
        {.ns = t + 4000, .kind = RP_TRACE_TOKEN, .id = 2, .v = 7},
        {.ns = t + 9000, .kind = RP_TRACE_CLOSED, .id = 1}};
    (void)state;
    rp_trace_model_deinit(&model);
    assert_int_equal(rp_trace_model_build(&model, &info, few, RP_ARRAY_COUNT(few)), RP_OK);
    expect_slices("request 1", "request 1 1-20000*\n decode 1-9*\n stream wait 9-20000*");
    expect_slices("place 0", "decode 3 0-0*\ndecode 1 1-9*");
    expect_slices("place 1", "decode 2 0-2*");
    assert_int_equal(model.flow_count, 2);
    for (uint32_t i = 0; i < 2; i++) {
        const struct rp_trace_flow *flow = &model.flows[i];
        assert_true(flow->whole && flow->has_token);
        assert_int_equal(flow->token_in_batch, model.requests[flow->request].id == 1);
    }
}

/* Ranks run the same nodes at the same time: each has a track. */
static void test_nodes_of_ranks_have_a_track_for_each_rank(void **state) {
    struct rp_trace_info info = rp_scenario_info();
    const uint64_t t = RP_SCENARIO_BEGIN_NS;
    struct rp_trace_event few[5];
    struct rp_trace_arg args[RP_TRACE_ARGS_MAX];
    char name[RP_TRACE_NAME_MAX];
    (void)state;
    few[0] = (struct rp_trace_event){.ns = t + 1000, .kind = RP_TRACE_NODE, .a = 3, .v = 5000};
    for (uint32_t i = 1; i < RP_ARRAY_COUNT(few); i++) /* ranks 1, 2, 1, 2 */
        few[i] = (struct rp_trace_event){.ns = t + 1000 * i,
                                         .kind = RP_TRACE_RANK_NODE,
                                         .a = rp_trace_rank_node(2 - i % 2, i),
                                         .v = 1500};
    info.names.name = NULL;
    rp_trace_model_deinit(&model);
    assert_int_equal(rp_trace_model_build(&model, &info, few, RP_ARRAY_COUNT(few)), RP_OK);
    expect_slices("nodes", "node 3 1-6");
    expect_slices("nodes of rank 1", "node 1 1-2\nnode 3 3-4");
    expect_slices("nodes of rank 2", "node 2 2-3\nnode 4 4-5");
    const struct rp_trace_item *item = &model.items[track_named("nodes of rank 2")->first_item];
    assert_true(rp_trace_item_args(&model, item, args, name) >= 2);
    assert_string_equal(args[0].name, "rank");
    assert_int_equal(args[0].value, 2);
    assert_string_equal(args[1].name, "node");
    assert_int_equal(args[1].value, 2);
}

/* The row of a swapped-out request is reused before its token arrives: no arrow may end there. */
static void test_a_token_does_not_end_in_the_slice_of_another_request(void **state) {
    struct rp_trace_info info = rp_scenario_info();
    const uint64_t t = RP_SCENARIO_BEGIN_NS;
    const struct rp_trace_event few[] = {
        {.ns = t + 100, .kind = RP_TRACE_ADMITTED, .id = 1},
        {.ns = t + 200, .kind = RP_TRACE_TOKEN, .id = 1, .v = 6},
        {.ns = t + 1000, .kind = RP_TRACE_LAUNCH, .id = 7, .v = 200},
        {.ns = t + 1300, .kind = RP_TRACE_REPLAY, .id = 7, .v = 2000},
        {.ns = t + 2000, .kind = RP_TRACE_SWAP_OUT, .id = 1, .v = 8},
        {.ns = t + 2000, .kind = RP_TRACE_ADMITTED, .id = 2},
        {.ns = t + 4000, .kind = RP_TRACE_TOKEN, .id = 1, .v = 7}};
    struct rp_trace_event sorted[RP_ARRAY_COUNT(few)];
    (void)state;
    memcpy(sorted, few, sizeof few);
    rp_trace_sort(sorted, RP_ARRAY_COUNT(few));
    rp_trace_model_deinit(&model);
    assert_int_equal(rp_trace_model_build(&model, &info, sorted, RP_ARRAY_COUNT(few)), RP_OK);
    assert_int_equal(model.flow_count, 1);
    assert_true(model.flows[0].whole && model.flows[0].has_token);
    assert_false(model.flows[0].token_in_batch);
}

/* The client disconnected, so the answer ended before the engine noticed. */
static void test_a_request_that_closes_after_its_answer_leaves_its_place(void **state) {
    struct rp_trace_info info = rp_scenario_info();
    const uint64_t t = RP_SCENARIO_BEGIN_NS;
    const struct rp_trace_event few[] = {{.ns = t + 1000, .kind = RP_TRACE_ADMITTED, .id = 1},
                                         {.ns = t + 2000, .kind = RP_TRACE_ANSWERED, .id = 1},
                                         {.ns = t + 3000, .kind = RP_TRACE_CLOSED, .id = 1},
                                         {.ns = t + 4000, .kind = RP_TRACE_ADMITTED, .id = 2},
                                         {.ns = t + 9000, .kind = RP_TRACE_CLOSED, .id = 2}};
    (void)state;
    rp_trace_model_deinit(&model);
    assert_int_equal(rp_trace_model_build(&model, &info, few, RP_ARRAY_COUNT(few)), RP_OK);
    expect_slices("place 0", "prefill 1 1-3\nprefill 2 4-9");
    expect_slices("request 1", "request 1 1-3*\n prefill 1-3");
}

/* --- Writers --------------------------------------------------------------------------------- */

static void write_json(struct rp_buffer *out, size_t piece) {
    struct rp_trace_cursor cursor = {.model = &model};
    while (rp_trace_json_next(&cursor, out, piece)) {
    }
    assert_false(out->failed);
}

static void write_pb(struct rp_buffer *out, size_t piece) {
    struct rp_trace_pb writer;
    rp_trace_pb_init(&writer, &model);
    while (rp_trace_pb_next(&writer, out, piece)) {
    }
    assert_false(out->failed);
    rp_trace_pb_deinit(&writer);
}

static void test_pieces_of_any_size_give_the_same_bytes(void **state) {
    static const size_t pieces[] = {1, 100, 5000};
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(pieces) * 2; i++) {
        void (*write)(struct rp_buffer *, size_t) = i % 2 ? write_json : write_pb;
        rp_buffer_clear(&text);
        rp_buffer_clear(&again);
        write(&text, SIZE_MAX);
        write(&again, pieces[i / 2]);
        assert_int_equal(text.len, again.len);
        assert_memory_equal(text.data, again.data, text.len);
    }
}

static void test_running_out_of_memory_is_said_and_nothing_leaks(void **state) {
    struct rp_trace_info info = rp_scenario_info();
    uint64_t count = rp_scenario_events(events);
    struct rp_trace_model other;
    int status = RP_STATUS_NO_MEMORY;
    (void)state;
    for (uint64_t n = 1; status != RP_OK; n++) {
        rp_alloc_fail_at(n);
        status = rp_trace_model_build(&other, &info, events, count);
        rp_alloc_fail_at(0);
        assert_true(status == RP_OK || status == RP_STATUS_NO_MEMORY);
        assert_true(n < 200);
    }
    rp_trace_model_deinit(&other);
    for (uint64_t n = 1; n < 20; n++) {
        struct rp_trace_pb writer;
        rp_trace_pb_init(&writer, &model);
        rp_buffer_deinit(&text);
        rp_alloc_fail_at(n);
        while (rp_trace_pb_next(&writer, &text, 1000)) {
        }
        rp_alloc_fail_at(0);
        rp_trace_pb_deinit(&writer);
    }
}

/* --- Events of any kind ---------------------------------------------------------------------- */

static uint64_t draw(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

/* Slices of one track nest by depth and are in order; so are the times of flows. */
static void check_model(const struct rp_trace_model *built) {
    for (uint32_t t = 0; t < built->track_count; t++) {
        const struct rp_trace_track *track = &built->tracks[t];
        const struct rp_trace_item *open[8];
        uint32_t depth = 0;
        for (uint32_t i = 0; i < track->item_count; i++) {
            const struct rp_trace_item *item = &built->items[track->first_item + i];
            assert_true(item->begin_ns <= item->end_ns);
            assert_true(item->begin_ns >= built->info.begin_ns &&
                        item->end_ns <= built->info.end_ns);
            if (item->flags & RP_ITEM_INSTANT)
                continue;
            assert_true(item->depth < 8 && item->depth <= depth);
            for (; depth > item->depth; depth--)
                assert_true(open[depth - 1]->end_ns <= item->begin_ns);
            assert_true(depth == 0 || item->end_ns <= open[depth - 1]->end_ns);
            open[depth++] = item;
        }
    }
}

static void test_events_in_any_order_make_a_sound_model(void **state) {
    static struct rp_trace_event wild[300];
    (void)state;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        struct rp_trace_info info = rp_scenario_info();
        struct rp_trace_model built;
        uint64_t random = seed;
        for (size_t i = 0; i < RP_ARRAY_COUNT(wild); i++)
            wild[i] = (struct rp_trace_event){
                .ns = info.begin_ns - 1000000 + draw(&random) % 22000000,
                .kind = (uint16_t)(draw(&random) % RP_TRACE_KIND_COUNT),
                .b = (uint16_t)(draw(&random) % 3),
                .a = (uint32_t)draw(&random) % 100,
                .id = draw(&random) % 4,
                .v = draw(&random) % 50 == 0 ? UINT64_MAX - 5 : draw(&random) % 4000000};
        for (size_t i = 0; i < RP_ARRAY_COUNT(wild); i++)
            if (rp_trace_kinds[wild[i].kind].lane == RP_LANE_REQUESTS && wild[i].v > 1000)
                wild[i].v %= 4; /* a step */
        rp_trace_sort(wild, RP_ARRAY_COUNT(wild));
        assert_int_equal(rp_trace_model_build(&built, &info, wild, RP_ARRAY_COUNT(wild)), RP_OK);
        check_model(&built);
        struct rp_trace_cursor cursor = {.model = &built};
        rp_buffer_clear(&text);
        while (rp_trace_json_next(&cursor, &text, 100000)) {
        }
        rp_trace_model_deinit(&built);
    }
}

static void test_a_kind_that_does_not_exist_is_refused(void **state) {
    struct rp_trace_info info = rp_scenario_info();
    struct rp_trace_event event = {.ns = info.begin_ns, .kind = RP_TRACE_KIND_COUNT};
    struct rp_trace_model built;
    (void)state;
    assert_int_equal(rp_trace_model_build(&built, &info, &event, 1), RP_STATUS_FORMAT);
    assert_int_equal(rp_trace_model_build(&built, &info, &event, 0), RP_OK);
    assert_int_equal(built.item_count, 0);
    rp_trace_model_deinit(&built);
}

static int write_file(const char *format, const char *path) {
    FILE *file = fopen(path, "wb");
    if (!file || setup(NULL) != 0)
        return 1;
    if (strcmp(format, "json") == 0)
        write_json(&text, 1000);
    else
        write_pb(&text, 1000);
    bool ok = fwrite(text.data, 1, text.len, file) == text.len;
    ok &= fclose(file) == 0;
    teardown(NULL);
    return !ok;
}

int main(int argc, char **argv) {
#define RUN(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        RUN(test_a_request_is_split_into_its_phases),
        RUN(test_a_swap_stands_between_two_phases),
        RUN(test_what_is_not_over_reaches_the_end_of_the_window),
        RUN(test_a_place_of_the_batch_is_given_to_the_next_one),
        RUN(test_replays_do_not_overlap_and_jitter_is_cut),
        RUN(test_nodes_that_overlap_take_turns_on_two_rows),
        RUN(test_nodes_of_ranks_have_a_track_for_each_rank),
        RUN(test_idle_time_has_its_cause),
        RUN(test_counters_begin_with_the_values_in_force),
        RUN(test_every_row_flows_through_its_step_to_its_token),
        RUN(test_a_request_met_as_it_decodes_was_in_the_step_of_its_token),
        RUN(test_a_token_does_not_end_in_the_slice_of_another_request),
        RUN(test_a_request_that_closes_after_its_answer_leaves_its_place),
        RUN(test_pieces_of_any_size_give_the_same_bytes),
        RUN(test_running_out_of_memory_is_said_and_nothing_leaks),
        RUN(test_events_in_any_order_make_a_sound_model),
        RUN(test_a_kind_that_does_not_exist_is_refused),
    };
    if (argc == 4 && strcmp(argv[1], "--write") == 0)
        return write_file(argv[2], argv[3]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
