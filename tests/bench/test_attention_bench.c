/* Goal: `bench attention` runs every shape through a backend's table, counts visible pairs
 * correctly, and its dumped outputs match its dumped inputs. Times are not checked. */
#include "attention/mask/mask.h"
#include "base/memory.h"
#include "bench/bench_attention.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct rp_device *device;
static struct rp_bench_attention_result *result;

static int setup(void **state) {
    struct rp_device_config config = {.threads = 2};
    (void)state;
    result = rp_calloc(1, sizeof *result);
    return result && rp_backend_cpu()->open(&config, &device, NULL) == RP_OK ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    rp_backend_cpu()->close(device);
    rp_free(result);
    return 0;
}

static int run(const struct rp_attention_shape *shapes, uint32_t count, enum rp_dtype dtype,
               double seconds, const char *dump_dir) {
    struct rp_bench_attention_config config = {.backend = rp_backend_cpu(),
                                               .device = device,
                                               .threads = 1,
                                               .dtype = dtype,
                                               .shapes = shapes,
                                               .shape_count = count,
                                               .gemm_size = 64,
                                               .cold_bytes = 1u << 16,
                                               .case_seconds = 0.02,
                                               .seconds = seconds,
                                               .dump_dir = dump_dir};
    return rp_bench_attention(&config, result, NULL);
}

#define HEADS .heads = 4, .kv_heads = 2, .head_dim = 16

static void every_shape_is_run_with_the_bytes_and_operations_that_its_mask_shows(void **state) {
    const struct rp_attention_shape shapes[] = {
        {.batch = 3, .length = 70, HEADS},
        {.batch = 3, .length = 70, .window = 9, HEADS},
        {.prompt = true, .batch = 2, .length = 40, HEADS},
        {.prompt = true, .batch = 2, .length = 40, .window = 9, .page_tokens = 32, HEADS},
    };
    /* keys: both KV heads and all sequences; pairs: four query heads. */
    const double keys[] = {2 * 3 * 70, 2 * 3 * 9, 2 * 2 * 40, 2 * 2 * 40};
    const double pairs[] = {4 * 3 * 70, 4 * 3 * 9, 4 * 2 * 40 * 41 / 2,
                            4 * 2 * (9 * 10 / 2 + 31 * 9)};
    (void)state;
    assert_int_equal(run(shapes, 4, RP_DTYPE_BF16, 600.0, NULL), RP_OK);
    assert_int_equal(result->case_count, 4);
    assert_int_equal(result->skipped, 0);
    assert_true(result->read_bandwidth > 0 && result->gemm_flops > 0);
    for (size_t i = 0; i < 4; i++) {
        const struct rp_bench_attention *c = &result->cases[i];
        assert_true(c->bytes == keys[i] * 2 * 16 * 2);
        assert_true(c->flops == pairs[i] * 4 * 16);
        assert_true(c->samples >= 1 && c->repeats >= 1 && c->kernel[0] != '\0');
        assert_true(c->us_min <= c->us_p50 && c->us_p50 <= c->us_p99);
        assert_int_equal(c->shape.page_tokens, i == 3 ? 32 : 16);
    }
}

/* Pages alone: the output keeps its type. A token has a scale. */
static void pages_of_eight_bits_are_read_with_their_scales(void **state) {
    const struct rp_attention_shape shapes[] = {{.batch = 3, .length = 70, HEADS},
                                                {.prompt = true, .batch = 2, .length = 40, HEADS}};
    static const enum rp_dtype types[] = {RP_DTYPE_INT8, RP_DTYPE_FP8_E4M3};
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(types); i++) {
        struct rp_bench_attention_config config = {.backend = rp_backend_cpu(),
                                                   .device = device,
                                                   .threads = 1,
                                                   .dtype = RP_DTYPE_BF16,
                                                   .quantized = types[i],
                                                   .shapes = shapes,
                                                   .shape_count = 2,
                                                   .gemm_size = 64,
                                                   .cold_bytes = 1u << 16,
                                                   .case_seconds = 0.02,
                                                   .seconds = 600.0};
        assert_int_equal(rp_bench_attention(&config, result, NULL), RP_OK);
        assert_int_equal(result->case_count, 2);
        assert_true(result->cases[0].bytes == 2 * 3 * 70 * 2 * (16 + 4));
        assert_true(result->cases[1].bytes == 2 * 2 * 40 * 2 * (16 + 4));
    }
}

static void what_a_program_shows_is_counted_pair_by_pair(void **state) {
    static const char *const texts[] = {
        "causal && (sliding_window(20) || sink(3))",
        "causal && (h % 3 == 0 ? q - kv < 7 : kv % 2 == 0)",
        "param n = 9 in 1..50; causal && (q / n == kv / n || kv < n)",
        "kv <= q || kv < 70",
    };
    (void)state;
    for (size_t t = 0; t < RP_ARRAY_COUNT(texts); t++)
        for (int prompt = 0; prompt < 2; prompt++) {
            struct rp_attention_shape shape = {
                .prompt = prompt != 0, .batch = 3, .length = 150, HEADS};
            const struct rp_mask_limits limits = {.length = 150, .heads = 4, .layers = 1};
            struct rp_mask *mask;
            int32_t params[RP_MASK_PARAMS_MAX];
            double pairs = 0, keys = 0;
            assert_int_equal(rp_mask_parse(texts[t], strlen(texts[t]), &limits, &mask, NULL),
                             RP_OK);
            shape.mask = mask;
            rp_attention_shape_params(&shape, params);
            for (int32_t kv_head = 0; kv_head < 2; kv_head++)
                for (int32_t kv = 0; kv < 150; kv++) {
                    double before = pairs;
                    for (int32_t h = 2 * kv_head; h < 2 * kv_head + 2; h++)
                        for (int32_t q = prompt ? 0 : 149; q < 150; q++) {
                            struct rp_mask_pair pair = {.q = q, .kv = kv, .h = h};
                            pairs += rp_mask_sees(mask, &pair, params);
                        }
                    keys += pairs > before;
                }
            struct rp_attention_seen seen = rp_attention_count_seen(&shape);
            assert_true(seen.pairs == 3 * pairs && seen.keys == 3 * keys);
            rp_mask_free(mask);
        }
}

static void what_there_is_no_time_for_is_counted(void **state) {
    const struct rp_attention_shape shape = {.batch = 1, .length = 10, HEADS};
    (void)state;
    assert_int_equal(run(&shape, 1, RP_DTYPE_BF16, 1e-9, NULL), RP_OK);
    assert_int_equal(result->case_count, 0);
    assert_int_equal(result->skipped, 1);
}

static void more_shapes_than_it_has_room_for_are_refused(void **state) {
    (void)state;
    assert_int_equal(run(NULL, RP_BENCH_ATTENTION_MAX + 1, RP_DTYPE_BF16, 1.0, NULL),
                     RP_STATUS_RANGE);
}

/* ---- dumps ---------------------------------------------------------------------------------- */

static float *read_floats(const char *dir, const char *name, size_t count) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    float *values = rp_calloc(count + 1, sizeof *values);
    assert_non_null(values);
    assert_int_equal(fread(values, sizeof *values, count + 1, file), count);
    fclose(file);
    unlink(path);
    return values;
}

/* softmax(q k^T / 4) v of one query row, in f64. */
static void attend(const float *q, const float *k, const float *v, uint32_t first,
                   uint32_t position, double out[16]) {
    double total = 0;
    memset(out, 0, 16 * sizeof *out);
    for (uint32_t j = first; j <= position; j++) {
        double score = 0;
        for (uint32_t d = 0; d < 16; d++)
            score += (double)q[d] * (double)k[j * 16 + d];
        double weight = exp(score / 4);
        total += weight;
        for (uint32_t d = 0; d < 16; d++)
            out[d] += weight * (double)v[j * 16 + d];
    }
    for (uint32_t d = 0; d < 16; d++)
        out[d] /= total;
}

static void a_dump_holds_inputs_and_the_output_that_belongs_to_them(void **state) {
    enum { BATCH = 2, LENGTH = 37, WINDOW = 20 };
    const struct rp_attention_shape shape = {
        .prompt = true, .batch = BATCH, .length = LENGTH, .window = WINDOW, HEADS};
    char dir[] = "/tmp/reprise-attention-XXXXXX", path[256];
    double want[16];
    (void)state;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(run(&shape, 1, RP_DTYPE_F32, 1.0, dir), RP_OK);
    float *q = read_floats(dir, "case0.q", BATCH * LENGTH * 4 * 16);
    float *k = read_floats(dir, "case0.k", BATCH * 2 * LENGTH * 16);
    float *v = read_floats(dir, "case0.v", BATCH * 2 * LENGTH * 16);
    float *out = read_floats(dir, "case0.out", BATCH * LENGTH * 4 * 16);
    for (uint32_t row = 0; row < BATCH * LENGTH * 4; row++) {
        uint32_t head = row % 4, position = row / 4 % LENGTH, sequence = row / 4 / LENGTH;
        size_t run_at = ((size_t)sequence * 2 + head / 2) * LENGTH * 16;
        attend(q + row * 16, k + run_at, v + run_at,
               position + 1 > WINDOW ? position + 1 - WINDOW : 0, position, want);
        for (uint32_t d = 0; d < 16; d++)
            assert_true(fabs((double)out[row * 16 + d] - want[d]) < 1e-5);
    }
    rp_free(q);
    rp_free(k);
    rp_free(v);
    rp_free(out);
    snprintf(path, sizeof path, "%s/case0.json", dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_is_run_with_the_bytes_and_operations_that_its_mask_shows),
        cmocka_unit_test(pages_of_eight_bits_are_read_with_their_scales),
        cmocka_unit_test(what_a_program_shows_is_counted_pair_by_pair),
        cmocka_unit_test(what_there_is_no_time_for_is_counted),
        cmocka_unit_test(more_shapes_than_it_has_room_for_are_refused),
        cmocka_unit_test(a_dump_holds_inputs_and_the_output_that_belongs_to_them),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
