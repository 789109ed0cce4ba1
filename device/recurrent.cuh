/* recurrent.cuh - how the kernels of operators with recurrent state read a row of the step. */
#ifndef RP_DEVICE_RECURRENT_CUH
#define RP_DEVICE_RECURRENT_CUH

#include "device/cuda_vector.cuh"
#include "device/recurrent_cuda.h"

/* A load that stays where it is; the compiler moves others behind branches. */
static __device__ __forceinline__ uint32_t rp_load_here(const uint32_t *at) {
    uint32_t value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

/* Row `row` of the step, as far as these operators need it. It is on its way before it is known
 * whether the step has the row: a grid has no more rows than a step can have. */
static __device__ __forceinline__ rp_live_row rp_state_row(const rp_step_view &step, uint32_t row) {
    const rp_live_row *at = &step.rows[row];
    rp_live_row out = {};
    out.token_begin = rp_load_here(&at->token_begin);
    out.state_from = rp_load_here(&at->state_from);
    out.token_count = rp_load_here(&at->token_count);
    out.slot = rp_load_here(&at->slot);
    out.save_at = rp_load_here(&at->save_at);
    out.save_to = rp_load_here(&at->save_to);
    return out;
}

/* Whether the row begins with zeros; also true where a finished row's place is none. */
static __device__ __forceinline__ bool rp_state_is_zero(const rp_step_view &step,
                                                        const rp_live_row &row) {
    return row.state_from >= step.config.state_places;
}

#endif
