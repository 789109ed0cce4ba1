/* Goal: the captured shapes are those of the documentation for any maxima. */
#include "engine/buckets.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static struct rp_bucket_list list;

static uint32_t decode_count(void) {
    uint32_t count = 0;
    while (count < list.count && list.buckets[count].decode)
        count++;
    return count;
}

static void test_decode_sets_go_1_2_4_8_then_by_8(void **state) {
    static const uint32_t want[] = {1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64};
    (void)state;
    assert_int_equal(rp_buckets_plan(64, 512, &list, NULL), RP_OK);
    assert_int_equal(decode_count(), RP_ARRAY_COUNT(want));
    for (size_t i = 0; i < RP_ARRAY_COUNT(want); i++) {
        assert_int_equal(list.buckets[i].tokens, want[i]);
        assert_int_equal(list.buckets[i].logit_rows, want[i]);
    }
}

static void test_decode_sets_go_by_16_above_256(void **state) {
    (void)state;
    assert_int_equal(rp_buckets_plan(300, 2048, &list, NULL), RP_OK);
    uint32_t count = decode_count();
    assert_int_equal(list.buckets[count - 1].rows, 300);
    assert_int_equal(list.buckets[count - 2].rows, 288);
    assert_int_equal(list.buckets[count - 3].rows, 272);
    assert_int_equal(list.buckets[count - 4].rows, 256);
}

static void test_mixed_sets_end_at_the_token_budget(void **state) {
    static const uint32_t want[] = {16, 32, 64, 128, 192, 256, 320, 384, 448, 512, 640, 700};
    (void)state;
    assert_int_equal(rp_buckets_plan(64, 700, &list, NULL), RP_OK);
    assert_int_equal(list.token_bucket_count, RP_ARRAY_COUNT(want));
    for (size_t i = 0; i < RP_ARRAY_COUNT(want); i++)
        assert_int_equal(list.token_buckets[i], want[i]);
}

/* A step that fits no bucket exactly is padded by an eighth of its tokens at most, or a sixteenth
 * of its decode rows. */
static void test_large_sets_grow_by_an_eighth_at_most(void **state) {
    (void)state;
    assert_int_equal(rp_buckets_plan(RP_NUM_SEQS_MAX, RP_STEP_TOKENS_MAX, &list, NULL), RP_OK);
    for (uint32_t i = 1; i < list.token_bucket_count; i++) {
        uint32_t before = list.token_buckets[i - 1];
        if (before >= 2048)
            assert_true(list.token_buckets[i] <= before + before / 8);
    }
    for (uint32_t i = 1, count = decode_count(); i < count; i++) {
        uint32_t before = list.buckets[i - 1].rows;
        if (before >= 256)
            assert_true(list.buckets[i].rows <= before + before / 16);
    }
}

/* Every step that the limits allow must find a set. */
static void test_every_step_within_the_limits_fits_some_set(void **state) {
    static const uint32_t seqs[] = {1, 2, 3, 7, 8, 9, 63, 65, 257, 1000, 4096};
    static const uint32_t budgets[] = {1, 15, 16, 17, 100, 512, 2048, 2200, 16384, 65536};
    (void)state;
    for (size_t s = 0; s < RP_ARRAY_COUNT(seqs); s++) {
        for (size_t b = 0; b < RP_ARRAY_COUNT(budgets); b++) {
            uint32_t decode_max = 0, tokens_max = 0, logits_max = 0;
            assert_int_equal(rp_buckets_plan(seqs[s], budgets[b], &list, NULL), RP_OK);
            for (uint32_t i = 0; i < list.count; i++) {
                const struct rp_bucket *bucket = &list.buckets[i];
                if (bucket->decode) {
                    decode_max = RP_MAX(decode_max, bucket->rows);
                } else if (bucket->tokens >= tokens_max) {
                    tokens_max = bucket->tokens;
                    logits_max = RP_MAX(logits_max, bucket->logit_rows);
                }
            }
            assert_int_equal(decode_max, seqs[s]);
            assert_int_equal(tokens_max, budgets[b]);
            assert_int_equal(logits_max, RP_MIN(seqs[s], budgets[b]));
            assert_int_equal(list.logit_rows_max, logits_max);
        }
    }
}

static void test_a_maximum_of_zero_or_without_bound_is_refused(void **state) {
    struct rp_error err = {0};
    (void)state;
    assert_int_equal(rp_buckets_plan(0, 512, &list, &err), RP_STATUS_RANGE);
    assert_int_equal(rp_buckets_plan(8, 0, &list, &err), RP_STATUS_RANGE);
    assert_int_equal(rp_buckets_plan(1u << 30, 512, &list, &err), RP_STATUS_RANGE);
    assert_int_equal(rp_buckets_plan(8, 1u << 30, &list, &err), RP_STATUS_RANGE);
    assert_int_not_equal(err.hint[0], '\0');
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode_sets_go_1_2_4_8_then_by_8),
        cmocka_unit_test(test_decode_sets_go_by_16_above_256),
        cmocka_unit_test(test_mixed_sets_end_at_the_token_budget),
        cmocka_unit_test(test_large_sets_grow_by_an_eighth_at_most),
        cmocka_unit_test(test_every_step_within_the_limits_fits_some_set),
        cmocka_unit_test(test_a_maximum_of_zero_or_without_bound_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
