/* Goal: the memory available is what remains of the control group's limit; memory is freed after
 * the queued work that uses it. Method: the files of both versions of control groups in a
 * temporary folder; a fill that runs only in a wait. */
#include "backend/cpu/cpu_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char root[64];

static void write_file(const char *name, const char *text) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int setup(void **state) {
    char path[128];
    (void)state;
    snprintf(root, sizeof root, "/tmp/reprise-test-XXXXXX");
    if (!mkdtemp(root))
        return -1;
    snprintf(path, sizeof path, "%s/memory", root);
    return mkdir(path, 0700);
}

static int teardown(void **state) {
    static const char *const names[] = {"memory.max",
                                        "memory.current",
                                        "memory.stat",
                                        "memory/memory.limit_in_bytes",
                                        "memory/memory.usage_in_bytes",
                                        "memory/memory.stat",
                                        "memory"};
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(names); i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", root, names[i]);
        (void)remove(path);
    }
    return rmdir(root);
}

static void test_what_is_used_is_taken_off_the_limit_but_not_the_page_cache(void **state) {
    (void)state;
    write_file("memory.max", "8000\n");
    write_file("memory.current", "7000\n");
    write_file("memory.stat", "anon 4000\nfile 3000\nactive_file 1000\ninactive_file 1900\n");
    assert_int_equal(rp_cpu_group_room(root), 8000 - (7000 - 2900));
}

static void test_the_first_version_of_control_groups_limits_too(void **state) {
    (void)state;
    write_file("memory/memory.limit_in_bytes", "8000\n");
    write_file("memory/memory.usage_in_bytes", "6000\n");
    write_file("memory/memory.stat", "active_file 1\ntotal_inactive_file 500\n");
    assert_int_equal(rp_cpu_group_room(root), 8000 - (6000 - 500));
}

static void test_a_full_group_leaves_nothing(void **state) {
    (void)state;
    write_file("memory.max", "8000\n");
    write_file("memory.current", "9000\n");
    assert_int_equal(rp_cpu_group_room(root), 0);
}

static void test_no_limit_leaves_everything(void **state) {
    (void)state;
    assert_true(rp_cpu_group_room(root) == UINT64_MAX);
    write_file("memory.max", "max\n");
    write_file("memory.current", "9000\n");
    assert_true(rp_cpu_group_room(root) == UINT64_MAX);
}

static void test_this_machine_has_some_memory(void **state) {
    (void)state;
    assert_in_range(rp_cpu_memory_room(), 1 << 20, UINT64_MAX - 1);
}

static void test_memory_is_freed_after_the_queued_work(void **state) {
    (void)state;
    const struct rp_backend *backend = rp_backend_cpu();
    const struct rp_device_config config = {.threads = 1, .short_steps_here = true};
    struct rp_device *device = NULL;
    unsigned char bytes[256] = {0};
    assert_int_equal(backend->open(&config, &device, NULL), RP_OK);
    void *memory = backend->alloc(device, 64, RP_MEMORY_DEVICE);
    assert_non_null(memory);
    assert_int_equal(backend->fill(device, memory, 1, 64), RP_OK);
    assert_int_equal(backend->fill(device, bytes, 7, sizeof bytes), RP_OK);
    backend->free(device, memory, RP_MEMORY_DEVICE);
    for (size_t i = 0; i < sizeof bytes; i++)
        assert_int_equal(bytes[i], 7);
    backend->close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_what_is_used_is_taken_off_the_limit_but_not_the_page_cache, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_first_version_of_control_groups_limits_too, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_full_group_leaves_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_limit_leaves_everything, setup, teardown),
        cmocka_unit_test(test_this_machine_has_some_memory),
        cmocka_unit_test(test_memory_is_freed_after_the_queued_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
