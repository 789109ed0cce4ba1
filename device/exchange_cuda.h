/* exchange_cuda.h - data that the GPUs of a group exchange inside captured graphs.
 *
 * Whatever way the data take, each rank's part is rounded once to the payload's type, and the parts
 * are added in f32 in rank order: all ways give the same bits.
 *
 *   PACKETS    a rank stores what it gives into memory of each peer, where every 4 bytes were
 *              RP_EXCHANGE_EMPTY. The peer reads its own memory until none are, and empties it: no
 *              fence, no flag, no read through the link, and no more bytes than the payload.
 *   ONE_SHOT   a rank puts what it gives into its own block, sets a flag at every peer for each
 *              of its thread blocks, waits for theirs, and reads the blocks of all ranks.
 *   TWO_SHOT   the same, but a row has an owner, which alone adds it up. After a second meeting all
 *              ranks read the f32 sum from the owner.
 *   PUSHED     the GEMM that computes what a rank gives stores it into the block of its peer, too,
 *              while it computes the tiles that follow (rp_matmul_cuda.copy). Of two ranks.
 *   LIBRARY    where GPUs cannot map each other's memory: a rank puts what it gives into its own
 *              part of a block, a library gathers the parts of all ranks there, and a second kernel
 *              goes on as in ONE_SHOT.
 *
 * Thread block i of a rank works on the same elements as thread block i of the others, so it waits
 * for those alone. The thread blocks of one exchange must all be resident.
 *
 * Exchanges are numbered on the device: the last thread block of a kernel adds one. All ranks run
 * the same kernels with the same live rows, so their numbers agree. An exchange uses one of two
 * halves of the memory, in turn. That is enough: a half is written again, by any rank, in the
 * exchange after the next one. The writer has then ended the one in between, for which every peer
 * has sent something, and a peer sends only when its kernel of this exchange has ended. */
#ifndef RP_DEVICE_EXCHANGE_CUDA_H
#define RP_DEVICE_EXCHANGE_CUDA_H

#include "device/ops_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RP_EXCHANGE_RANKS_MAX 8
#define RP_EXCHANGE_SLOTS     1024 /* most thread blocks of a kernel that exchanges */
/* Largest payload of packets, to all peers together. Their memory is read until they are there by
 * all threads that wait, where ONE_SHOT has one flag for a thread block: beyond it that costs more
 * than the fence and the read through the link that they save (about 2 us). */
#define RP_EXCHANGE_PACKETS_MAX ((size_t)2 << 20)
/* Four bytes that are not there yet: -0.0 in f32, and (0.0, -0.0) in bf16. Who gives them sends
 * zeros instead. No bit of a sum tells: it begins with 0.0, so it is never -0.0, and adding either
 * zero is the same. */
#define RP_EXCHANGE_EMPTY 0x80000000u
/* Largest payload in one shot where two move fewer bytes: a second meeting costs about 2 us, the
 * time of 700 KB through a link of 373 GB/s. */
#define RP_EXCHANGE_ONE_SHOT_MAX ((size_t)256 << 10)

enum rp_exchange_way {
    RP_EXCHANGE_PACKETS,
    RP_EXCHANGE_ONE_SHOT,
    RP_EXCHANGE_TWO_SHOT,
    RP_EXCHANGE_PUSHED,
    RP_EXCHANGE_LIBRARY
};

/* Calls a library that gathers; NULL gather: there is none. */
struct rp_exchange_library {
    /* Sends `bytes` of the rank's part of `parts`, (ranks, bytes), to all ranks' parts. A
     * cudaError_t; only enqueues. */
    int (*gather)(void *comm, uint32_t rank, void *parts, size_t bytes, struct CUstream_st *stream);
    void *comm;   /* the rank's */
    size_t bytes; /* of a part, in this exchange */
};

/* The group as one rank's kernels see it. ranks 0: no group. */
struct rp_cuda_exchange {
    unsigned char *blocks[RP_EXCHANGE_RANKS_MAX]; /* (2, bytes) of each rank */
    /* (2, ranks, packet_room) of each rank: what the others sent to it */
    unsigned char *packets[RP_EXCHANGE_RANKS_MAX];
    size_t packet_room;                     /* rp_exchange_packet_room */
    uint32_t *flags[RP_EXCHANGE_RANKS_MAX]; /* (RP_EXCHANGE_SLOTS, ranks) of each rank */
    uint32_t *state;        /* this rank's number of exchanges, and thread blocks that are done */
    const uint32_t *broken; /* in host memory: not 0 when a rank has failed, and nobody waits */
    size_t bytes;           /* of half a block; LIBRARY: 0, one half is enough */
    struct rp_exchange_library library;
    uint32_t ranks, rank;
    uint32_t resident; /* thread blocks of 1,024 threads that can wait at once */
    /* What follows is of one exchange. */
    enum rp_exchange_way way;
    enum rp_dtype payload;
    size_t sums_at; /* TWO_SHOT: where a block has sums, (rows of its rank, cols) f32 */
};

/* Bytes of the packets that a rank has room for from one other, in one exchange. */
static inline size_t rp_exchange_packet_room(uint32_t ranks) {
    return ranks > 1 ? RP_ALIGN_UP(RP_EXCHANGE_PACKETS_MAX / (ranks - 1), (size_t)256) : 0;
}

/* Chooses the way of an exchange of at most `rows` rows whose ranks can map each other's memory,
 * by what moves fewest bytes through a GPU's links. For an element that is ranks - 1 payloads in
 * one shot; in two it is (ranks - 1) / ranks of a payload and of an f32 sum: more for 2 ranks, less
 * for 4 and 8. Sets way and sums_at. */
static inline void rp_exchange_choose(struct rp_cuda_exchange *exchange, uint32_t rows,
                                      uint32_t cols) {
    size_t item = rp_dtype_bytes(exchange->payload), whole = (size_t)rows * cols * item;
    size_t own_rows = (rows + exchange->ranks - 1) / exchange->ranks;
    exchange->sums_at = RP_ALIGN_UP(whole, (size_t)256);
    exchange->way = RP_EXCHANGE_ONE_SHOT;
    if (rows <= exchange->resident &&
        (size_t)rows * RP_ALIGN_UP(cols, 4u) * item * (exchange->ranks - 1) <=
            RP_EXCHANGE_PACKETS_MAX)
        exchange->way = RP_EXCHANGE_PACKETS;
    else if (whole > RP_EXCHANGE_ONE_SHOT_MAX && exchange->ranks * item > item + sizeof(float) &&
             exchange->sums_at + own_rows * cols * sizeof(float) <= exchange->bytes)
        exchange->way = RP_EXCHANGE_TWO_SHOT;
}

/* Empties memory for packets. A cudaError_t; only enqueues. */
int rp_exchange_empty_packets(void *packets, size_t bytes, struct CUstream_st *stream);

enum rp_exchange_kind {
    RP_EXCHANGE_REDUCE, /* out = the sum over the ranks */
    RP_EXCHANGE_ADD,    /* out += the sum */
    RP_EXCHANGE_GATHER, /* out = the ranks' columns side by side: in ONE_SHOT, or by the LIBRARY */
    RP_EXCHANGE_NORM    /* out = RMSNorm of in over the columns of all ranks: likewise */
};

/* What a kernel does of an exchange. */
enum rp_exchange_part { RP_EXCHANGE_WHOLE, RP_EXCHANGE_BEFORE, RP_EXCHANGE_AFTER };

struct rp_exchange_cuda {
    struct rp_cuda_rows rows;
    struct rp_cuda_exchange exchange;
    enum rp_exchange_kind kind;
    enum rp_exchange_part part;       /* set by the launcher */
    struct rp_values in, out;         /* f32; may be the same */
    struct rp_cuda_partials partials; /* count not 0: in place of in */
    uint32_t cols;                    /* of in */
    /* RP_EXCHANGE_NORM */
    const float *weight; /* (cols) */
    float eps;
    uint32_t norm_cols; /* of all ranks */
};
int rp_exchange_cuda_run(const void *args, struct CUstream_st *stream);

/* residual += the sum over the ranks of `term`; out = norm(residual): rp_add_norm_cuda with an
 * all-reduce of its term, and its bits. cols is a multiple of 4, and all tensors allow vector
 * accesses. norm.behind_product: what was complete when the GEMM directly before began may be read
 * before the wait; no exchange was launched after that GEMM. */
struct rp_exchange_norm_cuda {
    struct rp_add_norm_cuda norm; /* PUSHED: the term has the payload's type */
    struct rp_cuda_exchange exchange;
    enum rp_exchange_part part; /* set by the launcher */
};
/* Columns of a row that stay in registers. */
#define RP_EXCHANGE_NORM_COLS_MAX 8192
int rp_exchange_norm_cuda_run(const void *args, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
