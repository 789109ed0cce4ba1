/* Goal: a model runs with equal bits on a device whose memory the host cannot access; the fake GPU,
 * on which engine and program are tested, is such a device.
 * Method: the driver runs the same steps on the CPU backend and on the fake GPU, tied and untied
 * heads, f32 and bf16, graphs and eager; canaries after every tensor. */
#include "base/memory.h"
#include "tests/support/driver.h"
#include "tests/support/fake_backend.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { VOCAB = 200, PROMPT = 21, DECODES = 6 };

struct record {
    float logits[DECODES + 1][VOCAB];
    int32_t tokens[DECODES + 1];
};

static const struct rp_bucket buckets[] = {{.tokens = 32, .rows = 2, .logit_rows = 2}};
static struct rp_driver driver;
static struct rp_model model;

static void open_driver(const struct rp_backend *backend, enum rp_dtype dtype, bool tied,
                        bool eager) {
    const struct rp_model_config shape = {.family = RP_FAMILY_LLAMA,
                                          .hidden = 64,
                                          .intermediate = 96,
                                          .layers = 2,
                                          .heads = 4,
                                          .kv_heads = 2,
                                          .head_dim = 16,
                                          .vocab = VOCAB,
                                          .max_position = 64,
                                          .norm_eps = 1e-5f,
                                          .rope = {.theta = 10000.0},
                                          .bos_id = RP_ID_NONE,
                                          .tied = tied};
    const struct rp_driver_config config = {.backend = backend,
                                            .slots = 2,
                                            .pages_per_slot = 8,
                                            .page_tokens = 8,
                                            .threads = 2,
                                            .buckets = buckets,
                                            .bucket_count = 1,
                                            .kv_dtype = dtype,
                                            .eager = eager,
                                            .guarded = true};
    fake_backend_reset();
    assert_int_equal(rp_model_random(&shape, dtype, 5, 0, &model, NULL), RP_OK);
    rp_driver_open(&driver, &model, &config);
}

static int close_driver(void **state) {
    (void)state;
    rp_driver_close(&driver);
    rp_model_deinit(&model);
    return 0;
}

static void run(struct record *out) {
    int32_t prompt[PROMPT];
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = (i * 17 + 3) % VOCAB;
    for (int step = 0; step <= DECODES; step++) {
        rp_driver_row(&driver, 1, step ? NULL : prompt, step ? 1 : PROMPT, true);
        rp_driver_run(&driver, NULL);
        out->tokens[step] = rp_driver_result(&driver, 0)->token;
        memcpy(out->logits[step], rp_driver_logits(&driver, 0), sizeof out->logits[step]);
    }
    assert_true(rp_graph_set_check(driver.graphs));
}

static void test_a_gpu_gives_the_bits_of_the_host(void **state) {
    static struct record host, gpu;
    for (int variant = 0; variant < 8; variant++) {
        enum rp_dtype dtype = variant & 1 ? RP_DTYPE_BF16 : RP_DTYPE_F32;
        open_driver(NULL, dtype, variant & 2, variant & 4);
        run(&host);
        close_driver(state);
        open_driver(fake_backend(), dtype, variant & 2, variant & 4);
        run(&gpu);
        close_driver(state);
        assert_memory_equal(&host, &gpu, sizeof host);
    }
}

/* Otherwise the tests on it would prove nothing. */
static void test_a_host_that_touches_device_memory_dies(void **state) {
    (void)state;
    open_driver(fake_backend(), RP_DTYPE_F32, true, false);
    const volatile unsigned char *const touched[] = {
        driver.kv.base, driver.state, rp_graph_set_arena(driver.graphs),
        rp_model_matrix(&model, RP_WEIGHT_EMBED, RP_LAYER_NONE)->data};
    for (size_t i = 0; i < RP_ARRAY_COUNT(touched); i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            signal(SIGSEGV, SIG_DFL); /* neither cmocka nor a sanitizer may handle it */
            _exit(*touched[i] & 0);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_a_gpu_gives_the_bits_of_the_host, close_driver),
        cmocka_unit_test_teardown(test_a_host_that_touches_device_memory_dies, close_driver),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
