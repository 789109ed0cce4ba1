/* Goal: as in test_models_cuda.c, for models with experts. */
#include "tests/gpu/model_case.h"

static const struct model_case model_cases[] = {
    {"moe mixtral f32 64", RP_FAMILY_MIXTRAL, RP_DTYPE_F32, 192, 320, 2, 3, 3, 64, 256, 0,
     .tied = true},
    {"moe glm4 f32 40", RP_FAMILY_GLM4_MOE, RP_DTYPE_F32, 128, 200, 3, 3, 1, 40, 131, 0,
     .tied = false},
    {"moe qwen2 bf16 64", RP_FAMILY_QWEN2_MOE, RP_DTYPE_BF16, 256, 512, 2, 4, 2, 64, 320, 0,
     .tied = false},
    {"moe mixtral bf16 128", RP_FAMILY_MIXTRAL, RP_DTYPE_BF16, 512, 704, 2, 4, 2, 128, 320, 0,
     .tied = false, .flips = true},
    {"moe qwen3 bf16 128", RP_FAMILY_QWEN3_MOE, RP_DTYPE_BF16, 256, 512, 2, 4, 2, 128, 320, 0,
     .tied = false, .flips = true},
    {"moe olmo bf16 64", RP_FAMILY_OLMOE, RP_DTYPE_BF16, 256, 512, 2, 4, 4, 64, 320, 0,
     .tied = false, .flips = true},
    {"moe granite bf16 64", RP_FAMILY_GRANITE_MOE, RP_DTYPE_BF16, 256, 512, 2, 4, 2, 64, 320, 0,
     .tied = true, .flips = true},
    {"moe glm4 bf16 64", RP_FAMILY_GLM4_MOE, RP_DTYPE_BF16, 256, 512, 3, 4, 2, 64, 320, 0,
     .tied = false, .flips = true},
    {"moe gpt-oss bf16 64", RP_FAMILY_GPT_OSS, RP_DTYPE_BF16, 256, 512, 2, 4, 2, 64, 320, 0,
     .tied = false, .flips = true},
    {"moe gpt-oss mxfp4 64", RP_FAMILY_GPT_OSS, RP_DTYPE_BF16, 288, 512, 2, 4, 2, 64, 320, 0,
     .tied = false, .flips = true, .mxfp4 = true},
    {"moe gpt-oss f32 40", RP_FAMILY_GPT_OSS, RP_DTYPE_F32, 128, 200, 2, 4, 2, 40, 131, 0,
     .tied = false},
    {"moe gemma4 bf16 64", RP_FAMILY_GEMMA4, RP_DTYPE_BF16, 256, 512, 4, 4, 2, 64, 320, 0,
     .tied = true, .flips = true, .parallel = true},
    {"moe qwen3 fp8 128", RP_FAMILY_QWEN3_MOE, RP_DTYPE_BF16, 256, 512, 2, 4, 2, 128, 320, 0,
     .tied = false, .scheme = RP_QUANT_FP8, .flips = true},
    {"moe mixtral int8 64", RP_FAMILY_MIXTRAL, RP_DTYPE_BF16, 272, 512, 2, 4, 2, 64, 320, 0,
     .tied = false, .scheme = RP_QUANT_INT8, .flips = true},
    {"moe qwen2 fp8-w8a16 64", RP_FAMILY_QWEN2_MOE, RP_DTYPE_BF16, 256, 512, 2, 4, 2, 64, 320, 0,
     .tied = false, .scheme = RP_QUANT_FP8_W8A16},
    {"moe qwen3-next f32 40", RP_FAMILY_QWEN3_NEXT, RP_DTYPE_F32, 128, 200, 2, 3, 1, 40, 131, 0,
     .tied = false},
    {"moe qwen3-next bf16 64", RP_FAMILY_QWEN3_NEXT, RP_DTYPE_BF16, 256, 512, 2, 4, 2, 64, 320, 0,
     .tied = false, .flips = true},
};

#include "tests/gpu/models_cases.h"

RP_GPU_TEST_MAIN(NULL, NULL, MODEL_TESTS)
