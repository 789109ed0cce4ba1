/* Goal: traces are replayed as in their files, with the given scale, and any file gives a plan or
 * an error that names line and field. Method: files written here, each truncated at every byte and
 * with bytes replaced; both real traces against totals counted elsewhere, and Mooncake's cache hits
 * against an independent count from the hash ids. */
#include "base/memory.h"
#include "bench/load/load_plan.h"
#include "bench/load/load_random.h"
#include "tests/support/data.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define HEADER "TIMESTAMP,ContextTokens,GeneratedTokens\n"

static struct rp_load_plan plan;
static struct rp_error err;
/* A file in memory: thousands are written. */
static int trace_fd;
static char path[64];

static int make_file(void **state) {
    (void)state;
    trace_fd = memfd_create("trace", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", trace_fd);
    return trace_fd < 0 ? -1 : 0;
}

static int remove_file(void **state) {
    (void)state;
    return close(trace_fd);
}

static int free_plan(void **state) {
    (void)state;
    rp_load_plan_free(&plan);
    return 0;
}

static void write_bytes(const char *bytes, size_t len) {
    assert_int_equal(ftruncate(trace_fd, 0), 0);
    assert_int_equal(pwrite(trace_fd, bytes, len, 0), len);
}

static struct rp_load_source source_of(enum rp_load_dataset dataset) {
    return (struct rp_load_source){.dataset = dataset,
                                   .path = path,
                                   .seed = 1,
                                   .vocab_begin = 10,
                                   .vocab_end = 30000,
                                   .arrival = RP_LOAD_TRACE};
}

static void make(const struct rp_load_source *source) {
    rp_load_plan_free(&plan);
    int status = rp_load_plan_make(source, &plan, &err);
    if (status != RP_OK)
        print_message("%s\n", err.text);
    assert_int_equal(status, RP_OK);
}

static void make_from(const struct rp_load_source *source, const char *text) {
    write_bytes(text, strlen(text));
    make(source);
}

static void refuse(const struct rp_load_source *source, const char *text, const char *words) {
    write_bytes(text, strlen(text));
    rp_load_plan_free(&plan);
    int status = rp_load_plan_make(source, &plan, &err);
    if (status == RP_OK || !strstr(err.text, words))
        print_message("'%s' is not in: %s\n", words, status == RP_OK ? "(accepted)" : err.text);
    assert_int_not_equal(status, RP_OK);
    assert_non_null(strstr(err.text, words));
    assert_null(plan.requests);
}

static void check(uint32_t index, uint64_t at_ns, uint32_t input, uint32_t output) {
    assert_in_range(index, 0, plan.count - 1);
    assert_true(plan.requests[index].at_ns == at_ns);
    assert_int_equal(plan.requests[index].input_tokens, input);
    assert_int_equal(plan.requests[index].output_tokens, output);
}

/* --- Azure
 *
 --------------------------------------------------------------------------------------------- */

static void test_azure_times_count_100_ns_from_the_first_row_across_midnight(void **state) {
    struct rp_load_source source = source_of(RP_LOAD_AZURE);
    (void)state;
    make_from(&source, HEADER "2023-12-31 23:59:59.9999999,374,44\n"
                              "2024-01-01 00:00:00.0000000,396,109\n"
                              "2024-02-29 00:00:00.0000001,0,0\n"
                              "2024-03-01 00:00:00,7,8");
    assert_int_equal(plan.count, 4);
    check(0, 0, 374, 44);
    check(1, 100, 396, 109);
    check(2, UINT64_C(59) * 86400 * 1000000000 + 200, 1, 1); /* at least one token */
    check(3, UINT64_C(60) * 86400 * 1000000000 + 100, 7, 8);
}

static void test_azure_with_other_line_ends_and_zones_is_read_alike(void **state) {
    struct rp_load_source source = source_of(RP_LOAD_AZURE);
    (void)state;
    make_from(&source, "\xEF\xBB\xBFTIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                       "2024-05-10 00:00:00.009930+00:00,1,2\r\n\r\n"
                       "2024-05-10T01:00:00.009930123+01:00,3,4\r\n"
                       "2024-05-09 19:30:00.5-04:30,5,6\r\n  \r\n"
                       "2024-05-10 00:00:01Z,7,8\r");
    assert_int_equal(plan.count, 4);
    check(0, 0, 1, 2);
    check(1, 123, 3, 4);
    check(2, 490070000, 5, 6);
    check(3, 990070000, 7, 8);
}

static void test_rows_out_of_order_are_sent_in_the_order_of_their_times(void **state) {
    struct rp_load_source source = source_of(RP_LOAD_AZURE);
    (void)state;
    make_from(&source, HEADER "2024-01-01 00:00:03,3,1\n2024-01-01 00:00:01,1,1\n"
                              "2024-01-01 00:00:01,2,1\n2024-01-01 00:00:00,4,1\n");
    check(0, 0, 4, 1);
    check(1, 1000000000, 1, 1);
    check(2, 1000000000, 2, 1);
    check(3, 3000000000, 3, 1);
}

static void test_scales_count_and_context_apply_to_a_trace(void **state) {
    struct rp_load_source source = source_of(RP_LOAD_AZURE);
    const char *text = HEADER "2024-01-01 00:00:00,900,10\n2024-01-01 00:00:01,100,10\n"
                              "2024-01-01 00:00:02,101,11\n2024-01-01 00:00:04,9,1\n";
    (void)state;
    source.time_scale = 0.5;
    source.length_scale = 0.25;
    source.max_context = 30;
    make_from(&source, text);
    assert_int_equal(plan.skipped, 1);
    assert_int_equal(plan.count, 3);
    check(0, 0, 25, 3); /* times begin with the first that is sent */
    check(1, 500000000, 25, 3);
    check(2, 1500000000, 2, 1);
    source.count = 2;
    make(&source);
    assert_int_equal(plan.skipped, 1);
    assert_int_equal(plan.count, 1);
    source.count = 100;
    source.max_context = 0;
    source.arrival = RP_LOAD_CONSTANT; /* lengths of the trace, other times */
    source.rate = 1000;
    make(&source);
    assert_int_equal(plan.count, 4);
    check(0, 0, 225, 3);
    check(3, 3000000, 2, 1);
    source.length_scale = 1e6;
    source.arrival = RP_LOAD_TRACE;
    make_from(&source, HEADER "2024-01-01 00:00:00,3,1\n");
    check(0, 0, 3000000, 1000000);
    refuse(&source, HEADER "2024-01-01 00:00:00,9000,10\n", ":2: ContextTokens 9000 times");
}

static void test_bad_azure_files_are_refused_by_line_and_field(void **state) {
    struct rp_load_source source = source_of(RP_LOAD_AZURE);
    (void)state;
    refuse(&source, "", ":1: must be \"TIMESTAMP");
    refuse(&source, HEADER, "the file has no requests");
    refuse(&source, "2024-01-01 00:00:00,1,1\n", ":1: must be \"TIMESTAMP");
#define ROW(row, words) refuse(&source, HEADER "2024-01-01 00:00:00,1,1\n" row, words)
    ROW("2024-01-01 00:00:00,1\n", ":3: does not have three fields");
    ROW("2024-01-01 00:00:00,1,1,1\n", ":3: does not have three fields");
    ROW("x\n", ":3: does not have three fields");
    ROW("2024-01-01 00:00:00,-1,1\n", ":3: ContextTokens is \"-1\"");
    ROW("2024-01-01 00:00:00,1.5,1\n", ":3: ContextTokens is \"1.5\"");
    ROW("2024-01-01 00:00:00, 1,1\n", ":3: ContextTokens");
    ROW("2024-01-01 00:00:00,,1\n", ":3: ContextTokens");
    ROW("2024-01-01 00:00:00,NaN,1\n", ":3: ContextTokens is \"NaN\"");
    ROW("2024-01-01 00:00:00,1,inf\n", ":3: GeneratedTokens is \"inf\"");
    ROW("2024-01-01 00:00:00,1,18446744073709551617\n", ":3: GeneratedTokens");
    ROW("2024-01-01 00:00:00,1,0x10\n", ":3: GeneratedTokens");
    ROW("2024-01-01 00:00:00,1,1073741825\n", ":3: GeneratedTokens");
    ROW("2024-13-01 00:00:00,1,1\n", ":3: TIMESTAMP is \"2024-13-01 00:00:00\"");
    ROW("2023-02-29 00:00:00,1,1\n", ":3: TIMESTAMP");
    ROW("2024-04-31 00:00:00,1,1\n", ":3: TIMESTAMP");
    ROW("2024-01-00 00:00:00,1,1\n", ":3: TIMESTAMP");
    ROW("2024-01-01 24:00:00,1,1\n", ":3: TIMESTAMP");
    ROW("2024-01-01 00:60:00,1,1\n", ":3: TIMESTAMP");
    ROW("2024-01-01 00:00:60,1,1\n", ":3: TIMESTAMP");
    ROW("2024-01-01 00:00:00.,1,1\n", ":3: TIMESTAMP");
    ROW("2024-01-01 00:00:00.1234567890,1,1\n", ":3: TIMESTAMP");
    ROW("2024-01-01 00:00:00+1,1,1\n", ":3: TIMESTAMP");
    ROW("2024-01-01 00:00:00+99:00,1,1\n", ":3: TIMESTAMP");
    ROW("9999-01-01 00:00:00,1,1\n", ":3: TIMESTAMP");
    ROW("1969-01-01 00:00:00,1,1\n", ":3: TIMESTAMP");
    ROW("\x01\x02\x7F,1,1\n", ":3: TIMESTAMP is \"???\"");
    ROW("01234567890123456789012345678901234567890123456789012345678901234567890,1,1\n",
        ":3: field 1 is too long");
}

/* --- Mooncake
 *
 --------------------------------------------------------------------------------------------- */

static const char *const small_mooncake =
    "{\"timestamp\": 5, \"input_length\": 1300, \"output_length\": 6, \"hash_ids\": [7, 8, 9]}\n"
    "{\"timestamp\": 5.25, \"input_length\": 1024, \"output_length\": 4, \"hash_ids\": [7, 8]}\n"
    "{\"timestamp\": 40, \"input_length\": 1400, \"output_length\": 3, \"hash_ids\": [7, 8, 10]}\n"
    "{\"timestamp\": 41, \"input_length\": 1300, \"output_length\": 3, \"hash_ids\": [8, 7, 10]}\n";

static bool same(uint32_t a, uint32_t a_from, uint32_t b, uint32_t b_from, uint32_t tokens) {
    return memcmp(plan.requests[a].ids + a_from, plan.requests[b].ids + b_from,
                  tokens * sizeof *plan.ids) == 0;
}

static void test_mooncake_blocks_of_equal_id_have_equal_tokens(void **state) {
    struct rp_load_source source = source_of(RP_LOAD_MOONCAKE);
    (void)state;
    make_from(&source, small_mooncake);
    assert_int_equal(plan.count, 4);
    check(0, 0, 1300, 6);
    check(1, 250000, 1024, 4);
    check(2, 35000000, 1400, 3);
    check(3, 36000000, 1300, 3);
    assert_true(same(0, 0, 1, 0, 1024) && same(0, 0, 2, 0, 1024));
    assert_true(same(0, 0, 3, 512, 512) && same(0, 512, 3, 0, 512));
    assert_true(same(2, 1024, 3, 1024, 276)); /* cut blocks begin alike */
    assert_false(same(0, 1024, 2, 1024, 16));
    assert_false(same(0, 0, 0, 512, 16));
    assert_int_equal(plan.requests[0].cached_tokens, 0);
    assert_int_equal(plan.requests[1].cached_tokens, 1008); /* its last token is computed */
    assert_int_equal(plan.requests[2].cached_tokens, 1024);
    assert_int_equal(plan.requests[3].cached_tokens, 0);
    int32_t first = plan.requests[0].ids[0];
    source.seed = 2;
    make(&source);
    assert_int_not_equal(plan.requests[0].ids[0], first);
}

static void test_mooncake_blocks_are_scaled_with_the_lengths(void **state) {
    struct rp_load_source source = source_of(RP_LOAD_MOONCAKE);
    (void)state;
    source.block_tokens = 16; /* alone: lengths by 16 / 512 */
    make_from(&source, small_mooncake);
    check(0, 0, 41, 1 /* of 6 */);
    check(2, 35000000, 44, 1);
    assert_true(same(0, 0, 2, 0, 32) && same(2, 32, 3, 32, 9));
    assert_int_equal(plan.requests[1].cached_tokens, 16);
    assert_int_equal(plan.requests[2].cached_tokens, 32);
    source.block_tokens = 0;
    source.length_scale = 0.01; /* 5.12 tokens: blocks of 6 */
    source.page_tokens = 2;
    make(&source);
    check(0, 0, 13, 1);
    assert_true(same(0, 0, 2, 0, 12) && same(0, 0, 3, 6, 6) && same(0, 6, 3, 0, 6));
    source.length_scale = 1.0 / 32;
    source.block_tokens = 24; /* bigger than the scale: the last ids are not needed */
    make(&source);
    check(0, 0, 41, 1);
    assert_true(same(0, 0, 2, 0, 41));
    source.block_tokens = 15;
    refuse(&source, small_mooncake, "block_tokens is 15, must be at least 512 * length_scale (16)");
}

static void test_a_prompt_may_end_behind_its_last_id(void **state) {
    struct rp_load_source source = source_of(RP_LOAD_MOONCAKE);
    (void)state;
    make_from(&source,
              "{\"timestamp\":0,\"input_length\":600,\"output_length\":1,\"hash_ids\":[1]}\n"
              "{\"timestamp\":0,\"input_length\":600,\"output_length\":1,\"hash_ids\":[1]}\n"
              "{\"timestamp\":0,\"input_length\":60,\"output_length\":1,\"hash_ids\":[]}");
    assert_true(same(0, 0, 1, 0, 512));
    assert_false(same(0, 512, 1, 512, 8));
    refuse(&source, "{\"timestamp\":0,\"input_length\":1025,\"output_length\":1,\"hash_ids\":[1]}",
           ":1: hash_ids has 1 ids, but a prompt of 1025 tokens needs 3");
}

static void test_what_is_left_out_of_mooncake_leaves_no_blocks_behind(void **state) {
    struct rp_load_source source = source_of(RP_LOAD_MOONCAKE);
    (void)state;
    source.max_context = 1303;
    make_from(&source, small_mooncake);
    assert_int_equal(plan.count, 2);
    assert_int_equal(plan.skipped, 2);
    check(0, 0, 1024, 4);
    check(1, 35750000, 1300, 3);
    assert_true(same(0, 0, 1, 512, 512));
}

static void test_bad_mooncake_files_are_refused_by_line_and_field(void **state) {
    struct rp_load_source source = source_of(RP_LOAD_MOONCAKE);
    (void)state;
    refuse(&source, "", "the file has no requests");
    refuse(&source, "\n\r\n\n", "the file has no requests");
#undef ROW
#define GOOD            "{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}\n"
#define ROW(row, words) refuse(&source, GOOD row, words)
    ROW("{\"timestamp\":0,", ":2: not valid JSON: column");
    ROW("[]", ":2: must be a JSON object");
    ROW("7", ":2: not valid JSON");
    ROW("{}", ":2: timestamp must be");
    ROW("{\"timestamp\":NaN}", ":2: not valid JSON");
    ROW("{\"timestamp\":-1}", ":2: timestamp must be");
    ROW("{\"timestamp\":1e300}", ":2: timestamp must be");
    ROW("{\"timestamp\":1e999}", ":2: not valid JSON");
    ROW("{\"timestamp\":9300000000000}", ":2: timestamp must be");
    ROW("{\"timestamp\":99999999999999999999}", ":2: not valid JSON");
    ROW("{\"timestamp\":\"0\"}", ":2: timestamp must be");
    ROW("{\"timestamp\":0}", ":2: input_length must be");
    ROW("{\"timestamp\":0,\"input_length\":-1}", ":2: input_length must be");
    ROW("{\"timestamp\":0,\"input_length\":1.5}", ":2: input_length must be");
    ROW("{\"timestamp\":0,\"input_length\":1073741825}", ":2: input_length must be");
    ROW("{\"timestamp\":0,\"input_length\":1,\"output_length\":null}", ":2: output_length must be");
    ROW("{\"timestamp\":0,\"input_length\":1,\"output_length\":1}", ":2: hash_ids must be");
    ROW("{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":{}}",
        ":2: hash_ids must be an array");
    ROW("{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[-1]}",
        ":2: hash_ids[0] must be");
    ROW("{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1,\"\"]}",
        ":2: hash_ids[1] must be");
    ROW("{\"timestamp\":0,\"timestamp\":0}", ":2: not valid JSON");
    char *deep = rp_alloc(200002);
    memset(deep, '[', 200000);
    memcpy(deep + 200000, "\n", 2);
    refuse(&source, deep, ":1: not valid JSON");
    rp_free(deep);
}

static void test_files_that_never_end_are_refused(void **state) {
    struct rp_load_source source = source_of(RP_LOAD_MOONCAKE);
    (void)state;
    char *line = rp_alloc(3 << 20);
    memset(line, ' ', 3 << 20);
    memcpy(line, GOOD, strlen(GOOD));
    write_bytes(line, 3 << 20);
    rp_free(line);
    assert_int_equal(rp_load_plan_make(&source, &plan, &err), RP_STATUS_FORMAT);
    assert_non_null(strstr(err.text, ":2: is longer than 1048576 bytes"));
    source.path = "/dev/zero";
    assert_int_equal(rp_load_plan_make(&source, &plan, &err), RP_STATUS_FORMAT);
    source.path = "/tmp";
    assert_int_equal(rp_load_plan_make(&source, &plan, &err), RP_STATUS_IO);
    source.path = "/nowhere/at/all";
    assert_int_equal(rp_load_plan_make(&source, &plan, &err), RP_STATUS_NOT_FOUND);
    write_bytes("{\"timestamp\"\0:0}\n", 17);
    source.path = path;
    assert_int_equal(rp_load_plan_make(&source, &plan, &err), RP_STATUS_FORMAT);
    assert_non_null(strstr(err.text, ":1: contains a NUL byte"));
}

static void test_a_long_path_does_not_hide_line_and_field(void **state) {
    struct rp_load_source source = source_of(RP_LOAD_MOONCAKE);
    char longer[1200] = "";
    (void)state;
    write_bytes("{}\n", 3);
    while (strlen(longer) < 1000)
        memcpy(longer + strlen(longer), "/.", 3);
    memcpy(longer + strlen(longer), path, strlen(path) + 1);
    source.path = longer;
    assert_int_equal(rp_load_plan_make(&source, &plan, &err), RP_STATUS_FORMAT);
    assert_non_null(strstr(err.text, ":1: timestamp must be"));
}

/* Every beginning of the file, and 1,000 files with some bytes replaced. */
static void torture(enum rp_load_dataset dataset, const char *text) {
    static const char bytes[] = "0123456789-+.,:eE{}[]\" \r\n\t\0\xFF\x80TZ";
    struct rp_load_source source = source_of(dataset);
    struct rp_load_random random = rp_load_random_begin(5, RP_LOAD_STREAM_PROMPT, 0);
    size_t len = strlen(text);
    uint32_t accepted = 0;
    char *copy = rp_strdup(text);
    source.length_scale = 1.0 / 512; /* a length with an extra digit is still small */
    for (size_t i = 0; i < len + 1000; i++) {
        memcpy(copy, text, len);
        for (uint32_t n = rp_load_random_below(&random, 4); i >= len && n < 4; n++)
            copy[rp_load_random_below(&random, (uint32_t)len)] =
                bytes[rp_load_random_below(&random, sizeof bytes)];
        write_bytes(copy, RP_MIN(i, len));
        err = (struct rp_error){0};
        int status = rp_load_plan_make(&source, &plan, &err);
        accepted += status == RP_OK;
        assert_true(status == RP_OK || strstr(err.text, path) || strstr(err.text, "years") ||
                    strstr(err.text, "GiB"));
        rp_load_plan_free(&plan);
    }
    assert_true(accepted > 10);
    rp_free(copy);
}

static void test_broken_files_end_in_a_plan_or_an_error(void **state) {
    (void)state;
    torture(RP_LOAD_AZURE, HEADER "2023-12-31 23:59:59.9999999,374,44\n"
                                  "2024-01-01 00:00:00.0000000+00:00,396,109\n");
    torture(RP_LOAD_MOONCAKE, small_mooncake);
}

static void test_memory_that_is_out_is_an_error_everywhere(void **state) {
    static const enum rp_load_dataset datasets[] = {RP_LOAD_AZURE, RP_LOAD_MOONCAKE};
    (void)state;
    for (size_t d = 0; d < 2; d++) {
        struct rp_load_source source = source_of(datasets[d]);
        const char *text = d ? small_mooncake : HEADER "2024-01-01 00:00:00,1,1\n";
        int status = RP_STATUS_NO_MEMORY;
        write_bytes(text, strlen(text));
        for (uint64_t n = 1; status != RP_OK && n < 100; n++) {
            rp_alloc_fail_at(n);
            status = rp_load_plan_make(&source, &plan, &err);
            rp_alloc_fail_at(0);
            assert_true(status == RP_OK || status == RP_STATUS_NO_MEMORY);
        }
        assert_int_equal(status, RP_OK);
        rp_load_plan_free(&plan);
    }
}

/* --- The real files -------------------------------------------------------------------------- */

static void totals(uint64_t *input, uint64_t *output, uint64_t *cached) {
    *input = *output = *cached = 0;
    for (uint32_t i = 0; i < plan.count; i++) {
        *input += plan.requests[i].input_tokens;
        *output += plan.requests[i].output_tokens;
        *cached += plan.requests[i].cached_tokens;
    }
}

static void test_the_azure_trace_is_read_to_its_last_row(void **state) {
    struct rp_load_source source = source_of(RP_LOAD_AZURE);
    uint64_t input, output, cached;
    char file[1024];
    (void)state;
    if (!rp_test_data("traces/AzureLLMInferenceTrace_conv.csv", file, sizeof file))
        skip();
    source.path = file;
    make(&source);
    assert_int_equal(plan.count, 19366);
    check(0, 0, 374, 44);
    check(1, 4314579000, 396, 109);
    check(19364, 3501060254000, 1030, 434);
    check(19365, 3501721937000, 197, 183);
    totals(&input, &output, &cached);
    assert_true(input == 22361870 && output == 4088665);
    assert_true(cached == 0); /* all prompts are different */
    source.max_context = 4096;
    source.length_scale = 0.5;
    source.time_scale = 0.1;
    make(&source);
    assert_int_equal(plan.count + plan.skipped, 19366);
    assert_true(plan.skipped > 0 && plan.requests[plan.count - 1].at_ns == 350172193700);
}

/* One prompt of Mooncake's file. */
struct chain {
    uint32_t length, count;
    uint64_t ids[512];
};

static uint32_t read_chains(const char *file, struct chain *chains, uint32_t most) {
    FILE *in = fopen(file, "r");
    uint32_t count = 0;
    assert_non_null(in);
    for (json_t *root; count < most && (root = json_loadf(in, JSON_DISABLE_EOF_CHECK, NULL));
         count++) {
        const json_t *ids = json_object_get(root, "hash_ids");
        chains[count].length = (uint32_t)json_integer_value(json_object_get(root, "input_length"));
        chains[count].count = (uint32_t)json_array_size(ids);
        for (uint32_t i = 0; i < chains[count].count && i < 512; i++)
            chains[count].ids[i] = (uint64_t)json_integer_value(json_array_get(ids, i));
        json_decref(root);
    }
    fclose(in);
    return count;
}

#define IDS_MAX 65536

static void test_the_mooncake_trace_hits_what_its_ids_say(void **state) {
    struct rp_load_source source = source_of(RP_LOAD_MOONCAKE);
    uint64_t input, output, cached, blocks = 0, hits = 0, whole_hits = 0;
    char file[1024];
    (void)state;
    if (!rp_test_data("traces/mooncake_synthetic.jsonl", file, sizeof file))
        skip();
    /* Independent computation: an id occurs at only one position of a prompt (checked), so a prompt
     * hits as many leading blocks as it has known ids; complete ones if an earlier prompt had the
     * complete block. */
    struct chain *chains = rp_calloc(4000, sizeof *chains);
    bool *seen = rp_calloc(IDS_MAX, 1), *seen_whole = rp_calloc(IDS_MAX, 1);
    uint64_t *before = rp_calloc(IDS_MAX, sizeof *before);
    uint32_t count = read_chains(file, chains, 4000);
    assert_int_equal(count, 3993);
    for (uint32_t r = 0; r < count; r++) {
        const struct chain *chain = &chains[r];
        uint32_t leading = 0, leading_whole = 0;
        assert_int_equal(chain->count, (chain->length + 511) / 512);
        while (leading < chain->count && seen[chain->ids[leading]])
            leading++;
        while (leading_whole < (chain->length - 1) / 512 && seen_whole[chain->ids[leading_whole]])
            leading_whole++;
        for (uint32_t i = 0; i < chain->count; i++) {
            uint64_t id = chain->ids[i], previous = i ? chain->ids[i - 1] + 1 : 1;
            assert_true(id < IDS_MAX && (!before[id] || before[id] == previous));
            before[id] = previous;
            seen[id] = true;
            seen_whole[id] = seen_whole[id] || i < chain->length / 512;
        }
        blocks += chain->count;
        hits += leading;
        whole_hits += leading_whole;
    }
    rp_free(chains);
    rp_free(seen);
    rp_free(seen_whole);
    rp_free(before);
    assert_true(blocks == 121877 && hits == 77953); /* 64 % */
    source.path = file;
    source.page_tokens = 512;
    make(&source);
    assert_int_equal(plan.count, 3993);
    check(0, 0, 40160, 6);
    check(3992, 1022025000000, 18440, 83);
    totals(&input, &output, &cached);
    assert_true(input == 61194628 && output == 595432);
    assert_true(cached == whole_hits * 512);
    assert_true(whole_hits * 100 > blocks * 63);
    /* With pages of 16 and blocks of one page: the same hits, except for lengths rounded up to a
     * page. */
    source.page_tokens = 16;
    source.block_tokens = 16;
    make(&source);
    totals(&input, &output, &cached);
    assert_true(fabs((double)cached / 16 - (double)whole_hits) < 0.005 * (double)blocks);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_teardown(name, free_plan)
        TEST(test_azure_times_count_100_ns_from_the_first_row_across_midnight),
        TEST(test_azure_with_other_line_ends_and_zones_is_read_alike),
        TEST(test_rows_out_of_order_are_sent_in_the_order_of_their_times),
        TEST(test_scales_count_and_context_apply_to_a_trace),
        TEST(test_bad_azure_files_are_refused_by_line_and_field),
        TEST(test_mooncake_blocks_of_equal_id_have_equal_tokens),
        TEST(test_mooncake_blocks_are_scaled_with_the_lengths),
        TEST(test_a_prompt_may_end_behind_its_last_id),
        TEST(test_what_is_left_out_of_mooncake_leaves_no_blocks_behind),
        TEST(test_bad_mooncake_files_are_refused_by_line_and_field),
        TEST(test_files_that_never_end_are_refused),
        TEST(test_a_long_path_does_not_hide_line_and_field),
        TEST(test_broken_files_end_in_a_plan_or_an_error),
        TEST(test_memory_that_is_out_is_an_error_everywhere),
        TEST(test_the_azure_trace_is_read_to_its_last_row),
        TEST(test_the_mooncake_trace_hits_what_its_ids_say),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
