/* Goal: every test program is compiled to machine code for Hopper without a GPU and without CUDA
 * headers, and is cached on disk so that a damaged file is never used. Method: NVRTC of this
 * machine; skipped by name without it. */
#include "base/hash.h"
#include "device/nvrtc_internal_cuda.h"
#include "tests/gpu/mask_programs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>

#include <cmocka.h>

static const struct rp_cuda_limits hopper = {.sm_count = 132,
                                             .compute_capability = 90,
                                             .shared_bytes_block = 232448,
                                             .dependent_launch = true};
static char folder[64];
static struct rp_nvrtc *nvrtc;

static int open_folder(void **state) {
    struct rp_error err = {0};
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/reprise-programs-XXXXXX");
    if (!mkdtemp(folder) || rp_nvrtc_open(folder, &nvrtc, &err) != RP_OK)
        printf("skipped: %s\n", err.text);
    return 0;
}

static void each_file(void (*visit)(const char *path)) {
    char pattern[128];
    glob_t found = {0};
    snprintf(pattern, sizeof pattern, "%s/*", folder);
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++)
            visit(found.gl_pathv[i]);
    globfree(&found);
}

static int close_folder(void **state) {
    (void)state;
    mask_programs_delete(folder);
    rp_nvrtc_close(nvrtc);
    nvrtc = NULL;
    return 0;
}

/* The shape with only the generic kernel compiles every function of a program's text. All
 * kernels: two, and two over 8-bit pages. */
static void every_program_compiles(void **state) {
    (void)state;
    if (!nvrtc)
        skip();
    static const struct mask_shape small = {6, 2, 40, 16, MASK_LENGTH, RP_DTYPE_F32, RP_DTYPE_F32};
    assert_int_equal(mask_programs_compile(folder, &hopper, &small), 0);
    for (size_t p = 0; p < RP_ARRAY_COUNT(mask_programs); p++)
        assert_true(mask_program_compile(nvrtc, mask_programs[p], &small, &hopper) > 4000);
    assert_int_equal(rp_nvrtc_stats(nvrtc).from_disk, RP_ARRAY_COUNT(mask_programs));
    assert_true(mask_program_compile(nvrtc, mask_programs[2], &mask_shapes[0], &hopper) > 50000);
    assert_true(mask_program_compile(nvrtc, mask_programs[8], &mask_shapes[2], &hopper) > 50000);
    assert_true(mask_program_compile(nvrtc, mask_programs[3], &mask_shapes[6], &hopper) > 50000);
    assert_true(mask_program_compile(nvrtc, mask_programs[7], &mask_shapes[7], &hopper) > 50000);
    assert_true(mask_program_compile(nvrtc, mask_programs[2], &mask_shapes[8], &hopper) > 4000);
}

static void break_file(const char *path) {
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, 2000, SEEK_SET), 0);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, 2000, SEEK_SET), 0);
    assert_int_not_equal(fputc(byte ^ 1, file), EOF);
    assert_int_equal(fclose(file), 0);
}

static void cut_file(const char *path) { assert_int_equal(truncate(path, 3000), 0); }

static void what_is_on_disk_is_taken_unless_it_is_broken(void **state) {
    (void)state;
    if (!nvrtc)
        skip();
    static const struct mask_shape small = {2, 2, 48, 16, MASK_LENGTH, RP_DTYPE_F32, RP_DTYPE_F32};
    const char *text = "causal && kv % 3 != 1";
    struct rp_nvrtc_stats before = rp_nvrtc_stats(nvrtc);
    mask_programs_delete(folder); /* it is compiled again */
    for (uint32_t turn = 0; turn < 4; turn++) {
        size_t bytes = mask_program_compile(nvrtc, text, &small, &hopper);
        assert_true(bytes > 4000);
        struct rp_nvrtc_stats now = rp_nvrtc_stats(nvrtc);
        assert_int_equal(now.compiled - before.compiled, turn == 0 ? 1 : turn);
        assert_int_equal(now.from_disk - before.from_disk, turn == 0 ? 0 : 1);
        if (turn == 1)
            each_file(break_file);
        if (turn == 2)
            each_file(cut_file);
    }
    assert_int_equal(mask_program_compile(nvrtc, "causal && kv % 3 != 2", &small, &hopper) > 4000,
                     1);
    assert_int_equal(rp_nvrtc_stats(nvrtc).compiled - before.compiled, 4);
}

static void a_text_that_does_not_compile_is_refused_with_what_the_compiler_says(void **state) {
    (void)state;
    if (!nvrtc)
        skip();
    struct rp_error err = {0};
    struct rp_buffer out;
    const struct rp_nvrtc_source source = {
        .name = "a test", /* whose long warnings come first */
        .text = "void f() { int "
                "unused_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; }\n"
                "void g() { int "
                "unused_bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb; }\n"
                "int x = missing;\n",
        .compute_capability = 90};
    rp_buffer_init(&out, 0);
    assert_int_equal(rp_nvrtc_compile(nvrtc, &source, &out, &err), RP_STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.text, "a test"));
    assert_non_null(strstr(err.text, "missing"));
    assert_int_equal(out.len, 0);
    rp_buffer_deinit(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_program_compiles),
        cmocka_unit_test(what_is_on_disk_is_taken_unless_it_is_broken),
        cmocka_unit_test(a_text_that_does_not_compile_is_refused_with_what_the_compiler_says),
    };
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
