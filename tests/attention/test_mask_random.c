/* Goal: pairs, rows and tiles of random programs agree with an independent evaluator of their
 * trees. Method: mask_program.h generates programs with their text; those that the proof refuses
 * are skipped, and only few may be. */
#include "attention/mask/mask.h"
#include "attention/mask/mask_internal.h"
#include "base/memory.h"
#include "tests/support/mask_program.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define PROGRAMS 1500

static const struct rp_mask_limits limits = {.length = 1000, .heads = 6, .layers = 3};

struct fixture {
    struct mask_program program;
    struct rp_mask *mask, *other;
    uint64_t seed;
    uint32_t refused;
    int32_t params[MASK_PROGRAM_PARAMS];
};

static int setup(void **state) {
    *state = rp_calloc(1, sizeof(struct fixture));
    return *state ? 0 : -1;
}

static void drop(struct fixture *f) {
    rp_mask_free(f->mask);
    rp_mask_free(f->other);
    f->mask = f->other = NULL;
}

static int teardown(void **state) {
    drop(*state);
    rp_free(*state);
    return 0;
}

/* The next program that the parser accepts. */
static void next_program(struct fixture *f) {
    struct rp_error err;
    for (;;) {
        drop(f);
        while (!mask_program_random(&f->seed, &limits, &f->program))
            ;
        mask_program_random_params(&f->program, &f->seed, f->params);
        if (rp_mask_parse(f->program.text, strlen(f->program.text), &limits, &f->mask, &err) ==
            RP_OK)
            return;
        f->refused++;
        /* The only faults that a generated program can have. */
        if (!strstr(err.text, "may not fit") && !strstr(err.text, "may be 0") &&
            !strstr(err.text, "divisor") && !strstr(err.text, "more than"))
            fail_msg("%s\n%s", err.text, f->program.text);
    }
}

static struct rp_mask_pair random_pair(struct fixture *f) {
    int32_t last = (int32_t)rp_mask_extent(&limits) - 1;
    struct rp_mask_pair pair = {.h = (int32_t)mask_random(&f->seed, limits.heads),
                                .layer = (int32_t)mask_random(&f->seed, limits.layers)};
    uint64_t kind = mask_random(&f->seed, 4);
    pair.q = kind == 0 ? last : kind == 1 ? 0 : (int32_t)mask_random(&f->seed, 1024);
    kind = mask_random(&f->seed, 4);
    pair.kv = kind == 0   ? last
              : kind == 1 ? (int32_t)mask_random(&f->seed, (uint64_t)pair.q + 1)
                          : (int32_t)mask_random(&f->seed, 1024);
    return pair;
}

static bool same_float(float a, float b) {
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

static void test_pairs_and_scores_are_those_of_a_plain_evaluator(void **state) {
    struct fixture *f = *state;
    bool undefined = false;
    for (uint32_t i = 0; i < PROGRAMS; i++) {
        next_program(f);
        for (uint32_t k = 0; k < 40; k++) {
            struct rp_mask_pair pair = random_pair(f);
            float score = (float)(int64_t)mask_random(&f->seed, 2000) * 0.01f - 10.0f;
            float want = mask_program_score(&f->program, &pair, f->params, score, &undefined);
            float got = rp_mask_score(f->mask, &pair, f->params, score);
            bool sees = mask_program_sees(&f->program, &pair, f->params, &undefined);
            if (undefined)
                fail_msg("proved, yet undefined at q=%d kv=%d: %s", pair.q, pair.kv,
                         f->program.text);
            if (sees != rp_mask_sees(f->mask, &pair, f->params) || !same_float(got, want))
                fail_msg("q=%d kv=%d h=%d layer=%d sees=%d score=%g want %g: %s\n%s", pair.q,
                         pair.kv, pair.h, pair.layer, sees, (double)got, (double)want,
                         f->program.text, rp_mask_text(f->mask));
        }
    }
    /* Otherwise little was tested. */
    assert_true(f->refused < PROGRAMS / 3);
}

static void test_a_row_of_keys_gives_the_bits_of_each_pair_alone(void **state) {
    struct fixture *f = *state;
    f->seed = 1000;
    for (uint32_t i = 0; i < PROGRAMS; i++) {
        bool seen[RP_MASK_KEYS_MAX + 1];
        float scores[RP_MASK_KEYS_MAX + 1];
        next_program(f);
        struct rp_mask_pair pair = random_pair(f);
        uint32_t count = 1 + (uint32_t)mask_random(&f->seed, RP_MASK_KEYS_MAX);
        pair.kv = RP_MIN(pair.kv, 1024 - (int32_t)count);
        for (uint32_t k = 0; k <= count; k++)
            scores[k] = (float)k * 0.37f - 5.0f;
        memset(seen, 2, sizeof seen);
        rp_mask_sees_keys(f->mask, &pair, f->params, count, seen);
        rp_mask_score_keys(f->mask, &pair, f->params, count, scores);
        for (uint32_t k = 0; k < count; k++) {
            struct rp_mask_pair one = pair;
            one.kv += (int32_t)k;
            assert_int_equal(seen[k], rp_mask_sees(f->mask, &one, f->params));
            assert_true(same_float(
                scores[k], rp_mask_score(f->mask, &one, f->params, (float)k * 0.37f - 5.0f)));
        }
        unsigned char behind;
        memcpy(&behind, &seen[count], 1);
        assert_int_equal(behind, 2);
        assert_true(same_float(scores[count], (float)count * 0.37f - 5.0f));
    }
}

static void test_the_canonical_text_reads_as_the_same_program(void **state) {
    struct fixture *f = *state;
    f->seed = 2000;
    for (uint32_t i = 0; i < PROGRAMS; i++) {
        struct rp_error err;
        next_program(f);
        const char *text = rp_mask_text(f->mask);
        if (rp_mask_parse(text, strlen(text), &limits, &f->other, &err) != RP_OK)
            fail_msg("%s\n%s", err.text, text);
        assert_string_equal(rp_mask_text(f->other), text);
        assert_int_equal(f->other->node_count, f->mask->node_count);
        for (uint32_t k = 0; k < f->mask->node_count; k++) {
            assert_int_equal(f->other->nodes[k].op, f->mask->nodes[k].op);
            assert_int_equal(f->other->nodes[k].value.i, f->mask->nodes[k].value.i);
            assert_memory_equal(f->other->nodes[k].child, f->mask->nodes[k].child,
                                sizeof f->mask->nodes[k].child);
        }
    }
}

static void test_the_program_of_a_layer_says_what_the_whole_says_there(void **state) {
    struct fixture *f = *state;
    f->seed = 3000;
    for (uint32_t i = 0; i < PROGRAMS; i++) {
        struct rp_error err;
        next_program(f);
        uint32_t layer = (uint32_t)mask_random(&f->seed, limits.layers);
        if (rp_mask_at_layer(f->mask, layer, &f->other, &err) != RP_OK)
            fail_msg("%s\n%s", err.text, f->program.text);
        assert_false(rp_mask_reads_layer(f->other));
        assert_int_equal(rp_mask_param_count(f->other), rp_mask_param_count(f->mask));
        assert_true(rp_mask_is_causal(f->other) || !rp_mask_is_causal(f->mask));
        for (uint32_t k = 0; k < 20; k++) {
            struct rp_mask_pair pair = random_pair(f);
            pair.layer = (int32_t)layer;
            assert_int_equal(rp_mask_sees(f->other, &pair, f->params),
                             rp_mask_sees(f->mask, &pair, f->params));
            assert_true(same_float(rp_mask_score(f->other, &pair, f->params, 2.5f),
                                   rp_mask_score(f->mask, &pair, f->params, 2.5f)));
        }
    }
}

static struct rp_mask_tile random_tile(struct fixture *f) {
    static const int32_t sizes[] = {1, 4, 16, 16, 32, 40};
    struct rp_mask_tile tile = {.layer = (int32_t)mask_random(&f->seed, limits.layers)};
    int32_t rows = sizes[mask_random(&f->seed, RP_ARRAY_COUNT(sizes))];
    int32_t keys = sizes[mask_random(&f->seed, RP_ARRAY_COUNT(sizes))];
    tile.q_begin = (int32_t)mask_random(&f->seed, 1025 - (uint64_t)rows);
    tile.kv_begin = (int32_t)mask_random(&f->seed, 1025 - (uint64_t)keys);
    if (mask_random(&f->seed, 2)) { /* near the diagonal, where classes change */
        int32_t near = tile.q_begin - 40 + (int32_t)mask_random(&f->seed, 60);
        tile.kv_begin = RP_MIN(1024 - keys, RP_MAX(0, near));
    }
    tile.q_end = tile.q_begin + rows;
    tile.kv_end = tile.kv_begin + keys;
    tile.h_begin = (int32_t)mask_random(&f->seed, limits.heads);
    tile.h_end =
        tile.h_begin + 1 + (int32_t)mask_random(&f->seed, limits.heads - (uint64_t)tile.h_begin);
    return tile;
}

static enum rp_mask_class brute_force(const struct fixture *f, const struct rp_mask_tile *tile) {
    bool any = false, all = true, undefined = false;
    struct rp_mask_pair p = {.layer = tile->layer};
    for (p.h = tile->h_begin; p.h < tile->h_end; p.h++)
        for (p.q = tile->q_begin; p.q < tile->q_end; p.q++)
            for (p.kv = tile->kv_begin; p.kv < tile->kv_end; p.kv++) {
                bool sees = mask_program_sees(&f->program, &p, f->params, &undefined);
                any |= sees;
                all &= sees;
                if (any && !all)
                    return RP_MASK_PARTIAL;
            }
    return any ? RP_MASK_FULL : RP_MASK_SKIP;
}

static void test_the_class_of_a_tile_is_what_brute_force_says(void **state) {
    struct fixture *f = *state;
    uint32_t counts[3] = {0, 0, 0}, open = 0;
    f->seed = 4000;
    for (uint32_t i = 0; i < PROGRAMS; i++) {
        next_program(f);
        for (uint32_t k = 0; k < 6; k++) {
            struct rp_mask_tile tile = random_tile(f);
            enum rp_mask_class want = brute_force(f, &tile);
            enum rp_mask_class got = rp_mask_classify(f->mask, &tile, f->params);
            enum rp_mask_class proved = rp_mask_classify_ranges(f->mask, &tile, f->params);
            if (got != want || (proved != RP_MASK_PARTIAL && proved != want))
                fail_msg("%d, by intervals %d, not %d: q %d..%d kv %d..%d h %d..%d layer %d: %s",
                         got, proved, want, tile.q_begin, tile.q_end, tile.kv_begin, tile.kv_end,
                         tile.h_begin, tile.h_end, tile.layer, f->program.text);
            counts[want]++;
            open += proved == RP_MASK_PARTIAL && want != RP_MASK_PARTIAL;
        }
    }
    printf("tiles: %u skip, %u full, %u partial; intervals left %u open\n", counts[RP_MASK_SKIP],
           counts[RP_MASK_FULL], counts[RP_MASK_PARTIAL], open);
    for (uint32_t i = 0; i < 3; i++)
        assert_true(counts[i] > PROGRAMS / 4);
}

static void test_a_program_that_is_proved_causal_sees_no_key_behind(void **state) {
    struct fixture *f = *state;
    uint32_t proved = 0, causal = 0;
    f->seed = 5000;
    for (uint32_t i = 0; i < PROGRAMS; i++) {
        bool behind = false;
        next_program(f);
        for (uint32_t k = 0; k < 400; k++) {
            struct rp_mask_pair pair = random_pair(f);
            mask_program_random_params(&f->program, &f->seed, f->params);
            if (k & 1) /* as close as possible */
                pair.kv = pair.q + 1;
            if (pair.kv > pair.q && pair.kv < 1024)
                behind |= rp_mask_sees(f->mask, &pair, f->params);
        }
        if (rp_mask_is_causal(f->mask) && behind)
            fail_msg("not causal: %s", f->program.text);
        proved += rp_mask_is_causal(f->mask);
        causal += !behind;
    }
    printf("causal: %u proved of at most %u\n", proved, causal);
    assert_true(proved * 3 > causal);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_pairs_and_scores_are_those_of_a_plain_evaluator),
        TEST(test_a_row_of_keys_gives_the_bits_of_each_pair_alone),
        TEST(test_the_canonical_text_reads_as_the_same_program),
        TEST(test_the_program_of_a_layer_says_what_the_whole_says_there),
        TEST(test_the_class_of_a_tile_is_what_brute_force_says),
        TEST(test_a_program_that_is_proved_causal_sees_no_key_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
