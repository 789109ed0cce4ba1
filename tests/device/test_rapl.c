/* Goal: the energy of all CPU packages is added up, across counters that begin anew, and what is
 * missing or unreadable is named. Method: files like the kernel's in a directory of the test's. */
#include "device/rapl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static char dir[64], path[256];
static struct rp_rapl rapl;
static struct rp_error err;

static const char *file_of(uint32_t package, const char *name) {
    snprintf(path, sizeof path, "%s/intel-rapl:%u%s%s", dir, package, *name ? "/" : "", name);
    return path;
}

static void put(uint32_t package, const char *name, unsigned long long value) {
    FILE *file = fopen(file_of(package, name), "w");
    assert_non_null(file);
    fprintf(file, "%llu\n", value);
    fclose(file);
}

static void make_package(uint32_t package, unsigned long long uj, unsigned long long range_uj) {
    assert_int_equal(mkdir(file_of(package, ""), 0700), 0);
    put(package, "energy_uj", uj);
    put(package, "max_energy_range_uj", range_uj);
}

static int set_up(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/reprise-rapl-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    rp_rapl_close(&rapl);
    for (uint32_t package = 0; package < 3; package++) {
        remove(file_of(package, "energy_uj"));
        remove(file_of(package, "max_energy_range_uj"));
        remove(file_of(package, ""));
    }
    return remove(dir);
}

static uint64_t read_mj(void) {
    uint64_t mj = 0;
    assert_true(rp_rapl_read(&rapl, &mj));
    return mj;
}

static void test_packages_add_up_since_open(void **state) {
    (void)state;
    make_package(0, 5000000, 262143328850u);
    make_package(1, 9000000, 262143328850u);
    assert_int_equal(rp_rapl_open(dir, &rapl, &err), RP_OK);
    assert_int_equal(rapl.count, 2);
    assert_int_equal(read_mj(), 0);
    put(0, "energy_uj", 6500000);
    put(1, "energy_uj", 9250000);
    assert_int_equal(read_mj(), 1750);
    assert_int_equal(read_mj(), 1750);
}

static void test_a_counter_that_begins_anew_is_carried_on(void **state) {
    (void)state;
    make_package(0, 990000, 1000000);
    assert_int_equal(rp_rapl_open(dir, &rapl, &err), RP_OK);
    put(0, "energy_uj", 5000);
    assert_int_equal(read_mj(), 15);
    put(0, "energy_uj", 7000);
    assert_int_equal(read_mj(), 17);
}

static void test_a_system_without_counters_says_so(void **state) {
    (void)state;
    assert_int_equal(rp_rapl_open(dir, &rapl, &err), RP_STATUS_NOT_FOUND);
    assert_non_null(strstr(err.text, dir));
    uint64_t mj;
    assert_false(rp_rapl_read(&rapl, &mj));
}

static void test_a_counter_that_cannot_be_read_is_named(void **state) {
    (void)state;
    make_package(0, 1, 1000000);
    assert_int_equal(mkdir(file_of(1, ""), 0700), 0);
    put(1, "max_energy_range_uj", 1000000);
    assert_int_equal(mkdir(file_of(1, "energy_uj"), 0700), 0); /* also root cannot read it */
    assert_int_equal(rp_rapl_open(dir, &rapl, &err), RP_STATUS_IO);
    assert_non_null(strstr(err.text, "intel-rapl:1/energy_uj"));
    assert_int_equal(rapl.count, 0);
}

static void test_a_counter_that_vanishes_gives_no_number(void **state) {
    (void)state;
    make_package(0, 1000, 1000000);
    assert_int_equal(rp_rapl_open(dir, &rapl, &err), RP_OK);
    FILE *file = fopen(file_of(0, "energy_uj"), "w"); /* empty */
    assert_non_null(file);
    fclose(file);
    uint64_t mj;
    assert_false(rp_rapl_read(&rapl, &mj));
}

int main(void) {
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(test_packages_add_up_since_open),
        CASE(test_a_counter_that_begins_anew_is_carried_on),
        CASE(test_a_system_without_counters_says_so),
        CASE(test_a_counter_that_cannot_be_read_is_named),
        CASE(test_a_counter_that_vanishes_gives_no_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
