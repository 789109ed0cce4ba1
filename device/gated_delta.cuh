/* gated_delta.cuh - what the kernels of GATED_DELTA share: a prepared token, and the rule for a
 * warp's columns of a head's S.
 *
 * A warp has RP_DELTA_WARP_COLS columns and all rows: its lane 2 g + c has ROWS rows from g * ROWS
 * on, and four columns. With the old S,
 *
 *     d = beta * (v - decay * S^T k);   o = decay * S^T q + (k . q) d;   S = decay * S + k d^T
 *
 * so one reduction over the lanes gives both sums. The order of every sum depends on key_dim alone:
 * a row's rows of S rise within a lane, then lanes are added pairwise. */
#ifndef RP_DEVICE_GATED_DELTA_CUH
#define RP_DEVICE_GATED_DELTA_CUH

#include "device/recurrent.cuh"

#define RP_DELTA_WARP_COLS   8u
#define RP_DELTA_KEY_LANES   16u /* that share a column */
#define RP_DELTA_TOKEN_LANES 8u  /* that prepare a token */
static_assert(RP_DELTA_HEAD_DIM_MAX == 16 * RP_DELTA_KEY_LANES, "the most rows of a lane");

/* The kernel of many rows that have one token each, for heads of 128 x 128 on Hopper. */
bool rp_gated_delta_streams(const rp_gated_delta_cuda &args);
int rp_gated_delta_stream_run(const rp_gated_delta_cuda &args, cudaStream_t stream);

/* A prepared token, with COLS columns of v. */
template <uint32_t ROWS, uint32_t COLS> struct __align__(16) rp_delta_token {
    float k[RP_DELTA_KEY_LANES * ROWS]; /* normalized, as q; zeros past key_dim */
    float q[RP_DELTA_KEY_LANES * ROWS];
    float v[COLS]; /* zeros past value_dim */
    float decay, beta, kq, unused;
};

/* Columns [col, col + 4) at `at`; those at or past `end` are zeros. VEC: col and end are multiples
 * of 4, and rows are aligned. */
template <bool VEC>
static __device__ __forceinline__ float4 rp_delta_load4(const float *at, uint32_t col,
                                                        uint32_t end) {
    if (VEC)
        return col < end ? *(const float4 *)at : make_float4(0, 0, 0, 0);
    return rp_load4<false>(at, RP_DTYPE_F32, 0, col, end);
}

/* --- preparing tokens ------------------------------------------------------------------------ */

/* A value head, and what its tokens share; all of it is constant. */
struct rp_delta_head {
    uint32_t index;
    float rate, bias, factor;
};

static __device__ __forceinline__ rp_delta_head rp_delta_head_of(const rp_gated_delta_cuda &args,
                                                                 uint32_t head) {
    return {head, -expf(args.a_log[head]), args.dt_bias[head],
            __fdiv_rn(1.0f, __fsqrt_rn((float)args.delta.key_dim))};
}

static __device__ __forceinline__ float rp_delta_softplus(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
}

/* The sum over the lanes that share a token. */
static __device__ __forceinline__ float rp_delta_token_sum(float value) {
    for (int lane = RP_DELTA_TOKEN_LANES / 2; lane > 0; lane /= 2)
        value += __shfl_xor_sync(0xFFFFFFFFu, value, lane);
    return value;
}

/* This lane's quads of a head's k or q, zeros past the head, and the sum of their squares. */
template <uint32_t QUADS, bool VEC>
static __device__ __forceinline__ float rp_delta_load_key(const rp_values &qkv, size_t row,
                                                          uint32_t first, uint32_t end, bool live,
                                                          float4 *out) {
    float sum = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < QUADS; i++) {
        uint32_t col = first + i * RP_DELTA_TOKEN_LANES * 4;
        out[i] =
            live ? rp_delta_load4<VEC>((const float *)qkv.data + row * qkv.stride + col, col, end)
                 : make_float4(0, 0, 0, 0);
        sum = __fmaf_rn(out[i].x, out[i].x, sum);
        sum = __fmaf_rn(out[i].y, out[i].y, sum);
        sum = __fmaf_rn(out[i].z, out[i].z, sum);
        sum = __fmaf_rn(out[i].w, out[i].w, sum);
    }
    return sum;
}

/* Divides by the root of all lanes' sum, and multiplies by factor; in place. */
template <uint32_t QUADS>
static __device__ __forceinline__ void rp_delta_normalize(float4 *x, float sum, float factor) {
    float scale = __fdiv_rn(1.0f, __fsqrt_rn(rp_delta_token_sum(sum) + 1e-6f));
#pragma unroll
    for (uint32_t i = 0; i < QUADS; i++)
        x[i] = make_float4(__fmul_rn(__fmul_rn(x[i].x, scale), factor),
                           __fmul_rn(__fmul_rn(x[i].y, scale), factor),
                           __fmul_rn(__fmul_rn(x[i].z, scale), factor),
                           __fmul_rn(__fmul_rn(x[i].w, scale), factor));
}

/* The token of row `row` of qkv and ba, by RP_DELTA_TOKEN_LANES lanes; v from column v_col of the
 * head on. All lanes of the warp call it; those of a token that is not live store nothing. */
template <uint32_t ROWS, uint32_t COLS, bool VEC>
static __device__ __forceinline__ void
rp_delta_prepare(const rp_gated_delta_cuda &args, const rp_delta_head &head, uint32_t v_col,
                 size_t row, bool live, rp_delta_token<ROWS, COLS> *out) {
    constexpr uint32_t STEP = RP_DELTA_TOKEN_LANES * 4; /* columns of all lanes */
    constexpr uint32_t QUADS = ROWS * RP_DELTA_KEY_LANES / STEP, V_QUADS = COLS / STEP;
    const rp_gated_delta &delta = args.delta;
    uint32_t key_dim = delta.key_dim, key_cols = delta.key_heads * key_dim;
    uint32_t q_col = head.index / (delta.value_heads / delta.key_heads) * key_dim;
    uint32_t k_col = key_cols + q_col, head_col = 2 * key_cols + head.index * delta.value_dim;
    uint32_t part = threadIdx.x % RP_DELTA_TOKEN_LANES, own = part * 4;
    const float *qkv = (const float *)args.qkv.data + row * args.qkv.stride;
    const float *ba = (const float *)args.ba.data + row * args.ba.stride;
    float4 k[QUADS], q[QUADS], v[V_QUADS];
    float b = live ? ba[head.index] : 0.0f, a = live ? ba[delta.value_heads + head.index] : 0.0f;
    float dot = 0.0f;
#pragma unroll
    for (uint32_t n = 0; n < V_QUADS; n++) {
        uint32_t col = v_col + own + n * STEP;
        v[n] = live ? rp_delta_load4<VEC>(qkv + head_col + col, col, delta.value_dim)
                    : make_float4(0, 0, 0, 0);
    }
    float q_sum =
        rp_delta_load_key<QUADS, VEC>(args.qkv, row, q_col + own, q_col + key_dim, live, q);
    float k_sum =
        rp_delta_load_key<QUADS, VEC>(args.qkv, row, k_col + own, k_col + key_dim, live, k);
    rp_delta_normalize<QUADS>(k, k_sum, 1.0f);
    rp_delta_normalize<QUADS>(q, q_sum, head.factor);
#pragma unroll
    for (uint32_t n = 0; n < QUADS; n++) {
        dot = __fmaf_rn(k[n].x, q[n].x, dot);
        dot = __fmaf_rn(k[n].y, q[n].y, dot);
        dot = __fmaf_rn(k[n].z, q[n].z, dot);
        dot = __fmaf_rn(k[n].w, q[n].w, dot);
    }
    dot = rp_delta_token_sum(dot);
    if (!live)
        return;
#pragma unroll
    for (uint32_t n = 0; n < QUADS; n++) {
        *(float4 *)&out->k[own + n * STEP] = k[n];
        *(float4 *)&out->q[own + n * STEP] = q[n];
    }
#pragma unroll
    for (uint32_t n = 0; n < V_QUADS; n++)
        *(float4 *)&out->v[own + n * STEP] = v[n];
    if (part == 0) {
        out->decay = expf(head.rate * rp_delta_softplus(a + head.bias));
        out->beta = __fdividef(1.0f, 1.0f + expf(-b));
        out->kq = dot;
    }
}

/* --- the rule -------------------------------------------------------------------------------- */

/* A lane's ROWS values of k or q. */
template <uint32_t ROWS>
static __device__ __forceinline__ void rp_delta_read_key(const float *from, float *out) {
    if constexpr (ROWS == 2) {
        float2 two = *(const float2 *)from;
        out[0] = two.x;
        out[1] = two.y;
    } else {
#pragma unroll
        for (uint32_t i = 0; i < ROWS; i += 4) {
            float4 four = *(const float4 *)(from + i);
            out[i] = four.x;
            out[i + 1] = four.y;
            out[i + 2] = four.z;
            out[i + 3] = four.w;
        }
    }
}

static __device__ __forceinline__ float4 rp_delta_add_scaled(float4 sum, float4 x, float by) {
    return make_float4(__fmaf_rn(x.x, by, sum.x), __fmaf_rn(x.y, by, sum.y),
                       __fmaf_rn(x.z, by, sum.z), __fmaf_rn(x.w, by, sum.w));
}

/* The sums over the lanes of a column: of k where bit 4 of the lane is 0, else of q, for column
 * `lane_column` of its four. Each exchange halves the values that a lane still adds up. */
static __device__ __forceinline__ float rp_delta_reduce(uint32_t lane, float4 k, float4 q) {
    bool second = lane & 16;
    float4 keep = second ? q : k, give = second ? k : q;
    keep.x += __shfl_xor_sync(0xFFFFFFFFu, give.x, 16);
    keep.y += __shfl_xor_sync(0xFFFFFFFFu, give.y, 16);
    keep.z += __shfl_xor_sync(0xFFFFFFFFu, give.z, 16);
    keep.w += __shfl_xor_sync(0xFFFFFFFFu, give.w, 16);
    second = lane & 8;
    float2 pair = second ? make_float2(keep.z, keep.w) : make_float2(keep.x, keep.y);
    float2 other = second ? make_float2(keep.x, keep.y) : make_float2(keep.z, keep.w);
    pair.x += __shfl_xor_sync(0xFFFFFFFFu, other.x, 8);
    pair.y += __shfl_xor_sync(0xFFFFFFFFu, other.y, 8);
    second = lane & 4;
    float sum = second ? pair.y : pair.x;
    sum += __shfl_xor_sync(0xFFFFFFFFu, second ? pair.x : pair.y, 4);
    return sum + __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
}
static __device__ __forceinline__ uint32_t rp_delta_lane_column(uint32_t lane) {
    return (lane >> 3 & 1) * 2 + (lane >> 2 & 1);
}
/* A lane with the sum of k of column i of the same four. */
static __device__ __forceinline__ int rp_delta_lane_of(uint32_t lane, uint32_t i) {
    return (int)((i >> 1) * 8 + (i & 1) * 4 + (lane & 1));
}

/* One token, by warp threadIdx.x / 32, with v from its columns; o of this lane's own column where
 * bit 4 of the lane is set: of two lanes the same. */
template <uint32_t ROWS, uint32_t COLS>
static __device__ __forceinline__ float rp_delta_advance(float4 (&state)[ROWS],
                                                         const rp_delta_token<ROWS, COLS> &token) {
    uint32_t lane = threadIdx.x % 32;
    uint32_t quad = threadIdx.x / 32 * RP_DELTA_WARP_COLS + (lane & 1) * 4;
    float k[ROWS], q[ROWS], decay = token.decay;
    float4 with_k = make_float4(0, 0, 0, 0), with_q = with_k, d;
    rp_delta_read_key<ROWS>(token.k + (lane >> 1) * ROWS, k);
    rp_delta_read_key<ROWS>(token.q + (lane >> 1) * ROWS, q);
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++) {
        with_k = rp_delta_add_scaled(with_k, state[r], k[r]);
        with_q = rp_delta_add_scaled(with_q, state[r], q[r]);
    }
    float sum = __fmul_rn(rp_delta_reduce(lane, with_k, with_q), decay);
    float own = __fmul_rn(token.beta, __fsub_rn(token.v[quad + rp_delta_lane_column(lane)], sum));
    d.x = __shfl_sync(0xFFFFFFFFu, own, rp_delta_lane_of(lane, 0));
    d.y = __shfl_sync(0xFFFFFFFFu, own, rp_delta_lane_of(lane, 1));
    d.z = __shfl_sync(0xFFFFFFFFu, own, rp_delta_lane_of(lane, 2));
    d.w = __shfl_sync(0xFFFFFFFFu, own, rp_delta_lane_of(lane, 3));
    own = __shfl_xor_sync(0xFFFFFFFFu, own, 16);
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++) {
        float4 &s = state[r];
        s = make_float4(__fmaf_rn(k[r], d.x, __fmul_rn(s.x, decay)),
                        __fmaf_rn(k[r], d.y, __fmul_rn(s.y, decay)),
                        __fmaf_rn(k[r], d.z, __fmul_rn(s.z, decay)),
                        __fmaf_rn(k[r], d.w, __fmul_rn(s.w, decay)));
    }
    return __fmaf_rn(token.kq, own, sum);
}

/* Whether this lane is the one of two that stores its column's o. */
static __device__ __forceinline__ bool rp_delta_lane_stores(uint32_t lane) {
    return (lane & 18) == 16;
}

#endif
