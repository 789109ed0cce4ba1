/* matmul_wide_store.cuh - the kernel of matmul_wide_kernel.cuh: its shapes, and how a tile's totals
 * get out, slice by slice, through boxes in shared memory. */
#ifndef RP_QUANT_MATMUL_WIDE_STORE_CUH
#define RP_QUANT_MATMUL_WIDE_STORE_CUH

#include "device/cuda_kernel.cuh"
#include "device/ops_math.cuh"
#include "quant/matmul_pipeline.cuh"
#include "quant/matmul_scales.cuh"
#include "quant/matmul_wgmma.cuh"
#include "quant/wide/matmul_wide_cuda.h"

namespace {

#define BLOCK       64   /* columns of K in a stage, in pairs of bytes (rp_matmul_cuda_units) */
#define COPYING     256u /* the first thread that copies */
#define SCALING     288u /* the first thread that brings scales */
#define THREADS     384u
#define GROUP_TILES 16 /* token tiles that are walked together */

/* When the totals of a tile are stored. */
enum store_mode {
    STORE_UNDER, /* during the next tile's multiplication */
    STORE_AFTER, /* before the next tile */
    STORE_SUMS   /* the same; K is one segment, so the sums are the totals */
};

template <int COLS_, int HELD_, int STAGES_, rp_wgmma_type TYPE_, store_mode MODE_ = STORE_UNDER>
struct shape {
    static constexpr int COLS = COLS_; /* outputs of a tile */
    static constexpr int STAGES = STAGES_;
    static constexpr rp_wgmma_type TYPE = TYPE_;
    static constexpr store_mode MODE = MODE_;
    static constexpr bool SCALED = rp_wgmma_is_8<TYPE>;
    static constexpr uint32_t CLUSTER = RP_WIDE_CLUSTER(COLS);
    /* Blocks of K that the first warpgroup begins before the second one: while one adds up, the
     * other has the tensor cores. */
    static constexpr uint32_t AHEAD = SCALED && MODE == STORE_UNDER ? STAGES / 2 : 0;
    using Sum = typename rp_wgmma_sum<TYPE>::type;
    static constexpr int SUMS = COLS / 2;
    static constexpr int HELD =
        HELD_ < SUMS && MODE != STORE_SUMS ? HELD_ : SUMS; /* in registers */
    static constexpr int LAID = SUMS - HELD;               /* totals in shared memory */
    static constexpr uint32_t TOKEN_BYTES = RP_WIDE_TOKENS * 128, WEIGHT_BYTES = COLS * 128;
    static constexpr uint32_t STAGE_BYTES = TOKEN_BYTES + WEIGHT_BYTES;
    /* of a warpgroup: laid totals, then boxes of 64 rows x 128 bytes on their way out */
    static constexpr uint32_t BOXES = LAID > 32 ? LAID / 16 : 2, AREA_BYTES = BOXES * 8192;
    /* A tile's scales, of 128 tokens and of its outputs, and their barriers. */
    static constexpr uint32_t SCALE_BYTES = SCALED ? (RP_WIDE_TOKENS + COLS) * 4 + 16 : 0;
    static constexpr uint32_t SHARED_BYTES =
        1024 + STAGES * STAGE_BYTES + 2 * AREA_BYTES + 16 * STAGES + SCALE_BYTES;
    static_assert(SHARED_BYTES <= 227 * 1024, "what a block can have");
};

/* Where a warpgroup keeps totals, and later boxes on their way out. */
struct place {
    uint32_t thread, warpgroup;
    uint32_t area; /* shared */
    uint32_t ring; /* its half of the stages, when all tiles are through */
    bool leader;
};

__device__ __forceinline__ void area_free(const place &p) {
    if (p.leader)
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    rp_warpgroup_sync(p.warpgroup);
}
__device__ __forceinline__ float4 load_shared(uint32_t at) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}
__device__ __forceinline__ void store_shared(uint32_t at, float4 v) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(v.x), "f"(v.y), "f"(v.z),
                 "f"(v.w)
                 : "memory");
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
    __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    return *(uint32_t *)&v;
}

/* bias[OFFSET] where OFFSET < left, else 0; volatile, so that one box's loads do not move before
 * another's. */
template <int OFFSET> __device__ __forceinline__ float load_bias(const float *bias, uint32_t left) {
    float v;
    asm volatile(
        "{ .reg .pred p; setp.gt.u32 p, %2, %3; mov.b32 %0, 0; @p ld.global.nc.f32 %0, [%1 + %4]; }"
        : "=&f"(v)
        : "l"(bias), "r"(left), "n"(OFFSET), "n"(OFFSET * 4));
    return v;
}

template <int SUMS, int J = 0>
__device__ __forceinline__ void add_bias(const float *bias, uint32_t left, float (&v)[SUMS]) {
    if constexpr (J < SUMS / 4) {
        float low = load_bias<J * 8>(bias, left), high = load_bias<J * 8 + 1>(bias, left);
        v[J * 4] += low;
        v[J * 4 + 1] += high;
        v[J * 4 + 2] += low;
        v[J * 4 + 3] += high;
        add_bias<SUMS, J + 1>(bias, left, v);
    }
}

__device__ __forceinline__ void bulk_store(const rp_matmul_wide_args &args, uint32_t from,
                                           uint32_t x, uint32_t y) {
    if (args.accumulate)
        asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, "
                     "{%1, %2}], [%3];" ::"l"(&args.out_map),
                     "r"(x), "r"(y), "r"(from)
                     : "memory");
    else
        asm volatile(
            "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
                &args.out_map),
            "r"(x), "r"(y), "r"(from)
            : "memory");
    if (args.copy_number)
        asm volatile(
            "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
                &args.copy_maps[*args.copy_number % 2]),
            "r"(x), "r"(y), "r"(from)
            : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Where a box of 64 rows of BYTES has these 16 bytes: swizzled as its tensor map says. */
template <uint32_t BYTES> __device__ __forceinline__ uint32_t box_at(uint32_t row, uint32_t chunk) {
    constexpr uint32_t TURN = BYTES / 16 - 1;
    return row * BYTES + ((chunk ^ (row / (128 / BYTES) & TURN)) * 16);
}

/* 16-byte chunks from `chunk` on of a box of 64 rows of BYTES. */
template <uint32_t BYTES, int SUMS>
__device__ __forceinline__ void stage_bf16(uint32_t to, uint32_t thread, uint32_t chunk,
                                           const float (&v)[SUMS]) {
    uint32_t row = thread / 32 * 16 + thread % 16;
    chunk += thread % 32 / 16;
#pragma unroll
    for (int i = 0; i < SUMS; i += 8)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         to + box_at<BYTES>(row, chunk + i / 4)),
                     "r"(pack(v[i], v[i + 1])), "r"(pack(v[i + 2], v[i + 3])),
                     "r"(pack(v[i + 4], v[i + 5])), "r"(pack(v[i + 6], v[i + 7]))
                     : "memory");
}
__device__ __forceinline__ void stage_f32(uint32_t to, uint32_t thread, const float (&v)[16]) {
    uint32_t row = thread / 32 * 16 + thread % 32 / 4, turn = row % 8;
    uint32_t base = to + row * 128 + thread % 2 * 8;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t at = base + ((j * 2 + thread % 4 / 2) ^ turn) * 16;
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(v[j * 4]), "f"(v[j * 4 + 1])
                     : "memory");
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at + 1024), "f"(v[j * 4 + 2]),
                     "f"(v[j * 4 + 3])
                     : "memory");
    }
}

/* Epilogue without bulk copies: rows past the live ones, odd strides, adding to what is there. */
template <uint32_t BYTES, bool BF16>
__device__ __forceinline__ void store_box(const rp_matmul_wide_args &args, uint32_t from,
                                          uint32_t thread, uint32_t col, uint32_t token,
                                          uint32_t live) {
    constexpr uint32_t COLS = BYTES / (BF16 ? 2 : 4);
    uint32_t rows = min(live - token, 64u);
#pragma unroll 4
    for (uint32_t i = thread; i < 64 * COLS; i += 128) {
        uint32_t row = i / COLS, c = i % COLS, byte = c * (BF16 ? 2 : 4);
        uint32_t at = from + box_at<BYTES>(row, byte / 16) + byte % 16;
        if (row >= rows || col + c >= args.out_cols)
            continue;
        size_t to = (size_t)(token + row) * args.out_stride + col + c;
        if (BF16) {
            uint16_t v;
            asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at) : "memory");
            ((uint16_t *)args.out)[to] = v;
            if (args.copy_number)
                args.copies[*args.copy_number % 2]
                           [(size_t)(token + row) * args.out_cols + col + c] = v;
        } else {
            float v;
            asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
            float *out = (float *)args.out + to;
            *out = args.accumulate ? *out + v : v;
        }
    }
}

/* 8 gates, 8 ups -> 8 outputs. */
template <rp_activation FN>
__device__ __forceinline__ void activate(const float (&v)[16], float (&out)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int gate = i / 4 * 8 + i % 4;
        out[i] = rp_activate(FN, v[gate]) * v[gate + 4];
    }
}

/* A tile whose totals wait to be stored; token, col: of the warpgroup's first output. */
struct pending {
    uint32_t token, col;
    bool bulk;
};

/* The TURN-th slice, 16 sums of a thread, on its way out: what lies in shared memory first, it
 * makes room. */
template <typename Shape, bool GATED, bool BF16, bool DRAIN, int TURN>
__device__ __forceinline__ void store_slice(const rp_matmul_wide_args &args, const place &p,
                                            const pending &t, uint32_t live,
                                            const float (&held)[Shape::HELD]) {
    constexpr int LAID_SLICES = Shape::LAID / 16, SLICES = Shape::SUMS / 16;
    constexpr int AT = (TURN + SLICES - LAID_SLICES) % SLICES; /* in the tile */
    constexpr int OUT = GATED ? 8 : 16;
    constexpr uint32_t ROW_BYTES = SLICES * OUT * (BF16 ? 4 : 8);
    constexpr uint32_t BYTES = ROW_BYTES % 128 == 0 && !GATED ? 128 : ROW_BYTES % 64 == 0 ? 64 : 32;
    constexpr uint32_t SLICE_BYTES = OUT * (BF16 ? 4 : 8); /* of a row */
    constexpr uint32_t PARTS = BYTES / SLICE_BYTES;        /* slices of a box */
    constexpr uint32_t BOX = AT / PARTS, PART = AT % PARTS;
    constexpr uint32_t TURN_BOX = TURN / PARTS; /* boxes so far */
    constexpr uint32_t BOX_BYTES = Shape::MODE == STORE_UNDER ? 8192 : 64 * BYTES;
    constexpr uint32_t BOXES = Shape::AREA_BYTES / BOX_BYTES;
    static_assert(LAID_SLICES % PARTS == 0 && (LAID_SLICES == 0 || Shape::HELD % 16 == 0),
                  "boxes are of one kind");
    uint32_t to = DRAIN ? p.ring + TURN_BOX * 8192 : p.area + TURN_BOX % BOXES * BOX_BYTES;
    uint32_t col = t.col + BOX * (BYTES / (BF16 ? 2 : 4));
    float v[16];
    if (AT * 16 >= Shape::HELD) {
#pragma unroll
        for (int i = 0; i < 16; i += 4) {
            float4 x = load_shared(p.area + p.thread * 16 + (AT * 16 - Shape::HELD + i) * 512);
            v[i] = x.x;
            v[i + 1] = x.y;
            v[i + 2] = x.z;
            v[i + 3] = x.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < 16; i++)
            v[i] = held[AT * 16 + i];
    }
    if (!GATED && args.bias) {
        uint32_t c = t.col + AT * 32 + p.thread % 4 * 2;
        add_bias(args.bias + c, args.out_cols - min(args.out_cols, c), v);
    }
    if (PART == 0 && !DRAIN) { /* the box is free: others have read it, or it was sent */
        if (TURN_BOX >= BOXES && p.leader)
            asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(BOXES - 1) : "memory");
        else if (TURN == 0 && Shape::LAID == 0 && p.leader) /* else keep has waited */
            asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        rp_warpgroup_sync(p.warpgroup);
    }
    if constexpr (GATED) {
        float w[8];
        if (args.fn == RP_ACTIVATION_SILU)
            activate<RP_ACTIVATION_SILU>(v, w);
        else
            activate<RP_ACTIVATION_GELU_TANH>(v, w);
        stage_bf16<BYTES>(to, p.thread, PART * 2, w);
    } else if constexpr (BF16) {
        stage_bf16<BYTES>(to, p.thread, PART * 4, v);
    } else {
        stage_f32(to, p.thread, v);
    }
    if (PART == PARTS - 1) {
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        rp_warpgroup_sync(p.warpgroup);
        if (!t.bulk)
            store_box<BYTES, BF16>(args, to, p.thread, col, t.token, live);
        else if (p.leader)
            bulk_store(args, to, col, t.token);
    }
}

/* The registers of a slice are known to the compiler alone. */
template <typename Shape, bool GATED, bool BF16, bool DRAIN, int TURN = 0>
__device__ __forceinline__ void store_turn(uint32_t turn, const rp_matmul_wide_args &args,
                                           const place &p, const pending &t, uint32_t live,
                                           const float (&held)[Shape::HELD]) {
    if constexpr (TURN < Shape::SUMS / 16) {
        if (turn == TURN)
            store_slice<Shape, GATED, BF16, DRAIN, TURN>(args, p, t, live, held);
        else
            store_turn<Shape, GATED, BF16, DRAIN, TURN + 1>(turn, args, p, t, live, held);
    }
}

/* All slices, one after the other. */
template <typename Shape, bool GATED, bool BF16, int TURN = 0>
__device__ __forceinline__ void store_tile(const rp_matmul_wide_args &args, const place &p,
                                           const pending &t, uint32_t live,
                                           const float (&held)[Shape::HELD]) {
    if constexpr (TURN < Shape::SUMS / 16) {
        store_slice<Shape, GATED, BF16, false, TURN>(args, p, t, live, held);
        store_tile<Shape, GATED, BF16, TURN + 1>(args, p, t, live, held);
    }
}

} // namespace

#endif
