/* Goal: as in test_models_cuda.c, for weights of 8 and 4 bits, and KV pages of 8 bits. */
#include "tests/gpu/model_case.h"

static const struct model_case model_cases[] = {
    {"sinks bf16 64, pages fp8", RP_FAMILY_MINISTRAL, RP_DTYPE_BF16, 256, 512, 3, 8, 1, 64, 320, 40,
     .tied = false, .pages = RP_DTYPE_FP8_E4M3, .sinks = true},
    {"cohere int8 64", RP_FAMILY_COHERE, RP_DTYPE_BF16, 256, 512, 2, 4, 2, 64, 320, 0, .tied = true,
     .scheme = RP_QUANT_INT8},
    {"llama int8 64", RP_FAMILY_LLAMA, RP_DTYPE_BF16, 256, 512, 2, 4, 2, 64, 320, 0, .tied = true,
     .scheme = RP_QUANT_INT8, .head = true},
    {"llama fp8 128", RP_FAMILY_LLAMA, RP_DTYPE_BF16, 1024, 1408, 2, 8, 2, 128, 512, 0,
     .tied = false, .scheme = RP_QUANT_FP8, .head = true},
    {"mistral fp8 blocks 128", RP_FAMILY_MISTRAL, RP_DTYPE_BF16, 384, 640, 2, 4, 1, 128, 331, 40,
     .tied = false, .scheme = RP_QUANT_FP8, .blocks = true},
    {"qwen2 int8-w8a16 64", RP_FAMILY_QWEN2, RP_DTYPE_BF16, 896, 1216, 1, 14, 2, 64, 384, 0,
     .tied = true, .scheme = RP_QUANT_INT8_W8A16},
    {"qwen3 int8 8", RP_FAMILY_QWEN3, RP_DTYPE_BF16, 72, 104, 2, 6, 2, 8, 97, 33, .tied = false,
     .scheme = RP_QUANT_INT8},
    {"gemma2 fp8-w8a16 64", RP_FAMILY_GEMMA2, RP_DTYPE_BF16, 256, 512, 2, 4, 2, 64, 320, 40,
     .tied = true, .scheme = RP_QUANT_FP8_W8A16, .head = true},
    {"gemma2 int8 256", RP_FAMILY_GEMMA2, RP_DTYPE_BF16, 256, 768, 2, 4, 2, 256, 320, 40,
     .tied = true, .scheme = RP_QUANT_INT8},
    {"qwen3.5 fp8 256", RP_FAMILY_QWEN3_5, RP_DTYPE_BF16, 256, 512, 3, 2, 1, 256, 320, 0,
     .tied = false, .scheme = RP_QUANT_FP8},
    {"llama int4 64", RP_FAMILY_LLAMA, RP_DTYPE_BF16, 256, 512, 2, 4, 2, 64, 320, 0, .tied = true,
     .scheme = RP_QUANT_INT4, .head = true},
    {"qwen2 int4 64", RP_FAMILY_QWEN2, RP_DTYPE_BF16, 896, 1216, 1, 14, 2, 64, 384, 0,
     .tied = false, .scheme = RP_QUANT_INT4},
    {"llama nvfp4 64", RP_FAMILY_LLAMA, RP_DTYPE_BF16, 256, 520, 2, 4, 2, 64, 320, 0, .tied = true,
     .scheme = RP_QUANT_NVFP4, .head = true},
    {"qwen2 mxfp4 64", RP_FAMILY_QWEN2, RP_DTYPE_BF16, 896, 1216, 1, 14, 2, 64, 384, 0,
     .tied = false, .scheme = RP_QUANT_MXFP4},
    {"qwen3 int4 64, act-order", RP_FAMILY_QWEN3, RP_DTYPE_BF16, 256, 768, 2, 4, 2, 64, 320, 0,
     .tied = false, .scheme = RP_QUANT_INT4, .order = true},
    {"mistral int4 128", RP_FAMILY_MISTRAL, RP_DTYPE_BF16, 1024, 1408, 2, 8, 2, 128, 512, 40,
     .tied = false, .scheme = RP_QUANT_INT4, .head = true},
    {"llama bf16 128, pages int8", RP_FAMILY_LLAMA, RP_DTYPE_BF16, 512, 704, 2, 4, 2, 128, 320, 0,
     .tied = false, .pages = RP_DTYPE_INT8},
    {"qwen3 bf16 64, pages fp8", RP_FAMILY_QWEN3, RP_DTYPE_BF16, 256, 768, 2, 4, 1, 64, 320, 0,
     .tied = true, .pages = RP_DTYPE_FP8_E4M3},
    {"mistral f32 40, pages fp8", RP_FAMILY_MISTRAL, RP_DTYPE_F32, 120, 200, 2, 3, 1, 40, 131, 7,
     .tied = true, .pages = RP_DTYPE_FP8_E4M3},
    {"llama fp8 128, pages fp8", RP_FAMILY_LLAMA, RP_DTYPE_BF16, 1024, 1408, 2, 8, 2, 128, 512, 0,
     .tied = false, .scheme = RP_QUANT_FP8, .head = true, .pages = RP_DTYPE_FP8_E4M3},
};

#include "tests/gpu/models_cases.h"

RP_GPU_TEST_MAIN(NULL, NULL, MODEL_TESTS)
