/* Goal: bench pair takes samples as A B B A with equal prompts on both sides, and opens and closes
 * the sides for every block; a difference of 10 % is found despite noise and drift, and A against A
 * is not reported. Method: fake sides. */
#include "base/memory.h"
#include "bench/pair.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { CALLS_MAX = 256 };

/* What was called: a, b for samples, ( ) for A's open and close, [ ] for B's. */
static char calls[CALLS_MAX + 1];
static uint64_t seeds[CALLS_MAX];
static size_t call_count;

/* A fake side: its value, its noise and its faults. */
struct made_up {
    char name;
    double value, noise, layout; /* layout: of each opening */
    double factor;               /* of this opening */
    int fails_at;                /* the n-th sample fails; 0: none */
    int samples;
};

static uint64_t random_state;
static double clock_drift;

/* About normal: twelve uniform ones. */
static double noise(void) {
    double sum = -6.0;
    for (int i = 0; i < 12; i++) {
        random_state = random_state * 6364136223846793005u + 1442695040888963407u;
        sum += (double)(random_state >> 11) * 0x1p-53;
    }
    return sum;
}

static void note(char what, uint64_t seed) {
    if (call_count < CALLS_MAX) {
        seeds[call_count] = seed;
        calls[call_count++] = what;
        calls[call_count] = '\0';
    }
}

static int open_made_up(void *ctx, struct rp_error *err) {
    struct made_up *side = ctx;
    (void)err;
    note(side->name == 'a' ? '(' : '[', 0);
    side->factor = exp(side->layout * noise());
    return RP_OK;
}

static int sample_made_up(void *ctx, const struct rp_pair_load *load, enum rp_pair_clock clock,
                          uint64_t seed, double *out, struct rp_error *err) {
    struct made_up *side = ctx;
    (void)load;
    (void)clock;
    note(side->name, seed);
    if (++side->samples == side->fails_at)
        return rp_error_set(err, RP_STATUS_DEVICE, "planted");
    clock_drift += 0.002;
    *out = side->value * side->factor * (1.0 + clock_drift) * exp(side->noise * noise());
    return RP_OK;
}

static void close_made_up(void *ctx) { note(((struct made_up *)ctx)->name == 'a' ? ')' : ']', 0); }

static int run(struct made_up *a, struct made_up *b, uint32_t blocks, bool keep,
               struct rp_comparison *out, struct rp_error *err) {
    const struct rp_pair_side sides[] = {{open_made_up, sample_made_up, close_made_up, a},
                                         {open_made_up, sample_made_up, close_made_up, b}};
    const struct rp_pair_run_options options = {.load = {RP_PAIR_STEP, 1, 8, 8, 0},
                                                .blocks = blocks,
                                                .keep = keep,
                                                .margin = RP_COMPARE_MARGIN,
                                                .seed = 1000};
    call_count = 0;
    calls[0] = '\0';
    clock_drift = 0.0;
    return rp_pair_run(&sides[0], &sides[1], &options, out, err);
}

static void blocks_are_a_b_b_a_with_equal_prompts(void **state) {
    struct made_up a = {.name = 'a', .value = 1}, b = {.name = 'b', .value = 1};
    struct rp_comparison result;
    (void)state;
    assert_int_equal(run(&a, &b, 3, false, &result, NULL), RP_OK);
    /* Opened alternately, with one sample each that is not counted. */
    assert_string_equal(calls, "([ababba)][(ababba)]([ababba)]");
    assert_int_equal(result.samples, 3);
    assert_int_equal(run(&a, &b, 3, true, &result, NULL), RP_OK);
    assert_string_equal(calls, "([ababbaabbaabba)]");
    /* Within a block A and B have the same prompts, and the other half has different ones. */
    for (size_t block = 0; block < 3; block++) {
        const uint64_t *at = &seeds[4 + 4 * block];
        assert_true(at[0] == at[1] && at[2] == at[3] && at[0] != at[2]);
        for (size_t i = 2; i < 4 + 4 * block; i++)
            assert_true(seeds[i] != at[0] && seeds[i] != at[2]);
    }
}

static void a_sample_that_fails_ends_it_and_closes_both(void **state) {
    struct made_up a = {.name = 'a', .value = 1}, b = {.name = 'b', .value = 1, .fails_at = 2};
    struct rp_comparison result;
    struct rp_error err = {0};
    (void)state;
    assert_int_equal(run(&a, &b, 3, false, &result, &err), RP_STATUS_DEVICE);
    assert_string_equal(err.text, "planted");
    assert_string_equal(calls, "([abab)]");
    rp_alloc_fail_at(1);
    assert_int_equal(run(&a, &b, 3, false, &result, &err), RP_STATUS_NO_MEMORY);
    rp_alloc_fail_at(0);
    assert_string_equal(calls, "");
}

/* Noise of 6 % per sample and 4 % per opening, as on a busy machine with two cores, and a drift of
 * 0.2 % per sample. */
static void a_planted_tenth_is_found_and_nothing_is_not(void **state) {
    enum { RUNS = 200, BLOCKS = 40 };
    uint32_t found = 0, faster = 0, imagined = 0;
    (void)state;
    for (uint32_t i = 0; i < RUNS; i++) {
        struct made_up a = {.name = 'a', .value = 2, .noise = 0.06, .layout = 0.04}, b = a;
        struct rp_comparison result;
        b.name = 'b';
        random_state = i + 1;
        assert_int_equal(run(&a, &b, BLOCKS, false, &result, NULL), RP_OK);
        imagined += result.verdict != RP_COMPARE_SAME;
        b.value = 2.2;
        assert_int_equal(run(&a, &b, BLOCKS, false, &result, NULL), RP_OK);
        found += result.verdict == RP_COMPARE_SLOWER;
        assert_int_equal(run(&b, &a, BLOCKS, false, &result, NULL), RP_OK);
        faster += result.verdict == RP_COMPARE_FASTER;
    }
    /* A 95 % interval misses 1 in 20 times by chance, and less often by more than the margin. */
    if (found < RUNS * 98 / 100 || faster < RUNS * 98 / 100 || imagined > RUNS * 7 / 100)
        fail_msg("found %u, the other way round %u, imagined %u of %u", found, faster, imagined,
                 RUNS);
}

static void named_pairs_are_many_and_each_is_found_by_its_name(void **state) {
    (void)state;
    assert_true(rp_pair_count >= 10);
    for (uint32_t i = 0; i < rp_pair_count; i++) {
        const struct rp_pair *pair = &rp_pairs[i];
        assert_ptr_equal(rp_pair_find(pair->name), pair); /* so no name occurs twice */
        assert_true(pair->what[0] && pair->load.sequences && pair->load.input > pair->load.shared);
        assert_true(pair->load.output > 0);
        assert_true(pair->expected == RP_PAIR_EQUAL || strcmp(pair->a, pair->b) != 0);
    }
    assert_null(rp_pair_find("no such pair"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_a_b_b_a_with_equal_prompts),
        cmocka_unit_test(a_sample_that_fails_ends_it_and_closes_both),
        cmocka_unit_test(a_planted_tenth_is_found_and_nothing_is_not),
        cmocka_unit_test(named_pairs_are_many_and_each_is_found_by_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
