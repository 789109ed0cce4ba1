/* Matrices of blocks, GGUF's or of 4-bit weights: several threads make tiles of them
 * (quant/tiles.h) on their way to a GPU. */
#include "backend/cuda/device_cuda.h"
#include "quant/tiles/matmul_tiles_cuda.h"

#include <pthread.h>
#include <string.h>

#define THREADS 8
/* Below, the threads cost more than they save. */
#define SMALL_WEIGHTS ((size_t)1 << 20)

/* One thread's panels of a part. */
struct job {
    const struct rp_matrix *matrix;
    unsigned char *to; /* where the part begins */
    uint32_t part, begin, end;
    pthread_t thread;
    int status;
};

static void *pack_panels(void *arg) {
    struct job *job = arg;
    job->status = rp_tiles_pack_panels(job->matrix, job->part, job->begin, job->end, job->to);
    return NULL;
}

static int pack_part(const struct rp_matrix *matrix, uint32_t part, unsigned char *to) {
    uint32_t panels = RP_CEIL_DIV(matrix->parts[part].rows, RP_TILE_ROWS);
    size_t weights = (size_t)panels * RP_TILE_ROWS * matrix->cols;
    uint32_t count = weights < SMALL_WEIGHTS ? 1 : THREADS, each = RP_CEIL_DIV(panels, count);
    struct job jobs[THREADS];
    bool started[THREADS] = {false};
    for (uint32_t i = 0; i < count; i++) {
        jobs[i] = (struct job){.matrix = matrix,
                               .to = to,
                               .part = part,
                               .begin = RP_MIN(i * each, panels),
                               .end = RP_MIN((i + 1) * each, panels)};
        started[i] = i > 0 && pthread_create(&jobs[i].thread, NULL, pack_panels, &jobs[i]) == 0;
    }
    int status = RP_OK;
    for (uint32_t i = 0; i < count; i++) {
        if (started[i])
            pthread_join(jobs[i].thread, NULL);
        else
            pack_panels(&jobs[i]);
        status = status == RP_OK ? jobs[i].status : status;
    }
    return status;
}

static int check_blocks(const struct rp_matrix *matrix, struct rp_error *err) {
    if (matrix->input == RP_INPUT_PLAIN) {
        rp_error_set(err, RP_STATUS_UNSUPPORTED,
                     "cuda: GEMMs on GGUF's types take rows in bfloat16 alone");
        rp_error_hint(err, "use --dtype bfloat16");
        return RP_STATUS_UNSUPPORTED;
    }
    const uint32_t *order = matrix->parts[0].columns;
    for (uint32_t i = 1; i < matrix->part_count; i++) {
        const uint32_t *other = matrix->parts[i].columns;
        bool same = other == order ||
                    (other && order && memcmp(other, order, matrix->cols * sizeof *order) == 0);
        if (!same) {
            rp_error_set(err, RP_STATUS_UNSUPPORTED,
                         "cuda: q, k and v, or gate and up, have different orders of columns "
                         "(desc_act)");
            rp_error_hint(err, "use --device cpu, or a checkpoint without desc_act");
            return RP_STATUS_UNSUPPORTED;
        }
    }
    return RP_OK;
}

int rp_cuda_blocks_prepare(struct rp_device *device, struct rp_matrix *matrix,
                           struct rp_error *err) {
    struct rp_matrix tiles = *matrix;
    tiles.layout = RP_LAYOUT_TILES;
    size_t bytes = rp_matrix_bytes(&tiles);
    int status = check_blocks(matrix, err);
    if (status != RP_OK)
        return status;
    unsigned char *packed = rp_alloc_aligned(RP_MAX(bytes, (size_t)1), RP_CACHE_LINE);
    status = packed ? RP_OK : RP_STATUS_NO_MEMORY;
    for (uint32_t i = 0; i < matrix->part_count && status == RP_OK; i++)
        status = pack_part(matrix, i, packed + rp_matrix_part_offset(&tiles, i));
    if (status != RP_OK)
        (void)rp_error_set(err, status, "no memory to repack a matrix of %u x %u", matrix->rows,
                           matrix->cols);
    else
        status = rp_cuda_matrix_block(device, &tiles, &tiles.data, err);
    if (status == RP_OK) {
        status = rp_cuda_upload(device, tiles.data, packed, bytes);
        if (status != RP_OK) {
            (void)rp_error_set(err, status, "%s", device->error);
            rp_cuda_free(device, tiles.data, RP_MEMORY_DEVICE);
        }
    }
    rp_free_aligned(packed);
    if (status != RP_OK)
        return status;
    rp_free_aligned(matrix->data);
    *matrix = tiles;
    return RP_OK;
}

int rp_cuda_blocks_random(struct rp_device *device, struct rp_matrix *matrix, uint64_t seed,
                          float scale, struct rp_error *err) {
    struct rp_matrix tiles = *matrix;
    tiles.layout = RP_LAYOUT_TILES;
    int status = check_blocks(matrix, err);
    if (status == RP_OK)
        status = rp_cuda_matrix_block(device, &tiles, &tiles.data, err);
    for (uint32_t i = 0; i < matrix->part_count && status == RP_OK; i++) {
        struct rp_tile_format format = rp_tile_format_of(matrix->parts[i].type);
        size_t count = rp_tiles_part_bytes(&matrix->parts[i], matrix->cols) / rp_tile_bytes(format);
        unsigned char *data = (unsigned char *)tiles.data + rp_matrix_part_offset(&tiles, i);
        status = rp_cuda_check(
            device,
            (cudaError_t)rp_tiles_fill_random(data, format, count, seed + i, scale, device->stream),
            "random weights");
        if (status != RP_OK) {
            rp_cuda_free(device, tiles.data, RP_MEMORY_DEVICE);
            return rp_error_set(err, status, "%s", device->error);
        }
    }
    if (status == RP_OK)
        *matrix = tiles;
    return status;
}
