/* exchange_cuda.c - GPUs as the ranks of a group: memory that all of them map, or NCCL where they
 * cannot, and what one does when another fails (device/exchange_cuda.h: how their kernels exchange
 * data). */
#include "backend/cuda/device_cuda.h"
#include "backend/cuda/nccl_cuda.h"

/* Packets, flags, state: one block, in this order. */
#define PACKET_BYTES(ranks) (2 * (ranks)*rp_exchange_packet_room(ranks))
#define FLAG_BYTES(ranks)   (RP_EXCHANGE_SLOTS * (ranks) * sizeof(uint32_t))
#define STATE_BYTES         (2 * sizeof(uint32_t))

/* Shared by the devices of a group; freed with the last one. */
struct rp_cuda_group {
    struct rp_device *ranks[RP_EXCHANGE_RANKS_MAX]; /* NULL: closed */
    int gpus[RP_EXCHANGE_RANKS_MAX];                /* of the ranks */
    uint32_t count, open;
    _Atomic uint32_t *broken; /* host memory that all GPUs see */
    struct rp_nccl *nccl;     /* where peers cannot be mapped, or NULL */
};

/* Whether no rank before this one is on its GPU. */
static bool is_first_of_gpu(const struct rp_cuda_group *group, uint32_t rank) {
    for (uint32_t before = 0; before < rank; before++)
        if (group->gpus[before] == group->gpus[rank])
            return false;
    return true;
}

/* Before a GPU's last rank closes: a group may be opened again. */
static void unmap_peers(const struct rp_device *device, const struct rp_cuda_group *group) {
    for (uint32_t rank = 0; rank < group->count; rank++)
        if (group->ranks[rank] && group->ranks[rank]->ordinal == device->ordinal)
            return;
    rp_cuda_select(device);
    for (uint32_t rank = 0; rank < group->count && !group->nccl; rank++)
        if (group->gpus[rank] != device->ordinal && is_first_of_gpu(group, rank) &&
            cudaDeviceDisablePeerAccess(group->gpus[rank]) != cudaSuccess)
            (void)cudaGetLastError(); /* the GPU has failed */
}

static int map_peers(const struct rp_cuda_group *group, struct rp_error *err) {
    for (uint32_t a = 0; a < group->count; a++)
        for (uint32_t b = 0; b < group->count; b++) {
            int from = group->gpus[a], to = group->gpus[b], can = 0;
            if (from == to || !is_first_of_gpu(group, a) || !is_first_of_gpu(group, b))
                continue;
            rp_cuda_select(group->ranks[a]);
            cudaError_t error =
                group->ranks[a]->no_peers ? cudaSuccess : cudaDeviceCanAccessPeer(&can, from, to);
            if (error == cudaSuccess && can)
                error = cudaDeviceEnablePeerAccess(to, 0);
            if (error != cudaSuccess)
                (void)cudaGetLastError(); /* not sticky */
            if (error == cudaErrorPeerAccessAlreadyEnabled)
                error = cudaSuccess;
            if (error != cudaSuccess || !can)
                return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                                    "cuda: GPU %d cannot map the memory of GPU %d%s%s", from, to,
                                    can ? ": " : "", can ? cudaGetErrorString(error) : "");
        }
    return RP_OK;
}

/* Memory that kernels wait on: empty packets, and zeros. */
static int make_flags(struct rp_device *device, uint32_t count) {
    struct rp_cuda_exchange *exchange = device->exchange;
    size_t bytes = PACKET_BYTES(count) + FLAG_BYTES(count) + STATE_BYTES;
    rp_cuda_select(device);
    unsigned char *data = rp_cuda_alloc(device, bytes, RP_MEMORY_DEVICE);
    if (!data)
        return RP_STATUS_NO_MEMORY;
    exchange->packets[exchange->rank] = data;
    exchange->flags[exchange->rank] = (uint32_t *)(void *)(data + PACKET_BYTES(count));
    exchange->state = exchange->flags[exchange->rank] + FLAG_BYTES(count) / sizeof(uint32_t);
    int status = RP_CUDA_TRY(device, cudaMemsetAsync(data, 0, bytes, device->stream));
    if (status == RP_OK)
        status = rp_cuda_check(
            device,
            (cudaError_t)rp_exchange_empty_packets(data, PACKET_BYTES(count), device->stream),
            "packets");
    return status == RP_OK ? RP_CUDA_TRY(device, cudaStreamSynchronize(device->stream)) : status;
}

static int make_ranks(struct rp_cuda_group *group, struct rp_device *const *ranks, uint32_t count) {
    int status = RP_OK;
    for (uint32_t rank = 0; rank < count && status == RP_OK; rank++) {
        struct rp_device *device = ranks[rank];
        group->ranks[rank] = device;
        group->gpus[rank] = device->ordinal;
        group->count = ++group->open;
        device->group = group;
        device->exchange = rp_calloc(1, sizeof *device->exchange);
        if (!device->exchange)
            return RP_STATUS_NO_MEMORY;
        *device->exchange = (struct rp_cuda_exchange){
            .ranks = count, .rank = rank, .packet_room = rp_exchange_packet_room(count)};
        status = make_flags(device, count);
    }
    if (status == RP_OK)
        group->broken = rp_cuda_host_alloc(ranks[0], sizeof *group->broken);
    if (!group->broken)
        return RP_STATUS_NO_MEMORY;
    *group->broken = 0;
    return RP_OK;
}

/* What every rank knows of the others. */
static void introduce(const struct rp_cuda_group *group) {
    uint32_t resident = RP_EXCHANGE_SLOTS; /* on every rank: their grids must be equal */
    for (uint32_t a = 0; a < group->count; a++) {
        struct rp_device *device = group->ranks[a];
        struct rp_cuda_exchange *exchange = device->exchange;
        uint32_t sharing = 0; /* ranks on this GPU, whose kernels wait for each other at once */
        exchange->broken = (const uint32_t *)(const void *)group->broken;
        for (uint32_t b = 0; b < group->count; b++) {
            exchange->packets[b] = group->ranks[b]->exchange->packets[b];
            exchange->flags[b] = group->ranks[b]->exchange->flags[b];
            sharing += device->ordinal == group->ranks[b]->ordinal;
        }
        resident = RP_MIN(resident, device->limits.sm_count / sharing);
    }
    for (uint32_t rank = 0; rank < group->count; rank++)
        group->ranks[rank]->exchange->resident = resident;
}

/* Without mapped memory, for the reason `unmapped`: NCCL. */
static int use_library(struct rp_cuda_group *group, const char *unmapped, struct rp_error *err) {
    int gpus[RP_EXCHANGE_RANKS_MAX];
    struct CUstream_st *streams[RP_EXCHANGE_RANKS_MAX];
    struct rp_error why = {0};
    for (uint32_t rank = 0; rank < group->count; rank++) {
        gpus[rank] = group->ranks[rank]->ordinal;
        streams[rank] = group->ranks[rank]->stream;
    }
    if (rp_nccl_open(gpus, streams, group->count, &group->nccl, &why) != RP_OK) {
        int status = rp_error_set(err, RP_STATUS_UNSUPPORTED, "%.200s; %.200s", unmapped, why.text);
        rp_error_hint(err, "install NCCL (libnccl.so.2), which exchanges data through host memory");
        return status;
    }
    for (uint32_t rank = 0; rank < group->count; rank++)
        group->ranks[rank]->exchange->library = (struct rp_exchange_library){
            .gather = rp_nccl_gather, .comm = rp_nccl_comm(group->nccl, rank)};
    return RP_OK;
}

int rp_cuda_join(struct rp_device *const *ranks, uint32_t count, struct rp_error *err) {
    RP_ASSERT_CMP(count, <=, RP_EXCHANGE_RANKS_MAX);
    struct rp_error unmapped = {0};
    struct rp_cuda_group *group = rp_calloc(1, sizeof *group);
    if (!group || make_ranks(group, ranks, count) != RP_OK) {
        if (group && group->open == 0)
            rp_free(group);
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "cuda: no memory for a group of %u", count);
    }
    introduce(group);
    if (map_peers(group, &unmapped) == RP_OK)
        return RP_OK;
    return use_library(group, unmapped.text, err);
}

/* Graphs that were captured before keep the smaller blocks, which live as long as the device. NCCL
 * gathers the parts of all ranks in a block of each. */
int rp_cuda_reserve_exchange(struct rp_device *const *ranks, uint32_t count, size_t bytes,
                             struct rp_error *err) {
    size_t parts = ranks[0]->exchange->library.gather ? count : 2;
    if (bytes <= ranks[0]->exchange->bytes)
        return RP_OK;
    for (uint32_t rank = 0; rank < count; rank++) {
        rp_cuda_select(ranks[rank]);
        unsigned char *blocks = rp_cuda_alloc(ranks[rank], parts * bytes, RP_MEMORY_DEVICE);
        if (!blocks)
            return rp_error_set(err, RP_STATUS_NO_MEMORY,
                                "cuda: no memory for exchanges of %zu bytes by each of %u ranks",
                                bytes, count);
        for (uint32_t peer = 0; peer < count; peer++)
            ranks[peer]->exchange->blocks[rank] = blocks;
    }
    for (uint32_t rank = 0; rank < count; rank++)
        ranks[rank]->exchange->bytes = bytes;
    return RP_OK;
}

bool rp_cuda_peers_work(struct rp_device *device) {
    struct rp_cuda_group *group = device->group;
    bool works = true;
    for (uint32_t rank = 0; group && rank < group->count; rank++) {
        struct rp_device *peer = group->ranks[rank];
        if (!peer || peer == device)
            continue;
        cudaError_t error = cudaStreamQuery(peer->stream);
        if (error != cudaSuccess && error != cudaErrorNotReady)
            (void)rp_cuda_check(peer, error, "a step");
        works = works && !atomic_load(&peer->failed);
    }
    if (!works)
        rp_cuda_group_break(device);
    return works;
}

void rp_cuda_group_break(struct rp_device *device) {
    if (device->group && device->group->broken)
        atomic_store(device->group->broken, 1);
    if (device->group && device->group->nccl)
        rp_nccl_abort(device->group->nccl);
}

void rp_cuda_group_leave(struct rp_device *device) {
    struct rp_cuda_group *group = device->group;
    rp_free(device->exchange);
    device->exchange = NULL;
    device->group = NULL;
    if (!group)
        return;
    for (uint32_t rank = 0; rank < group->count; rank++)
        if (group->ranks[rank] == device)
            group->ranks[rank] = NULL;
    unmap_peers(device, group);
    if (--group->open > 0)
        return;
    rp_nccl_close(group->nccl);
    if (group->broken)
        rp_cuda_host_free(device, (void *)(uintptr_t)group->broken);
    rp_free(group);
}
