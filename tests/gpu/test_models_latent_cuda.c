/* Goal: as in test_models_cuda.c, for models with latent attention: rows of latents of other sizes,
 * which the kernel for any shape reads, and of published ones. */
#include "tests/gpu/model_case.h"

static const struct model_case model_cases[] = {
    {"mla v2 f32 40", RP_FAMILY_DEEPSEEK_V2, RP_DTYPE_F32, 96, 200, 2, 3, 1, 24, 131, 0,
     .tied = false},
    {"mla v3 f32 40", RP_FAMILY_DEEPSEEK_V3, RP_DTYPE_F32, 128, 200, 3, 4, 1, 40, 131, 0,
     .tied = false},
    {"mla v3 f32 576", RP_FAMILY_DEEPSEEK_V3, RP_DTYPE_F32, 128, 200, 2, 3, 1, 96, 131, 0,
     .tied = false, .wide = true},
    {"mla v2 bf16 576", RP_FAMILY_DEEPSEEK_V2, RP_DTYPE_BF16, 256, 512, 2, 16, 1, 192, 320, 0,
     .tied = false, .flips = true, .wide = true},
    {"mla v3 bf16 576", RP_FAMILY_DEEPSEEK_V3, RP_DTYPE_BF16, 256, 512, 3, 20, 1, 96, 320, 0,
     .tied = false, .flips = true, .wide = true},
    {"mla v2 bf16 40", RP_FAMILY_DEEPSEEK_V2, RP_DTYPE_BF16, 256, 512, 2, 4, 1, 40, 320, 0,
     .tied = true, .flips = true},
    {"mla v3 fp8 576", RP_FAMILY_DEEPSEEK_V3, RP_DTYPE_BF16, 256, 512, 2, 40, 1, 80, 320, 0,
     .tied = false, .scheme = RP_QUANT_FP8, .pages = RP_DTYPE_FP8_E4M3, .flips = true,
     .wide = true},
    {"mla v2 int8 pages 576", RP_FAMILY_DEEPSEEK_V2, RP_DTYPE_BF16, 256, 512, 2, 16, 1, 96, 320, 0,
     .tied = false, .pages = RP_DTYPE_INT8, .flips = true, .wide = true},
};

#include "tests/gpu/models_cases.h"

RP_GPU_TEST_MAIN(NULL, NULL, MODEL_TESTS)
