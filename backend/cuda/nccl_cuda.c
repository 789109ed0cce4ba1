#include "backend/cuda/nccl_cuda.h"

#include "base/memory.h"
#include "device/exchange_cuda.h"
#include "device/shared_library_cuda.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ABORT_SECONDS 5 /* an abort without a fault takes milliseconds */

/* The part of nccl.h that is used; its results are ints, 0 for success. */
typedef void *nccl_comm;
enum { NCCL_INT8 = 0 };
struct nccl_api {
    int (*init_all)(nccl_comm *comms, int count, const int *gpus);
    int (*abort)(nccl_comm comm);
    int (*all_gather)(const void *from, void *to, size_t count, int type, nccl_comm comm,
                      struct CUstream_st *stream);
    int (*group_start)(void);
    int (*group_end)(void);
    const char *(*error_text)(int result);
};

struct nccl_rank {
    struct rp_nccl *nccl;
    nccl_comm comm;
    int gpu;
    unsigned char *probe; /* of open */
};

struct rp_nccl {
    void *library;
    struct nccl_api api;
    struct nccl_rank ranks[RP_EXCHANGE_RANKS_MAX];
    uint32_t count;
    atomic_bool aborted;
    bool has_thread;
    pthread_t thread; /* aborts */
};

static bool accept(void *ctx, void *library) {
    struct nccl_api *api = ctx;
    const struct {
        const char *name;
        void *to;
    } symbols[] = {
        {"ncclCommInitAll", &api->init_all}, {"ncclCommAbort", &api->abort},
        {"ncclAllGather", &api->all_gather}, {"ncclGroupStart", &api->group_start},
        {"ncclGroupEnd", &api->group_end},   {"ncclGetErrorString", &api->error_text},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(symbols); i++) {
        void *symbol = dlsym(library, symbols[i].name);
        if (!symbol)
            return false;
        memcpy(symbols[i].to, &symbol, sizeof symbol);
    }
    return true;
}

static int connect(struct rp_nccl *nccl, const int *gpus, struct rp_error *err) {
    nccl_comm comms[RP_EXCHANGE_RANKS_MAX] = {0};
    int result = nccl->api.init_all(comms, (int)nccl->count, gpus);
    if (result != 0)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED, "NCCL cannot connect the GPUs: %s",
                            nccl->api.error_text(result));
    for (uint32_t rank = 0; rank < nccl->count; rank++)
        nccl->ranks[rank] = (struct nccl_rank){nccl, comms[rank], gpus[rank], NULL};
    return RP_OK;
}

/* Every rank's number reaches all others. */
static bool probe(struct rp_nccl *nccl, struct CUstream_st *const *streams) {
    unsigned char got[RP_EXCHANGE_RANKS_MAX];
    bool good = true;
    for (uint32_t rank = 0; rank < nccl->count && good; rank++) {
        struct nccl_rank *at = &nccl->ranks[rank];
        good = cudaSetDevice(at->gpu) == cudaSuccess &&
               cudaMalloc((void **)&at->probe, nccl->count) == cudaSuccess &&
               cudaMemsetAsync(at->probe, (int)rank + 1, nccl->count, streams[rank]) == cudaSuccess;
    }
    bool grouped = good && nccl->api.group_start() == 0;
    good = grouped;
    for (uint32_t rank = 0; rank < nccl->count && good; rank++)
        good = rp_nccl_gather(&nccl->ranks[rank], rank, nccl->ranks[rank].probe, 1,
                              streams[rank]) == cudaSuccess;
    if (grouped)
        good = nccl->api.group_end() == 0 && good;
    for (uint32_t rank = 0; rank < nccl->count && good; rank++) {
        good = cudaSetDevice(nccl->ranks[rank].gpu) == cudaSuccess &&
               cudaStreamSynchronize(streams[rank]) == cudaSuccess &&
               cudaMemcpy(got, nccl->ranks[rank].probe, nccl->count, cudaMemcpyDeviceToHost) ==
                   cudaSuccess;
        for (uint32_t peer = 0; peer < nccl->count && good; peer++)
            good = got[peer] == peer + 1;
    }
    for (uint32_t rank = 0; rank < nccl->count; rank++) {
        (void)cudaSetDevice(nccl->ranks[rank].gpu);
        (void)cudaFree(nccl->ranks[rank].probe);
        nccl->ranks[rank].probe = NULL;
    }
    return good;
}

int rp_nccl_open(const int *gpus, struct CUstream_st *const *streams, uint32_t count,
                 struct rp_nccl **out, struct rp_error *err) {
    static const char *const sonames[] = {"libnccl.so.2"};
    char path[PATH_MAX];
    struct rp_nccl *nccl = rp_calloc(1, sizeof *nccl);
    *out = NULL;
    if (!nccl)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "NCCL: out of memory");
    RP_ASSERT_CMP(count, <=, RP_EXCHANGE_RANKS_MAX);
    nccl->count = count;
    /* A rank is captured after the other: connections that are made at the first gather would wait
     * for ranks whose gather comes later. */
    setenv("NCCL_RUNTIME_CONNECT", "0", 1);
    setenv("NCCL_LAUNCH_MODE", "PARALLEL", 1);
    setenv("NCCL_NVLS_ENABLE", "0", 1);
    nccl->library = rp_shared_library_open(sonames, RP_ARRAY_COUNT(sonames), accept, &nccl->api,
                                           path, sizeof path, err);
    int status = nccl->library ? connect(nccl, gpus, err) : RP_STATUS_UNSUPPORTED;
    if (status == RP_OK && !probe(nccl, streams))
        status = rp_error_set(err, RP_STATUS_UNSUPPORTED,
                              "NCCL (%.200s) does not bring data from one GPU to the other", path);
    if (status != RP_OK) {
        rp_nccl_close(nccl);
        return status;
    }
    *out = nccl;
    return RP_OK;
}

void *rp_nccl_comm(struct rp_nccl *nccl, uint32_t rank) { return &nccl->ranks[rank]; }

int rp_nccl_gather(void *comm, uint32_t rank, void *parts, size_t bytes,
                   struct CUstream_st *stream) {
    const struct nccl_rank *at = comm;
    if (at->nccl->aborted)
        return cudaErrorNotReady;
    int result = at->nccl->api.all_gather((unsigned char *)parts + rank * bytes, parts, bytes,
                                          NCCL_INT8, at->comm, stream);
    return result == 0 ? cudaSuccess : cudaErrorUnknown;
}

static void *abort_all(void *nccl_void) {
    const struct rp_nccl *nccl = nccl_void;
    for (uint32_t rank = 0; rank < nccl->count; rank++)
        if (nccl->ranks[rank].comm)
            (void)nccl->api.abort(nccl->ranks[rank].comm);
    return NULL;
}

/* NCCL's call returns when no graph has gathers any more. */
void rp_nccl_abort(struct rp_nccl *nccl) {
    if (atomic_exchange(&nccl->aborted, true))
        return;
    nccl->has_thread = pthread_create(&nccl->thread, NULL, abort_all, nccl) == 0;
}

/* False: it still runs after a time that NCCL never needs. */
static bool join_abort(const struct rp_nccl *nccl) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += ABORT_SECONDS;
    return !nccl->has_thread || pthread_timedjoin_np(nccl->thread, NULL, &end) == 0;
}

/* The library stays open: it may have threads. After a fault graphs may never be released: the
 * thread that waits for them is left behind with what it reads. Else it must have ended before the
 * process exits, when NCCL is unloaded under it. */
void rp_nccl_close(struct rp_nccl *nccl) {
    if (!nccl)
        return;
    rp_nccl_abort(nccl);
    if (join_abort(nccl))
        rp_free(nccl);
    else
        pthread_detach(nccl->thread);
}
