/* Goal: hardware counters have the values of a simple calculation, missing samples are counted,
 * refusals name the cause and the remedy, and everything is released.
 * Method: a fake library (tests/support/fake_cupti_pm.c), which refuses structures of another
 * size. */
#include "backend/cupti/cupti_pm.h"
#include "backend/cupti/cupti_session.h"
#include "base/memory.h"
#include "tests/support/fake_cupti.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void *library;
static struct fake_cupti *fake;
static struct rp_device_counters out;
static struct rp_error err;

static int set_up(void **state) {
    const char *path = getenv("REPRISE_FAKE_CUPTI");
    (void)state;
    library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    fake = library ? dlsym(library, "fake_cupti_state") : NULL;
    if (!fake)
        return -1;
    memset(fake, 0, sizeof *fake);
    memset(&err, 0, sizeof err);
    fake->version = 130001;
    fake->pm.samples = 200;
    fake->pm.per_decode = 100;
    return 0;
}

/* Everything begun was ended, also after errors. */
static int tear_down(void **state) {
    const struct fake_cupti_pm *pm = &fake->pm;
    (void)state;
    bool clean = pm->initialized == pm->deinitialized && pm->hosts_made == pm->hosts_freed &&
                 pm->enabled == pm->disabled && pm->started == pm->stopped;
    bool free = rp_cupti_take();
    if (free)
        rp_cupti_give();
    return clean && free ? 0 : -1;
}

static int measure(double seconds) {
    struct rp_device_counter_options options = {.seconds = seconds};
    return rp_cupti_pm_measure(library, 0, &options, &out, &err);
}

static const struct rp_device_counter *counter(const char *name) {
    for (uint32_t i = 0; i < out.count; i++)
        if (strcmp(out.counters[i].name, name) == 0)
            return &out.counters[i];
    fail_msg("no counter %s", name);
    return NULL;
}

static void test_counters_are_those_of_a_plain_reckoning(void **state) {
    (void)state;
    assert_int_equal(measure(0.05), RP_OK);
    assert_string_equal(out.source, "CUPTI 130001");
    assert_string_equal(out.chip, "GH100");
    assert_int_equal(out.samples, 200);
    assert_int_equal(out.missing, 0);
    assert_int_equal(out.interval_us, 1000);
    assert_int_equal(fake->pm.interval, 1000000);
    assert_false(out.overflowed);
    assert_true(out.seconds >= 0.05 && out.covered_seconds > 0.1999 &&
                out.covered_seconds < 0.2001);
    assert_true(out.count >= 10);
    for (uint32_t i = 0; i < out.count; i++) {
        const struct rp_device_counter *c = &out.counters[i];
        assert_int_equal(c->samples, 200);
        assert_string_equal(c->why, "");
        assert_true(c->metric[0] && c->unit[0] && c->about[0]);
        assert_true(c->mean > 50.4999 && c->mean < 50.5001);
        assert_true(c->p50 == 50 && c->p99 == 99 && c->max == 100);
    }
}

static void test_time_before_the_call_is_not_counted(void **state) {
    (void)state;
    fake->pm.samples = 1; /* and the one that begins a second earlier */
    assert_int_equal(measure(0.02), RP_OK);
    assert_int_equal(out.samples, 1);
    assert_int_equal(out.missing, 0);
    assert_true(out.covered_seconds < 0.0011);
    assert_true(counter("sm_active")->max == 1);
}

static void test_what_the_chip_does_not_know_is_left_out_and_named(void **state) {
    (void)state;
    fake->pm.unknown = "nvlrx__";
    assert_int_equal(measure(0.02), RP_OK);
    assert_non_null(strstr(counter("nvlink_read_bytes")->why, "this GPU does not give it"));
    assert_int_equal(counter("nvlink_read_bytes")->samples, 0);
    assert_int_equal(counter("nvlink_write_bytes")->samples, 200);
}

static void test_another_name_is_taken_where_the_first_is_not_known(void **state) {
    (void)state;
    fake->pm.unknown = "TriageCompute";
    assert_int_equal(measure(0.02), RP_OK);
    assert_string_equal(counter("sm_active")->metric,
                        "sm__cycles_active.avg.pct_of_peak_sustained_elapsed");
    assert_int_equal(counter("sm_active")->samples, 200);
}

static void test_what_does_not_fit_into_one_pass_is_left_out(void **state) {
    uint32_t counted = 0;
    (void)state;
    fake->pm.one_pass_holds = 3;
    assert_int_equal(measure(0.02), RP_OK);
    for (uint32_t i = 0; i < out.count; i++) {
        counted += out.counters[i].samples > 0;
        assert_true((out.counters[i].samples > 0) == (out.counters[i].why[0] == '\0'));
    }
    assert_int_equal(counted, 3);
    assert_non_null(strstr(counter("pcie_read_bytes")->why, "one pass"));
    assert_int_equal(counter("sm_active")->samples, 200);
}

static void test_a_chip_without_any_of_them_is_refused(void **state) {
    (void)state;
    fake->pm.unknown = "__";
    assert_int_equal(measure(0.02), RP_STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.text, "GH100"));
    assert_int_equal(fake->pm.enabled, 0);
}

static void test_missing_samples_and_values_are_counted(void **state) {
    (void)state;
    fake->pm.gap_at = 50;
    fake->pm.without_value = "hit_rate";
    assert_int_equal(measure(0.02), RP_OK);
    assert_int_equal(out.missing, 3);
    assert_int_equal(out.samples, 200);
    assert_int_equal(counter("l2_hit_rate")->samples, 0);
    assert_string_equal(counter("l2_hit_rate")->why, "");
}

static void test_an_image_that_fills_is_read_to_the_end(void **state) {
    (void)state;
    fake->pm.samples = 350;
    fake->pm.image_full = true;
    assert_int_equal(measure(0.02), RP_OK);
    assert_int_equal(out.samples, 350);
}

static void test_samples_without_a_length_are_none(void **state) {
    (void)state;
    fake->pm.samples = 0;
    fake->pm.image_full = true; /* gives one without times */
    assert_int_equal(measure(0.02), RP_OK);
    assert_int_equal(out.samples, 0);
    assert_int_equal(counter("sm_active")->samples, 0);
    assert_true(out.covered_seconds == 0);
}

static void test_a_buffer_that_runs_over_ends_it_early_and_keeps_what_came(void **state) {
    (void)state;
    fake->pm.overflow_at = 2;
    assert_int_equal(measure(5), RP_OK);
    assert_true(out.overflowed);
    assert_int_equal(out.samples, 100);
    assert_int_equal(fake->pm.decodes, 2);
    assert_true(out.seconds < 4);
}

static void test_privileges_are_named_with_what_to_do(void **state) {
    int *results[] = {&fake->pm.init_result, &fake->pm.availability_result, &fake->pm.enable_result,
                      &fake->pm.start_result};
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(results); i++) {
        *results[i] = 35;
        assert_int_equal(measure(0.02), RP_STATUS_UNSUPPORTED);
        assert_non_null(strstr(err.text, "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"));
        assert_non_null(strstr(err.hint, "NVreg_RestrictProfilingToAdminUsers=0"));
        assert_non_null(strstr(err.hint, "CAP_SYS_ADMIN"));
        *results[i] = 0;
    }
}

static void test_another_profiler_is_named(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        fake->pm.enable_result = i ? 7 : 26;
        assert_int_equal(measure(0.02), RP_STATUS_UNSUPPORTED);
        assert_non_null(strstr(err.text, "another profiler"));
        assert_non_null(strstr(err.hint, "dcgmi"));
    }
}

static void test_other_failures_are_errors_and_leave_nothing(void **state) {
    (void)state;
    fake->pm.decode_fails_at = 1;
    assert_int_equal(measure(0.02), RP_STATUS_DEVICE);
    assert_non_null(strstr(err.text, "cuptiPmSamplingDecodeData"));
    fake->pm.decode_fails_at = 0;
    fake->pm.config_result = 27;
    assert_int_equal(measure(0.02), RP_STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.text, "cuptiPmSamplingSetConfig"));
    fake->pm.config_result = 0;
    fake->pm.host_result = 46;
    assert_int_equal(measure(0.02), RP_STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.text, "cuptiProfilerHostInitialize"));
    assert_non_null(strstr(err.hint, "libnvperf_host.so"));
}

static void test_sizes_without_sense_are_refused(void **state) {
    size_t *sizes[] = {&fake->pm.availability_bytes, &fake->pm.config_bytes, &fake->pm.image_bytes};
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(sizes); i++) {
        *sizes[i] = SIZE_MAX / 2;
        assert_int_not_equal(measure(0.02), RP_OK);
        *sizes[i] = 0;
    }
}

static void test_versions_and_libraries_that_are_not_known_are_refused(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        fake->version = i ? RP_CUPTI_VERSION_BELOW : RP_CUPTI_VERSION_MIN - 1;
        assert_int_equal(measure(0.02), RP_STATUS_UNSUPPORTED);
        assert_non_null(strstr(err.text, "version"));
    }
    struct rp_device_counter_options options = {.seconds = 0.01};
    void *other = dlopen(getenv("REPRISE_FAKE_NVML"), RTLD_NOW | RTLD_LOCAL);
    assert_non_null(other);
    assert_int_equal(rp_cupti_pm_measure(other, 0, &options, &out, &err), RP_STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.text, "missing"));
    dlclose(other);
}

static void test_it_does_not_run_beside_a_session_of_kernel_records(void **state) {
    struct rp_cupti_session *session;
    (void)state;
    assert_int_equal(rp_cupti_open(library, 16, &session, &err), RP_OK);
    assert_int_equal(measure(0.02), RP_STATUS_IN_USE);
    assert_int_equal(fake->pm.initialized, 0);
    rp_cupti_close(session);
    assert_int_equal(measure(0.02), RP_OK);
}

static void test_intervals_are_kept_in_bounds(void **state) {
    struct rp_device_counter_options options = {.seconds = 0.02, .interval_us = 1};
    (void)state;
    assert_int_equal(rp_cupti_pm_measure(library, 0, &options, &out, &err), RP_OK);
    assert_int_equal(out.interval_us, RP_DEVICE_COUNTERS_INTERVAL_US_MIN);
    options.interval_us = UINT32_MAX;
    assert_int_equal(rp_cupti_pm_measure(library, 0, &options, &out, &err), RP_OK);
    assert_int_equal(out.interval_us, RP_DEVICE_COUNTERS_INTERVAL_US_MAX);
}

static void test_memory_that_runs_out_is_an_error_at_every_place(void **state) {
    int status = RP_STATUS_NO_MEMORY;
    (void)state;
    for (uint64_t n = 1; n < 200 && status != RP_OK; n++) {
        fake->pm.given = 0;
        rp_alloc_fail_at(n);
        status = measure(0.01);
        rp_alloc_fail_at(0);
        /* A failed allocation of a configuration disables its counter. */
        assert_true(status == RP_OK || status == RP_STATUS_NO_MEMORY);
        if (status == RP_OK && n < 60)
            status = RP_STATUS_NO_MEMORY;
    }
    assert_int_equal(status, RP_OK);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_counters_are_those_of_a_plain_reckoning),
        TEST(test_time_before_the_call_is_not_counted),
        TEST(test_what_the_chip_does_not_know_is_left_out_and_named),
        TEST(test_another_name_is_taken_where_the_first_is_not_known),
        TEST(test_what_does_not_fit_into_one_pass_is_left_out),
        TEST(test_a_chip_without_any_of_them_is_refused),
        TEST(test_missing_samples_and_values_are_counted),
        TEST(test_an_image_that_fills_is_read_to_the_end),
        TEST(test_samples_without_a_length_are_none),
        TEST(test_a_buffer_that_runs_over_ends_it_early_and_keeps_what_came),
        TEST(test_privileges_are_named_with_what_to_do),
        TEST(test_another_profiler_is_named),
        TEST(test_other_failures_are_errors_and_leave_nothing),
        TEST(test_sizes_without_sense_are_refused),
        TEST(test_versions_and_libraries_that_are_not_known_are_refused),
        TEST(test_it_does_not_run_beside_a_session_of_kernel_records),
        TEST(test_intervals_are_kept_in_bounds),
        TEST(test_memory_that_runs_out_is_an_error_at_every_place),
    };
    return cmocka_run_group_tests_name("cupti_pm", tests, NULL, NULL);
}
