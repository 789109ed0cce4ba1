/* attention_prefill_kernel.cuh - prompt rows by mma.sync: the kernel of
 * attention_prefill_cuda.cu. */
#ifndef RP_ATTENTION_ATTENTION_PREFILL_KERNEL_CUH
#define RP_ATTENTION_ATTENTION_PREFILL_KERNEL_CUH

#include "attention/attention_quantized_cuda.cuh"
#include "attention/attention_tile_cuda.cuh"

#define ROWS    64 /* of a tile */
#define KEYS    64 /* of a block */
#define THREADS 128

/* bf16 pages: K and V of two blocks. 8-bit pages: K and V of one block as bf16, then quantized
 * values and scales of the next. */
template <int D, rp_dtype Page = RP_DTYPE_BF16> struct shape {
    static constexpr int stride = D == 96 ? 128 : D; /* elements of a row in shared memory */
    static constexpr int chunks = D / 8;             /* of 16 bytes */
    static constexpr int block_bytes = KEYS * stride * 2;
    static constexpr int q_bytes = ROWS * stride * 2;
    static constexpr bool is_quantized = page_of<Page>::is_quantized;
    static constexpr int quantized_bytes = is_quantized ? 2 * KEYS * D : 0; /* K's, then V's */
    static constexpr int scale_bytes = is_quantized ? 2 * KEYS * 4 : 0; /* twice: of both blocks */
    static constexpr int shared_bytes =
        q_bytes + (is_quantized ? 2 : 4) * block_bytes + quantized_bytes + 2 * scale_bytes;
};

/* Byte offset of a 16-byte chunk, swizzled: neighboring rows of one column are in different
 * banks. */
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

/* Copies K (plane 0) or V of the block at `key`. seen: with a program, bits of the visible keys. */
template <int D, typename Mask>
static __device__ __forceinline__ void load_block(uint32_t to, const rp_attention_args &args,
                                                  const prefill_tile &tile, uint32_t plane,
                                                  uint32_t kv_head, uint32_t key, uint2 seen) {
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
        if (Mask::is_program)
            is_seen = (row < 32 ? seen.x : seen.y) >> row % 32 & 1;
        const unsigned char *from = base;
        if (is_seen)
            from += (size_t)tile.pages[position >> shift] * kv.page_stride +
                    (position & (kv.page_tokens - 1)) * (D * 2) + chunk * 16;
        copy_chunk(to + chunk_at<D>(row, chunk), from, is_seen);
    }
}

/* --- 8-bit pages: each thread converts the chunks that it copied ---------------------- */

static __device__ __forceinline__ void copy_word(uint32_t to, const void *from, bool is_seen) {
    uint32_t bytes = is_seen ? 4 : 0; /* 0: zeros */
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

/* Copies quantized K and V of the block at `key`, and their scales; masked keys are zero-filled. */
template <int D, typename Mask>
static __device__ __forceinline__ void load_quantized(uint32_t to, const rp_attention_args &args,
                                                      const prefill_tile &tile, uint32_t kv_head,
                                                      uint32_t key, uint2 seen) {
    constexpr uint32_t chunks = D / 16;
    const rp_kv_layout &kv = args.kv;
    const unsigned char *base =
        kv.base + (size_t)args.layer * 2 * kv.plane_stride + (size_t)kv_head * kv.head_stride;
    const uint32_t shift = 31 - __clz(kv.page_tokens);
    auto find = [&](uint32_t row, bool &is_seen) {
        const uint32_t position = key + row;
        is_seen = position >= tile.first_key && position < tile.key_end;
        if (Mask::is_program)
            is_seen = (row < 32 ? seen.x : seen.y) >> row % 32 & 1;
        return is_seen ? base + (size_t)tile.pages[position >> shift] * kv.page_stride : base;
    };
    bool is_seen;
#pragma unroll
    for (uint32_t i = 0; i < KEYS * chunks / THREADS; i++) {
        const uint32_t id = threadIdx.x + i * THREADS, row = id / chunks;
        const unsigned char *from = find(row, is_seen);
        from += ((key + row) & (kv.page_tokens - 1)) * D + id % chunks * 16;
        copy_chunk(to + id * 16, from, is_seen);
        copy_chunk(to + KEYS * D + id * 16, from + kv.plane_stride, is_seen);
    }
    const uint32_t row = threadIdx.x % KEYS, plane = threadIdx.x / KEYS;
    const unsigned char *from = find(row, is_seen) + plane * kv.plane_stride + kv.scales_at;
    copy_word(to + 2 * KEYS * D + threadIdx.x * 4, from + ((key + row) & (kv.page_tokens - 1)) * 4,
              is_seen);
}

/* Converts the chunks that this thread copied to bf16 (exact), where the matmuls read them; scales
 * are copied unchanged. */
template <int D, rp_dtype Page>
static __device__ __forceinline__ void convert_quantized(unsigned char *tile,
                                                         const unsigned char *from, float *scales) {
    constexpr uint32_t chunks = D / 16;
#pragma unroll
    for (uint32_t i = 0; i < 2 * KEYS * chunks / THREADS; i++) {
        const uint32_t id = threadIdx.x + i * THREADS, row = id / chunks;
        const uint4 raw = *(const uint4 *)(from + id * 16);
        const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
        uint32_t out[8];
#pragma unroll
        for (int w = 0; w < 4; w++) {
            uint32_t even, odd;
            quantized_to_bf16<Page>(words[w], even, odd);
            out[w * 2] = __byte_perm(even, odd, 0x5410);
            out[w * 2 + 1] = __byte_perm(even, odd, 0x7632);
        }
        /* Rows indices past K's rows are V's: its tile follows K's. */
        const uint32_t chunk = id % chunks * 2;
        *(uint4 *)(tile + chunk_at<D>(row, chunk)) = make_uint4(out[0], out[1], out[2], out[3]);
        *(uint4 *)(tile + chunk_at<D>(row, chunk + 1)) = make_uint4(out[4], out[5], out[6], out[7]);
    }
    scales[threadIdx.x] = ((const float *)(from + 2 * KEYS * D))[threadIdx.x];
}

/* Scores or weights of the warp's rows times the scales of their keys. */
static __device__ __forceinline__ void scale_keys(float (&s)[KEYS / 8][4], const float *scales) {
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
        const float2 two = *(const float2 *)(scales + n * 8 + threadIdx.x % 4 * 2);
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] *= i % 2 ? two.y : two.x;
    }
}

/* Loads Q of the tile, rounded to bf16; zeros where there is no token. */
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

/* Iterates over the blocks of a tile in rising order. With a mask program: over the planner's list,
 * with the bits of the visible keys. */
template <typename Mask> struct block_walk {
    uint32_t key, any, partial, word, left;
    uint2 seen;
    int32_t params[Mask::param_count ? Mask::param_count : 1];

    __device__ __forceinline__ void begin(const rp_attention_cuda_args &call,
                                          const prefill_tile &tile) {
        key = tile.first_key / KEYS * KEYS;
        if constexpr (Mask::is_program) {
            left = call.workspace.plans[call.mask_class].bounds[tile.index * 2 + 1];
            word = any = 0;
            for (int i = 0; i < Mask::param_count; i++)
                params[i] = (int32_t)tile.params[i];
        }
    }
    __device__ __forceinline__ bool has_more(const prefill_tile &tile) const {
        return Mask::is_program ? left != 0 : key < tile.key_end;
    }
    /* With a mask program: all threads find the next block. */
    __device__ __forceinline__ void find(const rp_attention_cuda_args &call,
                                         const prefill_tile &tile, uint32_t kv_head,
                                         uint32_t group) {
        if constexpr (Mask::is_program) {
            const uint2 *words = (const uint2 *)call.workspace.plans[call.mask_class].blocks +
                                 (size_t)tile.index * call.workspace.block_words;
            while (any == 0) {
                any = words[word].x;
                partial = words[word++].y;
            }
            uint32_t bit = __ffs((int)any) - 1;
            any &= any - 1;
            key = ((word - 1) * 32 + bit) * KEYS;
            left--;
            is_partial = partial >> bit & 1;
            seen = make_uint2(0xFFFFFFFFu, 0xFFFFFFFFu);
            if (is_partial) {
                uint32_t mine = key + threadIdx.x % 32;
                seen.x = __ballot_sync(0xFFFFFFFFu, is_seen(tile, mine, kv_head, group));
                seen.y = __ballot_sync(0xFFFFFFFFu, is_seen(tile, mine + 32, kv_head, group));
            }
        }
    }
    __device__ __forceinline__ bool is_seen(const prefill_tile &tile, uint32_t kv, uint32_t kv_head,
                                            uint32_t group) const {
        if constexpr (Mask::is_program)
            return kv < tile.key_end &&
                   Mask::any_sees(tile.position, tile.tokens, kv, kv_head * group, group, params);
        return false;
    }
    bool is_partial;
};

/* 8-bit pages: scores are multiplied by the scales of K first, softmax weights by those of V in f32
 * before they are rounded; the sum of weights excludes V's scales. */
template <int D, typename Mask, rp_dtype Page = RP_DTYPE_BF16>
static __device__ __forceinline__ void prefill(const rp_attention_cuda_args &call) {
    constexpr bool is_quantized = page_of<Page>::is_quantized;
    extern __shared__ __align__(128) unsigned char shared[];
    rp_stamp stamp(call.stamp);
    const rp_attention_args &args = call.args;
    uint32_t group = args.heads / args.kv_heads, kv_head = blockIdx.x;
    stamp.begin();
    stamp.look();
    prefill_tile tile = find_tile<Mask>(call, blockIdx.y);
    if (tile.tokens == 0)
        return;
    uint32_t q = (uint32_t)__cvta_generic_to_shared(shared);
    uint32_t k = q + shape<D>::q_bytes, v = k + (is_quantized ? 1 : 2) * shape<D>::block_bytes;
    unsigned char *const tiles = shared + shape<D>::q_bytes; /* of quantized values: K and V */
    unsigned char *const quantized = tiles + 2 * shape<D>::block_bytes;
    float *const scales =
        (float *)(quantized + shape<D, Page>::quantized_bytes + shape<D, Page>::scale_bytes);
    block_walk<Mask> walk;
    walk.begin(call, tile);
    walk.find(call, tile, kv_head, group);
    if constexpr (is_quantized) {
        load_quantized<D, Mask>((uint32_t)__cvta_generic_to_shared(quantized), args, tile, kv_head,
                                walk.key, walk.seen);
    } else {
        load_block<D, Mask>(k, args, tile, 0, kv_head, walk.key, walk.seen);
        load_block<D, Mask>(v, args, tile, 1, kv_head, walk.key, walk.seen);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    load_q<D>(shared, args, tile, kv_head, group);

    float o[D / 8][4] = {};
    uint32_t row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    softmax_state state = begin_rows(args, tile, row, group, kv_head);
    const float factor = factor_of<Mask>(args);
    /* Keys that every row sees: blocks in [all_first, all_end) need no mask. */
    uint32_t all_first = first_visible(args.window, tile.key_end - 1), all_end = tile.position + 1;
    bool more = true;
    for (uint32_t stage = 0; more; stage ^= 1) {
        const uint32_t key = walk.key;
        const bool is_partial = Mask::is_program && walk.is_partial;
        if (!Mask::is_program)
            walk.key += KEYS;
        more = walk.has_more(tile);
        if (more)
            walk.find(call, tile, kv_head, group);
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        if constexpr (is_quantized) {
            convert_quantized<D, Page>(tiles, quantized, scales);
            __syncthreads();
            if (more)
                load_quantized<D, Mask>((uint32_t)__cvta_generic_to_shared(quantized), args, tile,
                                        kv_head, walk.key, walk.seen);
        } else if (more) {
            uint32_t to = (stage ^ 1) * shape<D>::block_bytes;
            load_block<D, Mask>(k + to, args, tile, 0, kv_head, walk.key, walk.seen);
            load_block<D, Mask>(v + to, args, tile, 1, kv_head, walk.key, walk.seen);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        float s[KEYS / 8][4], scale[2];
        product_qk<D>(s, q, k + (is_quantized ? 0 : stage * shape<D>::block_bytes));
        if (is_quantized)
            scale_keys(s, scales);
        if constexpr (Mask::is_capped)
            cap_scores(s, args.scale / args.soft_cap);
        if constexpr (Mask::is_program) {
            apply_program<Mask>(s, state, tile, key, is_partial, args.scale, walk.params);
            softmax_step<false>(s, state, scale, key, factor);
        } else if (key >= all_first && key + KEYS <= all_end) {
            softmax_step<false>(s, state, scale, key, factor);
        } else {
            softmax_step<true>(s, state, scale, key, factor);
        }
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                o[n][i] *= scale[i / 2];
        if (is_quantized)
            scale_keys(s, scales + KEYS);
        product_pv<D>(o, s, v + (is_quantized ? 0 : stage * shape<D>::block_bytes));
    }
    store_rows<D, Mask>(o, state, args, tile, kv_head, row, group);
}

#endif
