/* attention_decode_query.cuh - decode attention: loads q into shared memory and converts it to
 * matmul operands. */
#ifndef RP_ATTENTION_ATTENTION_DECODE_QUERY_CUH
#define RP_ATTENTION_ATTENTION_DECODE_QUERY_CUH

#include "attention/decode/attention_decode_stream.cuh"

namespace {

/* q of a row's group in shared memory, f32: (group, D + 8), so that rows begin in different
 * banks. */
template <int D> struct query_buffer {
    static constexpr uint32_t STRIDE = D + 8;
    float *data;

    /* Part of the thread's next cp.async group. */
    __device__ __forceinline__ void prefetch(const decode_args &args, uint32_t token,
                                             uint32_t head) const {
        const float *from = args.q + token * args.q_stride + (size_t)head * args.group * D;
        if (args.q_aligned) {
#pragma unroll 1
            for (uint32_t i = threadIdx.x * 4; i < args.group * D; i += THREADS * 4)
                copy_16(shared_address(data + i / D * STRIDE + i % D), from + i);
        } else {
#pragma unroll 1
            for (uint32_t i = threadIdx.x; i < args.group * D; i += THREADS)
                copy_4(shared_address(data + i / D * STRIDE + i % D), from + i);
        }
    }
    /* As the second (B) operand. */
    template <int NT>
    __device__ __forceinline__ void load(uint32_t (&q)[NT][D / 16][2], uint32_t group,
                                         uint32_t lane) const {
#pragma unroll
        for (int n = 0; n < NT; n++) {
            uint32_t head = n * 8 + lane / 4;
            const float *from = data + min(head, group - 1) * STRIDE + lane % 4 * 2;
#pragma unroll
            for (int i = 0; i < D / 8; i++) {
                float2 x = *(const float2 *)(from + i * 8);
                q[n][i / 2][i % 2] = head < group ? pack(x.x, x.y) : 0;
            }
        }
    }
    /* For quantized pages, where a word of four columns is two pairs: in f16, divided by the power
     * of two of the head's largest element. *power holds it for heads 2 * (lane % 4) and the next,
     * as in a lane's scores. */
    template <int NT>
    __device__ __forceinline__ void load_f16(uint32_t (&q)[NT][D / 16][2], float (&power)[NT][2],
                                             uint32_t group, uint32_t lane) const {
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const uint32_t head = n * 8 + lane / 4;
            const float *from = data + min(head, group - 1) * STRIDE + lane % 4 * 4;
            float4 x[D / 16];
            float largest = 0.0f;
#pragma unroll
            for (int i = 0; i < D / 16; i++) {
                x[i] = *(const float4 *)(from + i * 16);
                largest = fmaxf(largest, fmaxf(fmaxf(fabsf(x[i].x), fabsf(x[i].y)),
                                               fmaxf(fabsf(x[i].z), fabsf(x[i].w))));
            }
            for (int lanes = 1; lanes < 4; lanes *= 2)
                largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, lanes));
            const float mine = power_below(largest);
            const float factor = head < group ? inverse_of_power(mine) : 0.0f;
#pragma unroll
            for (int i = 0; i < D / 16; i++) {
                q[n][i][0] = pack_f16(x[i].x * factor, x[i].y * factor);
                q[n][i][1] = pack_f16(x[i].z * factor, x[i].w * factor);
            }
#pragma unroll
            for (int e = 0; e < 2; e++)
                power[n][e] = __shfl_sync(0xFFFFFFFFu, mine, (lane % 4 * 2 + e) * 4);
        }
    }
};

} // namespace

#endif
