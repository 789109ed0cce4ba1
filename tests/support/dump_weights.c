#include "tests/support/dump_weights.h"

#include "base/clock.h"
#include "base/memory.h"
#include "model/model.h"
#include "quant/matmul.h"

#include <stdio.h>
#include <string.h>

static void dump_matrix(FILE *out, const char *name, const struct rp_matrix *matrix) {
    fprintf(out, "%s %u %u\n", name, matrix->rows, matrix->cols);
    float *row = rp_alloc(matrix->cols * sizeof *row);
    for (uint32_t r = 0; r < matrix->rows; r++) {
        rp_matrix_row_f32(matrix, r, row);
        fwrite(row, sizeof *row, matrix->cols, out);
    }
    rp_free(row);
}

static void dump_vector(FILE *out, const char *name, const struct rp_weight *weight) {
    fprintf(out, "%s %u 0\n", name, weight->length);
    fwrite(weight->vector, sizeof *weight->vector, weight->length, out);
}

static const struct {
    enum rp_weight_role role;
    const char *name;
} layer_names[] = {
    {RP_WEIGHT_QKV, "qkv"},
    {RP_WEIGHT_O, "o"},
    {RP_WEIGHT_GATE_UP, "gate_up"},
    {RP_WEIGHT_DOWN, "down"},
    {RP_WEIGHT_ATTN_NORM, "attn_norm"},
    {RP_WEIGHT_MLP_NORM, "mlp_norm"},
    {RP_WEIGHT_ATTN_POST_NORM, "attn_post_norm"},
    {RP_WEIGHT_MLP_POST_NORM, "mlp_post_norm"},
    {RP_WEIGHT_Q_NORM, "q_norm"},
    {RP_WEIGHT_K_NORM, "k_norm"},
    {RP_WEIGHT_QKV_BIAS, "qkv_bias"},
    {RP_WEIGHT_O_BIAS, "o_bias"},
    {RP_WEIGHT_GATE_UP_BIAS, "gate_up_bias"},
    {RP_WEIGHT_DOWN_BIAS, "down_bias"},
};

int rp_dump_weights(const char *dir, const char *out_path, const char *dtype) {
    struct rp_model model;
    struct rp_error err;
    char name[64];
    enum rp_dtype type = strcmp(dtype, "f32") == 0    ? RP_DTYPE_F32
                         : strcmp(dtype, "bf16") == 0 ? RP_DTYPE_BF16
                                                      : RP_MODEL_DTYPE_AUTO;
    FILE *out = fopen(out_path, "wb");
    if (!out || rp_model_load(dir, type, 0, NULL, NULL, &model, &err) != RP_OK) {
        fprintf(stderr, "error: %s\n", out ? err.text : out_path);
        if (out)
            fclose(out);
        return 1;
    }
    fprintf(out, "dtype.%s 0 0\n", rp_dtype_name(model.dtype));
    dump_matrix(out, "embed", rp_model_matrix(&model, RP_WEIGHT_EMBED, RP_LAYER_NONE));
    dump_matrix(out, "lm_head", rp_model_matrix(&model, RP_WEIGHT_HEAD, RP_LAYER_NONE));
    dump_vector(out, "final_norm", rp_model_weight(&model, RP_WEIGHT_FINAL_NORM, RP_LAYER_NONE));
    for (uint32_t i = 0; i < model.config.layers; i++)
        for (size_t at = 0; at < RP_ARRAY_COUNT(layer_names); at++) {
            const struct rp_weight *weight = rp_model_weight(&model, layer_names[at].role, i);
            if (!weight)
                continue;
            snprintf(name, sizeof name, "%u.%s", i, layer_names[at].name);
            if (rp_weight_is_matrix(weight))
                dump_matrix(out, name, &weight->matrix);
            else
                dump_vector(out, name, weight);
        }
    rp_model_deinit(&model);
    return fclose(out) == 0 ? 0 : 1;
}

int rp_time_weights(const char *source) {
    struct rp_model_config config;
    struct rp_model model;
    struct rp_error err;
    uint64_t begin = rp_clock_ns();
    int status = rp_model_shape(source, &config, &err);
    if (status == RP_OK)
        status = rp_model_random(&config, RP_MODEL_DTYPE_AUTO, 1, 4096, &model, &err);
    else
        status = rp_model_load(source, RP_MODEL_DTYPE_AUTO, 4096, NULL, NULL, &model, &err);
    if (status != RP_OK) {
        fprintf(stderr, "error: %s\n", err.text);
        return 1;
    }
    printf("%.2f GB in %.2f s\n", (double)rp_model_weight_bytes(&model) * 1e-9,
           (double)(rp_clock_ns() - begin) * 1e-9);
    rp_model_deinit(&model);
    return 0;
}
