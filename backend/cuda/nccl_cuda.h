/* nccl_cuda.h - NVIDIA's NCCL, found when the program runs, for groups whose GPUs cannot map each
 * other's memory.
 *
 * Only its all-gather is used: what the ranks give is added by our own kernels, so sums have the
 * same bits with NCCL and without it. Its multicast over NVLink is switched off.
 * Thread: the engine's, for all ranks; abort: any. */
#ifndef RP_BACKEND_NCCL_CUDA_H
#define RP_BACKEND_NCCL_CUDA_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct CUstream_st;
struct rp_nccl;

/* For the ranks of a group, in this order: GPUs, all different, and their streams. Connects them
 * all to each other. RP_STATUS_UNSUPPORTED and the reason when there is no NCCL or it fails. */
int rp_nccl_open(const int *gpus, struct CUstream_st *const *streams, uint32_t count,
                 struct rp_nccl **out, struct rp_error *err);
/* rp_exchange_library.comm of a rank; lives until close. */
void *rp_nccl_comm(struct rp_nccl *nccl, uint32_t rank);
/* rp_exchange_library.gather */
int rp_nccl_gather(void *comm, uint32_t rank, void *parts, size_t bytes,
                   struct CUstream_st *stream);
/* Ends what waits for another rank, now and later; legal twice. Nothing is gathered after it. Does
 * not wait: a thread of its own does, until close. */
void rp_nccl_abort(struct rp_nccl *nccl);
/* When all streams are idle and graphs with gathers destroyed; NULL is legal. */
void rp_nccl_close(struct rp_nccl *nccl);

#endif
