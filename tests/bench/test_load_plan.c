/* Goal: a plan follows its source: lengths, ids, times, skipped requests, and hits of an unbounded
 * prefix cache; equal for the same seed, with other prompts for another. Traces and their files:
 * test_load_trace. */
#include "base/hash.h"
#include "base/memory.h"
#include "bench/load/load_plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct rp_load_plan plan;
static struct rp_error err;
static char path[] = "/tmp/test_load_plan_XXXXXX";

static int make_file(void **state) {
    (void)state;
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state) {
    (void)state;
    return unlink(path);
}

static int free_plan(void **state) {
    (void)state;
    rp_load_plan_free(&plan);
    return 0;
}

static void write_file(const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static struct rp_load_source random_source(uint32_t count) {
    return (struct rp_load_source){.dataset = RP_LOAD_RANDOM,
                                   .count = count,
                                   .seed = 1,
                                   .vocab_begin = 100,
                                   .vocab_end = 500,
                                   .input = {64, 0.5},
                                   .output = {10, 0},
                                   .arrival = RP_LOAD_GAMMA,
                                   .rate = 50};
}

static void make(const struct rp_load_source *source) {
    rp_load_plan_free(&plan);
    int status = rp_load_plan_make(source, &plan, &err);
    if (status != RP_OK)
        print_message("%s\n", err.text);
    assert_int_equal(status, RP_OK);
}

static void refuse(const struct rp_load_source *source, int status, const char *word) {
    rp_load_plan_free(&plan);
    assert_int_equal(rp_load_plan_make(source, &plan, &err), status);
    if (!strstr(err.text, word))
        print_message("'%s' is not in: %s\n", word, err.text);
    assert_non_null(strstr(err.text, word));
    assert_null(plan.requests);
    assert_null(plan.ids);
    assert_null(plan.text);
}

static uint64_t hash_of_plan(void) {
    uint64_t hash = 0;
    for (uint32_t i = 0; i < plan.count; i++) {
        const struct rp_load_request *r = &plan.requests[i];
        uint64_t numbers[] = {hash, r->at_ns, r->input_tokens, r->output_tokens, r->cached_tokens};
        hash = rp_hash64(numbers, sizeof numbers, 0);
        if (r->ids)
            hash = rp_hash64(r->ids, r->input_tokens * sizeof *r->ids, hash);
        else
            hash = rp_hash64(r->text, strlen(r->text), hash);
    }
    return hash;
}

/* --- Lengths and ids ------------------------------------------------------------------------- */

static void test_lengths_are_uniform_between_their_bounds(void **state) {
    uint32_t least = UINT32_MAX, most = 0;
    double sum = 0;
    struct rp_load_source source = random_source(4000);
    (void)state;
    make(&source);
    assert_int_equal(plan.count, 4000);
    for (uint32_t i = 0; i < plan.count; i++) {
        least = RP_MIN(least, plan.requests[i].input_tokens);
        most = RP_MAX(most, plan.requests[i].input_tokens);
        sum += plan.requests[i].input_tokens;
        assert_int_equal(plan.requests[i].output_tokens, 10);
    }
    assert_int_equal(least, 32);
    assert_int_equal(most, 96);
    assert_true(fabs(sum / 4000 - 64) < 4 * sqrt(65.0 * 65 / 12 / 4000));
}

static void test_a_length_is_at_least_one(void **state) {
    struct rp_load_source source = random_source(200);
    bool one = false;
    (void)state;
    source.input = source.output = (struct rp_load_lengths){1, 0.99};
    make(&source);
    for (uint32_t i = 0; i < plan.count; i++) {
        assert_in_range(plan.requests[i].input_tokens, 1, 2);
        assert_in_range(plan.requests[i].output_tokens, 1, 2);
        one = one || plan.requests[i].input_tokens == 1;
    }
    assert_true(one);
}

static void test_ids_cover_the_vocabulary_and_nothing_else(void **state) {
    struct rp_load_source source = random_source(100);
    bool seen[500] = {false};
    (void)state;
    make(&source);
    for (uint32_t i = 0; i < plan.count; i++)
        for (uint32_t t = 0; t < plan.requests[i].input_tokens; t++) {
            assert_in_range(plan.requests[i].ids[t], 100, 499);
            seen[plan.requests[i].ids[t]] = true;
        }
    for (int id = 100; id < 500; id++)
        assert_true(seen[id]);
}

static void test_all_prompts_share_the_prefix_and_nothing_behind_it(void **state) {
    struct rp_load_source source = random_source(50);
    (void)state;
    source.prefix_tokens = 40;
    source.input = (struct rp_load_lengths){30, 0};
    make(&source);
    for (uint32_t i = 0; i < plan.count; i++) {
        const struct rp_load_request *r = &plan.requests[i];
        assert_int_equal(r->input_tokens, 70);
        assert_memory_equal(r->ids, plan.requests[0].ids, 40 * sizeof *r->ids);
        assert_int_equal(r->cached_tokens, i ? 32 : 0); /* two whole pages of 16 */
        for (uint32_t j = 0; j < i; j++)
            assert_memory_not_equal(r->ids + 40, plan.requests[j].ids + 40, 30 * sizeof *r->ids);
    }
}

static void test_another_seed_gives_other_prompts_prefix_and_times(void **state) {
    struct rp_load_source source = random_source(50);
    struct rp_load_plan first;
    (void)state;
    source.prefix_tokens = 16;
    make(&source);
    uint64_t hash = hash_of_plan();
    make(&source);
    assert_true(hash_of_plan() == hash);
    first = plan;
    plan = (struct rp_load_plan){0};
    source.seed = 2;
    make(&source);
    for (uint32_t i = 0; i < plan.count; i++)
        for (uint32_t j = 0; j < first.count; j++)
            assert_memory_not_equal(plan.requests[i].ids, first.requests[j].ids,
                                    16 * sizeof *plan.ids);
    assert_true(plan.requests[7].at_ns != first.requests[7].at_ns);
    rp_load_plan_free(&first);
}

static void test_what_exceeds_the_context_is_left_out_and_counted(void **state) {
    struct rp_load_source source = random_source(1000);
    (void)state;
    source.max_context = 80;
    make(&source);
    assert_int_equal(plan.count + plan.skipped, 1000);
    assert_in_range(plan.skipped, 300, 500); /* inputs of 71 to 96 of 32 to 96 */
    bool full = false;
    for (uint32_t i = 0; i < plan.count; i++) {
        assert_in_range(plan.requests[i].input_tokens + plan.requests[i].output_tokens, 1, 80);
        full = full || plan.requests[i].input_tokens == 70;
    }
    assert_true(full);
    source.max_context = 41;
    refuse(&source, RP_STATUS_INVALID, "none of 1000 requests fits into a context of 41 tokens");
}

/* --- Times
 *
 --------------------------------------------------------------------------------------------- */

static void test_constant_arrivals_are_equally_far_apart(void **state) {
    struct rp_load_source source = random_source(1001);
    (void)state;
    source.arrival = RP_LOAD_CONSTANT;
    source.rate = 8;
    make(&source);
    for (uint32_t i = 0; i < plan.count; i++)
        assert_true(plan.requests[i].at_ns == i * UINT64_C(125000000));
}

/* Gaps of a plan: mean exactly 1 / rate, squared coefficient of variation 1 / burstiness, times in
 * ascending order. */
static void check_gaps(double burstiness, double tolerance) {
    struct rp_load_source source = random_source(20001);
    double squares = 0;
    source.burstiness = burstiness;
    source.input = (struct rp_load_lengths){1, 0};
    make(&source);
    assert_true(plan.requests[0].at_ns == 0);
    assert_true(llabs((long long)plan.requests[20000].at_ns - 400000000000LL) <= 1000);
    for (uint32_t i = 1; i < plan.count; i++) {
        assert_true(plan.requests[i].at_ns >= plan.requests[i - 1].at_ns);
        double gap = (double)(plan.requests[i].at_ns - plan.requests[i - 1].at_ns) * 1e-9 * 50;
        squares += (gap - 1) * (gap - 1);
    }
    double variation = squares / 20000 * (burstiness ? burstiness : 1);
    assert_true(fabs(variation - 1) < tolerance);
}

static void test_gamma_gaps_have_their_rate_and_burstiness(void **state) {
    (void)state;
    check_gaps(0, 0.1); /* Poisson */
    check_gaps(1, 0.1);
    check_gaps(0.25, 0.15);
    check_gaps(4, 0.05);
    check_gaps(100, 0.05);
}

static void test_poisson_counts_have_the_variance_of_their_mean(void **state) {
    uint32_t counts[1000] = {0};
    double squares = 0;
    struct rp_load_source source = random_source(10001);
    (void)state;
    source.input = (struct rp_load_lengths){1, 0};
    source.rate = 10; /* 1,000 s */
    make(&source);
    for (uint32_t i = 0; i < plan.count - 1; i++)
        counts[plan.requests[i].at_ns / 1000000000]++;
    for (int i = 0; i < 1000; i++)
        squares += (counts[i] - 10.0) * (counts[i] - 10.0);
    assert_true(fabs(squares / 1000 / 10 - 1) < 4 * sqrt(2.0 / 1000));
}

/* A ramp from 10 to 90 in 2,001 requests: gap i is 1 / rate_i, so arrival i is the sum of the
 * gaps. */
static void test_ramps_have_their_rates_at_both_ends_and_between(void **state) {
    struct rp_load_source source = random_source(2001);
    (void)state;
    source.arrival = RP_LOAD_CONSTANT;
    source.input = (struct rp_load_lengths){1, 0};
    source.ramp_begin = 10;
    source.ramp_end = 90;
    for (int ramp = RP_LOAD_RAMP_LINEAR; ramp <= RP_LOAD_RAMP_EXPONENTIAL; ramp++) {
        double seconds = 0;
        source.ramp = (enum rp_load_ramp)ramp;
        make(&source);
        for (uint32_t i = 1; i < plan.count; i++) {
            double progress = i / 2000.0;
            seconds +=
                1 / (ramp == RP_LOAD_RAMP_LINEAR ? 10 + 80 * progress : 10 * pow(9, progress));
            assert_true(fabs((double)plan.requests[i].at_ns - seconds * 1e9) < 10);
        }
    }
    source.arrival = RP_LOAD_GAMMA; /* with random gaps: as long, within 4 standard errors */
    make(&source);
    assert_true(fabs((double)plan.requests[2000].at_ns * 1e-9 - 2000 * 8 / 9.0 / 10 / log(9)) <
                4 * sqrt(2000.0) / 10);
}

static void test_a_closed_loop_has_no_times(void **state) {
    struct rp_load_source source = random_source(20);
    (void)state;
    source.arrival = RP_LOAD_CLOSED;
    source.rate = 0;
    make(&source);
    for (uint32_t i = 0; i < plan.count; i++)
        assert_true(plan.requests[i].at_ns == 0);
}

static void test_one_request_comes_at_once(void **state) {
    struct rp_load_source source = random_source(1);
    (void)state;
    for (int arrival = RP_LOAD_CLOSED; arrival <= RP_LOAD_GAMMA; arrival++) {
        source.arrival = (enum rp_load_arrival)arrival;
        make(&source);
        assert_int_equal(plan.count, 1);
        assert_true(plan.requests[0].at_ns == 0);
    }
}

/* --- Hits of a cache ------------------------------------------------------------------------- */

/* Longest common prefix with any earlier prompt, in whole pages, without the last token. */
static uint32_t cached_by_brute_force(uint32_t index, uint32_t page_tokens) {
    const struct rp_load_request *own = &plan.requests[index];
    uint32_t best = 0;
    for (uint32_t i = 0; i < index; i++) {
        const struct rp_load_request *other = &plan.requests[i];
        uint32_t common = 0, most = RP_MIN(own->input_tokens, other->input_tokens);
        while (common < most && own->ids[common] == other->ids[common])
            common++;
        best = RP_MAX(best, common);
    }
    while (best && (best % page_tokens || best == own->input_tokens))
        best--;
    return best;
}

static void test_cached_tokens_are_those_of_a_brute_force_search(void **state) {
    struct rp_load_source source = random_source(400);
    (void)state;
    source.vocab_end = source.vocab_begin + 2; /* so that prompts share by chance, and are equal */
    source.input = (struct rp_load_lengths){12, 0.9};
    for (uint32_t page = 1; page <= 7; page++)
        for (uint32_t prefix = 0; prefix < 12; prefix += 5) {
            uint64_t total = 0;
            source.seed++;
            source.page_tokens = page;
            source.prefix_tokens = prefix;
            make(&source);
            for (uint32_t i = 0; i < plan.count; i++) {
                assert_int_equal(plan.requests[i].cached_tokens, cached_by_brute_force(i, page));
                total += plan.requests[i].cached_tokens;
            }
            assert_true(total > 0);
        }
}

static void test_the_last_token_is_never_cached(void **state) {
    struct rp_load_source source = random_source(3);
    (void)state;
    source.vocab_end = source.vocab_begin + 1; /* all prompts are equal */
    source.page_tokens = 8;
    source.input = (struct rp_load_lengths){24, 0};
    make(&source);
    assert_int_equal(plan.requests[2].cached_tokens, 16);
    source.input.mean = 25;
    make(&source);
    assert_int_equal(plan.requests[2].cached_tokens, 24);
}

/* --- Text
 *
 --------------------------------------------------------------------------------------------- */

static struct rp_load_source text_source(enum rp_load_dataset dataset) {
    struct rp_load_source source = random_source(40);
    source.dataset = dataset;
    source.path = path;
    source.vocab_begin = source.vocab_end = 0;
    source.input = (struct rp_load_lengths){50, 0};
    return source;
}

static void test_text_pieces_have_about_their_length_and_are_whole_characters(void **state) {
    struct rp_load_source source = text_source(RP_LOAD_TEXT);
    (void)state;
    write_file(
        "z\xC3\xA4hlt \xE2\x82\xAC und \xF0\x9F\x98\x80, dann\r\nweiter\n\nEnde ohne Umbruch");
    make(&source);
    for (uint32_t i = 0; i < plan.count; i++) {
        const struct rp_load_request *r = &plan.requests[i];
        size_t len = strlen(r->text);
        assert_null(r->ids);
        assert_int_equal(r->input_tokens, 0);
        assert_int_equal(r->cached_tokens, 0);
        assert_int_equal(r->output_tokens, 10);
        assert_in_range(len, 200,
                        203); /* 50 tokens of 4 bytes; the file is shorter and is repeated */
        assert_true(((unsigned char)r->text[0] & 0xC0) != 0x80);
        assert_true(rp_hash64(r->text, len, 0) != 0);
        /* \r\n is replaced by \n, the empty line is kept, the last line gets its end */
        assert_null(strchr(r->text, '\r'));
        assert_non_null(strstr(r->text, "weiter\n\nEnde ohne Umbruch\nz"));
        assert_true(((unsigned char)r->text[len - 1] & 0x80) == 0 ||
                    strcmp(r->text + len - 2, "\xC3\xA4") == 0 ||
                    strcmp(r->text + len - 3, "\xE2\x82\xAC") == 0 ||
                    strcmp(r->text + len - 4, "\xF0\x9F\x98\x80") == 0);
    }
    source.text_bytes_per_token = 1.5;
    make(&source);
    assert_in_range(strlen(plan.requests[0].text), 75, 78);
    uint64_t hash = hash_of_plan();
    source.seed = 9;
    make(&source);
    assert_true(hash_of_plan() != hash);
}

#define INSTRUCTION "Pick as many lines as you can from these poem lines:\n"

static void test_sonnets_share_lines_and_sample_the_rest(void **state) {
    struct rp_load_source source = text_source(RP_LOAD_SONNET);
    char prefix[256], first_prefix[256] = "";
    uint32_t others = 0;
    (void)state;
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < 100; i++) /* 20 bytes with their end: 5 tokens */
        fprintf(file, "%s this is line nr%03d\n", i % 10 ? "" : "\n", i);
    fclose(file);
    source.input = (struct rp_load_lengths){113, 0}; /* 400 bytes after the instruction: 20 lines */
    source.prefix_tokens = 38;                       /* 100 bytes: 5 lines */
    for (source.seed = 0; source.seed < 20; source.seed++) {
        make(&source);
        for (uint32_t i = 0; i < plan.count; i++) {
            const char *text = plan.requests[i].text;
            assert_int_equal(strlen(text), strlen(INSTRUCTION) + 400);
            assert_memory_equal(text, INSTRUCTION, strlen(INSTRUCTION));
            assert_memory_equal(text, plan.requests[0].text, strlen(INSTRUCTION) + 100);
            for (const char *line = text + strlen(INSTRUCTION); *line; line += 20)
                assert_memory_equal(line, " this is line nr", 16);
            for (uint32_t j = 0; j < i; j++)
                assert_string_not_equal(text, plan.requests[j].text);
        }
        snprintf(prefix, sizeof prefix, "%.100s", plan.requests[0].text + strlen(INSTRUCTION));
        others += strcmp(prefix, first_prefix) != 0;
        memcpy(first_prefix, prefix, sizeof prefix);
    }
    assert_true(others >= 18);
}

static void test_texts_that_are_none_are_refused_by_line(void **state) {
    struct rp_load_source source = text_source(RP_LOAD_SONNET);
    (void)state;
    write_file("one\ntwo\n\xC3\x28\n");
    refuse(&source, RP_STATUS_FORMAT, ":3: is not UTF-8");
    write_file("\n\r\n\n");
    refuse(&source, RP_STATUS_FORMAT, "the file has no text");
    source.dataset = RP_LOAD_TEXT;
    write_file("");
    refuse(&source, RP_STATUS_FORMAT, "the file has no text");
    source.path = "/nowhere/at/all";
    refuse(&source, RP_STATUS_NOT_FOUND, "/nowhere/at/all: cannot open");
    source.path = "/tmp";
    refuse(&source, RP_STATUS_IO, "cannot read");
    source.path = "/dev/zero";
    refuse(&source, RP_STATUS_FORMAT, ":1: is longer than 1048576 bytes");
}

/* --- Bad sources ----------------------------------------------------------------------------- */

#define REFUSE(field, value, word)                                                                 \
    do {                                                                                           \
        struct rp_load_source changed = source;                                                    \
        changed.field = value;                                                                     \
        refuse(&changed, RP_STATUS_INVALID, word);                                                 \
    } while (0)

static void test_bad_fields_are_refused_by_name(void **state) {
    struct rp_load_source source = random_source(10);
    (void)state;
    REFUSE(dataset, (enum rp_load_dataset)99, "dataset");
    REFUSE(dataset, RP_LOAD_AZURE, "path");
    REFUSE(count, 0, "count");
    REFUSE(count, UINT32_MAX, "count");
    REFUSE(vocab_end, 100, "vocabulary");
    REFUSE(vocab_end, UINT32_MAX, "vocabulary");
    REFUSE(input.mean, 0, "input");
    REFUSE(output.mean, UINT32_MAX, "output");
    REFUSE(input.range, 1, "input range");
    REFUSE(output.range, NAN, "output range");
    REFUSE(prefix_tokens, UINT32_MAX, "prefix_tokens");
    REFUSE(arrival, (enum rp_load_arrival)99, "arrival");
    REFUSE(arrival, RP_LOAD_TRACE, "arrival");
    REFUSE(rate, 0, "rate");
    REFUSE(rate, NAN, "rate");
    REFUSE(rate, INFINITY, "rate");
    REFUSE(burstiness, -1, "burstiness");
    REFUSE(burstiness, NAN, "burstiness");
    REFUSE(ramp, RP_LOAD_RAMP_LINEAR, "ramp_begin");
    REFUSE(time_scale, -1, "time_scale");
    REFUSE(length_scale, NAN, "length_scale");
    REFUSE(length_scale, INFINITY, "length_scale");
    REFUSE(page_tokens, UINT32_MAX, "page_tokens");
    source.arrival = RP_LOAD_CLOSED;
    REFUSE(ramp, RP_LOAD_RAMP_LINEAR, "ramp");
    source = text_source(RP_LOAD_SONNET);
    REFUSE(prefix_tokens, 50, "input length");
    REFUSE(text_bytes_per_token, -1, "text_bytes_per_token");
    source = text_source(RP_LOAD_TEXT);
    REFUSE(prefix_tokens, 1, "prefix_tokens");
}

static void test_plans_that_are_too_big_say_what_to_change(void **state) {
    struct rp_load_source source = random_source(1100);
    (void)state;
    source.input = (struct rp_load_lengths){1000000, 0};
    refuse(&source, RP_STATUS_RANGE, "more than 4 GiB");
    assert_non_null(strstr(err.hint, "count"));
    source = random_source(3);
    source.rate = 1e-300;
    refuse(&source, RP_STATUS_RANGE, "would last longer than");
    source = text_source(RP_LOAD_TEXT);
    source.input = (struct rp_load_lengths){1u << 30, 0};
    source.text_bytes_per_token = 1024;
    write_file("text");
    refuse(&source, RP_STATUS_RANGE, "more than 4 GiB");
}

static void test_memory_that_is_out_is_an_error_everywhere(void **state) {
    struct rp_load_source sources[] = {random_source(10), text_source(RP_LOAD_SONNET),
                                       text_source(RP_LOAD_TEXT)};
    (void)state;
    write_file("a line\nanother\n");
    for (size_t s = 0; s < RP_ARRAY_COUNT(sources); s++) {
        int status = RP_STATUS_NO_MEMORY;
        for (uint64_t n = 1; status != RP_OK && n < 100; n++) {
            rp_alloc_fail_at(n);
            status = rp_load_plan_make(&sources[s], &plan, &err);
            rp_alloc_fail_at(0);
            assert_true(status == RP_OK || status == RP_STATUS_NO_MEMORY);
            assert_true(status == RP_OK || !plan.requests);
        }
        assert_int_equal(status, RP_OK);
        rp_load_plan_free(&plan);
    }
}

static void test_a_plan_is_the_same_on_every_machine(void **state) {
    struct rp_load_source source = random_source(300);
    (void)state;
    source.prefix_tokens = 20;
    source.burstiness = 0.3;
    make(&source);
    /* These also by a second implementation. */
    assert_true(plan.requests[1].at_ns == 19055568 && plan.requests[1].input_tokens == 109 &&
                plan.requests[1].ids[0] == 299 && plan.requests[1].ids[20] == 219);
    assert_true(hash_of_plan() == 0xbf803179bcfe0265u);
    source.ramp = RP_LOAD_RAMP_EXPONENTIAL;
    source.ramp_begin = 3;
    source.ramp_end = 70;
    make(&source);
    assert_true(hash_of_plan() == 0x7f7d60161ea22a88u);
    write_file("one line\nand two\nthe third one\n");
    source = text_source(RP_LOAD_SONNET);
    make(&source);
    assert_true(hash_of_plan() == 0x3b998c47dcc27e70u);
    source = text_source(RP_LOAD_TEXT);
    make(&source);
    assert_true(hash_of_plan() == 0xa76dc1656b6e00b1u);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_teardown(name, free_plan)
        TEST(test_lengths_are_uniform_between_their_bounds),
        TEST(test_a_length_is_at_least_one),
        TEST(test_ids_cover_the_vocabulary_and_nothing_else),
        TEST(test_all_prompts_share_the_prefix_and_nothing_behind_it),
        TEST(test_another_seed_gives_other_prompts_prefix_and_times),
        TEST(test_what_exceeds_the_context_is_left_out_and_counted),
        TEST(test_constant_arrivals_are_equally_far_apart),
        TEST(test_gamma_gaps_have_their_rate_and_burstiness),
        TEST(test_poisson_counts_have_the_variance_of_their_mean),
        TEST(test_ramps_have_their_rates_at_both_ends_and_between),
        TEST(test_a_closed_loop_has_no_times),
        TEST(test_one_request_comes_at_once),
        TEST(test_cached_tokens_are_those_of_a_brute_force_search),
        TEST(test_the_last_token_is_never_cached),
        TEST(test_text_pieces_have_about_their_length_and_are_whole_characters),
        TEST(test_sonnets_share_lines_and_sample_the_rest),
        TEST(test_texts_that_are_none_are_refused_by_line),
        TEST(test_bad_fields_are_refused_by_name),
        TEST(test_plans_that_are_too_big_say_what_to_change),
        TEST(test_memory_that_is_out_is_an_error_everywhere),
        TEST(test_a_plan_is_the_same_on_every_machine),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
