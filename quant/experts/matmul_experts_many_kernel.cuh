/* matmul_experts_many_kernel.cuh - matmul_experts_kernel.cuh where experts have many rows: bf16,
 * FP8 and INT8 (W8A8). Units and operands are the same, and so is every bit.
 *
 *   a warpgroup   weights by boxes; rows by boxes too, where they lie in the order, else each from
 *                 where it lies by copies of 16 bytes, whose completion arrives at the stage's
 *                 barrier by itself
 *   warpgroups    two: 64 weight rows each; the second is some stages behind the first, so one
 *                 stores while the other multiplies
 *
 * A stage of 192 rows is multiplied in 768 cycles, in which 1,536 chunks of 16 bytes are to be
 * requested: a thread has the addresses of its rows in registers, and no copy waits for another.
 *
 * Outputs leave through shared memory, some rows at a time, in pieces of 16 bytes. */
#ifndef RP_QUANT_MATMUL_EXPERTS_MANY_KERNEL_CUH
#define RP_QUANT_MATMUL_EXPERTS_MANY_KERNEL_CUH

#include "quant/experts/matmul_experts_kernel.cuh"

namespace {

constexpr uint32_t MANY_THREADS = MULTIPLYING + 128;
constexpr uint32_t ROWS_AT_ONCE = 128 / 8;               /* that the copying threads copy */
constexpr int OWN_ROWS = RP_EXPERTS_MANY / ROWS_AT_ONCE; /* of a copying thread */
constexpr int LISTED = RP_EXPERTS_MANY / 128;            /* rows of a multiplying thread */
/* Rows that a warpgroup stores at a time, of 64 outputs; gated: of 32. */
template <bool GATED>
constexpr uint32_t pass_rows = RP_EXPERTS_STORE_BYTES / 2 / (GATED ? 64 : 128);

/* The units of a block; the entry of the next is loaded while one is computed. */
struct units {
    uint32_t at, end;
    uint4 entry;

    __device__ __forceinline__ explicit units(const rp_matmul_experts_args &args)
        : at(blockIdx.x), entry(walk::read(args, blockIdx.x / args.col_tiles)) {
        end = __ldcg(&args.tiles->count) * args.col_tiles;
    }
    /* The unit that comes; false at the end. */
    __device__ __forceinline__ bool peek(const rp_matmul_experts_args &args, unit &out) const {
        out = {entry.x, entry.y, entry.z, at % args.col_tiles * args.cols};
        return at < end;
    }
    __device__ __forceinline__ void advance(const rp_matmul_experts_args &args) {
        at += gridDim.x;
        if (at < end)
            entry = walk::read(args, at / args.col_tiles);
    }
};

/* --- copies ---------------------------------------------------------------------------------- */

/* Rows in the order: one thread copies all. Rows past the unit's last are other experts', or zeros
 * past the input's end. */
template <bool GATED>
__device__ __forceinline__ void copy_boxes(const rp_matmul_experts_args &args, ring r) {
    rp_pdl_wait();
    rp_pdl_trigger(); /* not before: matmul_cuda.h */
    units w(args);
    for (unit u; w.peek(args, u);) {
        w.advance(args);
        uint32_t row = weight_row<GATED>(args, u), boxes = RP_CEIL_DIV(u.count, RP_EXPERTS_BOX);
        uint32_t bytes = (args.cols + boxes * RP_EXPERTS_BOX) * BOX_BYTES;
        for (uint32_t k = 0; k < args.blocks; k++) {
            rp_barrier_wait(r.empty_barrier(), r.phase ^ 1);
            rp_barrier_expect(r.full_barrier(), bytes);
            copy_weight_box<GATED>(args, r.weights(args), k, row, r.full_barrier());
            for (uint32_t i = 0; i < boxes; i++)
                rp_copy_box(r.rows(args) + i * RP_EXPERTS_BOX * BOX_BYTES, &args.in_map,
                            k * RP_MATMUL_BLOCK, u.first + i * RP_EXPERTS_BOX, r.full_barrier(),
                            RP_L2_EVICT_NORMAL);
            r.next(args);
        }
    }
}

/* Where this thread's rows of a unit begin, in chunks: own, own + 16 ... */
__device__ __forceinline__ void find_rows(const rp_matmul_experts_args &args, const unit &u,
                                          uint32_t own, uint32_t (&from)[OWN_ROWS]) {
    uint32_t stride = (uint32_t)(args.in_stride / CHUNK);
#pragma unroll
    for (int n = 0; n < OWN_ROWS; n++) {
        uint32_t i = own + ROWS_AT_ONCE * n;
        from[n] = i < u.count ? input_row(args, u.first + i) : 0;
    }
#pragma unroll
    for (int n = 0; n < OWN_ROWS; n++)
        from[n] *= stride;
}

/* Rows from anywhere, by 128 threads; eight copy 128 bytes of a row. at: number of the thread. */
template <bool GATED>
__device__ __forceinline__ void gather(const rp_matmul_experts_args &args, ring r, uint32_t at) {
    const uint32_t chunk = at % 8, own = at / 8;
    const uint32_t place = own * BOX_BYTES + (chunk ^ own % 8) * CHUNK; /* as in copy_stage */
    rp_pdl_wait();
    rp_pdl_trigger(); /* not before: matmul_cuda.h */
    units w(args);
    for (unit u; w.peek(args, u);) {
        uint32_t row = weight_row<GATED>(args, u), from[OWN_ROWS];
        int left = (int)u.count - (int)own;
        w.advance(args);
        find_rows(args, u, own, from);
        for (uint32_t k = 0; k < args.blocks; k++) {
            rp_barrier_wait(r.empty_barrier(), r.phase ^ 1);
            if (at == 0) {
                rp_barrier_expect(r.full_barrier(), args.cols * BOX_BYTES);
                copy_weight_box<GATED>(args, r.weights(args), k, row, r.full_barrier());
            }
            uint32_t column = k * BOX_BYTES + chunk * CHUNK, to = r.rows(args) + place;
            bool there = column < args.row_bytes;
            const unsigned char *base = args.in + (there ? column : 0);
#pragma unroll
            for (int n = 0; n < OWN_ROWS; n++)
                if (left > n * (int)ROWS_AT_ONCE)
                    copy_chunk(to + n * ROWS_AT_ONCE * BOX_BYTES, base + (size_t)from[n] * CHUNK,
                               there);
            asm volatile(
                "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(r.full_barrier())
                : "memory");
            r.next(args);
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* --- multiplication -------------------------------------------------------------------------- */

/* All of K into sums of WIDTH rows, in rising order. ahead: stages until the second warpgroup may
 * begin. */
template <int WIDTH, rp_wgmma_type TYPE>
__device__ __forceinline__ void
multiply_many(const rp_matmul_experts_args &args, ring &r, uint32_t warpgroup, uint32_t &ahead,
              typename rp_wgmma_sum<TYPE>::type (&sums)[WIDTH / 2]) {
    uint32_t before = 0;
#pragma unroll
    for (int i = 0; i < WIDTH / 2; i++)
        sums[i] = 0;
#pragma unroll 1
    for (uint32_t k = 0; k < args.blocks; k++) {
        uint64_t a = rp_wgmma_operand(r.weights(args) + warpgroup * 64 * BOX_BYTES);
        uint64_t b = rp_wgmma_operand(r.rows(args));
        rp_barrier_wait(r.full_barrier(), r.phase);
        if (!args.in_order) /* chunks come as a thread's stores would */
            rp_shared_fence_async();
        rp_wgmma_fence();
#pragma unroll
        for (int i = 0; i < RP_MATMUL_BLOCK / 16; i++)
            rp_wgmma<WIDTH, TYPE>::run(sums, a + 2 * i, b + 2 * i, (k | i) != 0);
        rp_wgmma_commit();
        rp_wgmma_wait<1>();
        if (k > 0)
            free_stage(before);
        if (ahead > 0 && --ahead == 0)
            asm volatile("bar.arrive 3, 256;" ::: "memory");
        before = r.empty_barrier();
        r.next(args);
    }
    rp_wgmma_wait<0>();
    free_stage(before);
}

/* --- stores ---------------------------------------------------------------------------------- */

/* Where the outputs of a unit go, row by row, and the scales of its 8-bit rows. */
struct row_list {
    uint32_t out[RP_EXPERTS_MANY];
    float scales[RP_EXPERTS_MANY];
};

/* A multiplying thread's share of a list: rows thread, thread + 128. */
struct listed {
    uint32_t choices[LISTED];
    float scales[LISTED];

    __device__ __forceinline__ void load_choices(const rp_matmul_experts_args &args,
                                                 const unit &u) {
#pragma unroll
        for (int i = 0; i < LISTED; i++) {
            uint32_t at = threadIdx.x % 128 + 128 * i;
            choices[i] = at < u.count ? (uint32_t)__ldcg(args.choices + u.first + at) : 0;
        }
    }
    __device__ __forceinline__ void load_scales(const rp_matmul_experts_args &args, const unit &u) {
#pragma unroll
        for (int i = 0; i < LISTED; i++) {
            uint32_t at = threadIdx.x % 128 + 128 * i;
            uint32_t row = args.in_divisor ? choices[i] / args.in_divisor : u.first + at;
            scales[i] = at < u.count ? __ldcg(args.in_scales + row) : 0.0f;
        }
    }
    template <rp_wgmma_type TYPE>
    __device__ __forceinline__ void write(const rp_matmul_experts_args &args, const unit &u,
                                          row_list &list) const {
#pragma unroll
        for (int i = 0; i < LISTED; i++) {
            uint32_t at = threadIdx.x % 128 + 128 * i;
            list.out[at] = args.by_choice ? choices[i] : u.first + at;
            if (rp_wgmma_is_8<TYPE>)
                list.scales[at] = scales[i];
        }
    }
};

/* Four matrices (8, 8) of bf16, turned: lane l has the address of row l % 8 of the turned matrix
 * l / 8. */
__device__ __forceinline__ void store_turned(uint32_t to, const uint32_t (&m)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3])
                 : "memory");
}

__device__ __forceinline__ uint32_t pack(const float (&v)[2]) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(v[0], v[1]);
    return *(const uint32_t *)&pair;
}

/* Offset of 16 bytes of outputs in the area of a warpgroup: rows of 128 bytes, gated 64, such that
 * neither eight rows' chunk nor a row's chunks share a bank. */
template <bool GATED> __device__ __forceinline__ uint32_t area_at(uint32_t row, uint32_t chunk) {
    return GATED ? row * 64 + (chunk ^ row / 2 % 4) * 16 : row * 128 + (chunk ^ row % 8) * 16;
}

/* What a warp multiplies sums with and adds to them: of its weight rows lane / 4 (gates), + 8
 * (ups). */
struct row_values {
    float2 weight, bias;
};

/* This warp's outputs of the rows [first, first + pass_rows) of the unit, in the area of its
 * warpgroup. FN: of gated GEMMs. */
template <int WIDTH, bool GATED, rp_wgmma_type TYPE, rp_activation FN>
__device__ __forceinline__ void
lay_rows(const row_values &v, const row_list &list, uint32_t area, int first,
         const typename rp_wgmma_sum<TYPE>::type (&sums)[WIDTH / 2]) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    constexpr int EACH = GATED ? 1 : 2, STEP = 4 / EACH; /* matrices of 8 rows; of them at once */
#pragma unroll
    for (int j = first / 8; j < first / 8 + (int)pass_rows<GATED> / 8 && j < WIDTH / 8; j += STEP) {
        uint32_t m[4] = {};
#pragma unroll
        for (int s = 0; s < STEP && j + s < WIDTH / 8; s++) {
            float low[2], high[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int at = 4 * (j + s) + i;
                float row =
                    rp_wgmma_is_8<TYPE> ? list.scales[8 * (j + s) + lane % 4 * 2 + i] : 0.0f;
                low[i] = __fadd_rn(scaled<TYPE>(sums[at], row, v.weight.x), v.bias.x);
                high[i] = __fadd_rn(scaled<TYPE>(sums[at + 2], row, v.weight.y), v.bias.y);
                if (GATED)
                    low[i] = rp_gate(FN, low[i], high[i]);
            }
            m[s * EACH] = pack(low);
            if (!GATED)
                m[s * EACH + EACH - 1] = pack(high);
        }
        uint32_t row = 8 * j - first + (GATED ? lane : lane / 16 * 8 + lane % 8);
        store_turned(area + area_at<GATED>(row, GATED ? warp : warp * 2 + lane / 8 % 2), m);
    }
}

/* Rows [first, first + pass_rows) of the unit, from the area to where they go. */
template <bool GATED>
__device__ __forceinline__ void send_rows(const rp_matmul_experts_args &args, const unit &u,
                                          const row_list &list, uint32_t area, uint32_t warpgroup,
                                          uint32_t first) {
    constexpr uint32_t CHUNKS = GATED ? 4 : 8, ROWS = 128 / CHUNKS;
    const uint32_t chunk = threadIdx.x % CHUNKS, own = threadIdx.x % 128 / CHUNKS;
    const uint32_t shrink = GATED ? 2 : 1, col = warpgroup * 64 / shrink + chunk * 8;
    const uint32_t end = min(args.cols, args.each - u.col) / shrink;
    __nv_bfloat16 *to = (__nv_bfloat16 *)args.out + u.col / shrink + col;
#pragma unroll
    for (uint32_t n = 0; n < pass_rows<GATED> / ROWS; n++) {
        uint32_t row = own + n * ROWS;
        uint4 v;
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(area + area_at<GATED>(row, chunk))
                     : "memory");
        if (first + row >= u.count || col >= end)
            continue;
        __nv_bfloat16 *at = to + list.out[first + row] * args.out_stride;
        if (args.aligned) {
            *(uint4 *)at = v;
        } else {
            const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
                store_pair(at + 2 * i, args.paired, words[i]);
        }
    }
}

/* Stores the sums of a unit. area, list: this warpgroup's. */
template <int WIDTH, bool GATED, rp_wgmma_type TYPE>
__device__ __forceinline__ void
store_many(const rp_matmul_experts_args &args, const unit &u, const listed &own, row_list &list,
           uint32_t area, uint32_t warpgroup,
           const typename rp_wgmma_sum<TYPE>::type (&sums)[WIDTH / 2]) {
    uint32_t row = warpgroup * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    row_values v = {make_float2(0.0f, 0.0f), make_float2(-0.0f, -0.0f)}; /* adds nothing */
    if constexpr (rp_wgmma_is_8<TYPE>)
        v.weight = values_of_rows<GATED>(args, args.weight_scales, u, row);
    if (args.bias)
        v.bias = values_of_rows<GATED>(args, args.bias, u, row);
    rp_warpgroup_sync(warpgroup); /* the rows before are sent */
    own.write<TYPE>(args, u, list);
    if (rp_wgmma_is_8<TYPE>)
        rp_warpgroup_sync(warpgroup);
#pragma unroll
    for (int first = 0; first < WIDTH; first += pass_rows<GATED>) {
        if (first >= (int)u.count)
            break;
        if (first > 0)
            rp_warpgroup_sync(warpgroup);
#define LAY(fn) lay_rows<WIDTH, GATED, TYPE, fn>(v, list, area, first, sums)
        if (!GATED || args.fn == RP_ACTIVATION_SILU)
            LAY(RP_ACTIVATION_SILU);
        else if (args.fn == RP_ACTIVATION_SWIGLU_CLAMPED)
            LAY(RP_ACTIVATION_SWIGLU_CLAMPED);
        else
            LAY(RP_ACTIVATION_GELU_TANH);
#undef LAY
        rp_warpgroup_sync(warpgroup);
        send_rows<GATED>(args, u, list, area, warpgroup, (uint32_t)first);
    }
}

/* --- units ----------------------------------------------------------------------------------- */

/* What a multiplying warpgroup has. */
struct state {
    units w;
    ring r;
    listed own;
    uint32_t warpgroup, area, ahead;

    /* Rows of a unit that comes: their loads return under the work before it. */
    __device__ __forceinline__ bool look(const rp_matmul_experts_args &args, unit &out) {
        bool any = w.peek(args, out);
        if (any && (args.by_choice || (args.in_scales && args.in_divisor)))
            own.load_choices(args, out);
        return any;
    }
};

/* True where `later` is a unit. */
template <int WIDTH, bool GATED, rp_wgmma_type TYPE>
__device__ __forceinline__ bool run_unit_many(const rp_matmul_experts_args &args, state &s,
                                              row_list &list, const unit &u, unit &later) {
    typename rp_wgmma_sum<TYPE>::type sums[WIDTH / 2];
    multiply_many<WIDTH, TYPE>(args, s.r, s.warpgroup, s.ahead, sums);
    listed own = s.own;
    bool any = s.look(args, later);
    store_many<WIDTH, GATED, TYPE>(args, u, own, list, s.area, s.warpgroup, sums);
    return any;
}

template <bool GATED, rp_wgmma_type TYPE>
__device__ __forceinline__ bool run_any(const rp_matmul_experts_args &args, state &s,
                                        row_list &list, const unit &u, unit &later) {
#define RUN(width)                                                                                 \
    if (u.count <= width)                                                                          \
    return run_unit_many<width, GATED, TYPE>(args, s, list, u, later)
    RUN(32);
    RUN(64);
    RUN(96);
    RUN(128);
    RUN(144);
    RUN(160);
    RUN(176);
    RUN(192);
    RUN(256);
#undef RUN
    return false; /* no tile has more */
}

template <bool GATED, rp_wgmma_type TYPE>
__device__ __forceinline__ void run_all(const rp_matmul_experts_args &args, ring r, uint32_t area,
                                        row_list *lists, rp_stamp &stamp) {
    uint32_t warpgroup = rp_own_warpgroup();
    stamp.wait();
    stamp.look();
    if (warpgroup * 64 >= args.cols)
        return; /* the tile is the other warpgroup's alone */
    state s = {units(args), r, {}, warpgroup, area + warpgroup * RP_EXPERTS_STORE_BYTES / 2, 0};
    unit u, later;
    bool any = s.look(args, u);
    if (any && args.cols > 64)
        s.ahead = min(args.ahead, args.blocks);
    if (s.ahead > 0 && warpgroup > 0) {
        asm volatile("bar.sync 3, 256;" ::: "memory");
        s.ahead = 0;
    }
    while (any) {
        s.w.advance(args);
        if (rp_wgmma_is_8<TYPE>)
            s.own.load_scales(args, u);
        any = run_any<GATED, TYPE>(args, s, lists[warpgroup], u, later);
        u = later;
    }
}

template <bool GATED, rp_wgmma_type TYPE>
__global__ void __launch_bounds__(MANY_THREADS, 1)
    matmul_experts_many(const __grid_constant__ rp_matmul_experts_args args) {
#if RP_CUDA_HOPPER
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ row_list lists[2];
    rp_stamp stamp(args.stamp);
    ring r;
    r.data = (rp_shared_address(shared) + 1023) & ~1023u;
    r.full = rp_shared_address(shared) + args.shared_bytes - 16 * args.stages;
    r.empty = r.full + 8 * args.stages;
    r.stage = r.phase = 0;
    uint32_t area = r.data + args.stages * args.stage_bytes, own = threadIdx.x - MULTIPLYING;
    if (threadIdx.x == MULTIPLYING) {
        rp_map_prefetch(&args.weight_map);
        for (uint32_t i = 0; i < args.stages; i++) {
            rp_barrier_init(r.full + 8 * i, args.in_order ? 1 : 1 + 128);
            rp_barrier_init(r.empty + 8 * i, args.cols > 64 ? 8 : 4); /* warps */
        }
        rp_barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x < MULTIPLYING)
        run_all<GATED, TYPE>(args, r, area, lists, stamp);
    else if (!args.in_order)
        gather<GATED>(args, r, own);
    else if (own == 0)
        copy_boxes<GATED>(args, r);
#else
    (void)args;
    __trap(); /* never planned */
#endif
}

template <rp_wgmma_type TYPE>
rp_matmul_experts_kernel kernel_of(const rp_matmul_experts_args &args) {
    return args.many
               ? args.gated ? matmul_experts_many<true, TYPE> : matmul_experts_many<false, TYPE>
           : args.gated ? matmul_experts<true, TYPE>
                        : matmul_experts<false, TYPE>;
}

} // namespace

/* 8-bit GEMMs; NULL: not compiled. */
extern "C" rp_matmul_experts_kernel
rp_matmul_experts_8_find(const struct rp_matmul_experts_args *args);

#endif
