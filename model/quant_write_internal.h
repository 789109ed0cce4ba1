/* quant_write_internal.h - shared by quant_write.c (which tensors, headers, other files) and
 * quant_write_tensor.c (conversion of one tensor). */
#ifndef RP_MODEL_QUANT_WRITE_INTERNAL_H
#define RP_MODEL_QUANT_WRITE_INTERNAL_H

#include "model/quant_write.h"
#include "model/safetensors.h"
#include "quant/rounding/gptq.h"

#include <jansson.h>
#include <stdio.h>

#define RP_QUANT_PIECE_BYTES ((uint64_t)1 << 20)

/* Scaling of a tensor before it is quantized or written: columns times, rows (or a vector's
 * elements) divided by. */
struct rp_quant_folding {
    const float *times, *divided; /* NULL: as they are */
    uint32_t divided_group,
        divided_run; /* element i is divided by the factor of the first of its group */
};

/* A tensor's place in the model. */
struct rp_quant_place {
    uint32_t layer;
    enum rp_balance_site site; /* of a matrix */
};

struct rp_quant_writer {
    const char *dir, *out_dir;
    struct rp_quant_write_options options;
    struct rp_model_config config;
    struct rp_safetensors files;
    bool *quantized; /* per tensor of the files */
    json_t *ignored; /* 4 bits: modules that are not */
    float *largest;  /* NVFP4: (layers, RP_BALANCE_SITES + 1) largest weight */
    struct rp_quant_folding *foldings;
    struct rp_quant_place *places;
    uint32_t factor_layer;                           /* whose factors are here */
    struct rp_gptq_factor factors[RP_BALANCE_SITES]; /* empty until a tensor needs them */
    json_t *map;                                     /* weight_map of the new index */
    uint64_t total_bytes;
    unsigned char *piece;
    struct rp_error *err;
};

int rp_quant_write_failed(const struct rp_quant_writer *w, const char *name);
int rp_quant_write_no_memory(const struct rp_quant_writer *w);

bool rp_quant_is_folded(const struct rp_quant_writer *w, const struct rp_safetensor *tensor);
/* Bytes of a vector that is folded. F16 ends where a factor may lead: F32 then. */
uint64_t rp_quant_folded_bytes(const struct rp_safetensor *tensor);

/* A norm or a bias, divided. */
int rp_quant_write_vector(struct rp_quant_writer *w, const struct rp_safetensor *tensor, FILE *out);
/* Scales precede quantized values in the file, so all scales of a shard are computed first and the
 * quantized values in a second pass. */
int rp_quant_write_scales(struct rp_quant_writer *w, const struct rp_safetensor *tensor, FILE *out);
int rp_quant_write_values(struct rp_quant_writer *w, const struct rp_safetensor *tensor, FILE *out);
/* The tensor's shape, two 64-bit integers: 4 bits do not show it. */
int rp_quant_write_shape(struct rp_quant_writer *w, const struct rp_safetensor *tensor, FILE *out);
/* NVFP4: notes the tensor's largest weight; writes the number that its scales are divided by. */
int rp_quant_write_measure(struct rp_quant_writer *w, const struct rp_safetensor *tensor);
int rp_quant_write_global_scale(struct rp_quant_writer *w, const struct rp_safetensor *tensor,
                                FILE *out);
void rp_quant_drop_factors(struct rp_quant_writer *w);

#endif
