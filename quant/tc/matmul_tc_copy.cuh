/* matmul_tc_copy.cuh - the copying warps of the kernel in matmul_tc_kernel.cuh. */
#ifndef RP_QUANT_MATMUL_TC_COPY_CUH
#define RP_QUANT_MATMUL_TC_COPY_CUH

#include "device/cuda_kernel.cuh"
#include "quant/matmul_pipeline.cuh"
#include "quant/tc/matmul_tc_work.cuh"

namespace {

/* The number of live token tiles is known only after the wait; at least one is processed. Not
 * looked at in ORDER_ONCE. */
__device__ __forceinline__ uint32_t wait_for_live(const rp_matmul_tc_args &args) {
    if (args.token_tiles == 1 || args.tile.order == RP_MATMUL_ORDER_ONCE)
        return 0;
    rp_pdl_wait();
    return *args.live;
}

/* The weights of a stage: boxes [block, block + count) of K of the tile's rows. */
template <typename Shape>
__device__ __forceinline__ void copy_weight_stage(const rp_matmul_tc_args &args,
                                                  const ring<Shape> &at, uint32_t row,
                                                  uint32_t block, uint32_t count, uint64_t policy) {
    const CUtensorMap *map = &args.weight_map;
    uint32_t barrier = at.landed_barrier();
    if (Shape::HELD && args.whole_stages) {
        if (Shape::GATED)
            rp_copy_box_5d(at.weights(0), map, 0, 0, 0, row / 16, block, barrier, policy);
        else
            rp_copy_box_3d(at.weights(0), map, 0, row, block, barrier, policy);
        return;
    }
    for (uint32_t box = 0; box < count; box++) {
        uint32_t x = (block + box) * RP_MATMUL_BLOCK;
        if (Shape::GATED)
            rp_copy_box_4d(at.weights(box), map, x, 0, 0, row / 16, barrier, policy);
        else
            rp_copy_box(at.weights(box), map, x, row, barrier, policy);
    }
}

/* Its tokens. */
template <typename Shape>
__device__ __forceinline__ void copy_token_stage(const rp_matmul_tc_args &args,
                                                 const ring<Shape> &at, uint32_t token,
                                                 uint32_t block, uint32_t count) {
    const CUtensorMap *map = &args.in_map;
    uint32_t barrier = at.full_barrier();
    if (Shape::HELD && args.whole_stages) {
        rp_copy_box_3d(at.tokens(0), map, 0, token, block * Shape::TOKEN_BOXES, barrier,
                       RP_L2_EVICT_LAST);
        return;
    }
    for (uint32_t i = 0; i < count * Shape::TOKEN_BOXES; i++)
        rp_copy_box(at.tokens(0) + i * Shape::TOKEN_BOX_BYTES, map,
                    (block * Shape::TOKEN_BOXES + i) * RP_MATMUL_BLOCK, token, barrier,
                    RP_L2_EVICT_LAST);
}

/* One thread. Stages in flight are counted, in the order in which they were requested. */
template <typename Shape>
__device__ __forceinline__ void copy_weights(const rp_matmul_tc_args &args, ring<Shape> at) {
    /* Read once: evict from L2 first. */
    uint64_t policy = args.token_tiles == 1 ? RP_L2_EVICT_FIRST : RP_L2_EVICT_NORMAL;
    steps<Shape> s;
    s.w = walk_begin<Shape>(args, wait_for_live(args));
    s.enter(args);
    ring<Shape> landing = at;
    uint32_t flying = 0, flight = args.flight_early;
    for (uint32_t i = 0; s.valid; i++) {
        if (i == at.count)
            flight = args.flight;
        rp_barrier_wait(at.empty_barrier(), at.phase ^ 1);
        if (flying == flight) {
            rp_barrier_wait(landing.landed_barrier(), landing.phase);
            landing.next();
            flying--;
        }
        flying++;
        rp_barrier_expect(at.landed_barrier(), s.count * Shape::WEIGHT_BYTES);
        copy_weight_stage<Shape>(args, at, s.r.row_tile * Shape::ROWS, s.block, s.count, policy);
        s.next(args);
        at.next();
    }
}

/* One thread: waits for earlier kernels, which may write the tokens, and lets the next one
 * start. */
template <typename Shape>
__device__ __forceinline__ void copy_tokens(const rp_matmul_tc_args &args, ring<Shape> at) {
    rp_pdl_wait();
    rp_pdl_trigger();
    steps<Shape> s;
    s.w = walk_begin<Shape>(args, wait_for_live(args));
    s.enter(args);
    while (s.valid) {
        rp_barrier_wait(at.empty_barrier(), at.phase ^ 1);
        rp_barrier_expect(at.full_barrier(), s.count * Shape::TOKEN_BYTES);
        copy_token_stage<Shape>(args, at, s.r.token_tile * Shape::TOKENS, s.block, s.count);
        s.next(args);
        at.next();
    }
}

} // namespace

#endif
