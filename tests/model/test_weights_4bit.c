/* Goal: 4-bit weights that the `compressed-tensors` package packed have the values that its own
 * code makes of them, bit for bit, as blocks and as f32.
 *
 * Method: the models and hashes of golden_4bit, written by tools/make_4bit_goldens.py. */
#include "model/model.h"
#include "quant/matmul.h"
#include "tests/support/data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define HIDDEN 64u
#define INNER  32u
#define HEAD   16u

static const struct {
    const char *name;
    enum rp_weight_role role;
    uint32_t row, rows;
} modules[] = {
    {"self_attn.q_proj", RP_WEIGHT_QKV, 0, HEAD},
    {"self_attn.k_proj", RP_WEIGHT_QKV, HEAD, HEAD},
    {"self_attn.v_proj", RP_WEIGHT_QKV, 2 * HEAD, HEAD},
    {"mlp.gate_proj", RP_WEIGHT_GATE_UP, 0, INNER},
    {"mlp.up_proj", RP_WEIGHT_GATE_UP, INNER, INNER},
    {"mlp.down_proj", RP_WEIGHT_DOWN, 0, HIDDEN},
};

static uint64_t hash_of(const struct rp_matrix *matrix, uint32_t row, uint32_t rows) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (uint32_t i = row; i < row + rows; i++) {
        float values[HIDDEN];
        unsigned char bytes[sizeof values];
        rp_matrix_row_f32(matrix, i, values);
        for (uint32_t k = 0; k < matrix->cols; k++)
            values[k] += 0.0f; /* -0 counts as 0 */
        memcpy(bytes, values, sizeof bytes);
        for (uint32_t k = 0; k < matrix->cols * sizeof(float); k++)
            hash = (hash ^ bytes[k]) * 0x100000001b3u;
    }
    return hash;
}

static void check(const char *name, enum rp_dtype dtype, bool packed) {
    char path[512], file[600], line[128], folder[128];
    struct rp_model model;
    struct rp_error err = {0};
    uint32_t found = 0;
    snprintf(folder, sizeof folder, "tests/model/golden_4bit/%s", name);
    rp_test_source(folder, path, sizeof path);
    if (rp_model_load(path, dtype, 0, NULL, NULL, &model, &err) != RP_OK)
        fail_msg("%s: %s", name, err.text);
    struct rp_matrix *down = rp_model_matrix(&model, RP_WEIGHT_DOWN, 0);
    assert_int_equal(down->dtype, dtype == RP_DTYPE_F32 ? RP_DTYPE_F32 : RP_DTYPE_BLOCKS);
    assert_int_equal(rp_model_matrix(&model, RP_WEIGHT_O, 0)->dtype,
                     dtype == RP_DTYPE_F32 ? RP_DTYPE_F32 : RP_DTYPE_BF16);
    for (uint32_t m = 0; m < RP_ARRAY_COUNT(modules) && packed; m++)
        assert_int_equal(
            rp_matrix_prepare_cpu(rp_model_matrix(&model, modules[m].role, 0), RP_ISA_AVX2, &err),
            RP_OK);
    snprintf(file, sizeof file, "%s/values.txt", path);
    FILE *values = fopen(file, "r");
    assert_non_null(values);
    while (fgets(line, sizeof line, values))
        for (uint32_t m = 0; m < RP_ARRAY_COUNT(modules); m++) {
            char want[64];
            snprintf(want, sizeof want, "%s %016llx\n", modules[m].name,
                     (unsigned long long)hash_of(rp_model_matrix(&model, modules[m].role, 0),
                                                 modules[m].row, modules[m].rows));
            if (strncmp(line, modules[m].name, strlen(modules[m].name)) != 0)
                continue;
            if (strcmp(line, want) != 0)
                fail_msg("%s: values are %s not %s", name, want, line);
            found++;
        }
    fclose(values);
    assert_int_equal(found, RP_ARRAY_COUNT(modules));
    rp_model_deinit(&model);
}

static void test_values_are_those_of_the_package_that_packed_them(void **state) {
    (void)state;
    static const char *const cases[] = {"int4_group", "int4_group_zeros", "int4_channel", "nvfp4",
                                        "mxfp4"};
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        check(cases[i], RP_MODEL_DTYPE_AUTO, false);
        check(cases[i], RP_MODEL_DTYPE_AUTO, true);
        check(cases[i], RP_DTYPE_F32, false);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_are_those_of_the_package_that_packed_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
