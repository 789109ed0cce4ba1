/* model_case.h - a small random model of the tests of whole models (models_fixture.h). */
#ifndef RP_TESTS_GPU_MODEL_CASE_H
#define RP_TESTS_GPU_MODEL_CASE_H

#include "model/model.h"

struct model_case {
    const char *name;
    enum rp_family family;
    enum rp_dtype dtype;
    uint32_t hidden, intermediate, layers, heads, kv_heads, head_dim, vocab, window;
    bool tied;
    enum rp_quant_scheme scheme; /* of the projections, or none */
    bool head, blocks;   /* also the output layer; FP8 with a scale per block of 128 x 128 */
    bool order;          /* 4 bits with act-order */
    enum rp_dtype pages; /* of 8 bits; 0: the model's own type */
    bool sinks;
    bool flips; /* rounding may choose other experts than the CPU's */
    bool wide;  /* latents of 512 + 64 values, as published models have them */
    /* Experts in MXFP4 (gpt-oss); experts beside the MLP (Gemma 4) */
    bool mxfp4, parallel;
};

#endif
