/* attention_tile_cuda.cuh - what the prompt kernels share: which queries a tile holds, which keys they see,
 * and the step of the online softmax. */
#ifndef RP_ATTENTION_ATTENTION_TILE_CUDA_CUH
#define RP_ATTENTION_ATTENTION_TILE_CUDA_CUH

#include "attention/attention_internal_cuda.h"

#include "device/cuda_kernel.cuh"

#include <math.h>

/* A tile of one KV head: `tokens` consecutive tokens of a row times the query heads of the KV head.
 * Tile row m is token m / group and head m % group. */
struct prefill_tile {
    const uint32_t *pages;
    uint32_t token;     /* first, of the step */
    uint32_t tokens;    /* 0: no work */
    uint32_t position;  /* of the first token */
    uint32_t first_key; /* that any row sees */
    uint32_t key_end;   /* past the last that any row sees */
};

static __device__ __forceinline__ uint32_t first_visible(uint32_t window, uint32_t position) {
    return window != 0 && position >= window ? position + 1 - window : 0;
}

/* The `index`-th tile of the plan; no tokens past the last one. */
static __device__ __forceinline__ prefill_tile find_tile(const rp_attention_cuda_args &call,
                                                         uint32_t index) {
    const rp_attention_cuda_plan_view &plan = call.workspace.plans[call.mask_class];
    prefill_tile tile = {};
    if (index >= plan.head->tiles)
        return tile;
    const rp_attention_plan_tile from = plan.tiles[index];
    const rp_step_view &step = call.args.step;
    tile.pages = step.slots + (size_t)from.slot * step.slot_words + RP_SLOT_PAGES;
    tile.token = from.token;
    tile.tokens = from.count;
    tile.position = from.position;
    tile.first_key = first_visible(call.args.window, from.position);
    tile.key_end = from.position + from.count;
    return tile;
}

/* 2^x; 0 at -infinity, exactly 1 at 0. */
static __device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(uint32_t *)&pair;
}

/* Two neighbouring columns of the output; wide where the rows allow it. */
static __device__ __forceinline__ void store_pair(void *out, rp_dtype dtype, size_t at, bool wide,
                                                  float low, float high) {
    if (!wide) {
        rp_store(out, dtype, at, low);
        rp_store(out, dtype, at + 1, high);
    } else if (dtype == RP_DTYPE_F32) {
        *(float2 *)((float *)out + at) = make_float2(low, high);
    } else {
        *(uint32_t *)((__nv_bfloat16 *)out + at) = pack_bf16(low, high);
    }
}

static __device__ __forceinline__ bool pairs_are_aligned(const rp_attention_args &args) {
    return args.out_stride % 2 == 0 && (uintptr_t)args.out % 8 == 0;
}
#endif
