/* kv_b of attention over latents: for each head nope_dim rows that make K of a latent, then
 * value_dim rows that make V. In memory they are two matrices, K's transposed, since scores are
 * computed as (q Wk) . latent:
 *
 *   K_B[head * rank + c][n]       = kv_b[head * (nope_dim + value_dim) + n][c]
 *   V_B[head * value_dim + j][c]  = kv_b[head * (nope_dim + value_dim) + nope_dim + j][c]
 *
 * Scales of 8 bits lie along the tensor's columns, across the sums of K_B; so both are multiplied
 * out. */
#include "base/bf16.h"
#include "model/weights_internal.h"

static void store(const struct rp_matrix *to, size_t row, size_t col, float value) {
    size_t at = row * to->cols + col;
    if (to->dtype == RP_DTYPE_BF16)
        ((uint16_t *)to->data)[at] = rp_f32_to_bf16(value);
    else
        ((float *)to->data)[at] = value;
}

/* from: the whole tensor. */
static void store_half(const struct rp_model_config *config, const struct rp_weight *weight,
                       const float *from) {
    const struct rp_model_latent *latent = &config->latent;
    bool k = weight->role == RP_WEIGHT_K_B;
    uint32_t rows = k ? latent->nope_dim : latent->value_dim, rank = latent->rank;
    for (uint32_t head = 0; head < config->heads; head++) {
        size_t first = (size_t)head * (latent->nope_dim + latent->value_dim);
        const float *half = from + (first + (k ? 0 : latent->nope_dim)) * rank;
        for (uint32_t row = 0; row < rows; row++)
            for (uint32_t c = 0; c < rank; c++)
                if (k)
                    store(&weight->matrix, (size_t)head * rank + c, row, half[row * rank + c]);
                else
                    store(&weight->matrix, (size_t)head * rows + row, c, half[row * rank + c]);
    }
}

int rp_weight_latent_load(const struct rp_safetensors *files, const struct rp_model_config *config,
                          const struct rp_weight_part *part, unsigned char *staging,
                          struct rp_error *err) {
    struct rp_weight whole = {
        .role = part->weight->role,
        .layer = part->weight->layer,
        .matrix = {.rows = part->rows, .cols = part->cols, .dtype = RP_DTYPE_F32}};
    struct rp_weight_part all = *part;
    all.weight = &whole;
    all.split = false;
    int status = rp_weights_allocate_matrix(&whole.matrix);
    if (status != RP_OK)
        return rp_error_set(err, status, "model: out of memory");
    status = rp_weight_read_rows(files, config, &all, 0, part->rows, staging, err);
    if (status == RP_OK)
        store_half(config, part->weight, whole.matrix.data);
    rp_matrix_deinit(&whole.matrix);
    return status;
}
