/* CONV on CUDA. The tokens of a row are cut into segments of SEGMENT tokens, and a thread computes
 * four columns of one segment; it reads again the few tokens before the segment. A row's first
 * segment alone reads and writes its state: it also stores what the row leaves, which it computes
 * from the row's last inputs.
 *
 * Rows of one token have a kernel of their own, which has nothing to find: all that it reads is on
 * its way at once. */
#include "device/recurrent.cuh"

#define THREADS 128u
#define SEGMENT 8u
#define FLIGHT  4u /* tokens of a segment whose inputs are loaded at once */
static_assert(SEGMENT >= RP_CONV_WIDTH_MAX - 1, "only first segments reach before their row");

/* A segment of a row, and this thread's columns. */
struct segment {
    rp_live_row row;
    uint32_t first; /* token of the row */
    uint32_t col;
};

/* Segment `index` of the step: row r has the indexes from r + (its first token / SEGMENT) on, so
 * many that rows do not overlap. False: no segment has the index. All threads of the block call
 * it. */
static __device__ bool find_segment(const rp_conv_cuda &args, uint32_t index, segment *out) {
    const rp_step_view &step = args.rows.step;
    uint32_t row_count = step.counts->row_count, row = 0;
    for (uint32_t base = 0; base < row_count; base += THREADS) {
        uint32_t r = base + threadIdx.x;
        row += (uint32_t)__syncthreads_count(r < row_count &&
                                             r + step.rows[r].token_begin / SEGMENT <= index);
    }
    row--; /* row 0 begins at index 0; without rows it wraps */
    if (row >= row_count)
        return false;
    out->row = step.rows[row];
    out->first = (index - row - out->row.token_begin / SEGMENT) * SEGMENT;
    return out->first < out->row.token_count;
}

static __device__ __forceinline__ float4 multiply(float4 a, float4 b) {
    return make_float4(__fmul_rn(a.x, b.x), __fmul_rn(a.y, b.y), __fmul_rn(a.z, b.z),
                       __fmul_rn(a.w, b.w));
}

static __device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.0f + expf(-x)); }

/* A column's values lie one after the other in `of`, WIDTH values each. */
template <uint32_t WIDTH> struct taps {
    float of[4 * WIDTH];

    template <bool VEC>
    __device__ __forceinline__ void load(const rp_conv_cuda &args, uint32_t col) {
#pragma unroll
        for (uint32_t i = 0; i < WIDTH; i++) {
            uint32_t at = col * WIDTH + 4 * i;
            float4 four = rp_load4<VEC>(args.weight, RP_DTYPE_F32, at, at, args.cols * WIDTH);
            of[4 * i] = four.x;
            of[4 * i + 1] = four.y;
            of[4 * i + 2] = four.z;
            of[4 * i + 3] = four.w;
        }
    }
    /* sum + tap j of each column * x */
    __device__ __forceinline__ float4 add(float4 sum, uint32_t j, float4 x) const {
        return make_float4(__fmaf_rn(of[j], x.x, sum.x), __fmaf_rn(of[WIDTH + j], x.y, sum.y),
                           __fmaf_rn(of[2 * WIDTH + j], x.z, sum.z),
                           __fmaf_rn(of[3 * WIDTH + j], x.w, sum.w));
    }
};

/* x of token `token` of the row. */
template <bool VEC>
static __device__ __forceinline__ float4 input(const rp_conv_cuda &args, const segment &at,
                                               uint32_t token) {
    size_t row = at.row.token_begin + token;
    float4 x = rp_load4<VEC>(args.in, row, at.col, args.cols);
    return args.conv.gated ? multiply(x, rp_load4<VEC>(args.gate_in, row, at.col, args.cols)) : x;
}

static __device__ __forceinline__ float *state_of(const rp_conv_cuda &args, uint32_t place) {
    const rp_step_view &step = args.rows.step;
    return (float *)(step.state + place * step.config.state_stride + args.conv.state_offset);
}

/* The values before the segment's first token. Also of a row that is finished, whose place may be
 * anything. */
template <uint32_t WIDTH, bool VEC>
static __device__ __forceinline__ void load_window(const rp_conv_cuda &args, const segment &at,
                                                   float4 *window) {
    bool zero = rp_state_is_zero(args.rows.step, at.row);
    const float *state = state_of(args, zero ? 0 : at.row.state_from);
#pragma unroll
    for (uint32_t j = 0; j < WIDTH - 1; j++) {
        window[j] = make_float4(0, 0, 0, 0);
        if (at.first)
            window[j] = input<VEC>(args, at, at.first + j - (WIDTH - 1));
        else if (!zero)
            window[j] = rp_load4<VEC>(state, RP_DTYPE_F32, (size_t)j * args.cols + at.col, at.col,
                                      args.cols);
    }
}

/* Stores the state after the row's first `count` tokens; before: the state before them. */
template <uint32_t WIDTH, bool VEC>
static __device__ __forceinline__ void store_state(const rp_conv_cuda &args, const segment &at,
                                                   uint32_t place, uint32_t count,
                                                   const float4 *before) {
    float *state = state_of(args, place);
#pragma unroll
    for (uint32_t j = 0; j < WIDTH - 1; j++) {
        float4 value = before[0];
        if (count + j >= WIDTH - 1)
            value = input<VEC>(args, at, count + j - (WIDTH - 1));
        else
#pragma unroll
            for (uint32_t i = 1; i < WIDTH - 1; i++)
                if (i == count + j)
                    value = before[i];
        rp_store4<VEC>(state, RP_DTYPE_F32, (size_t)j * args.cols + at.col, at.col, args.cols,
                       value);
    }
}

template <uint32_t WIDTH, bool VEC>
static __device__ __forceinline__ void store_window(const rp_conv_cuda &args, const segment &at,
                                                    uint32_t place, const float4 *window) {
    float *state = state_of(args, place);
#pragma unroll
    for (uint32_t j = 0; j < WIDTH - 1; j++)
        rp_store4<VEC>(state, RP_DTYPE_F32, (size_t)j * args.cols + at.col, at.col, args.cols,
                       window[j]);
}

/* The output before its gate: x comes after the window, whose oldest value it replaces. */
template <uint32_t WIDTH>
static __device__ __forceinline__ float4 advance(const rp_conv_cuda &args,
                                                 const taps<WIDTH> &weight, float4 *window,
                                                 float4 x) {
    float4 y = make_float4(0, 0, 0, 0);
#pragma unroll
    for (uint32_t j = 0; j < WIDTH - 1; j++)
        y = weight.add(y, j, window[j]);
    y = weight.add(y, WIDTH - 1, x);
#pragma unroll
    for (uint32_t j = 1; j < WIDTH - 1; j++)
        window[j - 1] = window[j];
    window[WIDTH - 2] = x;
    return args.conv.silu ? make_float4(silu(y.x), silu(y.y), silu(y.z), silu(y.w)) : y;
}

template <uint32_t WIDTH, bool VEC>
static __device__ __forceinline__ void compute(const rp_conv_cuda &args, const segment &at,
                                               const taps<WIDTH> &weight, float4 *window) {
    uint32_t count = min(at.row.token_count - at.first, SEGMENT), cols = args.cols;
    for (uint32_t base = 0; base < count; base += FLIGHT) {
        float4 x[FLIGHT], gate[FLIGHT];
#pragma unroll
        for (uint32_t i = 0; i < FLIGHT; i++) {
            uint32_t token = at.first + base + i;
            if (base + i >= count)
                continue;
            x[i] = input<VEC>(args, at, token);
            if (args.conv.gated)
                gate[i] = rp_load4<VEC>(args.gate_out, at.row.token_begin + token, at.col, cols);
        }
#pragma unroll
        for (uint32_t i = 0; i < FLIGHT; i++) {
            if (base + i >= count)
                continue;
            float4 y = advance<WIDTH>(args, weight, window, x[i]);
            if (args.conv.gated)
                y = multiply(y, gate[i]);
            rp_store4<VEC>(args.out, at.row.token_begin + at.first + base + i, at.col, cols, y);
        }
    }
}

template <bool VEC>
static __device__ __forceinline__ void store_zeros(const rp_conv_cuda &args, const segment &at) {
    uint32_t end = min(at.first + SEGMENT, at.row.token_count);
    for (uint32_t token = at.first; token < end; token++)
        rp_store4<VEC>(args.out, at.row.token_begin + token, at.col, args.cols,
                       make_float4(0, 0, 0, 0));
}

template <uint32_t WIDTH, bool VEC>
static __global__ void __launch_bounds__(THREADS) conv_kernel(rp_conv_cuda args) {
    rp_stamp stamp(args.rows.stamp);
    segment at;
    taps<WIDTH> weight;
    float4 before[WIDTH - 1], window[WIDTH - 1];
    at.col = (blockIdx.x * THREADS + threadIdx.x) * 4;
    rp_pdl_trigger();
    weight.template load<VEC>(args, min(at.col, args.cols)); /* constants */
    stamp.wait();
    stamp.look();
    if (!find_segment(args, blockIdx.y, &at) || at.col >= args.cols)
        return;
    if (!rp_token_is_live(args.rows.step, at.row.token_begin)) {
        store_zeros<VEC>(args, at);
        return;
    }
    load_window<WIDTH, VEC>(args, at, window);
#pragma unroll
    for (uint32_t j = 0; j < WIDTH - 1; j++)
        before[j] = window[j];
    compute<WIDTH, VEC>(args, at, weight, window);
    if (at.first)
        return;
    if (at.row.save_at)
        store_state<WIDTH, VEC>(args, at, at.row.save_to, at.row.save_at, before);
    store_state<WIDTH, VEC>(args, at, at.row.slot, at.row.token_count, before);
}

template <uint32_t WIDTH, bool VEC>
static __global__ void __launch_bounds__(THREADS) conv_decode_kernel(rp_conv_cuda args) {
    rp_stamp stamp(args.rows.stamp);
    const rp_step_view &step = args.rows.step;
    segment at = {};
    taps<WIDTH> weight;
    float4 window[WIDTH - 1], gate = make_float4(0, 0, 0, 0);
    at.col = (blockIdx.x * THREADS + threadIdx.x) * 4;
    rp_pdl_trigger();
    weight.template load<VEC>(args, min(at.col, args.cols)); /* constants */
    stamp.wait();
    stamp.look();
    at.row = rp_state_row(step, blockIdx.y);
    if (blockIdx.y >= step.counts->row_count || at.col >= args.cols)
        return;
    bool live = rp_token_is_live(step, at.row.token_begin);
    load_window<WIDTH, VEC>(args, at, window);
    float4 x = input<VEC>(args, at, 0);
    if (args.conv.gated)
        gate = rp_load4<VEC>(args.gate_out, at.row.token_begin, at.col, args.cols);
    if (!live) {
        store_zeros<VEC>(args, at);
        return;
    }
    float4 y = advance<WIDTH>(args, weight, window, x);
    rp_store4<VEC>(args.out, at.row.token_begin, at.col, args.cols,
                   args.conv.gated ? multiply(y, gate) : y);
    store_window<WIDTH, VEC>(args, at, at.row.slot, window);
    if (at.row.save_at)
        store_window<WIDTH, VEC>(args, at, at.row.save_to, window);
}

template <uint32_t WIDTH>
static int start(const rp_conv_cuda &args, dim3 grid, bool vector, cudaStream_t stream) {
    auto kernel = vector ? conv_kernel<WIDTH, true> : conv_kernel<WIDTH, false>;
    if (args.decode)
        kernel = vector ? conv_decode_kernel<WIDTH, true> : conv_decode_kernel<WIDTH, false>;
    return rp_cuda_start(kernel, grid, dim3(THREADS), 0, stream, !args.rows.plain_edges, args);
}

int rp_conv_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_conv_cuda &args = *(const rp_conv_cuda *)args_void;
    bool vector = args.cols % 4 == 0 && ((uintptr_t)args.weight & 15u) == 0 &&
                  rp_vector_ok(args.in) && rp_vector_ok(args.out) &&
                  (!args.conv.gated || (rp_vector_ok(args.gate_in) && rp_vector_ok(args.gate_out)));
    dim3 grid((args.cols + THREADS * 4 - 1) / (THREADS * 4), args.max_seq_rows);
    if (!args.decode)
        grid.y += args.rows.max_rows / SEGMENT;
    switch (args.conv.width) {
    case 2:
        return start<2>(args, grid, vector, stream);
    case 3:
        return start<3>(args, grid, vector, stream);
    case 4:
        return start<4>(args, grid, vector, stream);
    case 5:
        return start<5>(args, grid, vector, stream);
    case 6:
        return start<6>(args, grid, vector, stream);
    case 7:
        return start<7>(args, grid, vector, stream);
    default:
        return start<8>(args, grid, vector, stream);
    }
}
static_assert(RP_CONV_WIDTH_MAX == 8, "the last width of the switch");
