/* Goal: NVIDIA's library knows every name of the table for the chips that we support, and counts
 * all of them in one pass.
 * Method: the part of CUPTI that needs no GPU, if the library is installed. Without a GPU's
 * availability image, so a GPU may still have fewer counters. */
#include "backend/cupti/cupti_pm_internal.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* A sanitizer ends the process when the library loads another one with RTLD_DEEPBIND. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

static void *find_library(void) {
    static const char *const files[] = {"libcupti.so.13", "/usr/local/cuda/lib64/libcupti.so.13"};
    void *library = NULL;
    for (size_t i = 0; i < RP_ARRAY_COUNT(files) && !library && !SANITIZED; i++)
        library = dlopen(files[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

static void test_every_counter_is_known_to_hopper_in_one_pass(void **state) {
    struct rp_cupti_pm pm = {.chip = "GH100"};
    struct rp_device_counters out = {0};
    struct rp_error err = {0};
    void *library = find_library();
    (void)state;
    if (!library) {
        printf("skipped: %s\n", SANITIZED ? "the library does not load under a sanitizer"
                                          : "libcupti.so.13 is not here");
        skip();
        return;
    }
    *(void **)&pm.api.cuptiGetVersion = dlsym(library, "cuptiGetVersion");
    *(void **)&pm.api.cuptiGetResultString = dlsym(library, "cuptiGetResultString");
#define X(name, parameters, last)                                                                  \
    *(void **)&pm.api.name = dlsym(library, #name);                                                \
    assert_non_null(pm.api.name);
    RP_CUPTI_PM_FUNCTIONS(X)
#undef X
    assert_int_equal(rp_cupti_pm_select(&pm, &out, &err), RP_OK);
    for (uint32_t i = 0; i < out.count; i++)
        if (out.counters[i].why[0])
            fail_msg("%s: %s: %s", out.counters[i].name, out.counters[i].metric,
                     out.counters[i].why);
    assert_int_equal(pm.count, out.count);
    rp_cupti_pm_select_undo(&pm);
}

static void test_a_chip_that_is_not_known_has_no_counters(void **state) {
    struct rp_cupti_pm pm = {.chip = "GX999"};
    struct rp_device_counters out = {0};
    struct rp_error err = {0};
    void *library = find_library();
    (void)state;
    if (!library) {
        skip();
        return;
    }
    *(void **)&pm.api.cuptiGetResultString = dlsym(library, "cuptiGetResultString");
#define X(name, parameters, last) *(void **)&pm.api.name = dlsym(library, #name);
    RP_CUPTI_PM_FUNCTIONS(X)
#undef X
    assert_int_equal(rp_cupti_pm_select(&pm, &out, &err), RP_STATUS_UNSUPPORTED);
    assert_int_equal(pm.count, 0);
    assert_non_null(strstr(err.text, "CUPTI_ERROR_INVALID_CHIP_NAME"));
    rp_cupti_pm_select_undo(&pm);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_counter_is_known_to_hopper_in_one_pass),
        cmocka_unit_test(test_a_chip_that_is_not_known_has_no_counters),
    };
    return cmocka_run_group_tests_name("cupti_pm_names", tests, NULL, NULL);
}
