/* attention_wgmma_cuda.cuh - Hopper instructions used by prompt attention: matmuls of a warpgroup
 * (wgmma), barriers in shared memory, bulk tensor copies. */
#ifndef RP_ATTENTION_ATTENTION_WGMMA_CUDA_CUH
#define RP_ATTENTION_ATTENTION_WGMMA_CUDA_CUH

#include <cuda.h>
#include <stdint.h>

/* --- barriers in shared memory --------------------------------------------------------- */

static __device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
static __device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* Arrives, and adds the expected bytes of copies to the phase. */
static __device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
#define BARRIER_WAIT(acquire)                                                                      \
    asm volatile("{\n"                                                                             \
                 ".reg .pred done;\n"                                                              \
                 "again:\n"                                                                        \
                 "mbarrier.try_wait.parity" acquire ".shared::cta.b64 done, [%0], %1;\n"           \
                 "@done bra finish;\n"                                                             \
                 "bra again;\n"                                                                    \
                 "finish:\n"                                                                       \
                 "}\n" ::"r"(barrier),                                                             \
                 "r"(parity)                                                                       \
                 : "memory")
/* Waits until the phase of this parity is complete; a new barrier has completed "phase 1". */
static __device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
    BARRIER_WAIT("");
}
/* The same for what another block of the cluster stored. */
static __device__ __forceinline__ void barrier_wait_cluster(uint32_t barrier, uint32_t parity) {
    BARRIER_WAIT(".acquire.cluster");
}
#undef BARRIER_WAIT
/* Tests whether it is complete, without waiting. */
static __device__ __forceinline__ bool barrier_test(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, done;\n"
                 "}\n"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done != 0;
}
/* Makes ordinary stores to shared memory visible to wgmma and bulk copies. */
static __device__ __forceinline__ void fence_async_proxy() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* A barrier of the 128 threads of one warpgroup; id 0 is __syncthreads. */
static __device__ __forceinline__ void warpgroup_sync(uint32_t id) {
    asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory");
}

/* --- clusters of two blocks ------------------------------------------------------------ */

static __device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
/* All threads of both blocks; barriers that one initialized may be used by the other afterwards. */
static __device__ __forceinline__ void cluster_meet() {
    asm volatile("barrier.cluster.arrive.relaxed;\n\t"
                 "barrier.cluster.wait;" ::
                     : "memory");
}
/* Arrives at the barrier in the block of this rank. Not a release at the cluster's scope, which
 * would be a memory barrier of the whole GPU: it orders reads before copies only. */
static __device__ __forceinline__ void barrier_arrive_at(uint32_t barrier, uint32_t rank) {
    asm volatile("{ .reg .b32 at; mapa.shared::cluster.u32 at, %0, %1;"
                 "mbarrier.arrive.shared::cluster.b64 _, [at]; }" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}
/* Stores a word in the block of this rank; its barrier counts the four bytes. */
static __device__ __forceinline__ void send_word(uint32_t to, uint32_t value, uint32_t barrier,
                                                 uint32_t rank) {
    asm volatile(
        "{ .reg .b32 to, at; mapa.shared::cluster.u32 to, %0, %3;"
        "mapa.shared::cluster.u32 at, %2, %3;"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [to], %1, [at]; }" ::"r"(to),
        "r"(value), "r"(barrier), "r"(rank)
        : "memory");
}

/* --- bulk tensor copies ---------------------------------------------------------------- */

static __device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap *map,
                                                uint32_t barrier, uint32_t c0, uint32_t c1,
                                                uint32_t c2, uint32_t c3, uint32_t c4) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
                 : "memory");
}

/* The same to both blocks of the cluster: to the same place, and counted by the same barrier. */
static __device__ __forceinline__ void copy_box_to_both(uint32_t to, const CUtensorMap *map,
                                                        uint32_t barrier, uint32_t c0, uint32_t c1,
                                                        uint32_t c2, uint32_t c3, uint32_t c4) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4),
                 "h"((uint16_t)3)
                 : "memory");
}

/* Contiguous bytes, a multiple of 16, aligned to 16. */
static __device__ __forceinline__ void copy_bulk(uint32_t to, const void *from, uint32_t bytes,
                                                 uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* --- matmuls of a warpgroup ---
 * Operands in shared memory are rows of 128 bytes with the 128-byte swizzle: 64 columns wide, eight
 * rows per group of 1024 bytes. */

/* Rows run along the reduction dimension within a group (K of Q K^T, and Q). */
static __device__ __forceinline__ uint64_t rows_descriptor(uint32_t at) {
    return (uint64_t)((at & 0x3FFFF) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}
/* Columns are the output's (V of a matmul P V): `stride` bytes from one 64 columns to the next. */
static __device__ __forceinline__ uint64_t columns_descriptor(uint32_t at, uint32_t stride) {
    return (uint64_t)((at & 0x3FFFF) >> 4) | (uint64_t)(stride >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* The same, `bytes` further. Addresses are below 2^18: no carry. */
static __device__ __forceinline__ uint64_t moved(uint64_t descriptor, uint32_t bytes) {
    return (descriptor & 0xFFFFFFFF00000000u) | ((uint32_t)descriptor + (bytes >> 4));
}

static __device__ __forceinline__ void wgmma_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Waits until at most Pending groups are in flight; values: results of the finished ones. */
template <int Pending, int N>
static __device__ __forceinline__ void wgmma_wait(float (&values)[N][4]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            asm volatile("" : "+f"(values[n][i])::"memory"); /* not read before */
}

#define ROW(d, n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])

/* d (64, keys) = a b^T, both in shared memory; adds to d, or overwrites it. */
static __device__ __forceinline__ void wgmma_qk(float (&d)[16][4], uint64_t a, uint64_t b,
                                                bool add) {
    asm volatile("{\n"
                 ".reg .pred add;\n"
                 "setp.ne.b32 add, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "%64, %65, add, 1, 1, 0, 0;\n}\n"
                 : ROW(d, 0), ROW(d, 1), ROW(d, 2), ROW(d, 3), ROW(d, 4), ROW(d, 5), ROW(d, 6),
                   ROW(d, 7), ROW(d, 8), ROW(d, 9), ROW(d, 10), ROW(d, 11), ROW(d, 12), ROW(d, 13),
                   ROW(d, 14), ROW(d, 15)
                 : "l"(a), "l"(b), "r"((int)add));
}
static __device__ __forceinline__ void wgmma_qk(float (&d)[8][4], uint64_t a, uint64_t b,
                                                bool add) {
    asm volatile("{\n"
                 ".reg .pred add;\n"
                 "setp.ne.b32 add, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "%32, %33, add, 1, 1, 0, 0;\n}\n"
                 : ROW(d, 0), ROW(d, 1), ROW(d, 2), ROW(d, 3), ROW(d, 4), ROW(d, 5), ROW(d, 6),
                   ROW(d, 7)
                 : "l"(a), "l"(b), "r"((int)add));
}
/* d (64, columns) += a b, a in registers. */
static __device__ __forceinline__ void wgmma_pv(float (&d)[8][4], const uint32_t (&a)[4],
                                                uint64_t b) {
    asm volatile("{\n"
                 ".reg .pred add;\n"
                 "setp.ne.b32 add, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, add, 1, 1, 1;\n}\n"
                 : ROW(d, 0), ROW(d, 1), ROW(d, 2), ROW(d, 3), ROW(d, 4), ROW(d, 5), ROW(d, 6),
                   ROW(d, 7)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
static __device__ __forceinline__ void wgmma_pv(float (&d)[16][4], const uint32_t (&a)[4],
                                                uint64_t b) {
    asm volatile("{\n"
                 ".reg .pred add;\n"
                 "setp.ne.b32 add, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "{%64, %65, %66, %67}, %68, add, 1, 1, 1;\n}\n"
                 : ROW(d, 0), ROW(d, 1), ROW(d, 2), ROW(d, 3), ROW(d, 4), ROW(d, 5), ROW(d, 6),
                   ROW(d, 7), ROW(d, 8), ROW(d, 9), ROW(d, 10), ROW(d, 11), ROW(d, 12), ROW(d, 13),
                   ROW(d, 14), ROW(d, 15)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
static __device__ __forceinline__ void wgmma_pv(float (&d)[32][4], const uint32_t (&a)[4],
                                                uint64_t b) {
    asm volatile("{\n"
                 ".reg .pred add;\n"
                 "setp.ne.b32 add, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, "
                 "%110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "
                 "%125, %126, %127}, "
                 "{%128, %129, %130, %131}, %132, add, 1, 1, 1;\n}\n"
                 : ROW(d, 0), ROW(d, 1), ROW(d, 2), ROW(d, 3), ROW(d, 4), ROW(d, 5), ROW(d, 6),
                   ROW(d, 7), ROW(d, 8), ROW(d, 9), ROW(d, 10), ROW(d, 11), ROW(d, 12), ROW(d, 13),
                   ROW(d, 14), ROW(d, 15), ROW(d, 16), ROW(d, 17), ROW(d, 18), ROW(d, 19),
                   ROW(d, 20), ROW(d, 21), ROW(d, 22), ROW(d, 23), ROW(d, 24), ROW(d, 25),
                   ROW(d, 26), ROW(d, 27), ROW(d, 28), ROW(d, 29), ROW(d, 30), ROW(d, 31)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#undef ROW

#endif
