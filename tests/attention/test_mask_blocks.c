/* Goal: the named blocks have their documented meaning and properties, and their tiles are
 * classified exactly, alone and in pairs. Method: masks drawn as text; brute force over all
 * small tiles. */
#include "attention/mask/mask.h"
#include "attention/mask/mask_internal.h"
#include "base/memory.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const struct rp_mask_limits limits = {.length = 1 << 20, .heads = 32, .layers = 26};

struct fixture {
    struct rp_mask *mask, *layer;
    struct rp_error err;
};

static int setup(void **state) {
    *state = rp_calloc(1, sizeof(struct fixture));
    return *state ? 0 : -1;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    rp_mask_free(f->mask);
    rp_mask_free(f->layer);
    rp_free(f);
    return 0;
}

static void parse_for(struct fixture *f, const char *text, const struct rp_mask_limits *for_what) {
    rp_mask_free(f->mask);
    f->mask = NULL;
    if (rp_mask_parse(text, strlen(text), for_what, &f->mask, &f->err) != RP_OK)
        fail_msg("%s: %s", text, f->err.text);
}

static void parse(struct fixture *f, const char *text) { parse_for(f, text, &limits); }

/* Eight queries and keys, one query per line: # where it attends. */
static void draws(struct fixture *f, const char *text, const char *want) {
    char got[8 * 9 + 1];
    parse(f, text);
    for (int32_t q = 0, at = 0; q < 8; q++) {
        for (int32_t kv = 0; kv < 8; kv++) {
            struct rp_mask_pair pair = {.q = q, .kv = kv};
            got[at++] = rp_mask_sees(f->mask, &pair, NULL) ? '#' : '.';
        }
        got[at++] = '\n';
        got[at] = '\0';
    }
    assert_string_equal(got, want);
}

static void test_named_conditions_draw_what_they_are_called(void **state) {
    struct fixture *f = *state;
    draws(f, "causal",
          "#.......\n##......\n###.....\n####....\n#####...\n######..\n#######.\n########\n");
    draws(f, "sliding_window(3) && causal",
          "#.......\n##......\n###.....\n.###....\n..###...\n...###..\n....###.\n.....###\n");
    draws(f, "sliding_window(1)",
          "########\n.#######\n..######\n...#####\n....####\n.....###\n......##\n.......#\n");
    draws(f, "sink(2)",
          "##......\n##......\n##......\n##......\n##......\n##......\n##......\n##......\n");
    draws(f, "causal && (sliding_window(2) || sink(1))",
          "#.......\n##......\n###.....\n#.##....\n#..##...\n#...##..\n#....##.\n#.....##\n");
    draws(f, "prefix_lm(3)",
          "###.....\n###.....\n###.....\n####....\n#####...\n######..\n#######.\n########\n");
    draws(f, "chunked(3)",
          "###.....\n###.....\n###.....\n...###..\n...###..\n...###..\n......##\n......##\n");
    draws(f, "document(2, 5)",
          "##......\n##......\n..###...\n..###...\n..###...\n.....###\n.....###\n.....###\n");
    draws(f, "document(5, 2, 2)",
          "##......\n##......\n..###...\n..###...\n..###...\n.....###\n.....###\n.....###\n");
    draws(f, "dilated(3)",
          "#..#..#.\n.#..#..#\n..#..#..\n#..#..#.\n.#..#..#\n..#..#..\n#..#..#.\n.#..#..#\n");
}

static float slope_at(struct fixture *f, uint32_t heads, int32_t h) {
    const struct rp_mask_limits some = {.length = 100, .heads = heads, .layers = 1};
    struct rp_mask_pair pair = {.q = 1, .kv = 0, .h = h};
    parse_for(f, "alibi", &some);
    return -rp_mask_score(f->mask, &pair, NULL, 0.0f);
}

/* The lists that the paper's own code gives for 8 and 12 heads. */
static void test_alibi_has_the_slopes_of_its_paper(void **state) {
    static const double twelve[] = {0.5,       0.25,      0.125,     0.0625,
                                    0.03125,   0.015625,  0.0078125, 0.00390625,
                                    0.7071068, 0.3535534, 0.1767767, 0.0883883};
    struct fixture *f = *state;
    for (int32_t h = 0; h < 8; h++)
        assert_true(slope_at(f, 8, h) == ldexpf(1.0f, -1 - h));
    for (int32_t h = 0; h < 12; h++)
        assert_true(fabs(slope_at(f, 12, h) - twelve[h]) < 1e-7);
    assert_true(fabs(slope_at(f, 32, 0) - 0.8408964) < 1e-7);
    assert_true(slope_at(f, 1, 0) == 0.00390625f);
    struct rp_mask_pair pair = {.q = 10, .kv = 3, .h = 1};
    assert_true(rp_mask_score(f->mask, &(struct rp_mask_pair){.q = 10, .kv = 3}, NULL, 5.0f) ==
                5.0f - 7.0f / 256.0f);
    parse(f, "soft_cap(30); score = score * 2");
    float want = 30.0f * tanhf(12.0f / 30.0f) * 2.0f;
    assert_true(rp_mask_score(f->mask, &pair, NULL, 12.0f) == want);
}

static void test_causality_is_proved_where_it_follows(void **state) {
    static const struct {
        const char *text;
        bool causal;
    } cases[] = {
        {"causal", true},
        {"", true},
        {"alibi", true},
        {"q >= kv", true},
        {"kv < q", true},
        {"kv - q < 1", true},
        {"0 <= q - kv", true},
        {"2 * kv <= 2 * q", true},
        {"kv + 3 * h <= q + 3 * h - 2 * h", false}, /* two uses of h are two numbers */
        {"q == kv", true},
        {"!(kv > q)", true},
        {"q - kv >= 0 && q - kv < 16", true},
        {"causal && chunked(64)", true},
        {"chunked(64); causal", true},
        {"causal && (sink(4) || sliding_window(16) || dilated(4))", true},
        {"causal && sink(4) || causal && dilated(8) || q == kv", true},
        {"h < 4 ? causal : kv < q", true},
        {"causal ? dilated(2) : false", true},
        {"param w = 1 in 1..64; kv + w <= q", true},
        {"param w = 1 in -1..64; kv + w <= q", false},
        {"kv <= q + 1", false},
        {"sliding_window(16)", false},
        {"sink(4)", false},
        {"causal || sink(4)", false},
        {"prefix_lm(16)", false},
        {"chunked(64)", false},
        {"document(3)", false},
        {"dilated(4)", false},
        {"true", false},
        {"false", true},
        {"abs(q - kv) < 4", false},
        {"(q - kv) / 4 >= 0", false}, /* rounds towards 0 */
        {"2 * kv <= 2 * q + 1", true},
        {"3 * kv <= 2 * q", true},
        {"2 * kv <= 3 * q", false},
        {"causal != sink(3)", false},
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        parse(f, cases[i].text);
        if (rp_mask_is_causal(f->mask) != cases[i].causal)
            fail_msg("%s", cases[i].text);
    }
}

static void test_what_is_plain_is_known_without_a_program(void **state) {
    static const struct {
        const char *text;
        bool plain;
        uint32_t window;
        float cap;
    } cases[] = {
        {"", true, 0, 0.0f},
        {"causal", true, 0, 0.0f},
        {"q >= kv", true, 0, 0.0f},
        {"causal && sliding_window(4096)", true, 4096, 0.0f},
        {"kv > q - 128; causal; soft_cap(50)", true, 128, 50.0f},
        {"q - kv <= 127 && causal && sliding_window(128)", false, 0, 0.0f},
        {"soft_cap(30)", true, 0, 30.0f},
        {"soft_cap(30); soft_cap(50)", false, 0, 0.0f},
        {"sliding_window(64)", false, 0, 0.0f},
        {"causal || sliding_window(64)", false, 0, 0.0f},
        {"causal && sliding_window(0)", false, 0, 0.0f},
        {"causal && sliding_window(64) && sliding_window(32)", false, 0, 0.0f},
        {"param w = 64; causal && sliding_window(w)", false, 0, 0.0f},
        {"causal && sliding_window(64 * (h + 1))", false, 0, 0.0f},
        {"causal && sink(4)", false, 0, 0.0f},
        {"causal && q == kv", false, 0, 0.0f},
        {"alibi", false, 0, 0.0f},
        {"soft_cap(-3)", false, 0, 0.0f},
        {"score = score * 2", false, 0, 0.0f},
        {"score = 50.0 * tanh(score / 25.0)", false, 0, 0.0f},
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        uint32_t window;
        float cap;
        parse(f, cases[i].text);
        bool plain = rp_mask_is_plain(f->mask, &window, &cap);
        if (plain != cases[i].plain ||
            (plain && (window != cases[i].window || cap != cases[i].cap)))
            fail_msg("%s: %d %u %g", cases[i].text, plain, window, (double)cap);
    }
}

static void test_alternating_layers_are_plain_one_by_one(void **state) {
    struct fixture *f = *state;
    uint32_t window;
    float cap;
    parse(f, "causal && (layer % 2 == 1 || sliding_window(4096)); soft_cap(50)");
    assert_true(rp_mask_reads_layer(f->mask));
    assert_false(rp_mask_is_plain(f->mask, &window, &cap));
    for (uint32_t layer = 0; layer < limits.layers; layer++) {
        rp_mask_free(f->layer);
        f->layer = NULL;
        assert_int_equal(rp_mask_at_layer(f->mask, layer, &f->layer, &f->err), RP_OK);
        assert_true(rp_mask_is_plain(f->layer, &window, &cap));
        assert_int_equal(window, layer % 2 ? 0 : 4096);
        assert_true(cap == 50.0f);
    }
}

static void test_what_is_read_is_known(void **state) {
    struct fixture *f = *state;
    parse(f, "causal; alibi");
    assert_false(rp_mask_reads_head(f->mask));
    assert_true(rp_mask_has_score(f->mask));
    parse(f, "sink(h)");
    assert_true(rp_mask_reads_head(f->mask));
    assert_false(rp_mask_has_score(f->mask));
    parse(f, "score = score * layer");
    assert_true(rp_mask_reads_layer(f->mask));
    parse(f, "layer < 3 || true");
    assert_false(rp_mask_reads_layer(f->mask));
}

/* --- Tiles
 *
 --------------------------------------------------------------------------------------------- */

static const char *const blocks[] = {
    "causal",          "sliding_window(5)", "sliding_window(0)", "sliding_window(1)",
    "sink(3)",         "prefix_lm(6)",      "chunked(4)",        "chunked(5)",
    "document(5, 11)", "document(7)",       "dilated(3)",        "dilated(4)",
    "dilated(1)",      "!causal",           "!chunked(4)",       "true",
};

static enum rp_mask_class brute_force(const struct rp_mask *mask, const struct rp_mask_tile *tile) {
    bool any = false, all = true;
    for (int32_t q = tile->q_begin; q < tile->q_end; q++)
        for (int32_t kv = tile->kv_begin; kv < tile->kv_end; kv++) {
            bool sees = rp_mask_sees(mask, &(struct rp_mask_pair){.q = q, .kv = kv}, NULL);
            any |= sees;
            all &= sees;
        }
    return any && !all ? RP_MASK_PARTIAL : any ? RP_MASK_FULL : RP_MASK_SKIP;
}

/* All tiles of these sizes in a square of 17 positions; returns how many were inconclusive. */
static uint32_t check_tiles(struct fixture *f, const char *text) {
    uint32_t open = 0;
    parse(f, text);
    for (int32_t rows = 1; rows <= 7; rows += 3)
        for (int32_t keys = 1; keys <= 4; keys += 3)
            for (int32_t q = 0; q + rows <= 17; q++)
                for (int32_t kv = 0; kv + keys <= 17; kv++) {
                    struct rp_mask_tile tile = {q, q + rows, kv, kv + keys, 0, 32, 0};
                    enum rp_mask_class want = brute_force(f->mask, &tile);
                    enum rp_mask_class got = rp_mask_classify(f->mask, &tile, NULL);
                    if (got != want)
                        fail_msg("%s: q %d..%d kv %d..%d: %d, not %d", text, q, q + rows, kv,
                                 kv + keys, got, want);
                    open += rp_mask_classify_ranges(f->mask, &tile, NULL) != want;
                }
    return open;
}

static void test_intervals_alone_are_exact_on_named_blocks(void **state) {
    struct fixture *f = *state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(blocks); i++)
        if (check_tiles(f, blocks[i]) != 0)
            fail_msg("%s", blocks[i]);
}

static void test_tiles_of_pairs_of_blocks_are_exact(void **state) {
    struct fixture *f = *state;
    uint32_t open = 0;
    char text[128];
    for (size_t i = 0; i < RP_ARRAY_COUNT(blocks); i++)
        for (size_t k = 0; k < RP_ARRAY_COUNT(blocks); k++) {
            snprintf(text, sizeof text, "%s && %s", blocks[i], blocks[k]);
            open += check_tiles(f, text);
            snprintf(text, sizeof text, "%s || %s", blocks[i], blocks[k]);
            open += check_tiles(f, text);
        }
    printf("pairs: intervals left %u tiles open\n", open);
}

static void test_tiles_between_both_lines_are_full(void **state) {
    struct fixture *f = *state;
    parse(f, "causal && sliding_window(4096)");
    struct rp_mask_tile tile = {100000, 100128, 99000, 99064, 0, 32, 0};
    assert_int_equal(rp_mask_classify_ranges(f->mask, &tile, NULL), RP_MASK_FULL);
    tile = (struct rp_mask_tile){100000, 100128, 95904, 95968, 0, 32, 0};
    assert_int_equal(rp_mask_classify_ranges(f->mask, &tile, NULL), RP_MASK_PARTIAL);
    tile = (struct rp_mask_tile){100000, 100128, 95840, 95904, 0, 32, 0};
    assert_int_equal(rp_mask_classify_ranges(f->mask, &tile, NULL), RP_MASK_SKIP);
    tile = (struct rp_mask_tile){100000, 100128, 100128, 100192, 0, 32, 0};
    assert_int_equal(rp_mask_classify_ranges(f->mask, &tile, NULL), RP_MASK_SKIP);
}

static void test_tiles_beyond_every_length_saturate(void **state) {
    static const char *const programs[] = {"q * 2000 - kv > 5",  "q / 3 + kv * 2047 == 7",
                                           "(q + kv) % 7 == 0",  "abs(-q - kv) < 3",
                                           "1000 / (q + 1) < 3", "q % (kv + 1) == 3"};
    struct fixture *f = *state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(programs); i++) {
        parse(f, programs[i]);
        struct rp_mask_tile tile = {INT32_MIN, INT32_MAX, INT32_MIN, INT32_MAX, 0, INT32_MAX, 0};
        assert_int_equal(rp_mask_classify(f->mask, &tile, NULL), RP_MASK_PARTIAL);
    }
}

static void test_parameters_move_the_tiles(void **state) {
    struct fixture *f = *state;
    parse(f, "param w = 256 in 1..8192; param n = 0; causal && (sliding_window(w) || sink(n))");
    struct rp_mask_tile tile = {4096, 4160, 2048, 2112, 0, 32, 0},
                        first = {4096, 4160, 0, 64, 0, 32, 0};
    assert_int_equal(rp_mask_classify(f->mask, &tile, (int32_t[]){256, 0}), RP_MASK_SKIP);
    assert_int_equal(rp_mask_classify(f->mask, &tile, (int32_t[]){2048, 0}), RP_MASK_PARTIAL);
    assert_int_equal(rp_mask_classify(f->mask, &tile, (int32_t[]){2112, 0}), RP_MASK_FULL);
    assert_int_equal(rp_mask_classify(f->mask, &first, (int32_t[]){256, 0}), RP_MASK_SKIP);
    assert_int_equal(rp_mask_classify(f->mask, &first, (int32_t[]){256, 4}), RP_MASK_PARTIAL);
    assert_int_equal(rp_mask_classify(f->mask, &first, (int32_t[]){256, 64}), RP_MASK_FULL);
}

/* --- Proofs at the edge ---------------------------------------------------------------------- */

/* Positions end at 1048575: each pair is the last program that fits and the first that does not. */
static void test_what_is_refused_is_what_can_overflow(void **state) {
    static const char *const cases[][2] = {
        {"q + 2146435072 > 0", "q + 2146435073 > 0"},
        {"-q - 2146435072 < 0", "-q - 2146435073 < 0"},
        {"q * 2047 > 0", "q * 2049 > 0"},
        {"q * -2047 < 0", "q * -2049 < 0"},
        {"param a = 0 in -5..2146435072; q + a > 0", "param a = 0 in -5..2146435073; q + a > 0"},
        {"q / (kv + 1) > 0", "q / kv > 0"},
        {"q % (kv - 1048576) > 0", "q % (kv - 1048575) > 0"},
        {"q / (h - 32) > 0", "q / (h - 31) > 0"},
        {"q / (layer - 26) > 0", "q / (layer - 25) > 0"},
        {"param a = 3 in 1..5; q % a > 0", "param a = 3 in 0..5; q % a > 0"},
        {"param a = -3 in -5..-1; q % a > 0", "param a = -3 in -5..0; q % a > 0"},
        {"q / max(kv, 1) > 0", "q / max(kv, 0) > 0"},
        {"min(q, 1000) * 2147483 > 0", "min(q, 1001) * 2147483 > 0"},
        {"q % 1000 * 2149632 > 0", "q % 1001 * 2149632 > 0"},
        {"(h < 3 ? 1 : 2047) * q > 0", "(h < 3 ? 1 : 2049) * q > 0"},
        {"score = score / (h + 1)", "score = score / h"},
        {"score = slope(31 - h)", "score = slope(32 - h)"},
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        parse(f, cases[i][0]);
        if (rp_mask_parse(cases[i][1], strlen(cases[i][1]), &limits, &f->layer, &f->err) == RP_OK)
            fail_msg("%s", cases[i][1]);
    }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_named_conditions_draw_what_they_are_called),
        TEST(test_alibi_has_the_slopes_of_its_paper),
        TEST(test_causality_is_proved_where_it_follows),
        TEST(test_what_is_plain_is_known_without_a_program),
        TEST(test_alternating_layers_are_plain_one_by_one),
        TEST(test_what_is_read_is_known),
        TEST(test_intervals_alone_are_exact_on_named_blocks),
        TEST(test_tiles_of_pairs_of_blocks_are_exact),
        TEST(test_tiles_between_both_lines_are_full),
        TEST(test_tiles_beyond_every_length_saturate),
        TEST(test_parameters_move_the_tiles),
        TEST(test_what_is_refused_is_what_can_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
