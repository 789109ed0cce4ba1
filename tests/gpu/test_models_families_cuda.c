/* Goal: as in test_models_cuda.c, for the families and types that it leaves out. */
#include "tests/gpu/model_case.h"

static const struct model_case model_cases[] = {
    {"gemma3 f32 64", RP_FAMILY_GEMMA3, RP_DTYPE_F32, 120, 200, 3, 3, 1, 64, 131, 7, .tied = true},
    {"gemma4 f32 20", RP_FAMILY_GEMMA4, RP_DTYPE_F32, 96, 200, 4, 4, 2, 20, 131, 7, .tied = true},
    {"phi3 bf16 96", RP_FAMILY_PHI3, RP_DTYPE_BF16, 192, 512, 2, 4, 4, 96, 320, 40, .tied = false},
    {"phi3 f32 96", RP_FAMILY_PHI3, RP_DTYPE_F32, 192, 200, 2, 2, 2, 96, 131, 0, .tied = false},
    {"granite f32 64", RP_FAMILY_GRANITE, RP_DTYPE_F32, 192, 200, 2, 3, 1, 64, 131, 0,
     .tied = false},
    {"granite4 bf16 64", RP_FAMILY_GRANITE_HYBRID, RP_DTYPE_BF16, 256, 512, 2, 4, 2, 64, 320, 0,
     .tied = true},
    {"olmo2 bf16 128", RP_FAMILY_OLMO2, RP_DTYPE_BF16, 256, 512, 2, 2, 2, 128, 320, 0,
     .tied = false},
    {"olmo3 f32 16", RP_FAMILY_OLMO3, RP_DTYPE_F32, 96, 200, 3, 6, 2, 16, 131, 33, .tied = false},
    {"ministral bf16 128", RP_FAMILY_MINISTRAL, RP_DTYPE_BF16, 256, 512, 3, 4, 1, 128, 320, 65,
     .tied = false},
    {"internlm2 bf16 128", RP_FAMILY_INTERNLM2, RP_DTYPE_BF16, 256, 512, 2, 4, 2, 128, 320, 0,
     .tied = false},
    {"internlm3 f32 64", RP_FAMILY_INTERNLM3, RP_DTYPE_F32, 128, 200, 2, 2, 1, 64, 131, 0,
     .tied = false},
    {"glm bf16 128", RP_FAMILY_GLM, RP_DTYPE_BF16, 256, 512, 2, 4, 2, 128, 320, 0, .tied = false},
    {"glm4 f32 80", RP_FAMILY_GLM4, RP_DTYPE_F32, 160, 200, 2, 4, 2, 80, 131, 0, .tied = false},
    {"cohere2 bf16 128", RP_FAMILY_COHERE2, RP_DTYPE_BF16, 256, 512, 3, 4, 1, 128, 320, 40,
     .tied = true},
    {"cohere f32 64", RP_FAMILY_COHERE, RP_DTYPE_F32, 128, 200, 2, 2, 2, 64, 131, 0, .tied = true},
    {"stablelm bf16 160", RP_FAMILY_STABLELM, RP_DTYPE_BF16, 320, 512, 2, 2, 1, 160, 320, 0,
     .tied = false},
    {"stablelm f32 80", RP_FAMILY_STABLELM, RP_DTYPE_F32, 160, 200, 2, 2, 2, 80, 131, 0,
     .tied = false},
    {"ministral3 f32 40", RP_FAMILY_MINISTRAL3, RP_DTYPE_F32, 120, 200, 2, 3, 1, 40, 131, 0,
     .tied = false},
    {"llama f32 512", RP_FAMILY_LLAMA, RP_DTYPE_F32, 128, 200, 2, 2, 1, 512, 131, 0, .tied = false},
    {"sinks f32 64", RP_FAMILY_MINISTRAL, RP_DTYPE_F32, 128, 200, 3, 4, 2, 64, 131, 7,
     .tied = false, .sinks = true},
    {"lfm2 f32 64", RP_FAMILY_LFM2, RP_DTYPE_F32, 192, 200, 2, 3, 1, 64, 131, 0, .tied = true},
    {"lfm2 bf16 64", RP_FAMILY_LFM2, RP_DTYPE_BF16, 256, 512, 3, 4, 2, 64, 320, 0, .tied = true},
    {"qwen3.5 f32 64", RP_FAMILY_QWEN3_5, RP_DTYPE_F32, 128, 200, 3, 2, 1, 64, 131, 0,
     .tied = true},
    {"qwen3.5 bf16 256", RP_FAMILY_QWEN3_5, RP_DTYPE_BF16, 256, 512, 3, 2, 1, 256, 320, 0,
     .tied = false},
};

#include "tests/gpu/models_cases.h"

RP_GPU_TEST_MAIN(NULL, NULL, MODEL_TESTS)
