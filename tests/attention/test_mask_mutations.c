/* Goal: the comparison with brute force finds unsound classification rules. Method: intervals are
 * compiled into this program with faults that can be enabled; tiles of random programs must find
 * each fault, and nothing without one. */
#define RP_MASK_MUTATIONS
#include "attention/mask/mask_classify.c"
#include "attention/mask/mask_range.c"

#include "tests/support/mask_program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define PROGRAMS_MAX 20000

enum rp_mask_mutation rp_mask_mutation;

static const struct rp_mask_limits limits = {.length = 1000, .heads = 4, .layers = 2};

static const char *const names[RP_MASK_MUTATION_COUNT] = {
    [RP_MASK_MUTATION_NONE] = "none",
    [RP_MASK_MUTATION_MOD_WITHOUT_WRAP] = "a remainder is taken of both ends",
    [RP_MASK_MUTATION_TWO_CORNERS] = "a product lies between two of its corners",
    [RP_MASK_MUTATION_ABS_OF_ENDS] = "abs lies between those of its ends",
    [RP_MASK_MUTATION_LESS_IS_LESS_EQUAL] = "< holds where both are equal",
    [RP_MASK_MUTATION_EQUAL_ENDS] = "equal ranges are equal values",
    [RP_MASK_MUTATION_OR_OF_TWO_PARTIAL] = "|| of two partial ones is full",
    [RP_MASK_MUTATION_AND_OF_TWO_PARTIAL] = "&& of two partial ones is empty",
    [RP_MASK_MUTATION_FIRST_BRANCH] = "?: that is open gives its first result",
    [RP_MASK_MUTATION_LAST_KEY_FORGOTTEN] = "a tile ends one key early",
};

/* True if the class of this tile is wrong. */
static bool lies(const struct rp_mask *mask, const struct mask_program *program,
                 const struct rp_mask_tile *tile, const int32_t *params) {
    enum rp_mask_class class = rp_mask_classify_ranges(mask, tile, params);
    struct rp_mask_pair p = {.layer = tile->layer};
    bool undefined = false;
    for (p.h = tile->h_begin; p.h < tile->h_end && class != RP_MASK_PARTIAL; p.h++)
        for (p.q = tile->q_begin; p.q < tile->q_end; p.q++)
            for (p.kv = tile->kv_begin; p.kv < tile->kv_end; p.kv++)
                if (mask_program_sees(program, &p, params, &undefined) != (class == RP_MASK_FULL))
                    return true;
    return false;
}

static struct rp_mask_tile random_tile(uint64_t *seed) {
    struct rp_mask_tile tile = {.q_begin = (int32_t)mask_random(seed, 100),
                                .kv_begin = (int32_t)mask_random(seed, 100),
                                .h_begin = (int32_t)mask_random(seed, limits.heads),
                                .layer = (int32_t)mask_random(seed, limits.layers)};
    tile.q_end = tile.q_begin + 1 + (int32_t)mask_random(seed, 16);
    tile.kv_end = tile.kv_begin + 1 + (int32_t)mask_random(seed, 16);
    tile.h_end = tile.h_begin + 1;
    return tile;
}

/* Number of programs until a tile fails; 0: none did. */
static uint32_t find_mutation(enum rp_mask_mutation mutation, uint32_t programs) {
    uint64_t seed = 77;
    for (uint32_t i = 1; i <= programs; i++) {
        struct mask_program program;
        struct rp_mask *mask;
        int32_t params[MASK_PROGRAM_PARAMS] = {0};
        rp_mask_mutation = RP_MASK_MUTATION_NONE; /* proofs use the same intervals */
        if (!mask_program_random(&seed, &limits, &program) ||
            rp_mask_parse(program.text, strlen(program.text), &limits, &mask, NULL) != RP_OK)
            continue;
        mask_program_random_params(&program, &seed, params);
        rp_mask_mutation = mutation;
        bool found = false;
        for (uint32_t k = 0; k < 8 && !found; k++) {
            struct rp_mask_tile tile = random_tile(&seed);
            found = lies(mask, &program, &tile, params);
        }
        rp_mask_free(mask);
        if (found)
            return i;
    }
    return 0;
}

static void test_brute_force_finds_every_unsound_rule(void **state) {
    (void)state;
    uint32_t missed = 0;
    assert_int_equal(find_mutation(RP_MASK_MUTATION_NONE, PROGRAMS_MAX), 0);
    for (uint32_t i = RP_MASK_MUTATION_NONE + 1; i < RP_MASK_MUTATION_COUNT; i++) {
        uint32_t programs = find_mutation((enum rp_mask_mutation)i, PROGRAMS_MAX);
        printf("%-45s %s %u\n", names[i], programs ? "found by program" : "NOT FOUND", programs);
        missed += programs == 0;
    }
    assert_int_equal(missed, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_brute_force_finds_every_unsound_rule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
