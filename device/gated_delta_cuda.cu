/* GATED_DELTA on CUDA, one token after the other, decode and prompts alike.
 *
 * The columns of S are independent of one another. A block has BLOCK_COLS columns of one head's S
 * for all tokens of a row, in registers from the first token to the last: a step reads and writes
 * the state once. A warp has RP_DELTA_WARP_COLS of them and all rows of S, so it needs no other
 * warp (gated_delta.cuh). One more warp prepares the tokens that come next (k, q, v, decay, beta,
 * k . q) in shared memory while the others compute. */
#include "device/gated_delta.cuh"

#define COMPUTE_WARPS 4u
#define BLOCK_COLS    (COMPUTE_WARPS * RP_DELTA_WARP_COLS)
#define THREADS       (COMPUTE_WARPS * 32 + 32)
#define PROMPT_ROWS   64u /* rows of a prompt's grid; its blocks take several of more */

template <uint32_t ROWS> using token_values = rp_delta_token<ROWS, BLOCK_COLS>;

/* Tokens that are prepared at once; twice as many are in shared memory. */
template <uint32_t ROWS> static __host__ __device__ constexpr uint32_t stage_tokens(bool decode) {
    return decode ? 1 : ROWS == 16 ? 8 : 16;
}

/* What a block works on. */
struct delta_work {
    rp_live_row row;
    uint32_t head, col; /* value head, and the block's first column of its S */
};

/* Columns [col, col + 4) at `at`, but those at or past `end`; VEC as in rp_delta_load4. */
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

/* Tokens [begin, begin + count) of the row, by one warp, RP_DELTA_TOKEN_LANES lanes for each. */
template <uint32_t ROWS, bool VEC>
static __device__ __forceinline__ void
prepare(const rp_gated_delta_cuda &args, const delta_work &work, const rp_delta_head &head,
        uint32_t begin, uint32_t count, token_values<ROWS> *tokens) {
    for (uint32_t base = 0; base < count; base += 32 / RP_DELTA_TOKEN_LANES) {
        uint32_t i = base + threadIdx.x % 32 / RP_DELTA_TOKEN_LANES;
        rp_delta_prepare<ROWS, BLOCK_COLS, VEC>(
            args, head, work.col, work.row.token_begin + begin + i, i < count, &tokens[i]);
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
    /* Also of a row that is finished, whose place may be anything. */
    __device__ __forceinline__ void load(const rp_gated_delta_cuda &args, const delta_work &work) {
        bool zero = rp_state_is_zero(args.rows.step, work.row);
        const float *from = at(args, work, zero ? 0 : work.row.state_from);
        uint32_t value_dim = args.delta.value_dim;
#pragma unroll
        for (uint32_t r = 0; r < ROWS; r++) {
            s[r] = make_float4(0, 0, 0, 0);
            if (!zero && row + r < args.delta.key_dim)
                s[r] = rp_delta_load4<VEC>(from + (size_t)r * value_dim, col, value_dim);
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

/* Tokens [begin, begin + count) of the row, which are prepared. */
template <uint32_t ROWS, bool VEC>
static __device__ __forceinline__ void
compute(const rp_gated_delta_cuda &args, const delta_work &work, uint32_t begin, uint32_t count,
        const token_values<ROWS> *tokens, lane_state<ROWS, VEC> *state) {
    uint32_t lane = threadIdx.x % 32, col = state->col + rp_delta_lane_column(lane);
    bool stores = rp_delta_lane_stores(lane) && col < args.delta.value_dim;
    size_t row = work.row.token_begin + begin;
    float *out = (float *)args.out.data + row * args.out.stride +
                 (size_t)work.head * args.delta.value_dim + col;
    for (uint32_t i = 0; i < count; i++, out += args.out.stride) {
        float o = rp_delta_advance<ROWS, BLOCK_COLS>(state->s, tokens[i]);
        if (stores)
            *out = o;
        if (begin + i + 1 == work.row.save_at)
            state->store(args, work, work.row.save_to);
    }
}

/* By the threads that compute. */
static __device__ __forceinline__ void store_zeros(const rp_gated_delta_cuda &args,
                                                   const delta_work &work) {
    uint32_t value_dim = args.delta.value_dim;
    for (uint32_t i = threadIdx.x; i < work.row.token_count * BLOCK_COLS; i += COMPUTE_WARPS * 32) {
        uint32_t col = work.col + i % BLOCK_COLS;
        size_t token = work.row.token_begin + i / BLOCK_COLS;
        if (col < value_dim)
            ((float *)
                 args.out.data)[token * args.out.stride + (size_t)work.head * value_dim + col] =
                0.0f;
    }
}

/* All rows of the block, by the warp that prepares, and by those that compute: while a stage is
 * computed, the next one is prepared in the other half of the shared memory. */
template <uint32_t ROWS, bool VEC>
static __device__ __forceinline__ void prepare_rows(const rp_gated_delta_cuda &args,
                                                    delta_work &work, const rp_delta_head &head,
                                                    token_values<ROWS> *shared) {
    const rp_step_view &step = args.rows.step;
    uint32_t stage = stage_tokens<ROWS>(args.decode);
    work.row = rp_state_row(step, blockIdx.y);
    uint32_t row_count = step.counts->row_count;
    for (uint32_t row = blockIdx.y; row < row_count;) {
        uint32_t half = 0, count = work.row.token_count;
        bool live = rp_token_is_live(step, work.row.token_begin);
        for (uint32_t begin = 0; live && begin < count; begin += stage, half ^= stage) {
            prepare<ROWS, VEC>(args, work, head, begin, min(stage, count - begin), shared + half);
            meet();
        }
        if (live)
            meet();
        row += gridDim.y;
        if (row < row_count)
            work.row = step.rows[row];
    }
}

/* The state of a row is on its way before it is known whether the row is live. */
template <uint32_t ROWS, bool VEC>
static __device__ __forceinline__ void compute_rows(const rp_gated_delta_cuda &args,
                                                    delta_work &work, token_values<ROWS> *shared) {
    const rp_step_view &step = args.rows.step;
    uint32_t stage = stage_tokens<ROWS>(args.decode), lane = threadIdx.x % 32;
    lane_state<ROWS, VEC> state;
    state.row = (lane >> 1) * ROWS;
    state.col = work.col + threadIdx.x / 32 * RP_DELTA_WARP_COLS + (lane & 1) * 4;
    work.row = rp_state_row(step, blockIdx.y);
    uint32_t row_count = step.counts->row_count;
    for (uint32_t row = blockIdx.y; row < row_count;) {
        bool live = rp_token_is_live(step, work.row.token_begin);
        uint32_t half = 0, count = work.row.token_count;
        state.load(args, work);
        if (!live)
            store_zeros(args, work);
        for (uint32_t begin = 0; live && begin < count; begin += stage, half ^= stage) {
            meet();
            compute<ROWS, VEC>(args, work, begin, min(stage, count - begin), shared + half, &state);
        }
        if (live) {
            meet();
            state.store(args, work, work.row.slot);
        }
        row += gridDim.y;
        if (row < row_count)
            work.row = step.rows[row];
    }
}

template <uint32_t ROWS, bool VEC>
static __global__ void __launch_bounds__(THREADS, ROWS <= 8 ? 4 : 2)
    gated_delta_kernel(rp_gated_delta_cuda args) {
    extern __shared__ __align__(16) unsigned char shared[];
    rp_stamp stamp(args.rows.stamp);
    uint32_t blocks = (args.delta.value_dim + BLOCK_COLS - 1) / BLOCK_COLS;
    delta_work work;
    work.head = blockIdx.x / blocks;
    work.col = blockIdx.x % blocks * BLOCK_COLS;
    rp_pdl_trigger();
    if (threadIdx.x / 32 == COMPUTE_WARPS) {
        const rp_delta_head head = rp_delta_head_of(args, work.head);
        stamp.wait();
        prepare_rows<ROWS, VEC>(args, work, head, (token_values<ROWS> *)shared);
    } else {
        stamp.wait();
        stamp.look();
        compute_rows<ROWS, VEC>(args, work, (token_values<ROWS> *)shared);
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
    uint32_t rows = (args.delta.key_dim + RP_DELTA_KEY_LANES - 1) / RP_DELTA_KEY_LANES;
    if (rp_gated_delta_streams(args))
        return rp_gated_delta_stream_run(args, stream);
    if (rows <= 2)
        return start<2>(args, stream);
    if (rows <= 4)
        return start<4>(args, stream);
    if (rows <= 8)
        return start<8>(args, stream);
    return start<16>(args, stream);
}
