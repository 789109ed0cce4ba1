/* GATED_DELTA on CUDA, one token after the other, decode and prompts alike.
 *
 * The columns of S are independent of one another. A block has BLOCK_COLS columns of one head's S
 * for all tokens of a row, in registers from the first token to the last: a step reads and writes
 * the state once. A warp has WARP_COLS of them and all rows of S, so it needs no other warp; its
 * lane 2 g + c has ROWS rows from g * ROWS on, and four columns. With the old S,
 *
 *     d = beta * (v - decay * S^T k);   o = decay * S^T q + (k . q) d;   S = decay * S + k d^T
 *
 * so one reduction over the lanes gives both sums. One more warp prepares the tokens that come next
 * (k, q, v, decay, beta, k . q) in shared memory while the others compute.
 *
 * The order of every sum depends on key_dim alone: a row's rows of S rise within a lane, then lanes
 * are added pairwise. */
#include "device/recurrent_cuda.h"

#include "device/cuda_vector.cuh"

#define COMPUTE_WARPS 4u
#define WARP_COLS     8u
#define BLOCK_COLS    (COMPUTE_WARPS * WARP_COLS)
#define THREADS       (COMPUTE_WARPS * 32 + 32)
#define KEY_LANES     16u /* that share a column */
#define TOKEN_LANES   8u  /* that prepare a token: four tokens at once */
#define PROMPT_ROWS   64u /* rows of a prompt's grid; its blocks take several of more */
static_assert(BLOCK_COLS == TOKEN_LANES * 4, "a lane prepares four columns of v");
static_assert(RP_DELTA_HEAD_DIM_MAX == 16 * KEY_LANES, "the most rows of a lane");

/* A prepared token. */
template <uint32_t ROWS> struct __align__(16) token_values {
    float k[KEY_LANES * ROWS], q[KEY_LANES * ROWS]; /* normalized; zeros past key_dim */
    float v[BLOCK_COLS];                            /* zeros past value_dim */
    float decay, beta, kq, unused;
};

/* Tokens that are prepared at once; twice as many are in shared memory. */
template <uint32_t ROWS> static __host__ __device__ constexpr uint32_t stage_tokens(bool decode) {
    return decode ? 1 : ROWS == 16 ? 8 : 16;
}

/* What a block works on. */
struct delta_work {
    rp_live_row row;
    uint32_t head, col; /* value head, and the block's first column of its S */
};

/* Columns [col, col + 4) at `at`; those at or past `end` are zeros, and are not stored. VEC: col
 * and end are multiples of 4, and rows are aligned. */
template <bool VEC>
static __device__ __forceinline__ float4 load4(const float *at, uint32_t col, uint32_t end) {
    if (VEC)
        return col < end ? *(const float4 *)at : make_float4(0, 0, 0, 0);
    return rp_load4<false>(at, RP_DTYPE_F32, 0, col, end);
}
template <bool VEC>
static __device__ __forceinline__ void store4(float *at, uint32_t col, uint32_t end, float4 value) {
    if (!VEC)
        rp_store4<false>(at, RP_DTYPE_F32, 0, col, end, value);
    else if (col < end)
        *(float4 *)at = value;
}

/* The warps of the block wait for one another. They come from different places of the code, as they
 * do different work. */
static __device__ __forceinline__ void meet() {
    asm volatile("barrier.sync 1, %0;" ::"n"(THREADS) : "memory");
}

/* --- preparing tokens ------------------------------------------------------------------------ */

static __device__ __forceinline__ float softplus(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
}

/* The sum over the lanes that share a token. */
static __device__ __forceinline__ float token_sum(float value) {
    for (int lane = TOKEN_LANES / 2; lane > 0; lane /= 2)
        value += __shfl_xor_sync(0xFFFFFFFFu, value, lane);
    return value;
}

/* This lane's quads of a head's k or q, zeros past the head, and the sum of their squares. */
template <uint32_t QUADS, bool VEC>
static __device__ __forceinline__ float load_key(const rp_values &qkv, size_t row, uint32_t first,
                                                 uint32_t end, bool live, float4 *out) {
    float sum = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < QUADS; i++) {
        uint32_t col = first + i * TOKEN_LANES * 4;
        out[i] = live ? load4<VEC>((const float *)qkv.data + row * qkv.stride + col, col, end)
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
static __device__ __forceinline__ void normalize(float4 *x, float sum, float factor) {
    float scale = __fdiv_rn(1.0f, __fsqrt_rn(token_sum(sum) + 1e-6f));
#pragma unroll
    for (uint32_t i = 0; i < QUADS; i++)
        x[i] = make_float4(__fmul_rn(__fmul_rn(x[i].x, scale), factor),
                           __fmul_rn(__fmul_rn(x[i].y, scale), factor),
                           __fmul_rn(__fmul_rn(x[i].z, scale), factor),
                           __fmul_rn(__fmul_rn(x[i].w, scale), factor));
}

/* Tokens [begin, begin + count) of the row, by one warp, TOKEN_LANES lanes for each. */
template <uint32_t ROWS, bool VEC>
static __device__ __forceinline__ void prepare(const rp_gated_delta_cuda &args,
                                               const delta_work &work, uint32_t begin,
                                               uint32_t count, token_values<ROWS> *tokens) {
    constexpr uint32_t QUADS = ROWS * KEY_LANES / 4 / TOKEN_LANES;
    const rp_gated_delta &delta = args.delta;
    uint32_t key_dim = delta.key_dim, key_cols = delta.key_heads * key_dim, head = work.head;
    uint32_t q_col = head / (delta.value_heads / delta.key_heads) * key_dim;
    uint32_t k_col = key_cols + q_col, v_col = 2 * key_cols + head * delta.value_dim;
    uint32_t part = threadIdx.x % TOKEN_LANES, own = part * 4;
    float rate = -expf(args.a_log[head]), bias = args.dt_bias[head];
    float factor = __fdiv_rn(1.0f, __fsqrt_rn((float)key_dim));
    for (uint32_t base = 0; base < count; base += 32 / TOKEN_LANES) {
        uint32_t i = base + threadIdx.x % 32 / TOKEN_LANES;
        float4 k[QUADS], q[QUADS], v = make_float4(0, 0, 0, 0);
        bool live = i < count;
        size_t row = work.row.token_begin + begin + i;
        const float *ba = (const float *)args.ba.data + row * args.ba.stride;
        float b = live ? ba[head] : 0.0f, a = live ? ba[delta.value_heads + head] : 0.0f;
        float dot = 0.0f;
        if (live)
            v = load4<VEC>((const float *)args.qkv.data + row * args.qkv.stride + v_col + work.col +
                               own,
                           work.col + own, delta.value_dim);
        float q_sum = load_key<QUADS, VEC>(args.qkv, row, q_col + own, q_col + key_dim, live, q);
        float k_sum = load_key<QUADS, VEC>(args.qkv, row, k_col + own, k_col + key_dim, live, k);
        normalize<QUADS>(k, k_sum, 1.0f);
        normalize<QUADS>(q, q_sum, factor);
#pragma unroll
        for (uint32_t n = 0; n < QUADS; n++) {
            dot = __fmaf_rn(k[n].x, q[n].x, dot);
            dot = __fmaf_rn(k[n].y, q[n].y, dot);
            dot = __fmaf_rn(k[n].z, q[n].z, dot);
            dot = __fmaf_rn(k[n].w, q[n].w, dot);
        }
        dot = token_sum(dot);
        if (!live)
            continue;
        token_values<ROWS> *out = &tokens[i];
#pragma unroll
        for (uint32_t n = 0; n < QUADS; n++) {
            *(float4 *)&out->k[own + n * TOKEN_LANES * 4] = k[n];
            *(float4 *)&out->q[own + n * TOKEN_LANES * 4] = q[n];
        }
        *(float4 *)&out->v[own] = v;
        if (part == 0) {
            out->decay = expf(rate * softplus(a + bias));
            out->beta = __fdividef(1.0f, 1.0f + expf(-b));
            out->kq = dot;
        }
    }
}

/* --- the rule -------------------------------------------------------------------------------- */

/* A lane's part of S: rows [row, row + ROWS) from column col on, of the head's S. */
template <uint32_t ROWS, bool VEC> struct lane_state {
    float4 s[ROWS];
    uint32_t row, col;

    __device__ __forceinline__ float *at(const rp_gated_delta_cuda &args, const delta_work &work,
                                         uint32_t place) const {
        const rp_step_view &step = args.rows.step;
        const rp_gated_delta &delta = args.delta;
        float *states =
            (float *)(step.state + place * step.config.state_stride + delta.state_offset);
        return states + ((size_t)work.head * delta.key_dim + row) * delta.value_dim + col;
    }
    __device__ __forceinline__ void load(const rp_gated_delta_cuda &args, const delta_work &work) {
        bool zero = work.row.state_from == RP_STATE_ZERO;
        const float *from = at(args, work, zero ? 0 : work.row.state_from);
        uint32_t value_dim = args.delta.value_dim;
#pragma unroll
        for (uint32_t r = 0; r < ROWS; r++) {
            s[r] = make_float4(0, 0, 0, 0);
            if (!zero && row + r < args.delta.key_dim)
                s[r] = load4<VEC>(from + (size_t)r * value_dim, col, value_dim);
        }
    }
    __device__ __forceinline__ void store(const rp_gated_delta_cuda &args, const delta_work &work,
                                          uint32_t place) const {
        float *to = at(args, work, place);
        uint32_t value_dim = args.delta.value_dim;
#pragma unroll
        for (uint32_t r = 0; r < ROWS; r++)
            if (row + r < args.delta.key_dim)
                store4<VEC>(to + (size_t)r * value_dim, col, value_dim, s[r]);
    }
};

/* A lane's ROWS values of k or q. */
template <uint32_t ROWS>
static __device__ __forceinline__ void read_key(const float *from, float *out) {
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

static __device__ __forceinline__ float4 add_scaled(float4 sum, float4 x, float by) {
    return make_float4(__fmaf_rn(x.x, by, sum.x), __fmaf_rn(x.y, by, sum.y),
                       __fmaf_rn(x.z, by, sum.z), __fmaf_rn(x.w, by, sum.w));
}

/* The sums over the lanes of a column: of k where bit 4 of the lane is 0, else of q, for column
 * `lane_column` of its four. Each exchange halves the values that a lane still adds up. */
static __device__ __forceinline__ float reduce(uint32_t lane, float4 k, float4 q) {
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
static __device__ __forceinline__ uint32_t lane_column(uint32_t lane) {
    return (lane >> 3 & 1) * 2 + (lane >> 2 & 1);
}
/* A lane with the sum of k of column i of the same four. */
static __device__ __forceinline__ int lane_of(uint32_t lane, uint32_t i) {
    return (int)((i >> 1) * 8 + (i & 1) * 4 + (lane & 1));
}

/* One token; o of this lane's own column where bit 4 of the lane is set. */
template <uint32_t ROWS, bool VEC>
static __device__ __forceinline__ float advance(lane_state<ROWS, VEC> *state,
                                                const token_values<ROWS> &token) {
    uint32_t lane = threadIdx.x % 32, quad = threadIdx.x / 32 * WARP_COLS + (lane & 1) * 4;
    float k[ROWS], q[ROWS], decay = token.decay;
    float4 with_k = make_float4(0, 0, 0, 0), with_q = with_k, d;
    read_key<ROWS>(token.k + (lane >> 1) * ROWS, k);
    read_key<ROWS>(token.q + (lane >> 1) * ROWS, q);
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++) {
        with_k = add_scaled(with_k, state->s[r], k[r]);
        with_q = add_scaled(with_q, state->s[r], q[r]);
    }
    float sum = __fmul_rn(reduce(lane, with_k, with_q), decay);
    float own = __fmul_rn(token.beta, __fsub_rn(token.v[quad + lane_column(lane)], sum));
    d.x = __shfl_sync(0xFFFFFFFFu, own, lane_of(lane, 0));
    d.y = __shfl_sync(0xFFFFFFFFu, own, lane_of(lane, 1));
    d.z = __shfl_sync(0xFFFFFFFFu, own, lane_of(lane, 2));
    d.w = __shfl_sync(0xFFFFFFFFu, own, lane_of(lane, 3));
    own = __shfl_xor_sync(0xFFFFFFFFu, own, 16);
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++) {
        float4 &s = state->s[r];
        s = make_float4(__fmaf_rn(k[r], d.x, __fmul_rn(s.x, decay)),
                        __fmaf_rn(k[r], d.y, __fmul_rn(s.y, decay)),
                        __fmaf_rn(k[r], d.z, __fmul_rn(s.z, decay)),
                        __fmaf_rn(k[r], d.w, __fmul_rn(s.w, decay)));
    }
    return __fmaf_rn(token.kq, own, sum);
}

/* Tokens [begin, begin + count) of the row, which are prepared. */
template <uint32_t ROWS, bool VEC>
static __device__ __forceinline__ void
compute(const rp_gated_delta_cuda &args, const delta_work &work, uint32_t begin, uint32_t count,
        const token_values<ROWS> *tokens, lane_state<ROWS, VEC> *state) {
    uint32_t lane = threadIdx.x % 32, col = state->col + lane_column(lane);
    bool stores = (lane & 18) == 16 && col < args.delta.value_dim; /* one of two with the same o */
    size_t row = work.row.token_begin + begin;
    float *out = (float *)args.out.data + row * args.out.stride +
                 (size_t)work.head * args.delta.value_dim + col;
    for (uint32_t i = 0; i < count; i++, out += args.out.stride) {
        float o = advance<ROWS, VEC>(state, tokens[i]);
        if (stores)
            *out = o;
        if (begin + i + 1 == work.row.save_at)
            state->store(args, work, work.row.save_to);
    }
}

static __device__ __forceinline__ void store_zeros(const rp_gated_delta_cuda &args,
                                                   const delta_work &work) {
    uint32_t value_dim = args.delta.value_dim;
    for (uint32_t i = threadIdx.x; i < work.row.token_count * BLOCK_COLS; i += THREADS) {
        uint32_t col = work.col + i % BLOCK_COLS;
        size_t token = work.row.token_begin + i / BLOCK_COLS;
        if (col < value_dim)
            ((float *)
                 args.out.data)[token * args.out.stride + (size_t)work.head * value_dim + col] =
                0.0f;
    }
}

/* All threads of the block; when it returns, the shared memory may be used again. While a stage is
 * computed, the next one is prepared in the other half of the memory. */
template <uint32_t ROWS, bool VEC>
static __device__ __forceinline__ void run_row(const rp_gated_delta_cuda &args,
                                               const delta_work &work, token_values<ROWS> *shared) {
    uint32_t stage = stage_tokens<ROWS>(args.decode), count = work.row.token_count, half = 0;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp == COMPUTE_WARPS) {
        for (uint32_t begin = 0; begin < count; begin += stage, half ^= stage) {
            prepare<ROWS, VEC>(args, work, begin, min(stage, count - begin), shared + half);
            meet();
        }
        meet();
        return;
    }
    lane_state<ROWS, VEC> state;
    state.row = (lane >> 1) * ROWS;
    state.col = work.col + warp * WARP_COLS + (lane & 1) * 4;
    state.load(args, work);
    for (uint32_t begin = 0; begin < count; begin += stage, half ^= stage) {
        meet();
        compute<ROWS, VEC>(args, work, begin, min(stage, count - begin), shared + half, &state);
    }
    meet();
    state.store(args, work, work.row.slot);
}

template <uint32_t ROWS, bool VEC>
static __global__ void __launch_bounds__(THREADS, ROWS <= 8 ? 4 : 2)
    gated_delta_kernel(rp_gated_delta_cuda args) {
    extern __shared__ __align__(16) unsigned char shared[];
    rp_stamp stamp(args.rows.stamp);
    const rp_step_view &step = args.rows.step;
    uint32_t blocks = (args.delta.value_dim + BLOCK_COLS - 1) / BLOCK_COLS;
    delta_work work;
    work.head = blockIdx.x / blocks;
    work.col = blockIdx.x % blocks * BLOCK_COLS;
    stamp.begin();
    stamp.look();
    uint32_t row_count = step.counts->row_count;
    for (uint32_t row = blockIdx.y; row < row_count; row += gridDim.y) {
        work.row = step.rows[row];
        if (rp_token_is_live(step, work.row.token_begin))
            run_row<ROWS, VEC>(args, work, (token_values<ROWS> *)shared);
        else
            store_zeros(args, work);
    }
}

template <uint32_t ROWS> static int start(const rp_gated_delta_cuda &args, cudaStream_t stream) {
    uint32_t blocks = (args.delta.value_dim + BLOCK_COLS - 1) / BLOCK_COLS;
    uint32_t rows = args.decode ? args.max_seq_rows : min(args.max_seq_rows, PROMPT_ROWS);
    size_t shared = 2 * stage_tokens<ROWS>(args.decode) * sizeof(token_values<ROWS>);
    bool vector =
        args.delta.key_dim % 4 == 0 && args.delta.value_dim % 4 == 0 && rp_vector_ok(args.qkv);
    return rp_cuda_start(vector ? gated_delta_kernel<ROWS, true> : gated_delta_kernel<ROWS, false>,
                         dim3(args.delta.value_heads * blocks, rows), dim3(THREADS), shared, stream,
                         !args.rows.plain_edges, args);
}

int rp_gated_delta_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_gated_delta_cuda &args = *(const rp_gated_delta_cuda *)args_void;
    uint32_t rows = (args.delta.key_dim + KEY_LANES - 1) / KEY_LANES;
    if (rows <= 2)
        return start<2>(args, stream);
    if (rows <= 4)
        return start<4>(args, stream);
    if (rows <= 8)
        return start<8>(args, stream);
    return start<16>(args, stream);
}
