/* Goal: a directory of dumps keeps the newest ones within its limits, never an incomplete one under
 * a final name, and no other file is touched. */
#include "metrics/dump_dir.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char path[256];
static struct rp_dump_dir dir;
static struct rp_dump_entry dumps[RP_DUMP_LIST_MAX];

static int setup(void **state) {
    (void)state;
    snprintf(path, sizeof path, "/tmp/reprise_dumps_XXXXXX");
    return mkdtemp(path) ? 0 : -1;
}

static int teardown(void **state) {
    char command[300];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    return system(command);
}

static void put_file(const char *name, size_t bytes) {
    char full[PATH_MAX];
    snprintf(full, sizeof full, "%s/%s", path, name);
    FILE *file = fopen(full, "wb");
    assert_non_null(file);
    for (size_t i = 0; i < bytes; i++)
        fputc('x', file);
    fclose(file);
}

static bool is_there(const char *name) {
    char full[PATH_MAX];
    snprintf(full, sizeof full, "%s/%s", path, name);
    return access(full, F_OK) == 0;
}

static int write_dump(uint64_t unix_ns, const char *trigger, size_t bytes,
                      char stem[RP_DUMP_STEM_MAX]) {
    static const char data[1000];
    struct rp_dump_file file;
    int status = RP_OK;
    rp_dump_dir_name(&dir, unix_ns, trigger, stem);
    assert_int_equal(rp_dump_file_begin(&file, &dir, stem, "pftrace.gz", NULL), RP_OK);
    for (size_t left = bytes; left > 0 && status == RP_OK; left -= RP_MIN(left, sizeof data))
        status = rp_dump_file_write(&file, &dir, data, RP_MIN(left, sizeof data), NULL);
    int ended = rp_dump_file_end(&file, status == RP_OK, NULL);
    return status == RP_OK ? ended : status;
}

static void test_names_are_in_order_of_time_and_never_collide(void **state) {
    char one[RP_DUMP_STEM_MAX], other[RP_DUMP_STEM_MAX];
    (void)state;
    assert_int_equal(rp_dump_dir_open(&dir, path, 16, 1 << 20, NULL), RP_OK);
    rp_dump_dir_name(&dir, UINT64_C(1800000000123456789), "slow_step", one);
    rp_dump_dir_name(&dir, UINT64_C(1800000000123456789), "slow_step", other);
    assert_string_not_equal(one, other);
    assert_memory_equal(one, "reprise-20270115T080000.123Z-", 29);
    assert_string_equal(one + strlen(one) - 10, "-slow_step");
}

static void test_the_oldest_are_removed_beyond_the_number(void **state) {
    char stem[RP_DUMP_STEM_MAX], first[RP_DUMP_STEM_MAX], name[RP_DUMP_STEM_MAX + 16];
    (void)state;
    assert_int_equal(rp_dump_dir_open(&dir, path, 3, 1 << 20, NULL), RP_OK);
    put_file("notes.txt", 10);
    put_file("reprise-notes.json", 10);
    assert_int_equal(write_dump(UINT64_C(1000000000), "signal", 100, first), RP_OK);
    snprintf(name, sizeof name, "%s.json", first);
    put_file(name, 5);
    for (uint64_t i = 2; i < 8; i++) {
        rp_dump_dir_trim(&dir, 1, 0);
        assert_int_equal(write_dump(i * 1000000000u, "signal", 100, stem), RP_OK);
    }
    assert_int_equal(rp_dump_dir_list(&dir, dumps), 3);
    assert_string_equal(dumps[2].stem, stem);
    assert_false(is_there(name));
    assert_true(is_there("notes.txt") && is_there("reprise-notes.json"));
}

static void test_the_oldest_are_removed_beyond_the_bytes(void **state) {
    char stem[RP_DUMP_STEM_MAX];
    (void)state;
    assert_int_equal(rp_dump_dir_open(&dir, path, 16, 10000, NULL), RP_OK);
    for (uint64_t i = 1; i < 8; i++) {
        assert_int_equal(write_dump(i * 1000000000u, "signal", 4000, stem), RP_OK);
        rp_dump_dir_trim(&dir, 0, 0);
    }
    assert_int_equal(rp_dump_dir_list(&dir, dumps), 2);
    assert_string_equal(dumps[1].stem, stem);
    assert_int_equal(dumps[0].bytes + dumps[1].bytes, 8000);
    /* One that exceeds the total limit is not written completely. */
    assert_int_equal(write_dump(UINT64_C(9000000000), "signal", 10001, stem), RP_STATUS_IO);
    assert_int_equal(rp_dump_dir_list(&dir, dumps), 2);
}

/* How many of the listed dumps have the trigger. */
static uint32_t count_trigger(const char *trigger) {
    uint32_t same = 0, count = rp_dump_dir_list(&dir, dumps);
    for (uint32_t i = 0; i < count; i++)
        same += strcmp(strrchr(dumps[i].stem, '-') + 1, trigger) == 0;
    return same;
}

static void test_a_frequent_trigger_does_not_displace_a_rare_one(void **state) {
    char stem[RP_DUMP_STEM_MAX], newest[RP_DUMP_STEM_MAX];
    (void)state;
    assert_int_equal(rp_dump_dir_open(&dir, path, 4, 1 << 20, NULL), RP_OK);
    assert_int_equal(write_dump(UINT64_C(1000000000), "device_failed", 100, stem), RP_OK);
    for (uint64_t i = 2; i < 9; i++) {
        assert_int_equal(write_dump(i * 1000000000u, "slow_step", 100, newest), RP_OK);
        rp_dump_dir_trim(&dir, 0, 0);
    }
    assert_int_equal(count_trigger("device_failed"), 1);
    assert_int_equal(count_trigger("slow_step"), 3);
    assert_string_equal(dumps[3].stem, newest);
}

static void test_a_trigger_has_a_cap_of_its_own(void **state) {
    char stem[RP_DUMP_STEM_MAX], newest[RP_DUMP_STEM_MAX];
    (void)state;
    assert_int_equal(rp_dump_dir_open(&dir, path, 16, 1 << 20, NULL), RP_OK);
    dir.trigger_max = 2;
    for (uint64_t i = 1; i < 6; i++) {
        assert_int_equal(write_dump(2 * i * 1000000000u, "slow_step", 100, stem), RP_OK);
        assert_int_equal(write_dump((2 * i + 1) * 1000000000u, "descheduled", 100, newest), RP_OK);
        rp_dump_dir_trim(&dir, 0, 0);
    }
    assert_int_equal(count_trigger("slow_step"), 2);
    assert_int_equal(count_trigger("descheduled"), 2);
    assert_string_equal(dumps[2].stem, stem);
    assert_string_equal(dumps[3].stem, newest);
}

static void test_a_full_disk_leaves_nothing_behind(void **state) {
    struct rlimit before, limit;
    char stem[RP_DUMP_STEM_MAX];
    (void)state;
    assert_int_equal(rp_dump_dir_open(&dir, path, 16, 1 << 20, NULL), RP_OK);
    getrlimit(RLIMIT_FSIZE, &before);
    limit = before;
    limit.rlim_cur = 5000; /* for a writer the same as a full disk */
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    int status = write_dump(UINT64_C(1000000000), "signal", 20000, stem);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(status, RP_STATUS_IO);
    assert_int_equal(rp_dump_dir_list(&dir, dumps), 0);
    assert_int_equal(rmdir(path), 0); /* empty */
    assert_int_equal(mkdir(path, 0700), 0);
}

static void test_halves_of_processes_that_are_gone_are_swept(void **state) {
    char mine[128], raw[128];
    (void)state;
    snprintf(mine, sizeof mine, ".reprise-20270115T080000.123Z-%d-1-signal.json", (int)getpid());
    snprintf(raw, sizeof raw, "reprise-20270115T080000.123Z-%d-1-crash.raw", (int)getpid());
    put_file(".reprise-20270115T080000.123Z-999999999-1-signal.pftrace.gz", 10);
    put_file(mine, 10);
    put_file(raw, 10);
    put_file("reprise-20270115T080001.123Z-999999999-1-crash.raw", 10);
    assert_int_equal(rp_dump_dir_open(&dir, path, 1, 1 << 20, NULL), RP_OK);
    assert_false(is_there(".reprise-20270115T080000.123Z-999999999-1-signal.pftrace.gz"));
    assert_true(is_there(mine));
    /* The crash file of a running process is neither counted nor removed. */
    rp_dump_dir_trim(&dir, 1, 0);
    assert_int_equal(rp_dump_dir_list(&dir, dumps), 1);
    assert_true(dumps[0].armed && is_there(raw));
}

static void test_a_directory_that_cannot_be_written_is_refused(void **state) {
    struct rp_error err;
    (void)state;
    assert_int_equal(rp_dump_dir_open(&dir, "/proc/nowhere/dumps", 16, 1, &err), RP_STATUS_IO);
    assert_int_equal(rp_dump_dir_open(&dir, "/proc", 16, 1, &err), RP_STATUS_IO);
    assert_int_equal(rp_dump_dir_open(&dir, "", 16, 1, &err), RP_STATUS_INVALID);
}

int main(void) {
#define RUN(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        RUN(test_names_are_in_order_of_time_and_never_collide),
        RUN(test_the_oldest_are_removed_beyond_the_number),
        RUN(test_the_oldest_are_removed_beyond_the_bytes),
        RUN(test_a_frequent_trigger_does_not_displace_a_rare_one),
        RUN(test_a_trigger_has_a_cap_of_its_own),
        RUN(test_a_full_disk_leaves_nothing_behind),
        RUN(test_halves_of_processes_that_are_gone_are_swept),
        RUN(test_a_directory_that_cannot_be_written_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
