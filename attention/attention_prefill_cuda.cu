/* attention_prefill_cuda.cu - prompt rows over bf16 pages: mma.sync, any page size, head dim 64, 96, 128, 256.
 *
 * The algorithm is FlashAttention-2 (Dao 2023). A tile is 64 rows: tokens times the query heads of one KV
 * head; a warp owns 16 of them. It walks over blocks of 64 keys at absolute multiples of 64, from the
 * first that any of its rows sees; K and V of the next block arrive by cp.async meanwhile.
 *
 * A row's bits do not depend on its tile: a block in which it sees nothing changes no bit of its state
 * (weights exactly 0, scale exactly 1), and each row's sums have an order of their own. Keys that no row
 * of the tile sees are not read: zeros stand in their place. */
#include "attention/attention_tile_cuda.cuh"

#define ROWS    64 /* of a tile */
#define KEYS    64 /* of a block */
#define THREADS 128

template <int D> struct shape {
    static constexpr int stride = D == 96 ? 128 : D; /* elements of a row in shared memory */
    static constexpr int chunks = D / 8;             /* of 16 bytes */
    static constexpr int block_bytes = KEYS * stride * 2;
    static constexpr int q_bytes = ROWS * stride * 2;
    static constexpr int shared_bytes = q_bytes + 4 * block_bytes;
};

/* Byte offset of a 16-byte chunk: neighbouring rows of one column lie in different banks. */
template <int D> static __device__ __forceinline__ uint32_t chunk_at(uint32_t row, uint32_t chunk) {
    return row * shape<D>::stride * 2 + ((chunk ^ (row & 7)) * 16);
}

static __device__ __forceinline__ void copy_chunk(uint32_t to, const void *from, bool is_seen) {
    uint32_t bytes = is_seen ? 16 : 0; /* 0: zeros */
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void ldmatrix(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

static __device__ __forceinline__ void ldmatrix_t(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

static __device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* K (plane 0) or V of the block at `key`. */
template <int D>
static __device__ __forceinline__ void load_block(uint32_t to, const rp_attention_args &args,
                                                  const prefill_tile &tile, uint32_t plane,
                                                  uint32_t kv_head, uint32_t key) {
    const rp_kv_layout &kv = args.kv;
    const unsigned char *base = kv.base + ((size_t)args.layer * 2 + plane) * kv.plane_stride +
                                (size_t)kv_head * kv.head_stride;
    uint32_t shift = 31 - __clz(kv.page_tokens);
#pragma unroll
    for (int i = 0; i < KEYS * shape<D>::chunks / THREADS; i++) {
        uint32_t id = threadIdx.x + i * THREADS;
        uint32_t row = id / shape<D>::chunks, chunk = id % shape<D>::chunks;
        uint32_t position = key + row;
        bool is_seen = position >= tile.first_key && position < tile.key_end;
        const unsigned char *from = base;
        if (is_seen)
            from += (size_t)tile.pages[position >> shift] * kv.page_stride +
                    (position & (kv.page_tokens - 1)) * (D * 2) + chunk * 16;
        copy_chunk(to + chunk_at<D>(row, chunk), from, is_seen);
    }
}

/* Q of the tile, rounded to bf16; zeros where there is no token. */
template <int D>
static __device__ void load_q(unsigned char *shared, const rp_attention_args &args,
                              const prefill_tile &tile, uint32_t kv_head, uint32_t group) {
    bool wide = args.q_stride % 4 == 0 && (uintptr_t)args.q % 16 == 0;
    for (uint32_t id = threadIdx.x; id < ROWS * shape<D>::chunks; id += THREADS) {
        uint32_t row = id / shape<D>::chunks, chunk = id % shape<D>::chunks;
        uint32_t token = row / group, head = kv_head * group + row % group;
        float x[8] = {};
        if (token < tile.tokens) {
            const float *from = args.q + (size_t)(tile.token + token) * args.q_stride +
                                (size_t)head * D + chunk * 8;
            if (wide) {
                *(float4 *)x = *(const float4 *)from;
                *(float4 *)(x + 4) = *(const float4 *)(from + 4);
            } else {
                for (int i = 0; i < 8; i++)
                    x[i] = from[i];
            }
        }
        *(uint4 *)(shared + chunk_at<D>(row, chunk)) =
            make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]),
                       pack_bf16(x[6], x[7]));
    }
}

/* S = Q K^T for the warp's 16 rows. */
template <int D>
static __device__ __forceinline__ void product_qk(float (&s)[KEYS / 8][4], uint32_t q, uint32_t k) {
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
        uint32_t a[4];
        ldmatrix(a, q + chunk_at<D>(warp * 16 + lane % 16, d * 2 + lane / 16));
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
            uint32_t b[4];
            ldmatrix(b, k + chunk_at<D>(n * 16 + lane % 8 + lane / 16 * 8, d * 2 + lane / 8 % 2));
            mma(s[2 * n], a, b[0], b[1]);
            mma(s[2 * n + 1], a, b[2], b[3]);
        }
    }
}

/* O += P V, P rounded to bf16. */
template <int D>
static __device__ __forceinline__ void product_pv(float (&o)[D / 8][4],
                                                  const float (&p)[KEYS / 8][4], uint32_t v) {
    uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        uint32_t a[4] = {pack_bf16(p[2 * k][0], p[2 * k][1]), pack_bf16(p[2 * k][2], p[2 * k][3]),
                         pack_bf16(p[2 * k + 1][0], p[2 * k + 1][1]),
                         pack_bf16(p[2 * k + 1][2], p[2 * k + 1][3])};
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t b[4];
            ldmatrix_t(b, v + chunk_at<D>(k * 16 + lane % 16, n * 2 + lane / 16));
            mma(o[2 * n], a, b[0], b[1]);
            mma(o[2 * n + 1], a, b[2], b[3]);
        }
    }
}

template <int D>
static __global__ void __launch_bounds__(THREADS)
    prefill_kernel(const __grid_constant__ rp_attention_cuda_args call) {
    extern __shared__ __align__(128) unsigned char shared[];
    rp_stamp stamp(call.stamp);
    const rp_attention_args &args = call.args;
    uint32_t group = args.heads / args.kv_heads, kv_head = blockIdx.x;
    stamp.begin();
    stamp.look();
    prefill_tile tile = find_tile(call, blockIdx.y);
    if (tile.tokens == 0)
        return;
    uint32_t q = (uint32_t)__cvta_generic_to_shared(shared);
    uint32_t k = q + shape<D>::q_bytes, v = k + 2 * shape<D>::block_bytes;
    uint32_t key = tile.first_key / KEYS * KEYS;
    load_block<D>(k, args, tile, 0, kv_head, key);
    load_block<D>(v, args, tile, 1, kv_head, key);
    asm volatile("cp.async.commit_group;" ::: "memory");
    load_q<D>(shared, args, tile, kv_head, group);

    float o[D / 8][4] = {};
    uint32_t row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    softmax_state state = begin_rows(args, tile, row, group);
    const float factor = args.scale * LOG2_E;
    /* Keys that every row sees: blocks in [all_first, all_end) need no mask. */
    uint32_t all_first = first_visible(args.window, tile.key_end - 1), all_end = tile.position + 1;
    for (uint32_t stage = 0; key < tile.key_end; key += KEYS, stage ^= 1) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        if (key + KEYS < tile.key_end) {
            uint32_t to = (stage ^ 1) * shape<D>::block_bytes;
            load_block<D>(k + to, args, tile, 0, kv_head, key + KEYS);
            load_block<D>(v + to, args, tile, 1, kv_head, key + KEYS);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        float s[KEYS / 8][4], scale[2];
        product_qk<D>(s, q, k + stage * shape<D>::block_bytes);
        if (key >= all_first && key + KEYS <= all_end)
            softmax_step<false>(s, state, scale, key, factor);
        else
            softmax_step<true>(s, state, scale, key, factor);
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                o[n][i] *= scale[i / 2];
        product_pv<D>(o, s, v + stage * shape<D>::block_bytes);
    }
    store_rows<D>(o, state, args, tile, kv_head, row, group);
}

template <int D> static int prefill_start(const rp_attention_cuda_args *call, cudaStream_t stream) {
    static bool is_ready = false; /* an attribute of the kernel, not of a launch */
    if (!is_ready) {
        cudaError_t error = cudaFuncSetAttribute(
            prefill_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, shape<D>::shared_bytes);
        if (error != cudaSuccess)
            return (int)error;
        is_ready = true;
    }
    uint32_t tokens = rp_attention_prefill_cuda_tile(&call->config);
    const rp_bucket &bucket = call->config.bucket;
    dim3 grid(call->args.kv_heads, RP_CEIL_DIV(bucket.tokens, tokens) + bucket.rows);
    return rp_cuda_start(prefill_kernel<D>, grid, dim3(THREADS), shape<D>::shared_bytes, stream,
                         call->config.limits.dependent_launch, *call);
}

static uint32_t shared_bytes_of(uint32_t dim) {
    return dim == 64    ? shape<64>::shared_bytes
           : dim == 96  ? shape<96>::shared_bytes
           : dim == 128 ? shape<128>::shared_bytes
                        : shape<256>::shared_bytes;
}

bool rp_attention_prefill_cuda_supports(const rp_attention_cuda_config *config) {
    uint32_t dim = config->head_dim;
    return shared_bytes_of(dim) <= config->limits.shared_bytes_block &&
           config->kv.dtype == RP_DTYPE_BF16 && config->heads / config->kv_heads <= ROWS &&
           (dim == 64 || dim == 96 || dim == 128 || dim == 256);
}

uint32_t rp_attention_prefill_cuda_tile(const rp_attention_cuda_config *config) {
    if (rp_attention_prefill_wgmma_cuda_supports(config))
        return rp_attention_prefill_wgmma_cuda_tile(config);
    return ROWS / (config->heads / config->kv_heads);
}

int rp_attention_prefill_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_attention_cuda_args *call = (const rp_attention_cuda_args *)args_void;
    if (rp_attention_prefill_wgmma_cuda_supports(&call->config))
        return rp_attention_prefill_wgmma_cuda_run(call, stream);
    switch (call->args.head_dim) {
    case 64:
        return prefill_start<64>(call, stream);
    case 96:
        return prefill_start<96>(call, stream);
    case 128:
        return prefill_start<128>(call, stream);
    case 256:
        return prefill_start<256>(call, stream);
    default:
        return (int)cudaErrorInvalidValue;
    }
}
