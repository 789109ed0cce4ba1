/* Weights on their way to a GPU: pageable memory is copied into pinned pieces by several threads,
 * each with its own stream, so that the copy of one piece and the transfer of the next overlap. One
 * cudaMemcpy from pageable memory does both in one thread of the driver.
 *
 * Rows that the GPU quantizes travel to a piece of device memory of their thread's instead; a
 * kernel on the thread's stream writes them to their place before the next piece comes. */
#include "backend/cuda/device_cuda.h"

#include <pthread.h>
#include <string.h>

#define THREADS     4
#define PIECE_BYTES ((size_t)4 << 20)
#define PIECES      2 /* of a thread: one is filled while the other travels */
/* Below, the threads cost more than they save. */
#define SMALL_BYTES ((size_t)16 << 20)
#define FLAG_BYTES  64 /* behind a staging piece: a u32, not 0 once a row was not finite */

struct lane {
    cudaStream_t stream;
    cudaEvent_t sent[PIECES];
    unsigned char *pieces[PIECES]; /* pinned; NULL: out of pinned memory, pageable memory is sent */
    unsigned char *staging;        /* device memory for a piece; NULL until rows are uploaded */
};

struct rp_cuda_upload {
    struct lane lanes[THREADS];
};

/* One thread's part of a copy: of its pieces the `first` and every `step`-th from there on. */
struct job {
    struct lane *lane;
    int ordinal;
    unsigned char *to;
    const unsigned char *from;
    size_t bytes, piece_bytes, first, step;
    const struct rp_cuda_weight_rows *rows; /* NULL: a plain copy */
    pthread_t thread;
    uint32_t bad; /* out: a row was not finite */
    cudaError_t error;
};

static cudaError_t open_lane(struct lane *lane) {
    cudaError_t error = cudaStreamCreateWithFlags(&lane->stream, cudaStreamNonBlocking);
    for (int i = 0; i < PIECES && error == cudaSuccess; i++) {
        error = cudaEventCreateWithFlags(&lane->sent[i], cudaEventDisableTiming);
        if (cudaHostAlloc((void **)&lane->pieces[i], PIECE_BYTES, cudaHostAllocPortable) !=
            cudaSuccess) {
            (void)cudaGetLastError(); /* slower without */
            lane->pieces[i] = NULL;
        }
    }
    return error;
}

void rp_cuda_upload_end(struct rp_device *device) {
    if (!device->upload)
        return;
    rp_cuda_select(device);
    for (int i = 0; i < THREADS; i++) {
        struct lane *lane = &device->upload->lanes[i];
        for (int piece = 0; piece < PIECES; piece++) {
            if (lane->pieces[piece])
                (void)cudaFreeHost(lane->pieces[piece]);
            if (lane->sent[piece])
                (void)cudaEventDestroy(lane->sent[piece]);
        }
        if (lane->staging)
            (void)cudaFree(lane->staging);
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

static cudaError_t send_piece(const struct job *job, size_t at, size_t turn) {
    struct lane *lane = job->lane;
    size_t len = RP_MIN(job->piece_bytes, job->bytes - at);
    unsigned char *to = job->rows ? lane->staging : job->to + at, *pinned = lane->pieces[turn];
    const unsigned char *from = job->from + at;
    cudaError_t error = cudaSuccess;
    if (pinned) {
        error = cudaEventSynchronize(lane->sent[turn]);
        if (error != cudaSuccess)
            return error;
        memcpy(pinned, from, len);
        from = pinned;
    }
    error = cudaMemcpyAsync(to, from, len, cudaMemcpyHostToDevice, lane->stream);
    if (error == cudaSuccess && pinned)
        error = cudaEventRecord(lane->sent[turn], lane->stream);
    if (error != cudaSuccess || !job->rows)
        return error;
    uint32_t *flag = (uint32_t *)(void *)(lane->staging + PIECE_BYTES);
    size_t row_bytes = (size_t)job->rows->wide * rp_dtype_bytes(job->rows->from);
    return (cudaError_t)rp_cuda_quantize_rows(job->rows, lane->staging, (uint32_t)(at / row_bytes),
                                              (uint32_t)(len / row_bytes), flag, lane->stream);
}

static void *send_pieces(void *arg) {
    struct job *job = arg;
    struct lane *lane = job->lane;
    const void *flag = lane->staging + (job->rows ? PIECE_BYTES : 0);
    cudaError_t error = cudaSetDevice(job->ordinal);
    if (error == cudaSuccess && job->rows)
        error = cudaMemsetAsync(lane->staging + PIECE_BYTES, 0, FLAG_BYTES, lane->stream);
    for (size_t at = job->first * job->piece_bytes, turn = 0;
         at < job->bytes && error == cudaSuccess; at += job->step * job->piece_bytes, turn++)
        error = send_piece(job, at, turn % PIECES);
    if (error == cudaSuccess && job->rows)
        error =
            cudaMemcpyAsync(&job->bad, flag, sizeof job->bad, cudaMemcpyDeviceToHost, lane->stream);
    cudaError_t last = cudaStreamSynchronize(lane->stream);
    job->error = error != cudaSuccess ? error : last;
    return NULL;
}

/* The job in parts, on as many lanes; the calling thread does the first one. */
static int run_job(struct rp_device *device, struct job job, bool *out_bad) {
    size_t threads = job.bytes < SMALL_BYTES ? 1 : THREADS;
    struct job jobs[THREADS];
    bool started[THREADS] = {false};
    job.ordinal = device->ordinal;
    job.step = threads;
    for (size_t i = 0; i < threads; i++) {
        jobs[i] = job;
        jobs[i].lane = &device->upload->lanes[i];
        jobs[i].first = i;
        started[i] = i > 0 && pthread_create(&jobs[i].thread, NULL, send_pieces, &jobs[i]) == 0;
    }
    cudaError_t error = cudaSuccess;
    *out_bad = false;
    for (size_t i = 0; i < threads; i++) {
        if (started[i])
            pthread_join(jobs[i].thread, NULL);
        else
            send_pieces(&jobs[i]);
        if (error == cudaSuccess)
            error = jobs[i].error;
        *out_bad = *out_bad || jobs[i].bad;
    }
    return rp_cuda_check(device, error, "copying weights to the GPU");
}

/* On the device's stream. A plain cudaMemcpy from pageable memory may return before its DMA has
 * ended, and the device's stream does not wait for the legacy stream that it runs on. */
int rp_cuda_copy_in(struct rp_device *device, void *to, const void *from, size_t bytes) {
    int status = RP_CUDA_TRY(
        device, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, device->stream));
    return status == RP_OK ? RP_CUDA_TRY(device, cudaStreamSynchronize(device->stream)) : status;
}

/* Not one of the device's allocations, whose list belongs to the thread that captures. */
static int open_staging(struct rp_device *device, struct lane *lane) {
    return lane->staging
               ? RP_OK
               : RP_CUDA_TRY(device, cudaMalloc((void **)&lane->staging, PIECE_BYTES + FLAG_BYTES));
}

int rp_cuda_upload_begin(struct rp_device *device, bool rows) {
    rp_cuda_select(device);
    int status = device->upload ? RP_OK : RP_CUDA_TRY(device, open_upload(device));
    for (size_t i = 0; i < THREADS && rows && status == RP_OK; i++)
        status = open_staging(device, &device->upload->lanes[i]);
    return status;
}

int rp_cuda_upload(struct rp_device *device, void *to, const void *from, size_t bytes) {
    bool bad;
    if (!device->upload && (bytes < SMALL_BYTES || rp_cuda_upload_begin(device, false) != RP_OK))
        return rp_cuda_copy_in(device, to, from, bytes);
    return run_job(device,
                   (struct job){.to = to, .from = from, .bytes = bytes, .piece_bytes = PIECE_BYTES},
                   &bad);
}

int rp_cuda_upload_rows(struct rp_device *device, const struct rp_cuda_weight_rows *rows,
                        const void *from, uint32_t count, bool *out_bad) {
    size_t row_bytes = (size_t)rows->wide * rp_dtype_bytes(rows->from);
    RP_ASSERT(row_bytes > 0 && row_bytes <= PIECE_BYTES);
    int status = rp_cuda_upload_begin(device, true);
    if (status != RP_OK)
        return status;
    return run_job(device,
                   (struct job){.from = from,
                                .bytes = count * row_bytes,
                                .piece_bytes = PIECE_BYTES / row_bytes * row_bytes,
                                .rows = rows},
                   out_bad);
}
