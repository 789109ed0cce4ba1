/* Goal: a pool of 8-bit pages has room for more tokens, in the plan and under load. Method: pools
 * of the same bytes, and sequences that exceed one of them. */
#include "tests/engine/engine_fixture.h"

/* In bf16 there is room for all prompts of 30 tokens (24 pages of 64 KiB), but not for their final
 * lengths (48 pages). */
#define POOL_BYTES ((uint64_t)36 << 16)
#define PROMPT     30u

struct outcome {
    uint64_t tokens, preemptions;
};

static struct outcome fill_pool(enum rp_dtype kv_dtype) {
    struct rp_engine_config config = fixture_config(NULL);
    struct outcome out;
    config.max_num_seqs = FIXTURE_REQUESTS;
    config.kv_dtype = kv_dtype;
    config.kv_cache_bytes = POOL_BYTES;
    config.prefix_cache = false;
    fixture_create(&config);
    out.tokens = rp_engine_memory_plan(fixture_engine)->kv_tokens;
    fixture_make_requests();
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++) {
        fixture_requests[i].prompt_count = PROMPT;
        assert_int_equal(rp_engine_submit(fixture_engine, &fixture_requests[i]), RP_OK);
    }
    fixture_start();
    fixture_drain(FIXTURE_REQUESTS);
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++)
        assert_int_equal(fixture_answers[i].count, FIXTURE_OUTPUT);
    out.preemptions = rp_counter_read(&rp_engine_metrics(fixture_engine)->preemptions);
    rp_engine_destroy(fixture_engine);
    fixture_engine = NULL;
    return out;
}

static void test_a_pool_of_8_bits_holds_nearly_twice_the_tokens(void **state) {
    (void)state;
    struct outcome bf16 = fill_pool(RP_DTYPE_BF16), int8 = fill_pool(RP_DTYPE_INT8),
                   fp8 = fill_pool(RP_DTYPE_FP8_E4M3);
    assert_true(bf16.preemptions > 0);
    assert_true(int8.preemptions == 0);
    assert_int_equal(fp8.tokens, int8.tokens);
    assert_int_equal(fp8.preemptions, 0);
    /* Heads of 64 and a scale: 68 bytes instead of 128. */
    assert_true(int8.tokens * 100 >= bf16.tokens * 185 && int8.tokens < 2 * bf16.tokens);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_pool_of_8_bits_holds_nearly_twice_the_tokens,
                                        fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
