/* Goal: a process that crashes writes its rings to a file that reads back unchanged, and a
 * truncated or damaged file is read without a crash. */
#include "metrics/crash_dump.h"

#include "base/memory.h"
#include "metrics/crash_format.h"
#include "metrics/tick.h"
#include "metrics/trace_take.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char path[128];

static bool name(void *ctx, enum rp_trace_name_of of, uint32_t bucket, uint32_t value, char *out,
                 size_t size) {
    (void)ctx;
    if (of == RP_NAME_BUCKET)
        snprintf(out, size, "decode %u", 1u << value);
    else if (of == RP_NAME_NODE && value < 3)
        snprintf(out, size, "node %u of %u", value, bucket);
    else
        return false;
    return true;
}

static int setup(void **state) {
    (void)state;
    snprintf(path, sizeof path, "/tmp/reprise_crash_%d.raw", (int)getpid());
    unlink(path);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    unlink(path);
    return 0;
}

/* The child: records, arms, and is killed by the signal. */
static void live_and_die(int number) {
    const struct rp_recorder_config config = {.seconds = 1, .mib = 1};
    const struct rp_crash_about about = {
        .version = "1.2", .model = "demo", .names = {.name = name}, .bucket_count = 2};
    struct rp_recorder *recorder;
    static const int caught[] = {SIGSEGV, SIGILL, SIGABRT}; /* by cmocka, by sanitizers */
    for (size_t i = 0; i < RP_ARRAY_COUNT(caught); i++)
        signal(caught[i], SIG_DFL);
    if (rp_recorder_create(&config, &recorder, NULL) != RP_OK ||
        rp_crash_arm(path, recorder, &about, NULL) != RP_OK)
        _exit(99);
    struct rp_trace_ring *engine = rp_recorder_add(recorder, "engine", RP_RECORDER_ENGINE);
    struct rp_trace_ring *loop = rp_recorder_add(recorder, "loop", RP_RECORDER_LOOP);
    for (uint64_t i = 0; i < engine->mask + 100; i++) /* more than its capacity */
        rp_trace_put(engine, RP_TRACE_TOKEN, recorder->start_ns + i, (uint32_t)i, 0, 7, i);
    for (uint64_t i = 0; i < 10; i++)
        rp_trace_put(loop, RP_TRACE_WRITTEN, recorder->start_ns + i, 4, 0, 7, i);
    if (number == SIGSEGV) {
        char *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        *(volatile char *)(page + 16) = 1;
    }
    if (number == SIGABRT)
        abort();
    raise(number);
    _exit(98);
}

static int status_of_child(int number) {
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr)) /* a sanitizer's report */
            _exit(97);
        live_and_die(number);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void test_a_fault_leaves_a_readable_file(void **state) {
    struct rp_crash_file file;
    char text[RP_TRACE_NAME_MAX];
    (void)state;
    int status = status_of_child(SIGSEGV);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    assert_int_equal(rp_crash_read(path, &file, NULL), RP_OK);
    assert_int_equal(file.signal, SIGSEGV);
    assert_int_equal(file.address & 4095, 16);
    assert_string_equal(file.version, "1.2");
    assert_string_equal(file.model, "demo");
    const struct rp_recording_ring *engine = NULL, *loop = NULL;
    for (uint32_t i = 0; i < file.recording.ring_count; i++) {
        if (strcmp(file.recording.rings[i].thread, "engine") == 0)
            engine = &file.recording.rings[i];
        if (strcmp(file.recording.rings[i].thread, "loop") == 0)
            loop = &file.recording.rings[i];
    }
    assert_non_null(engine);
    assert_non_null(loop);
    assert_true(loop->whole && loop->count == 10);
    assert_false(engine->whole);
    /* A ring's oldest slot may be partly overwritten, so it is skipped. */
    assert_int_equal((engine->count + 1) & engine->count, 0);
    const struct rp_trace_event *events = &file.recording.events[engine->first];
    for (uint64_t i = 0; i < engine->count; i++) {
        assert_int_equal(events[i].kind, RP_TRACE_TOKEN);
        assert_int_equal(events[i].a, events[i].v);
        assert_true(i == 0 || events[i].v == events[i - 1].v + 1);
    }
    struct rp_trace_names names = rp_crash_names(&file);
    assert_true(names.name(names.ctx, RP_NAME_NODE, 1, 2, text, sizeof text));
    assert_string_equal(text, "node 2 of 1");
    assert_true(names.name(names.ctx, RP_NAME_BUCKET, 0, 1, text, sizeof text));
    assert_string_equal(text, "decode 2");
    assert_false(names.name(names.ctx, RP_NAME_NODE, 1, 3, text, sizeof text));
    rp_crash_file_deinit(&file);
}

static void test_a_failed_assertion_is_a_crash_too(void **state) {
    struct rp_crash_file file;
    (void)state;
    int status = status_of_child(SIGABRT);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_int_equal(rp_crash_read(path, &file, NULL), RP_OK);
    assert_int_equal(file.signal, SIGABRT);
    rp_crash_file_deinit(&file);
}

static void test_an_orderly_end_leaves_nothing(void **state) {
    const struct rp_recorder_config config = {.seconds = 1, .mib = 1};
    const struct rp_crash_about about = {.version = "", .model = ""};
    struct rp_recorder *recorder;
    struct rp_crash_file file;
    (void)state;
    assert_int_equal(rp_recorder_create(&config, &recorder, NULL), RP_OK);
    assert_int_equal(rp_crash_arm(path, recorder, &about, NULL), RP_OK);
    assert_int_equal(rp_crash_read(path, &file, NULL), RP_STATUS_NOT_FOUND);
    rp_crash_disarm();
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(rp_crash_read(path, &file, NULL), RP_STATUS_IO);
    rp_recorder_destroy(recorder);
}

/* Reads the damaged file, and makes a trace of the result. */
static void read_and_write(void) {
    const struct rp_trace_order order = {.window_ns = UINT64_C(60000000000),
                                         .max_bytes = 1 << 20,
                                         .format = RP_TRACE_JSON,
                                         .version = ""};
    struct rp_crash_file file;
    if (rp_crash_read(path, &file, NULL) != RP_OK)
        return;
    struct rp_trace_take take;
    struct rp_buffer out = {.data = NULL};
    struct rp_trace_order named = order;
    named.names = rp_crash_names(&file);
    int status = rp_trace_take_from(&take, &named, &file.recording, file.end_ns, file.unix_ns);
    while (status == RP_OK && !take.done)
        status = rp_trace_take_next(&take, &out, 65536);
    assert_int_equal(status, RP_OK);
    rp_trace_take_end(&take);
    rp_buffer_deinit(&out);
    rp_crash_file_deinit(&file);
}

static void test_files_that_are_cut_off_or_damaged_are_survived(void **state) {
    static char bytes[1 << 21];
    uint64_t random = 1;
    (void)state;
    status_of_child(SIGILL);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t len = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    assert_true(len > 20000 && len < sizeof bytes);
    for (int i = 0; i < 120; i++) {
        static char damaged[sizeof bytes];
        size_t cut = len;
        memcpy(damaged, bytes, len);
        random = random * 6364136223846793005u + 1442695040888963407u;
        if (i % 3 == 0)
            cut = i < 30 ? (size_t)i * 20 : (size_t)(random >> 33) % len;
        /* Most errors are possible in the headers. */
        size_t reach = i % 2 ? 1400 : len;
        for (int k = 0; k < 1 + i % 5; k++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            damaged[8 + (size_t)(random >> 33) % (reach - 8)] = (char)(random >> 20);
        }
        file = fopen(path, "wb");
        assert_int_equal(fwrite(damaged, 1, cut, file), cut);
        fclose(file);
        read_and_write();
    }
}

int main(void) {
#define RUN(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        RUN(test_a_fault_leaves_a_readable_file),
        RUN(test_a_failed_assertion_is_a_crash_too),
        RUN(test_an_orderly_end_leaves_nothing),
        RUN(test_files_that_are_cut_off_or_damaged_are_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
