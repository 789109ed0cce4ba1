/* attention_latent_tile.cuh - attention over pages of latents: what a block computes for its rows
 * over a run of keys. All rows, each a (token, head), read the same keys, and so each of them once
 * from memory. */
#ifndef RP_ATTENTION_ATTENTION_LATENT_TILE_CUH
#define RP_ATTENTION_ATTENTION_LATENT_TILE_CUH

#include "attention/attention_quantized_cuda.cuh"
#include "attention/attention_tile_cuda.cuh"

namespace {

constexpr uint32_t WARPS = 8, THREADS = WARPS * 32;
constexpr uint32_t DIM = 576, VALUE = 512;        /* columns of a latent, as K and as V */
constexpr uint32_t KEYS = 32;                     /* of a tile, at absolute multiples of it */
constexpr uint32_t PARTS = 4, PART = DIM / PARTS; /* of K, whose scores are added in order */
constexpr uint32_t COLUMNS = VALUE / WARPS;       /* of the output, of a warp */
constexpr uint32_t CHUNKS = DIM / 64; /* of eight columns, that a thread copies of its key */
/* Rows in shared memory begin in different banks. */
constexpr uint32_t ROW = DIM + 8, SCORE_ROW = KEYS + 8, WEIGHT_ROW = KEYS + 8;

template <int MT> struct latent_shared {
    static constexpr uint32_t STAGES = MT == 2 ? 3 : 2;
    __nv_bfloat16 q[MT * 16][ROW];
    __nv_bfloat16 keys[STAGES][KEYS][ROW];
    __nv_bfloat16 weights[MT * 16][WEIGHT_ROW];
    float scores[PARTS][MT * 16][SCORE_ROW];
    float key_scales[STAGES][KEYS]; /* 8-bit pages */
    float rescale[MT * 16];         /* of the sums so far, before a tile's values are added */
    float max[MT * 16], total[MT * 16];
    uint32_t position[MT * 16]; /* of the rows' tokens */
    bool is_last;
};

struct latent_args {
    const unsigned char *kv; /* the layer's runs of page 0 */
    size_t page_stride;
    const uint32_t *tables; /* the layer's page table of slot 0 */
    uint32_t slot_words, page_log2, scales_at;
    const rp_attention_plan_head *plan;
    const rp_attention_plan_row *rows;
    const rp_attention_plan_tile *tiles;
    uint32_t row_capacity; /* of rows */
    const float *q;
    void *out;
    const float *sinks;
    size_t q_stride, out_stride;
    rp_dtype out_dtype;
    uint32_t *arrivals; /* (rows, groups) finished splits of a decode row; zero between kernels */
    float *partials;    /* (blocks, SLOTS, partial) */
    uint32_t heads, group, groups; /* group: heads of a block */
    uint32_t window;
    float scale, cap_in, cap_out; /* with log2 e; cap_out 0: no cap */
    bool q_aligned, out_aligned;
    bool early; /* decode: all but q and the step's own keys may be read before the wait */
    rp_cuda_stamp stamp;
};

/* What a block computes at a time. Row r of its tile is token r / group, head head + r % group. */
struct latent_work {
    const uint32_t *pages;
    uint32_t token, tokens, position; /* of the first token */
    uint32_t head;
    uint32_t key_begin, key_end; /* keys that are read */
    uint32_t split_mask;         /* a split ends where these bits of the next key are zero */
};

/* Sums over keys. A lane has rows m * 16 + half * 8 + lane / 4, and of them the columns warp *
 * COLUMNS + n * 8 + lane % 4 * 2 and the next one: out[m][n][half * 2], [half * 2 + 1]. */
template <int MT> struct latent_sums {
    float max[MT][2], total[MT][2], out[MT][COLUMNS / 8][4];

    __device__ __forceinline__ void clear_out() {
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < COLUMNS / 8; n++)
                out[m][n][0] = out[m][n][1] = out[m][n][2] = out[m][n][3] = 0.0f;
    }
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int m = 0; m < MT; m++) {
            max[m][0] = max[m][1] = -INFINITY;
            total[m][0] = total[m][1] = 0.0f;
        }
        clear_out();
    }
    /* The sums of later keys are added. */
    __device__ __forceinline__ void fold(const latent_sums &next) {
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float top = fmaxf(max[m][half], next.max[m][half]);
                const float offset = top == -INFINITY ? 0.0f : top;
                const float a = exp2_fast(max[m][half] - offset);
                const float b = exp2_fast(next.max[m][half] - offset);
                max[m][half] = top;
                total[m][half] = __fmaf_rn(next.total[m][half], b, __fmul_rn(total[m][half], a));
#pragma unroll
                for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
                    for (int i = half * 2; i < half * 2 + 2; i++)
                        out[m][n][i] = __fmaf_rn(next.out[m][n][i], b, __fmul_rn(out[m][n][i], a));
            }
    }
};

/* -- instructions ------------------------------------------------------ */

__device__ __forceinline__ uint32_t shared_address(const void *at) {
    return (uint32_t)__cvta_generic_to_shared(at);
}
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}
__device__ __forceinline__ void load_transposed(uint32_t (&to)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* 16 bytes, or zeros: then `from` is not read. */
__device__ __forceinline__ void copy_or_clear(uint32_t to, const void *from, bool is_read) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(is_read ? 16 : 0)
                 : "memory");
}

/* -- from pages to shared memory --------------------------------------- */

/* A thread copies chunks threadIdx.x % 8 + 8 i of the tile's key threadIdx.x / 8. Keys outside of
 * the work are zeros, and neither they nor their places in the page table are read. bf16: copied
 * asynchronously, STAGES - 1 tiles ahead; 8 bits: read one tile ahead, converted when stored. */
template <int MT, rp_dtype Page> struct latent_stream {
    static constexpr bool QUANTIZED = page_of<Page>::is_quantized;
    static constexpr uint32_t STAGES = latent_shared<MT>::STAGES,
                              AHEAD = QUANTIZED ? 1 : STAGES - 1;
    uint32_t page; /* of the next tile's key */
    uint2 codes[QUANTIZED ? CHUNKS : 1];
    float scale;

    __device__ __forceinline__ void look_up(const latent_args &args, const latent_work &work,
                                            uint32_t tile) {
        const uint32_t key = tile * KEYS + threadIdx.x / 8;
        page = 0;
        if (key >= work.key_begin && key < work.key_end)
            page = __ldcg(work.pages + (key >> args.page_log2));
    }
    /* Begins to read a tile; bf16: into the stage. Then looks up the next one's pages. */
    __device__ __forceinline__ void issue(const latent_args &args, const latent_work &work,
                                          latent_shared<MT> &shared, uint32_t tile,
                                          uint32_t stage) {
        const uint32_t key = tile * KEYS + threadIdx.x / 8, chunk = threadIdx.x % 8;
        const uint32_t in_page = key & ((1u << args.page_log2) - 1);
        const bool is_read = key >= work.key_begin && key < work.key_end;
        const unsigned char *run = args.kv + (is_read ? page * args.page_stride : 0);
        if constexpr (QUANTIZED) {
            const unsigned char *from = run + in_page * DIM + chunk * 8;
#pragma unroll
            for (uint32_t i = 0; i < CHUNKS; i++)
                codes[i] = is_read ? __ldcg((const uint2 *)(from + i * 64)) : make_uint2(0, 0);
            scale = is_read ? __ldcg((const float *)(run + args.scales_at) + in_page) : 0.0f;
        } else {
            const unsigned char *from = run + (is_read ? in_page * (DIM * 2) + chunk * 16 : 0);
            const uint32_t to = shared_address(&shared.keys[stage][threadIdx.x / 8][chunk * 8]);
            if (tile * KEYS < work.key_end) /* else the next work uses the stage */
#pragma unroll
                for (uint32_t i = 0; i < CHUNKS; i++)
                    copy_or_clear(to + i * 128, from + (is_read ? i * 128 : 0), is_read);
            asm volatile("cp.async.commit_group;" ::: "memory");
        }
        look_up(args, work, tile + 1);
    }
    /* 8 bits: stores what was read. */
    __device__ __forceinline__ void put(latent_shared<MT> &shared, uint32_t stage) {
        if constexpr (QUANTIZED) {
            __nv_bfloat16 *to = &shared.keys[stage][threadIdx.x / 8][threadIdx.x % 8 * 8];
#pragma unroll
            for (uint32_t i = 0; i < CHUNKS; i++) {
                uint32_t even[2], odd[2];
                quantized_to_bf16<Page>(codes[i].x, even[0], odd[0]);
                quantized_to_bf16<Page>(codes[i].y, even[1], odd[1]);
                *(uint4 *)(to + i * 64) = make_uint4(
                    __byte_perm(even[0], odd[0], 0x5410), __byte_perm(even[0], odd[0], 0x7632),
                    __byte_perm(even[1], odd[1], 0x5410), __byte_perm(even[1], odd[1], 0x7632));
            }
            if (threadIdx.x % 8 == 0)
                shared.key_scales[stage][threadIdx.x / 8] = scale;
        }
    }
    /* The first tiles of the work. */
    __device__ __forceinline__ void start(const latent_args &args, const latent_work &work,
                                          latent_shared<MT> &shared, uint32_t tile) {
        look_up(args, work, tile);
        for (uint32_t i = 0; i < AHEAD; i++)
            issue(args, work, shared, tile + i, (tile + i) % STAGES);
        put(shared, tile % STAGES);
    }
    /* The oldest tile has arrived, for this thread. */
    __device__ __forceinline__ void wait() const {
        if constexpr (!QUANTIZED)
            asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD - 1) : "memory");
    }
};

/* q of the tile's rows, rounded to bf16; zeros in rows that have no token or no head. */
template <int MT>
__device__ __forceinline__ void load_query(const latent_args &args, const latent_work &work,
                                           latent_shared<MT> &shared) {
#pragma unroll 3
    for (uint32_t i = threadIdx.x; i < MT * 16 * (DIM / 4); i += THREADS) {
        const uint32_t row = i / (DIM / 4), col = i % (DIM / 4) * 4;
        const uint32_t token = row / args.group, head = work.head + row % args.group;
        float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (token < work.tokens && head < args.heads) {
            const float *from =
                args.q + (work.token + token) * args.q_stride + (size_t)head * DIM + col;
            x = args.q_aligned ? *(const float4 *)from
                               : make_float4(from[0], from[1], from[2], from[3]);
        }
        *(uint2 *)&shared.q[row][col] = make_uint2(pack_bf16(x.x, x.y), pack_bf16(x.z, x.w));
    }
}

/* -- a tile ------------------------------------------------------------- */

/* A warp's part of the scores' columns, for 16 of the keys. */
template <int MT>
__device__ __forceinline__ void multiply_keys(latent_shared<MT> &shared, uint32_t stage) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t part = warp % PARTS, key = warp / PARTS * 16, first = part * PART;
    const uint32_t keys_at = shared_address(
        &shared.keys[stage][key + lane / 16 * 8 + lane % 8][first + lane / 8 % 2 * 8]);
    const uint32_t q_at = shared_address(&shared.q[lane % 16][first + lane / 16 * 8]);
    float s[MT][2][4] = {};
#pragma unroll
    for (uint32_t k = 0; k < PART / 16; k++) {
        uint32_t b[4];
        load_matrices(b, keys_at + k * 32);
#pragma unroll
        for (int m = 0; m < MT; m++) {
            uint32_t a[4];
            load_matrices(a, q_at + m * 16 * ROW * 2 + k * 32);
            multiply(s[m][0], a, b[0], b[1]);
            multiply(s[m][1], a, b[2], b[3]);
        }
    }
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t row = m * 16 + half * 8 + lane / 4;
                *(float2 *)&shared.scores[part][row][key + n * 8 + lane % 4 * 2] =
                    make_float2(s[m][n][half * 2], s[m][n][half * 2 + 1]);
            }
}

/* The rows of the tile whose softmax a warp computes, a lane for each key. */
template <int MT> struct latent_softmax {
    static constexpr int ROWS = MT * 16 / WARPS;
    float max[ROWS], total[ROWS]; /* total: over this lane's keys */

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            max[j] = -INFINITY;
            total[j] = 0.0f;
        }
    }
    __device__ __forceinline__ void begin(const latent_args &args, const latent_work &work,
                                          latent_shared<MT> &shared) {
        clear();
        if (threadIdx.x < MT * 16) /* rows without a token have the last one's */
            shared.position[threadIdx.x] =
                work.position + min(threadIdx.x / args.group, work.tokens - 1);
    }
    template <rp_dtype Page>
    __device__ __forceinline__ void step(const latent_args &args, latent_shared<MT> &shared,
                                         uint32_t tile, uint32_t stage) {
        const uint32_t lane = threadIdx.x % 32, key = tile * KEYS + lane;
        float key_scale = 1.0f;
        if constexpr (page_of<Page>::is_quantized)
            key_scale = shared.key_scales[stage][lane];
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            const uint32_t row = threadIdx.x / 32 * ROWS + j;
            float x = (shared.scores[0][row][lane] + shared.scores[1][row][lane]) +
                      (shared.scores[2][row][lane] + shared.scores[3][row][lane]);
            x *= key_scale;
            x = args.cap_out != 0.0f ? args.cap_out * tanhf(x * args.cap_in) : x * args.scale;
            const uint32_t position = shared.position[row];
            if (key > position || key < first_visible(args.window, position))
                x = -INFINITY;
            const float top = fmaxf(max[j], rp_warp_max(x));
            /* No key seen yet: any finite maximum will do, since every weight is 0. */
            const float offset = top == -INFINITY ? 0.0f : top;
            const float weight = exp2_fast(x - offset);
            const float rescale = top == max[j] ? 1.0f : exp2_fast(max[j] - offset);
            max[j] = top;
            total[j] = __fmaf_rn(total[j], rescale, weight);
            shared.weights[row][lane] = __float2bfloat16_rn(weight * key_scale);
            if (lane == 0)
                shared.rescale[row] = rescale;
        }
    }
    /* Maxima and sums of all keys since clear(), for the whole block. */
    __device__ __forceinline__ void publish(latent_shared<MT> &shared) {
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            const uint32_t row = threadIdx.x / 32 * ROWS + j;
            const float sum = rp_warp_sum(total[j]);
            if (threadIdx.x % 32 == 0) {
                shared.max[row] = max[j];
                shared.total[row] = sum;
            }
        }
        clear();
    }
};

/* Adds weights * values of the tile, for the warp's columns. */
template <int MT>
__device__ __forceinline__ void multiply_values(latent_sums<MT> &sums,
                                                const latent_shared<MT> &shared, uint32_t stage) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t weights_at = shared_address(&shared.weights[lane % 16][lane / 16 * 8]);
    const uint32_t values_at =
        shared_address(&shared.keys[stage][lane % 16][warp * COLUMNS + lane / 16 * 8]);
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float rescale = shared.rescale[m * 16 + half * 8 + lane / 4];
#pragma unroll
            for (int n = 0; n < COLUMNS / 8; n++) {
                sums.out[m][n][half * 2] *= rescale;
                sums.out[m][n][half * 2 + 1] *= rescale;
            }
        }
#pragma unroll
    for (uint32_t k = 0; k < KEYS / 16; k++) {
        uint32_t a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++)
            load_matrices(a[m], weights_at + (m * 16 * WEIGHT_ROW + k * 16) * 2);
#pragma unroll
        for (int pair = 0; pair < COLUMNS / 16; pair++) {
            uint32_t b[4];
            load_transposed(b, values_at + (k * 16 * ROW + pair * 16) * 2);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                multiply(sums.out[m][pair * 2], a[m], b[0], b[1]);
                multiply(sums.out[m][pair * 2 + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* The wait for the kernels ahead, which a block does once. */
struct latent_wait {
    const rp_stamp &stamp;
    bool is_due;

    __device__ __forceinline__ void now() {
        if (is_due)
            stamp.wait();
        is_due = false;
    }
};

/* Computes the work and calls at_end(sums) with the sums of each split, or of all keys. Every key
 * that a row may see is in a tile; tiles that a row sees nothing of change no bit of it. */
template <int MT, rp_dtype Page, typename AtEnd>
__device__ __forceinline__ void attend(const latent_args &args, const latent_work &work,
                                       latent_shared<MT> &shared, latent_wait &wait, AtEnd at_end) {
    constexpr uint32_t STAGES = latent_shared<MT>::STAGES;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t end = (work.key_end + KEYS - 1) / KEYS;
    uint32_t tile = work.key_begin / KEYS;
    latent_stream<MT, Page> stream;
    latent_softmax<MT> softmax;
    latent_sums<MT> sums;
    if ((tile + stream.AHEAD) * KEYS > work.position) /* the step's own key is among the first */
        wait.now();
    stream.start(args, work, shared, tile);
    wait.now();
    load_query(args, work, shared);
    softmax.begin(args, work, shared);
    sums.clear_out();
    for (; tile < end; tile++) {
        const uint32_t stage = tile % STAGES, next = tile + stream.AHEAD;
        stream.wait();
        __syncthreads(); /* the tile is there, and the one before it is no longer read */
        stream.issue(args, work, shared, next, next % STAGES);
        multiply_keys(shared, stage);
        __syncthreads();
        softmax.template step<Page>(args, shared, tile, stage);
        __syncthreads();
        multiply_values(sums, shared, stage);
        stream.put(shared, next % STAGES);
        if (((tile + 1) * KEYS & work.split_mask) != 0 && tile + 1 != end)
            continue;
        softmax.publish(shared);
        __syncthreads();
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                sums.max[m][half] = shared.max[m * 16 + half * 8 + lane / 4];
                sums.total[m][half] = shared.total[m * 16 + half * 8 + lane / 4];
            }
        at_end(sums);
        sums.clear_out();
    }
}

} // namespace

#endif
