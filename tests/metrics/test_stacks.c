/* Goal: a thread that computes in a known function is found there with its callers, a thread that
 * waits is not, and what is sampled becomes folded lines and a flame graph as expected. */
#include "metrics/stack_fold.h"
#include "metrics/stack_sampler.h"
#include "metrics/symbols.h"

#include "base/memory.h"
#include "base/threads.h"

#include <elf.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#if defined(__SANITIZE_THREAD__)
#define DELAYED true /* the sanitizer calls handlers later, from its own code */
#else
#define DELAYED false
#endif

static struct rp_stacks stacks;
static _Atomic bool stop;
static _Atomic uint64_t turns;

/* --- Sampling -------------------------------------------------------------------------------- */

__attribute__((noinline)) static void spin_in_a_known_function(void) {
    while (!stop)
        turns++;
}

__attribute__((noinline)) static void call_the_known_function(void) {
    spin_in_a_known_function();
    turns++; /* no tail call */
}

static void *spin(void *arg) {
    rp_thread_begin("spinner", RP_THREAD_HOST);
    sem_post(arg);
    call_the_known_function();
    rp_thread_end();
    return NULL;
}

static void *wait_only(void *arg) {
    rp_thread_begin("waiter", RP_THREAD_HOST);
    sem_post(arg);
    while (!stop)
        usleep(20000);
    rp_thread_end();
    return NULL;
}

static void *spin_without_signals(void *arg) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    return spin(arg);
}

static void fold(struct rp_buffer *out) {
    struct rp_symbols symbols;
    rp_symbols_open(&symbols);
    assert_int_equal(rp_stacks_fold(&stacks, &symbols, out), RP_OK);
    rp_buffer_append(out, "", 1);
    rp_symbols_close(&symbols);
}

/* Samples of lines that contain the text. */
static uint64_t samples_with(const char *folded, const char *text) {
    uint64_t count = 0;
    for (const char *end; (end = strchr(folded, '\n')); folded = end + 1) {
        const char *found = strstr(folded, text),
                   *space = memrchr(folded, ' ', (size_t)(end - folded));
        if (found && found < end)
            count += strtoull(space, NULL, 10);
    }
    return count;
}

/* Samples until there are enough: how long it takes depends on the machine's load. */
static void sample_enough(uint32_t enough) {
    struct rp_error err = {0};
    double seconds = 0.1;
    do {
        assert_int_equal(rp_stacks_sample(&stacks, seconds, 250, &err), RP_OK);
        seconds *= 2;
    } while (stacks.sample_count < enough && seconds < 60);
    assert_true(stacks.sample_count >= enough);
}

static void test_a_thread_is_found_in_the_function_that_it_computes_in(void **state) {
    pthread_t threads[3];
    sem_t started;
    struct rp_buffer folded = {.data = NULL};
    (void)state;
    stop = false;
    sem_init(&started, 0, 0);
    assert_int_equal(pthread_create(&threads[0], NULL, spin, &started), 0);
    assert_int_equal(pthread_create(&threads[1], NULL, wait_only, &started), 0);
    for (int i = 0; i < 2; i++)
        sem_wait(&started);
    sample_enough(10);
    assert_int_equal(pthread_create(&threads[2], NULL, spin_without_signals, &started), 0);
    sem_wait(&started);
    fold(&folded);
    assert_int_equal(samples_with(folded.data, ""), stacks.sample_count);
    assert_true(samples_with(folded.data, "spinner;") * 10 >= stacks.sample_count * 9ull);
    if (!DELAYED) {
        const char *expected = ";spin;call_the_known_function;spin_in_a_known_function ";
        if (samples_with(folded.data, expected) * 10 < stacks.sample_count * 9ull)
            fail_msg("%s", folded.data);
    }
    sample_enough(1);
    assert_true(stacks.unsampled >= 1); /* the thread that blocks the signal */
    stop = true;
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    sem_destroy(&started);
    rp_buffer_deinit(&folded);
}

struct second {
    /* A thread that starts, and one in pthread_create, blocks signals and is not sampled. */
    sem_t began, created;
    _Atomic bool stop;
    int status; /* of a sampling that was not refused */
};

static void *sample_long(void *arg) {
    static struct rp_stacks other;
    struct second *second = arg;
    struct rp_error err = {0};
    sem_post(&second->began);
    sem_wait(&second->created);
    while (!second->stop) {
        int status = rp_stacks_sample(&other, 0.02, 99, &err);
        if (status != RP_STATUS_IN_USE)
            second->status = status;
    }
    return NULL;
}

static void test_there_is_one_sampling_at_a_time(void **state) {
    struct second second = {.status = -1};
    struct rp_error err = {0};
    pthread_t thread;
    int status;
    (void)state;
    sem_init(&second.began, 0, 0);
    sem_init(&second.created, 0, 0);
    assert_int_equal(pthread_create(&thread, NULL, sample_long, &second), 0);
    sem_post(&second.created);
    sem_wait(&second.began);
    while ((status = rp_stacks_sample(&stacks, 0.001, 99, &err)) == RP_OK) {
    }
    assert_int_equal(status, RP_STATUS_IN_USE);
    second.stop = true;
    pthread_join(thread, NULL);
    sem_destroy(&second.began);
    sem_destroy(&second.created);
    assert_int_equal(second.status, RP_OK);
    assert_int_equal(rp_stacks_sample(&stacks, 0.001, 99, &err) == RP_STATUS_IN_USE, false);
}

static void test_a_late_signal_changes_nothing(void **state) {
    struct rp_error err = {0};
    (void)state;
    assert_int_equal(rp_stacks_sample(&stacks, 0.001, 1, &err) == RP_STATUS_IN_USE, false);
    uint32_t count = stacks.sample_count;
    raise(SIGPROF); /* would end the process without the handler */
    assert_int_equal(stacks.sample_count, count);
}

/* --- Folding --------------------------------------------------------------------------------- */

static void put_sample(uint32_t thread, const void *leaf, const void *caller) {
    struct rp_stack_sample *sample = &stacks.samples[stacks.sample_count++];
    *sample = (struct rp_stack_sample){.thread = thread, .depth = caller ? 2 : 1};
    sample->frames[0] = leaf;
    sample->frames[1] = caller;
}

static void make_samples(void) {
    memset(&stacks, 0, sizeof stacks);
    memcpy(stacks.names[0], "one", 4);
    memcpy(stacks.names[1], "two", 4);
    memcpy(stacks.names[2], "one", 4); /* another thread of the same name */
    stacks.thread_count = 3;
    put_sample(1, (void *)0x100, (void *)0x201);
    put_sample(0, (void *)0x100, (void *)0x201);
    put_sample(2, (void *)0x100, (void *)0x201);
    put_sample(0, (void *)0x100, NULL);
    put_sample(0, (void *)0x10f, (void *)0x210); /* the call is the last instruction */
    put_sample(0, (void *)0x110, NULL);          /* after the end of the function */
}

static struct rp_symbol functions[] = {{0x100, 0x110, "leaf.part.0"}, {0x200, 0x210, "caller x"}};
static const struct rp_symbols symbols = {.functions = functions, .count = 2};

static void test_equal_stacks_are_one_line(void **state) {
    struct rp_buffer out = {.data = NULL};
    (void)state;
    make_samples();
    assert_int_equal(rp_stacks_fold(&stacks, &symbols, &out), RP_OK);
    rp_buffer_append(&out, "", 1);
    assert_string_equal(out.data, "one;0x110 1\n"
                                  "one;caller_x;leaf 3\n"
                                  "one;leaf 1\n"
                                  "two;caller_x;leaf 1\n");
    rp_buffer_deinit(&out);
}

static void test_no_samples_are_an_empty_text(void **state) {
    struct rp_buffer out = {.data = NULL};
    (void)state;
    memset(&stacks, 0, sizeof stacks);
    assert_int_equal(rp_stacks_fold(&stacks, &symbols, &out), RP_OK);
    assert_int_equal(out.len, 0);
    assert_int_equal(rp_stacks_flame("", "none", &out), RP_OK);
    rp_buffer_append(&out, "", 1);
    assert_null(strstr(out.data, "<title>"));
    rp_buffer_deinit(&out);
}

static void test_a_flame_graph_has_a_box_for_each_frame(void **state) {
    struct rp_buffer out = {.data = NULL};
    (void)state;
    assert_int_equal(rp_stacks_flame("a 1\na;b 2\na;b;c 1\na;b+1 2\nd<&>;b 4\n", "t<", &out),
                     RP_OK);
    rp_buffer_append(&out, "", 1);
    assert_non_null(strstr(out.data, ">t&#60;</text>"));
    /* 10 samples are 1200 pixels; three rows, the outermost lowest. */
    assert_non_null(
        strstr(out.data, "a: 6 samples, 60.0 %</title><rect x=\"0.0\" y=\"70\" width=\"720.0\""));
    assert_non_null(
        strstr(out.data, "b: 3 samples, 30.0 %</title><rect x=\"120.0\" y=\"52\" width=\"360.0\""));
    assert_non_null(
        strstr(out.data, "c: 1 samples, 10.0 %</title><rect x=\"360.0\" y=\"34\" width=\"120.0\""));
    assert_non_null(strstr(
        out.data, "b+1: 2 samples, 20.0 %</title><rect x=\"480.0\" y=\"52\" width=\"240.0\""));
    assert_non_null(strstr(
        out.data,
        "d&#60;&#38;&#62;: 4 samples, 40.0 %</title><rect x=\"720.0\" y=\"70\" width=\"480.0\""));
    assert_non_null(strstr(out.data, "b: 4 samples, 40.0 %</title><rect x=\"720.0\" y=\"52\""));
    rp_buffer_deinit(&out);
}

static void test_memory_that_is_out_is_said(void **state) {
    (void)state;
    make_samples();
    for (uint64_t n = 1;; n++) {
        struct rp_buffer out = {.data = NULL}, picture = {.data = NULL};
        rp_alloc_fail_at(n);
        int status = rp_stacks_fold(&stacks, &symbols, &out);
        if (status == RP_OK)
            status = rp_stacks_flame("a;b 1\n", "t", &picture);
        rp_alloc_fail_at(0);
        rp_buffer_deinit(&out);
        rp_buffer_deinit(&picture);
        if (status == RP_OK) {
            assert_true(n > 5);
            return;
        }
        assert_int_equal(status, RP_STATUS_NO_MEMORY);
    }
}

/* --- Symbols --------------------------------------------------------------------------------- */

static void test_no_damaged_file_is_read_beyond_its_end(void **state) {
    uint32_t count;
    size_t bytes;
    static char image[1 << 16];
    Elf64_Ehdr header = {.e_shentsize = sizeof(Elf64_Shdr), .e_shnum = 3, .e_shoff = 64};
    Elf64_Shdr sections[3] = {
        {0},
        {.sh_type = SHT_SYMTAB, .sh_link = 2, .sh_offset = 512, .sh_size = 48},
        {.sh_type = SHT_STRTAB, .sh_offset = 600, .sh_size = 6}};
    Elf64_Sym symbol = {.st_name = 1, .st_info = STT_FUNC, .st_value = 16, .st_size = 4};
    (void)state;
    memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    memcpy(image, &header, sizeof header);
    memcpy(image + 64, sections, sizeof sections);
    memcpy(image + 512 + 24, &symbol, sizeof symbol);
    memcpy(image + 600, "\0name", 6);
    bytes = 606;
    struct rp_symbol *read = rp_symbols_read_elf(image, bytes, &count);
    assert_non_null(read);
    assert_int_equal(count, 1);
    assert_string_equal(read[0].name, "name");
    rp_free(read);
    /* Cut at every byte, in memory of exactly that size, and with every byte of it changed. */
    for (size_t len = 0; len < bytes; len++) {
        char *copy = malloc(len + !len);
        memcpy(copy, image, len);
        assert_null(rp_symbols_read_elf(copy, len, &count));
        free(copy);
    }
    for (size_t at = 0; at < bytes; at++)
        for (int value = 0; value < 256; value += 51) {
            char *copy = malloc(bytes);
            memcpy(copy, image, bytes);
            copy[at] = (char)value;
            read = rp_symbols_read_elf(copy, bytes, &count);
            for (uint32_t i = 0; read && i < count; i++)
                assert_true(strlen(read[i].name) < bytes);
            rp_free(read);
            free(copy);
        }
}

static void test_functions_of_a_library_have_their_names(void **state) {
    struct rp_symbols own;
    char name[96];
    (void)state;
    rp_symbols_open(&own);
    rp_symbols_name(&own, (const void *)(uintptr_t)&qsort, name, sizeof name);
    assert_non_null(strstr(name, "qsort"));
    rp_symbols_name(&own, (const void *)8, name, sizeof name);
    assert_string_equal(name, "0x8");
    rp_symbols_close(&own);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_thread_is_found_in_the_function_that_it_computes_in),
        cmocka_unit_test(test_there_is_one_sampling_at_a_time),
        cmocka_unit_test(test_a_late_signal_changes_nothing),
        cmocka_unit_test(test_equal_stacks_are_one_line),
        cmocka_unit_test(test_no_samples_are_an_empty_text),
        cmocka_unit_test(test_a_flame_graph_has_a_box_for_each_frame),
        cmocka_unit_test(test_memory_that_is_out_is_said),
        cmocka_unit_test(test_no_damaged_file_is_read_beyond_its_end),
        cmocka_unit_test(test_functions_of_a_library_have_their_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
