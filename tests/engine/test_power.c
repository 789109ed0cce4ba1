/* Goal: reported power and energy of a GPU are those of its library, and a library that fails or
 * is missing affects nothing else.
 * Method: the arithmetic on given samples; the thread with a fake library
 * (tests/support/fake_nvml.c). */
#include "base/clock.h"
#include "engine/observe/power.h"
#include "metrics/exposition.h"
#include "tests/support/fake_nvml.h"

#include <dlfcn.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#define SECOND ((uint64_t)1000000000u)
#define GPU    "0000:1b:00.0"

static const char *library;
static struct fake_nvml *fake;
static struct rp_error err;

static int set_up(void **state) {
    (void)state;
    library = getenv("REPRISE_FAKE_NVML");
    void *handle = library ? dlopen(library, RTLD_NOW | RTLD_LOCAL) : NULL;
    fake = handle ? dlsym(handle, "fake_nvml_state") : NULL;
    return fake ? 0 : -1;
}

static void reset(void) {
    memset(fake, 0, sizeof *fake);
    fake->power_mw = 350000;
    fake->sm_mhz = 1980;
    fake->celsius = 41;
    fake->energy_mj = 1000000;
}

static struct rp_nvml_sample with_energy(uint64_t mj) {
    return (struct rp_nvml_sample){.has = RP_NVML_ENERGY | RP_NVML_POWER | RP_NVML_REASONS,
                                   .power_mw = 500000,
                                   .energy_mj = mj};
}

/* ---- arithmetic */

static void test_energy_over_tokens_of_ten_seconds(void **state) {
    (void)state;
    struct rp_power_sums sums = {0};
    for (uint64_t i = 0; i <= 30; i++) { /* 600 J/s; 100 tokens/s, 300 from 20 s on */
        struct rp_nvml_sample sample = with_energy(5000000 + i * 600000);
        rp_power_add(&sums, 77 * SECOND + i * SECOND, &sample,
                     i * 100 + (i > 20 ? (i - 20) * 200 : 0));
        if (i == 20)
            assert_true(sums.view.window_mj == 6000000 && sums.view.window_tokens == 1000);
    }
    assert_int_equal(sums.view.energy_mj, 30 * 600000);
    assert_int_equal(sums.view.window_ms, 10000);
    assert_int_equal(sums.view.window_mj, 6000000);
    assert_int_equal(sums.view.window_tokens, 3000);
}

static void test_one_sample_is_no_window(void **state) {
    (void)state;
    struct rp_power_sums sums = {0};
    struct rp_nvml_sample sample = with_energy(123456);
    rp_power_add(&sums, SECOND, &sample, 50);
    assert_int_equal(sums.view.energy_mj + sums.view.window_mj + sums.view.window_tokens, 0);
}

static void test_an_energy_that_decreases_counts_as_zero(void **state) {
    (void)state;
    struct rp_power_sums sums = {0};
    const uint64_t energies[] = {UINT64_MAX - 500, UINT64_MAX - 100, 300, 900};
    for (uint64_t i = 0; i < 4; i++) {
        struct rp_nvml_sample sample = with_energy(energies[i]);
        rp_power_add(&sums, (i + 1) * SECOND, &sample, 0);
    }
    assert_int_equal(sums.view.energy_mj, 400 + 600);
}

static void test_without_the_counter_energy_is_power_times_time(void **state) {
    (void)state;
    struct rp_power_sums sums = {0};
    struct rp_nvml_sample sample = {.has = RP_NVML_POWER, .power_mw = 500000};
    for (uint64_t i = 0; i < 3; i++)
        rp_power_add(&sums, (i + 1) * SECOND, &sample, 0);
    assert_int_equal(sums.view.energy_mj, 2 * 500000);
    sample.has = 0;
    rp_power_add(&sums, 9 * SECOND, &sample, 0);
    assert_int_equal(sums.view.energy_mj, 2 * 500000);
}

static void test_mean_power_is_that_of_the_last_interval(void **state) {
    (void)state;
    struct rp_power_sums sums = {0};
    struct rp_nvml_sample sample = {.has = RP_NVML_ENERGY, .energy_mj = 1000};
    rp_power_add(&sums, SECOND, &sample, 0);
    assert_int_equal(sums.view.mean_mw, 0); /* unknown, not 0 W */
    sample.energy_mj = 61000;
    rp_power_add(&sums, 3 * SECOND, &sample, 0);
    assert_int_equal(sums.view.mean_mw, 30000);
    sample.energy_mj = 161000;
    rp_power_add(&sums, 4 * SECOND, &sample, 0);
    assert_int_equal(sums.view.mean_mw, 100000);
    /* A GPU tells its power with the first sample. */
    memset(&sums, 0, sizeof sums);
    sample = (struct rp_nvml_sample){.has = RP_NVML_POWER, .power_mw = 350000};
    rp_power_add(&sums, SECOND, &sample, 0);
    assert_int_equal(sums.view.mean_mw, 350000);
}

static void test_reasons_are_counted_apart(void **state) {
    (void)state;
    struct rp_power_sums sums = {0};
    for (uint64_t i = 0; i < 5; i++) {
        struct rp_nvml_sample sample = with_energy(i);
        sample.reasons =
            0x1 | (i == 2 ? 0x4 : 0) | (i >= 3 ? 0x40 : 0); /* idle is not one of our reasons */
        rp_power_add(&sums, (i + 1) * SECOND, &sample, 0);
    }
    const uint64_t expected[RP_POWER_REASONS] = {1000, 0, 0, 2000, 0};
    assert_memory_equal(sums.view.slowed_ms, expected, sizeof expected);
}

/* ---- the library */

static void test_a_missing_or_failing_function_affects_only_its_value(void **state) {
    (void)state;
    struct rp_nvml *nvml;
    struct rp_nvml_sample sample;
    reset();
    assert_int_equal(rp_nvml_open(GPU, library, &nvml, &err), RP_OK);
    rp_nvml_read(nvml, &sample);
    assert_int_equal(sample.has, RP_NVML_POWER | RP_NVML_SM_CLOCK | RP_NVML_MEMORY_CLOCK |
                                     RP_NVML_TEMPERATURE | RP_NVML_REASONS | RP_NVML_ENERGY);
    assert_int_equal(sample.power_mw, 350000);
    assert_int_equal(sample.sm_mhz, 1980);
    assert_int_equal(sample.memory_mhz, 3201);
    assert_int_equal(sample.celsius, 41);
    assert_int_equal(sample.energy_mj, 1000000);
    fake->power_result = 999;
    fake->clock_result = 3;
    rp_nvml_read(nvml, &sample);
    assert_int_equal(sample.has, RP_NVML_TEMPERATURE | RP_NVML_REASONS | RP_NVML_ENERGY);
    rp_nvml_close(nvml);
    assert_int_equal(fake->opened, 1);
    assert_int_equal(fake->closed, 1);
}

static void test_the_reason_for_none_is_reported(void **state) {
    (void)state;
    struct rp_nvml *nvml;
    reset();
    assert_int_equal(rp_nvml_open(GPU, "/nowhere/libnvidia-ml.so.1", &nvml, &err),
                     RP_STATUS_NOT_FOUND);
    assert_null(nvml);
    const char *other = getenv("REPRISE_FAKE_CUPTI");
    assert_non_null(other);
    assert_int_equal(rp_nvml_open(GPU, other, &nvml, &err), RP_STATUS_UNSUPPORTED);
    fake->init_result = 9;
    assert_int_equal(rp_nvml_open(GPU, library, &nvml, &err), RP_STATUS_DEVICE);
    fake->init_result = 0;
    assert_int_equal(rp_nvml_open("0000:ff:00.0", library, &nvml, &err), RP_STATUS_DEVICE);
    assert_non_null(strstr(err.text, "0000:ff:00.0"));
    assert_int_equal(fake->opened, fake->closed);
}

/* ---- the thread */

static struct rp_power *start(struct rp_trace_ring *ring, const struct rp_counter *tokens) {
    struct rp_power *power;
    struct rp_power_config config = {.pci_bus_id = GPU,
                                     .library = library,
                                     .tokens = tokens,
                                     .ring = ring,
                                     .period_ns = 1000000};
    assert_int_equal(rp_power_start(&config, &power, &err), RP_OK);
    return power;
}

static void test_samples_come_as_events_and_as_metrics(void **state) {
    (void)state;
    static struct rp_registry registry;
    struct rp_counter tokens = {0};
    struct rp_trace_ring ring = {0};
    struct rp_power_view view = {.energy_mj = 0};
    reset();
    assert_true(rp_trace_ring_init(&ring, "power", 4096));
    struct rp_power *power = start(&ring, &tokens);
    uint64_t until = rp_clock_ns() + 60 * SECOND;
    while (view.energy_mj < 5000 && rp_clock_ns() < until) {
        fake->energy_mj += 10;
        rp_power_read(power, &view);
        sched_yield();
    }
    assert_true(view.energy_mj >= 5000);
    rp_power_register(power, &registry);
    struct rp_buffer text;
    rp_buffer_init(&text, 0);
    rp_exposition_write(&registry, RP_EXPOSITION_PROMETHEUS, RP_METRICS_OWN, &text);
    rp_buffer_append(&text, "", 1);
    const char *shown = (const char *)text.data;
    assert_non_null(strstr(shown, "\nreprise_gpu_power_watts 350\n"));
    assert_non_null(strstr(shown, "\nreprise_gpu_sm_clock_hertz 1.98e+09\n"));
    assert_non_null(
        strstr(shown, "\nreprise_gpu_throttle_seconds_total{reason=\"hw_thermal\"} 0\n"));
    assert_non_null(strstr(shown, "\nreprise_energy_joules_total "));
    assert_null(strstr(shown, "\nreprise_gpu_memory_used_bytes ")); /* the function is missing */
    rp_power_stop(power);
    struct rp_trace_event events[4];
    assert_true(rp_trace_ring_copy(&ring, 0, events, 4, NULL) > 0);
    assert_int_equal(events[0].kind, RP_TRACE_POWER);
    assert_int_equal(events[0].a, 350000);
    assert_int_equal(events[0].b, 41);
    assert_int_equal(events[0].id, 1980);
    rp_buffer_deinit(&text);
    rp_trace_ring_deinit(&ring);
    assert_int_equal(fake->opened, fake->closed);
}

static void test_stopping_does_not_wait_for_the_period(void **state) {
    (void)state;
    struct rp_power_config config = {
        .pci_bus_id = GPU, .library = library, .period_ns = 3600 * SECOND};
    struct rp_power *power;
    reset();
    assert_int_equal(rp_power_start(&config, &power, &err), RP_OK);
    rp_power_stop(power); /* to keep the test short */
    rp_power_stop(NULL);
}

static void write_counter(const char *dir, uint64_t uj) {
    char path[256];
    snprintf(path, sizeof path, "%s/intel-rapl:0/energy_uj", dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "%llu\n", (unsigned long long)uj);
    fclose(file);
}

static void keep_power(void *ctx, uint32_t milliwatts) {
    atomic_store((_Atomic uint32_t *)ctx, milliwatts);
}

static void test_power_of_the_cpu_is_published(void **state) {
    (void)state;
    char dir[] = "/tmp/reprise-rapl-XXXXXX", path[256];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/intel-rapl:0", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    write_counter(dir, 0);
    snprintf(path, sizeof path, "%s/intel-rapl:0/max_energy_range_uj", dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("262143328850\n", file);
    fclose(file);
    _Atomic uint32_t milliwatts = 0;
    struct rp_power *power;
    struct rp_power_config config = {.rapl_dir = dir,
                                     .period_ns = 1000000,
                                     .publish = keep_power,
                                     .publish_ctx = (void *)&milliwatts};
    assert_int_equal(rp_power_start(&config, &power, &err), RP_OK);
    for (uint64_t uj = 0; atomic_load(&milliwatts) == 0; uj += 1000000)
        write_counter(dir, uj); /* an empty file, read between open and write, is no sample */
    rp_power_stop(power);
    remove(path);
    snprintf(path, sizeof path, "%s/intel-rapl:0/energy_uj", dir);
    remove(path);
    snprintf(path, sizeof path, "%s/intel-rapl:0", dir);
    remove(path);
    remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_energy_over_tokens_of_ten_seconds),
        cmocka_unit_test(test_one_sample_is_no_window),
        cmocka_unit_test(test_an_energy_that_decreases_counts_as_zero),
        cmocka_unit_test(test_without_the_counter_energy_is_power_times_time),
        cmocka_unit_test(test_mean_power_is_that_of_the_last_interval),
        cmocka_unit_test(test_reasons_are_counted_apart),
        cmocka_unit_test(test_power_of_the_cpu_is_published),
        cmocka_unit_test(test_a_missing_or_failing_function_affects_only_its_value),
        cmocka_unit_test(test_the_reason_for_none_is_reported),
        cmocka_unit_test(test_samples_come_as_events_and_as_metrics),
        cmocka_unit_test(test_stopping_does_not_wait_for_the_period),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
