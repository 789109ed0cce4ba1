/* Weights on their way to a GPU: pageable memory is copied into pinned pieces by several threads,
 * each with its own stream, so that the copy of one piece and the transfer of the next overlap. One
 * cudaMemcpy from pageable memory does both in one thread of the driver. */
#include "backend/cuda/device_cuda.h"

#include <pthread.h>
#include <string.h>

#define THREADS     4
#define PIECE_BYTES ((size_t)4 << 20)
#define PIECES      2 /* of a thread: one is filled while the other travels */
/* Below, the threads cost more than they save. */
#define SMALL_BYTES ((size_t)16 << 20)

struct lane {
    cudaStream_t stream;
    cudaEvent_t sent[PIECES];
    unsigned char *pieces[PIECES]; /* pinned */
};

struct rp_cuda_upload {
    struct lane lanes[THREADS];
};

/* One thread's part of a copy: every THREADS-th piece. */
struct job {
    struct lane *lane;
    int ordinal;
    unsigned char *to;
    const unsigned char *from;
    size_t bytes, first; /* first: index of its first piece */
    pthread_t thread;
    cudaError_t error;
};

static cudaError_t open_lane(struct lane *lane) {
    cudaError_t error = cudaStreamCreateWithFlags(&lane->stream, cudaStreamNonBlocking);
    for (int i = 0; i < PIECES && error == cudaSuccess; i++) {
        error = cudaEventCreateWithFlags(&lane->sent[i], cudaEventDisableTiming);
        if (error == cudaSuccess)
            error = cudaHostAlloc((void **)&lane->pieces[i], PIECE_BYTES, cudaHostAllocPortable);
    }
    return error;
}

void rp_cuda_upload_end(struct rp_device *device) {
    if (!device->upload)
        return;
    for (int i = 0; i < THREADS; i++) {
        struct lane *lane = &device->upload->lanes[i];
        for (int piece = 0; piece < PIECES; piece++) {
            if (lane->pieces[piece])
                (void)cudaFreeHost(lane->pieces[piece]);
            if (lane->sent[piece])
                (void)cudaEventDestroy(lane->sent[piece]);
        }
        if (lane->stream)
            (void)cudaStreamDestroy(lane->stream);
    }
    rp_free(device->upload);
    device->upload = NULL;
}

static cudaError_t open_upload(struct rp_device *device) {
    cudaError_t error = cudaSuccess;
    device->upload = rp_calloc(1, sizeof *device->upload);
    if (!device->upload)
        return cudaErrorMemoryAllocation;
    for (int i = 0; i < THREADS && error == cudaSuccess; i++)
        error = open_lane(&device->upload->lanes[i]);
    if (error != cudaSuccess)
        rp_cuda_upload_end(device);
    return error;
}

static void *send_pieces(void *arg) {
    struct job *job = arg;
    struct lane *lane = job->lane;
    size_t count = RP_CEIL_DIV(job->bytes, PIECE_BYTES);
    cudaError_t error = cudaSetDevice(job->ordinal);
    for (size_t piece = job->first, turn = 0; piece < count && error == cudaSuccess;
         piece += THREADS, turn++) {
        size_t at = piece * PIECE_BYTES, len = RP_MIN(PIECE_BYTES, job->bytes - at);
        error = cudaEventSynchronize(lane->sent[turn % PIECES]);
        if (error != cudaSuccess)
            break;
        memcpy(lane->pieces[turn % PIECES], job->from + at, len);
        error = cudaMemcpyAsync(job->to + at, lane->pieces[turn % PIECES], len,
                                cudaMemcpyHostToDevice, lane->stream);
        if (error == cudaSuccess)
            error = cudaEventRecord(lane->sent[turn % PIECES], lane->stream);
    }
    cudaError_t last = cudaStreamSynchronize(lane->stream);
    job->error = error != cudaSuccess ? error : last;
    return NULL;
}

/* On the device's stream. A plain cudaMemcpy from pageable memory may return before its DMA has
 * ended, and the device's stream does not wait for the legacy stream that it runs on. */
int rp_cuda_copy_in(struct rp_device *device, void *to, const void *from, size_t bytes) {
    int status = RP_CUDA_TRY(
        device, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, device->stream));
    return status == RP_OK ? RP_CUDA_TRY(device, cudaStreamSynchronize(device->stream)) : status;
}

int rp_cuda_upload(struct rp_device *device, void *to, const void *from, size_t bytes) {
    /* Without pinned memory the plain copy does. */
    if (bytes < SMALL_BYTES || (!device->upload && open_upload(device) != cudaSuccess)) {
        (void)cudaGetLastError();
        return rp_cuda_copy_in(device, to, from, bytes);
    }
    struct job jobs[THREADS];
    bool started[THREADS] = {false};
    for (size_t i = 0; i < THREADS; i++) {
        jobs[i] = (struct job){.lane = &device->upload->lanes[i],
                               .ordinal = device->ordinal,
                               .to = to,
                               .from = from,
                               .bytes = bytes,
                               .first = i};
        started[i] = i > 0 && pthread_create(&jobs[i].thread, NULL, send_pieces, &jobs[i]) == 0;
    }
    cudaError_t error = cudaSuccess;
    for (size_t i = 0; i < THREADS; i++) {
        if (started[i])
            pthread_join(jobs[i].thread, NULL);
        else
            send_pieces(&jobs[i]);
        if (error == cudaSuccess)
            error = jobs[i].error;
    }
    return rp_cuda_check(device, error, "copying weights to the GPU");
}
