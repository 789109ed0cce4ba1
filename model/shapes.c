/* Named shapes: the configurations of published models, for benchmarks with random weights. */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LLAMA3_ROPE(scale)                                                                         \
    .rope = {.kind = RP_ROPE_LLAMA3,                                                               \
             .theta = 500000,                                                                      \
             .factor = (scale),                                                                    \
             .low_freq_factor = 1,                                                                 \
             .high_freq_factor = 4,                                                                \
             .original_max_position = 8192}
#define PLAIN_ROPE(base) .rope = {.theta = (base)}
#define LLAMA3_COMMON                                                                              \
    .family = RP_FAMILY_LLAMA, .architecture = "LlamaForCausalLM", .vocab = 128256,                \
    .max_position = 131072, .norm_eps = 1e-5f, .file_dtype = RP_DTYPE_BF16, .bos_id = 128000,      \
    .eos_ids = {128001, 128008, 128009}, .eos_count = 3
#define QWEN_COMMON                                                                                \
    .vocab = 151936, .norm_eps = 1e-6f, .file_dtype = RP_DTYPE_BF16, .bos_id = 151643,             \
    .eos_ids = {151645, 151643}, .eos_count = 2
#define QWEN2_COMMON                                                                               \
    .family = RP_FAMILY_QWEN2, .architecture = "Qwen2ForCausalLM", .qkv_bias = true, QWEN_COMMON,  \
    .max_position = 32768
#define QWEN3_COMMON                                                                               \
    .family = RP_FAMILY_QWEN3, .architecture = "Qwen3ForCausalLM", .qk_norm = RP_QK_NORM_HEAD,     \
    QWEN_COMMON, .max_position = 40960
#define QWEN3_30B_A3B                                                                              \
    .family = RP_FAMILY_QWEN3_MOE, .architecture = "Qwen3MoeForCausalLM",                          \
    .qk_norm = RP_QK_NORM_HEAD, QWEN_COMMON, .max_position = 40960, PLAIN_ROPE(1e6),               \
    .hidden = 2048, .intermediate = 6144, .heads = 32, .kv_heads = 4, .head_dim = 128,             \
    .experts = {.count = 128,                                                                      \
                .used = 8,                                                                         \
                .intermediate = 768,                                                               \
                .renormalize = true,                                                               \
                .groups = 1,                                                                       \
                .factor = 1}
#define MISTRAL_COMMON                                                                             \
    .family = RP_FAMILY_MISTRAL, .architecture = "MistralForCausalLM", .vocab = 32000,             \
    .max_position = 32768, .norm_eps = 1e-5f, .file_dtype = RP_DTYPE_BF16, .bos_id = 1,            \
    .eos_ids = {2}, .eos_count = 1
#define LLAMA_SMALL_COMMON                                                                         \
    .family = RP_FAMILY_LLAMA, .architecture = "LlamaForCausalLM", .norm_eps = 1e-5f, .tied = true

/* Every second layer has the window, from the first. */
#define GEMMA2_COMMON                                                                              \
    .family = RP_FAMILY_GEMMA2, .architecture = "Gemma2ForCausalLM", .vocab = 256000,              \
    .max_position = 8192, .norm_eps = 1e-6f, .activation = RP_ACTIVATION_GELU_TANH, .tied = true,  \
    .window = 4096, .full_layers = {0xAAAAAAAA, 0xAAAAAAAA}, .attention_cap = 50, .logit_cap = 30, \
    .norm_offset = 1, .post_norms = true, .embed_scaled = true, .file_dtype = RP_DTYPE_BF16,       \
    .bos_id = 2, .eos_ids = {1, 107}, .eos_count = 2

static const struct {
    const char *name;
    struct rp_model_config config;
} shapes[] = {
    {"llama-3.2-1b",
     {LLAMA3_COMMON, LLAMA3_ROPE(32), .hidden = 2048, .intermediate = 8192, .layers = 16,
      .heads = 32, .kv_heads = 8, .head_dim = 64, .tied = true}},
    {"llama-3.2-3b",
     {LLAMA3_COMMON, LLAMA3_ROPE(32), .hidden = 3072, .intermediate = 8192, .layers = 28,
      .heads = 24, .kv_heads = 8, .head_dim = 128, .tied = true}},
    {"llama-3.1-8b",
     {LLAMA3_COMMON, LLAMA3_ROPE(8), .hidden = 4096, .intermediate = 14336, .layers = 32,
      .heads = 32, .kv_heads = 8, .head_dim = 128}},
    {"qwen2.5-0.5b",
     {QWEN2_COMMON, PLAIN_ROPE(1e6), .hidden = 896, .intermediate = 4864, .layers = 24, .heads = 14,
      .kv_heads = 2, .head_dim = 64, .tied = true}},
    {"qwen3-0.6b",
     {QWEN3_COMMON, PLAIN_ROPE(1e6), .hidden = 1024, .intermediate = 3072, .layers = 28,
      .heads = 16, .kv_heads = 8, .head_dim = 128, .tied = true}},
    {"qwen3-8b",
     {QWEN3_COMMON, PLAIN_ROPE(1e6), .hidden = 4096, .intermediate = 12288, .layers = 36,
      .heads = 32, .kv_heads = 8, .head_dim = 128}},
    {"qwen3-30b-a3b", {QWEN3_30B_A3B, .layers = 48}},
    {"qwen3-30b-a3b-8-layers", {QWEN3_30B_A3B, .layers = 8}}, /* for machines of 16 GB */
    {"mistral-7b",                                            /* v0.1: the one with a window */
     {MISTRAL_COMMON, PLAIN_ROPE(10000), .hidden = 4096, .intermediate = 14336, .layers = 32,
      .heads = 32, .kv_heads = 8, .head_dim = 128, .window = 4096}},
    {"gemma-2-2b",
     {GEMMA2_COMMON, PLAIN_ROPE(10000), .hidden = 2304, .intermediate = 9216, .layers = 26,
      .heads = 8, .kv_heads = 4, .head_dim = 256, .query_scalar = 256}},
    {"gemma-2-9b",
     {GEMMA2_COMMON, PLAIN_ROPE(10000), .hidden = 3584, .intermediate = 14336, .layers = 42,
      .heads = 16, .kv_heads = 8, .head_dim = 256, .query_scalar = 256}},
    {"gemma-2-27b",
     {GEMMA2_COMMON, PLAIN_ROPE(10000), .hidden = 4608, .intermediate = 36864, .layers = 46,
      .heads = 32, .kv_heads = 16, .head_dim = 128, .query_scalar = 144}},
    {"demo", /* models/demo */
     {LLAMA_SMALL_COMMON, PLAIN_ROPE(10000), .vocab = 4096, .max_position = 1024, .hidden = 256,
      .intermediate = 768, .layers = 8, .heads = 4, .kv_heads = 2, .head_dim = 64,
      .file_dtype = RP_DTYPE_BF16, .bos_id = 0, .eos_ids = {2, 0}, .eos_count = 2}},
    {"stories260k", /* karpathy/tinyllamas */
     {LLAMA_SMALL_COMMON, PLAIN_ROPE(10000), .vocab = 512, .max_position = 512, .hidden = 64,
      .intermediate = 172, .layers = 5, .heads = 8, .kv_heads = 4, .head_dim = 8,
      .file_dtype = RP_DTYPE_F32, .bos_id = 1, .eos_ids = {2}, .eos_count = 1}},
};

int rp_model_shape(const char *name, struct rp_model_config *out_config, struct rp_error *err) {
    char names[256];
    size_t len = 0;
    for (size_t i = 0; i < RP_ARRAY_COUNT(shapes); i++) {
        if (strcmp(name, shapes[i].name) == 0) {
            *out_config = shapes[i].config;
            out_config->default_temperature = out_config->default_top_p = NAN;
            return RP_OK;
        }
        len += (size_t)snprintf(names + len, sizeof names - len, "%s%s", i ? ", " : "",
                                shapes[i].name);
        RP_ASSERT_CMP(len, <, sizeof names);
    }
    return rp_error_set(err, RP_STATUS_NOT_FOUND, "no shape is called \"%s\"; there are: %s", name,
                        names);
}
