/* Goal: a profile table contains what was added to it, in order, with shares that add up, as text,
 * CSV and JSON.
 * Method: a synthetic history with numbers computed by hand, byte for byte; random calls against
 * sums and a sorted array; names that formats must escape. */
#include "metrics/profile_table.h"

#include "base/json_writer.h"
#include "base/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct rp_profile_table table; /* freed in teardown, as is out */
static struct rp_buffer out;

static int teardown(void **state) {
    (void)state;
    rp_profile_table_deinit(&table);
    rp_buffer_deinit(&out);
    return 0;
}

static void add(const char *name, const char *layer, const char *shape, uint64_t step,
                uint64_t self, uint64_t total, double bytes, double flops) {
    const struct rp_profile_row_key key = {name, layer, shape};
    /* Three rows with 10, 20 and 30 positions. */
    const struct rp_profile_add call = {step, self, total, 4, bytes, flops, 60, 3, 30};
    int32_t row = rp_profile_table_row(&table, &key);
    assert_true(row >= 0);
    rp_profile_table_add(&table, row, &call);
}

/* Two steps of 10 us: peaks of 100 GB/s and 1 TFLOP/s. */
static void make_history(void) {
    rp_profile_table_init(&table);
    for (uint64_t step = 1; step <= 2; step++) {
        add("attn.qkv", "0", "512 x 256", step, 2000, 2500, 160000,
            640000); /* 80 % of the bandwidth */
        add("attn.qkv", "1", "512 x 256", step, 2000, 2000, 160000, 640000);
        add("mlp.gate_up", "0", "1536 x 256", step, 4000 * step, 4000 * step, 1000, 2e6);
        add("sample", "", "", step, 500, 500, 100, 0);
    }
    table.footer = (struct rp_profile_footer){.window_seconds = 2.5,
                                              .steps_seen = 128,
                                              .steps_stamped = 2,
                                              .replay_ns = 24000,
                                              .unattributed_ns = 3000,
                                              .every = 64,
                                              .whole = true,
                                              .has_idle = true,
                                              .busy_share = 0.75,
                                              .perturbation_steps = 2,
                                              .perturbation = 0.0123,
                                              .perturbation_spread = 0.005,
                                              .peak_bytes = 100e9,
                                              .peak_flops = 1e12};
    table.footer.idle_ns[RP_IDLE_NO_WORK] = 500000000;
    table.footer.idle_ns[RP_IDLE_LAUNCH] = 125000000;
    table.footer.misses[RP_MISS_NONE] = 125;
    table.footer.misses[RP_MISS_CAPTURE_FAILED] = 2;
    table.footer.misses[RP_MISS_NO_GRAPH] = 1;
}

/* clang-format off */
static const char golden_text[] =
    "name         layer  shape          calls       self  self %      total       avg       p50       p99     FLOP    bytes   FLOP/B  bound     % roof    tokens\n"
    "------------------------------------------------------------------------------------------------------------------------------------------------------------------\n"
    "mlp.gate_up      0  1536 x 256         2     12.0us   50.00     12.0us    6.00us    4.00us    8.00us    4.00M    2.00k     2000  compute     33.3         8\n"
    "attn.qkv         *  512 x 256          4     8.00us   33.33     9.00us    2.00us    2.00us    2.00us    2.56M     640k      4.0  memory      80.0         8\n"
    "sample                                 2     1.00us    4.17     1.00us     500ns     500ns     500ns        -      200        -  latency      0.2         8\n"
    "------------------------------------------------------------------------------------------------------------------------------------------------------------------\n"
    "window      2.5 s, 128 steps, 2 of them stamped (one in 64 of each bucket, and what was asked for)\n"
    "replays     24.0us on the device, 87.50 % of it in the rows, 3.00us (12.50 %) not\n"
    "graphs      125 of 128 steps replayed those of their size: capture_failed 2, no_graph 1\n"
    "device      busy 75.0 %; idle: no_work 20.0 %, launch 5.0 %\n"
    "stamping    +1.23 % of a step's time, +- 0.50 (2 stamped steps beside unstamped ones)\n"
    "peaks       100GB/s read, 1.00TFLOP/s, measured at start\n";
/* clang-format on */

static void test_the_text_of_a_known_history_is_this(void **state) {
    (void)state;
    make_history();
    rp_profile_table_finish(&table, RP_PROFILE_SORT_SELF);
    rp_profile_write_text(&table, 0, &out);
    rp_buffer_append(&out, "", 1);
    assert_string_equal(out.data, golden_text);
}

static void test_the_csv_and_json_of_a_known_history_are_these(void **state) {
    (void)state;
    make_history();
    rp_profile_table_finish(&table, RP_PROFILE_SORT_CALLS);
    rp_profile_write_csv(&table, 1, &out);
    rp_buffer_append(&out, "", 1);
    assert_string_equal(out.data,
                        "name,layer,shape,calls,self_ns,self_share,total_ns,avg_ns,p50_"
                        "ns,p99_ns,max_ns,flops,bytes,intensity,bound,"
                        "roof_share,tokens,p25_ns,p75_ns,batch,kv_tokens,kv_tokens_max\r\n"
                        "attn.qkv,*,512 x "
                        "256,4,8000,0.333333,9000,2000.0,2000,2000,2000,2560000,640000,4."
                        "0000,memory,0.800000,8,2000,2000,3.00,20.0,30\r\n");
    rp_buffer_clear(&out);
    struct rp_json json;
    rp_json_init(&json, &out);
    rp_json_object_begin(&json, NULL);
    rp_profile_write_json(&table, 1, &json);
    rp_json_object_end(&json);
    rp_buffer_append(&out, "", 1);
    assert_non_null(strstr(
        out.data,
        "{\"rows\":[{\"name\":\"attn.qkv\",\"layer\":\"*\",\"shape\":\"512 x 256\",\"calls\":4,"
        "\"self_ns\":8000,"));
    assert_non_null(
        strstr(out.data, "\"footer\":{\"row_count\":3,\"window_seconds\":2.5,\"steps_seen\":128,"));
    assert_non_null(strstr(out.data, "\"idle_ns\":{\"no_work\":500000000,"));
    assert_non_null(strstr(out.data, "\"p25_ns\":2000,\"p50_ns\":2000,\"p75_ns\":2000,"));
    assert_non_null(strstr(out.data, "\"batch\":3,\"kv_tokens\":20,\"kv_tokens_max\":30}"));
    assert_non_null(strstr(out.data, "\"steps_by_replay\":{\"replayed\":125,"
                                     "\"enforce_eager\":0,\"capture_failed\":2,"
                                     "\"no_graph\":1}"));
}

static void test_a_table_with_buckets_shows_batch_and_kv_lengths(void **state) {
    (void)state;
    make_history();
    table.with_load = true;
    rp_profile_table_finish(&table, RP_PROFILE_SORT_SELF);
    rp_profile_write_text(&table, 1, &out);
    rp_buffer_append(&out, "", 1);
    assert_non_null(strstr(out.data, "    tokens    batch       kv   kv max\n"));
    assert_non_null(strstr(out.data, "         8      3.0       20       30\n"));
}

static void test_names_that_formats_must_escape_are_escaped(void **state) {
    (void)state;
    rp_profile_table_init(&table);
    add("a,\"b\"\n", "", "", 1, 1, 1, 0, 0);
    rp_profile_table_finish(&table, RP_PROFILE_SORT_NAME);
    rp_profile_write_csv(&table, 0, &out);
    rp_buffer_append(&out, "", 1);
    assert_non_null(strstr(out.data, "\r\n\"a,\"\"b\"\"\n\",,,1,"));
}

static int compare(const void *a, const void *b) {
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

static void test_percentiles_are_those_of_a_sorted_array(void **state) {
    (void)state;
    static uint64_t values[300][8];
    uint32_t counts[300] = {0};
    uint64_t sum = 0, random = 7;
    rp_profile_table_init(&table);
    for (int i = 0; i < 2000; i++) {
        char name[16];
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint32_t row = (uint32_t)(random >> 40) % 300;
        if (counts[row] == 8)
            continue;
        uint64_t self = (random >> 33) % 100000;
        values[row][counts[row]++] = self;
        sum += self;
        snprintf(name, sizeof name, "row %u", row);
        add(name, "", "", (uint64_t)i, self, self + 5, 0, 0);
    }
    assert_true(table.self_ns == sum);
    table.footer.replay_ns = sum;
    rp_profile_table_finish(&table, RP_PROFILE_SORT_P99);
    double share = 0;
    for (uint32_t i = 0; i < table.count; i++) {
        const struct rp_profile_line *line = &table.lines[i];
        uint32_t row = (uint32_t)atoi(line->name + 4), count = counts[row];
        qsort(values[row], count, sizeof values[row][0], compare);
        assert_true(line->p50_ns == values[row][(count + 1) / 2 - 1]);
        assert_true(line->p99_ns == values[row][count - 1] && line->max_ns == line->p99_ns);
        assert_true(i == 0 || line->p99_ns <= line[-1].p99_ns);
        assert_true(line->self_ns <= line->total_ns);
        share += line->self_share;
    }
    assert_true(share > 0.999999 && share < 1.000001);
}

static void test_memory_that_runs_out_makes_it_fail_and_nothing_else(void **state) {
    (void)state;
    for (uint64_t n = 1; n < 12; n++) {
        rp_profile_table_init(&table);
        rp_alloc_fail_at(n);
        for (int i = 0; i < 3; i++) {
            const char *const names[] = {"a", "b", "c"};
            const struct rp_profile_row_key key = {names[i], "", ""};
            const struct rp_profile_add call = {.self_ns = 1};
            rp_profile_table_add(&table, rp_profile_table_row(&table, &key), &call);
        }
        rp_alloc_fail_at(0);
        rp_profile_table_finish(&table, RP_PROFILE_SORT_SELF);
        assert_true(table.failed);
        rp_profile_table_deinit(&table);
    }
}

static void test_what_is_faster_than_memory_came_from_a_cache(void **state) {
    (void)state;
    rp_profile_table_init(&table);
    table.footer.peak_bytes = 100e9;
    table.footer.peak_flops = 1e12;
    add("below", "", "", 1, 1000, 1000, 99000, 0);
    add("above", "", "", 1, 1000, 1000, 101000, 0);
    add("compute", "", "", 1, 1000, 1000, 101000, 2e6);
    rp_profile_table_finish(&table, RP_PROFILE_SORT_NAME);
    assert_int_equal(table.lines[0].bound, RP_BOUND_CACHE);
    assert_int_equal(table.lines[1].bound, RP_BOUND_MEMORY);
    assert_int_equal(table.lines[2].bound, RP_BOUND_COMPUTE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_the_text_of_a_known_history_is_this, teardown),
        cmocka_unit_test_teardown(test_the_csv_and_json_of_a_known_history_are_these, teardown),
        cmocka_unit_test_teardown(test_a_table_with_buckets_shows_batch_and_kv_lengths, teardown),
        cmocka_unit_test_teardown(test_names_that_formats_must_escape_are_escaped, teardown),
        cmocka_unit_test_teardown(test_percentiles_are_those_of_a_sorted_array, teardown),
        cmocka_unit_test_teardown(test_memory_that_runs_out_makes_it_fail_and_nothing_else,
                                  teardown),
        cmocka_unit_test_teardown(test_what_is_faster_than_memory_came_from_a_cache, teardown),
    };
    return cmocka_run_group_tests_name("profile_table", tests, NULL, NULL);
}
