/* Goal: on a GPU too, layers with windows give their pages back and change no answer, with 64
 * sequences at once, a pool that is too small for them, and prefixes that are found. Method:
 * engine_windows_cases.h, with the fast attention kernels (bf16, heads of 64 columns) and with the
 * generic one (f32, heads of 8). */
#define FIXTURE_REQUEST_COUNT 70
#define FIXTURE_SLOT_COUNT    64

#include "tests/engine/engine_windows_cases.h"
#include "tests/support/gpu_test.h"

static int use_generic(void **state) {
    windows.backend = rp_backend_cuda_table();
    return windows_setup(state);
}

static int use_fast(void **state) {
    static const struct windows_case fast = {
        .wide = true,
        .page_tokens = {16, 32, 64},
        .few_tokens = 16,
        .mode_step = 3,
        .few_pages = 40 /* one sequence: 9 pages, and 2 groups of up to 7 */
    };
    windows = fast;
    return use_generic(state);
}

static int use_defaults(void **state) {
    static const struct windows_case small = {
        .page_tokens = {1, 4, 16}, .few_tokens = 4, .mode_step = 3, .few_pages = 130};
    windows = small;
    return use_generic(state);
}

#define FAST(name)    cmocka_unit_test_setup_teardown(name, use_fast, fixture_teardown)
#define GENERIC(name) cmocka_unit_test_setup_teardown(name, use_defaults, fixture_teardown)

RP_GPU_TEST_MAIN(NULL, NULL, FAST(test_answers_are_those_of_a_cache_that_keeps_all_pages),
                 FAST(test_answers_are_the_same_when_sequences_are_swapped),
                 FAST(test_the_window_changes_what_these_answers_are),
                 GENERIC(test_answers_are_those_of_a_cache_that_keeps_all_pages),
                 GENERIC(test_answers_are_the_same_when_sequences_are_swapped),
                 GENERIC(test_a_beginning_is_found_although_the_windows_have_passed_it),
                 GENERIC(test_the_plan_counts_the_tokens_that_windows_save))
