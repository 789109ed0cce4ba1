/* Named shapes: the configurations of published models, for benchmarks with random weights. */
#include "model/model.h"
#include "model/quant_config.h"

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
/* m = 1 + 0.1 * 0.707 * ln 40 is YaRN's mscale_all_dim; the scale of scores is m^2 / sqrt(192). */
#define DEEPSEEK_V2_LITE                                                                           \
    .family = RP_FAMILY_DEEPSEEK_V2, .architecture = "DeepseekV2ForCausalLM", .vocab = 102400,     \
    .max_position = 163840, .norm_eps = 1e-6f, .file_dtype = RP_DTYPE_BF16, .bos_id = 100000,      \
    .eos_ids = {100001}, .eos_count = 1, .hidden = 2048, .intermediate = 10944, .heads = 16,       \
    .kv_heads = 1, .head_dim = 192, .attention_scale = 0.114721386,                                \
    .rope = {.kind = RP_ROPE_YARN,                                                                 \
             .theta = 10000,                                                                       \
             .factor = 40,                                                                         \
             .beta_fast = 32,                                                                      \
             .beta_slow = 1,                                                                       \
             .original_max_position = 4096,                                                        \
             .rotary_dim = 64},                                                                    \
    .latent = {.rank = 512, .rope_dim = 64, .nope_dim = 128, .value_dim = 128},                    \
    .experts = {.count = 64,                                                                       \
                .used = 6,                                                                         \
                .intermediate = 1408,                                                              \
                .shared = 2816,                                                                    \
                .groups = 1,                                                                       \
                .factor = 1,                                                                       \
                .dense_layers = {1}}
/* Every second layer has the window, from the first. */
#define GPT_OSS                                                                                    \
    .family = RP_FAMILY_GPT_OSS, .architecture = "GptOssForCausalLM", .vocab = 201088,             \
    .max_position = 131072, .norm_eps = 1e-5f, .hidden = 2880, .intermediate = 2880, .heads = 64,  \
    .kv_heads = 8, .head_dim = 64, .window = 128, .full_layers = {0xAAAAAAAA, 0xAAAAAAAA},         \
    .qkv_bias = true, .o_bias = true, .attention_sinks = true,                                     \
    .activation = RP_ACTIVATION_SWIGLU_CLAMPED, .file_dtype = RP_DTYPE_BF16, .bos_id = 199998,     \
    .eos_ids = {200002, 199999, 200012}, .eos_count = 3,                                           \
    .quant = {.layout = RP_QUANT_MXFP4_EXPERTS},                                                   \
    .rope = {.kind = RP_ROPE_YARN,                                                                 \
             .theta = 150000,                                                                      \
             .factor = 32,                                                                         \
             .beta_fast = 32,                                                                      \
             .beta_slow = 1,                                                                       \
             .whole_range = true,                                                                  \
             .attention_factor = 1.3465735902799727, /* 0.1 ln 32 + 1 */                           \
             .original_max_position = 4096}
#define GPT_OSS_EXPERTS(n)                                                                         \
    .experts = {.count = (n),                                                                      \
                .used = 4,                                                                         \
                .intermediate = 2880,                                                              \
                .score = RP_ROUTE_SOFTMAX_CHOSEN,                                                  \
                .groups = 1,                                                                       \
                .factor = 1,                                                                       \
                .linear_bias = true}
/* Every fourth layer has attention. */
#define QWEN3_5_35B_A3B                                                                            \
    .family = RP_FAMILY_QWEN3_5_MOE, .architecture = "Qwen3_5MoeForCausalLM", .vocab = 248320,     \
    .max_position = 262144, .norm_eps = 1e-6f, .norm_offset = 1, .qk_norm = RP_QK_NORM_HEAD,       \
    .output_gate = true, .file_dtype = RP_DTYPE_BF16, .bos_id = RP_ID_NONE,                        \
    .eos_ids = {248046, 248044}, .eos_count = 2, .hidden = 2048, .intermediate = 512, .heads = 16, \
    .kv_heads = 2, .head_dim = 256, .rope = {.theta = 1e7, .rotary_dim = 64},                      \
    .state = {.layers = {0x77777777, 0x77},                                                        \
              .conv_width = 4,                                                                     \
              .key_heads = 16,                                                                     \
              .value_heads = 32,                                                                   \
              .key_dim = 128,                                                                      \
              .value_dim = 128},                                                                   \
    .experts = {.count = 256,                                                                      \
                .used = 8,                                                                         \
                .intermediate = 512,                                                               \
                .shared = 512,                                                                     \
                .shared_gate = true,                                                               \
                .renormalize = true,                                                               \
                .groups = 1,                                                                       \
                .factor = 1,                                                                       \
                .stacked = true}
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
    {"llama-3.3-70b",
     {LLAMA3_COMMON, LLAMA3_ROPE(8), .hidden = 8192, .intermediate = 28672, .layers = 80,
      .heads = 64, .kv_heads = 8, .head_dim = 128}},
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
    {"deepseek-v2-lite", {DEEPSEEK_V2_LITE, .layers = 27}},
    {"deepseek-v2-lite-8-layers", {DEEPSEEK_V2_LITE, .layers = 8}},
    {"gpt-oss-20b", {GPT_OSS, GPT_OSS_EXPERTS(32), .layers = 24}},
    {"gpt-oss-120b", {GPT_OSS, GPT_OSS_EXPERTS(128), .layers = 36}},
    {"gpt-oss-4-layers", {GPT_OSS, GPT_OSS_EXPERTS(32), .layers = 4}}, /* of 20b, for 8 GB */
    {"qwen3.5-35b-a3b", {QWEN3_5_35B_A3B, .layers = 40}},
    {"lfm2-1.2b", /* layers 2, 5, 8, 10, 12 and 14 have attention */
     {.family = RP_FAMILY_LFM2,
      .architecture = "Lfm2ForCausalLM",
      .vocab = 65536,
      .max_position = 128000,
      .norm_eps = 1e-5f,
      .qk_norm = RP_QK_NORM_HEAD,
      .tied = true,
      .file_dtype = RP_DTYPE_BF16,
      .bos_id = 1,
      .eos_ids = {7},
      .eos_count = 1,
      PLAIN_ROPE(1e6),
      .hidden = 2048,
      .intermediate = 8192,
      .layers = 16,
      .heads = 32,
      .kv_heads = 8,
      .head_dim = 64,
      .state = {.layers = {0xAADB}, .conv_width = 3}}},
    {"mistral-7b", /* v0.1: the one with a window */
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
    char names[512];
    size_t len = 0;
    for (size_t i = 0; i < RP_ARRAY_COUNT(shapes); i++) {
        if (strcmp(name, shapes[i].name) == 0) {
            *out_config = shapes[i].config;
            if (out_config->quant.layout == RP_QUANT_MXFP4_EXPERTS) {
                rp_quant_set_mxfp4_experts(out_config);
                for (uint32_t layer = 0; layer < out_config->layers; layer++)
                    out_config->quant.modules[layer] = RP_MXFP4_MODULES;
            }
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
