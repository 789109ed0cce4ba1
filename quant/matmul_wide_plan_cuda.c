#include "quant/matmul_internal_cuda.h"
#include "quant/matmul_wide_cuda.h"

#include <cuda_runtime_api.h>
#include <string.h>

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                              const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

struct map_shape {
    uint32_t rank;
    cuuint64_t sizes[4], strides[3]; /* elements; bytes */
    cuuint32_t box[4];
    enum rp_dtype dtype;
};

static int encode_map(CUtensorMap *map, const void *data, const struct map_shape *shape,
                      struct rp_error *err) {
    static encode_fn encode; /* the same in every thread */
    static const cuuint32_t steps[4] = {1, 1, 1, 1};
    if (!encode) {
        void *function = NULL;
        enum cudaDriverEntryPointQueryResult found;
        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                             cudaEnableDefault, &found) != cudaSuccess ||
            found != cudaDriverEntryPointSuccess)
            return rp_error_set(err, RP_STATUS_DEVICE, "the driver has no cuTensorMapEncodeTiled");
        memcpy(&encode, &function, sizeof encode);
    }
    uint32_t row_bytes = shape->box[0] * (uint32_t)rp_dtype_bytes(shape->dtype);
    CUresult result = encode(map,
                             shape->dtype == RP_DTYPE_F32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                                          : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                             shape->rank, (void *)(uintptr_t)data, shape->sizes, shape->strides,
                             shape->box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                             row_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                             : row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                               : CU_TENSOR_MAP_SWIZZLE_32B,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        return rp_error_set(err, RP_STATUS_DEVICE, "no tensor map for (%llu, %llu): error %d",
                            (unsigned long long)shape->sizes[1],
                            (unsigned long long)shape->sizes[0], (int)result);
    return RP_OK;
}

bool rp_matmul_wide_cuda_fits(const struct rp_matmul_cuda *op) {
    return rp_matmul_cuda_fits(op) && op->rows.max_rows > 256 &&
           op->limits.shared_bytes_block >= 227 * 1024 &&
           (!op->gated || op->weight->rows % 16 == 0);
}

/* Of 8 bits, kernels whose sums, totals and scales find room in the registers alone. */
static uint32_t widest(const struct rp_matmul_cuda *op) {
    return op->weight->dtype == RP_DTYPE_BF16 ? 256 : op->gated ? 128 : 192;
}

/* The tiles whose waves over all multiprocessors take the least time. */
static uint32_t choose(const struct rp_matmul_cuda *op) {
    static const struct {
        uint32_t cols;
        uint32_t
            cost; /* of a tile in bf16: measured, bench/results/cuda_products_wide.md. Of 8 bits each is taken for
                        * half of it, which has not been measured yet and chooses alike. */
    } widths[] = {{128, 130}, {192, 192}, {224, 232}, {256, 290}};
    uint32_t token_tiles = RP_CEIL_DIV(op->rows.max_rows, RP_WIDE_TOKENS), least = UINT32_MAX;
    uint32_t best = 0;
    for (size_t i = 0; i < RP_ARRAY_COUNT(widths) && widths[i].cols <= widest(op); i++) {
        uint32_t tiles = token_tiles * RP_CEIL_DIV(op->weight->rows, widths[i].cols);
        uint32_t cost = RP_CEIL_DIV(tiles, op->limits.sm_count) * widths[i].cost;
        if (cost < least) {
            least = cost;
            best = widths[i].cols;
        }
    }
    return best;
}

/* Rows of 8 gates and 8 ups in turns, where the product is gated. */
static int encode_weights(struct rp_matmul_wide_args *args, const struct rp_matmul_cuda *op,
                          struct rp_error *err) {
    uint32_t rows = args->cols;
    const struct rp_matrix *w = op->weight;
    cuuint64_t units = rp_matmul_cuda_units(w), row = units * 2;
    struct map_shape shape = {.rank = 2,
                              .sizes = {units, w->rows},
                              .strides = {row},
                              .box = {RP_MATMUL_BLOCK, rows},
                              .dtype = RP_DTYPE_BF16};
    if (op->gated)
        shape = (struct map_shape){.rank = 4,
                                   .sizes = {units, 8, 2, w->rows / 16},
                                   .strides = {row, row * (w->rows / 2), row * 8},
                                   .box = {RP_MATMUL_BLOCK, 8, 2, rows / 16},
                                   .dtype = RP_DTYPE_BF16};
    return encode_map(&args->weight_map, w->data, &shape, err);
}

static int encode_maps(struct rp_matmul_wide_args *args, const struct rp_matmul_cuda *op,
                       struct rp_error *err) {
    const struct rp_matrix *w = op->weight;
    int status = encode_weights(args, op, err);
    if (status != RP_OK)
        return status;
    struct map_shape in = {.rank = 2,
                           .sizes = {rp_matmul_cuda_units(w), op->rows.max_rows},
                           .strides = {op->in_stride * rp_dtype_bytes(w->dtype)},
                           .box = {RP_MATMUL_BLOCK, RP_WIDE_TOKENS},
                           .dtype = RP_DTYPE_BF16};
    status = encode_map(&args->in_map, op->in, &in, err);
    if (status != RP_OK)
        return status;
    args->bulk_stores = (uintptr_t)op->out.data % 16 == 0 &&
                        op->out.stride * rp_dtype_bytes(op->out.dtype) % 16 == 0;
    if (!args->bulk_stores)
        return RP_OK;
    /* Boxes of 64 rows that tile the outputs, as wide as the swizzle has it (store_slice). */
    uint32_t element = (uint32_t)rp_dtype_bytes(op->out.dtype);
    uint32_t bytes = args->cols / (op->gated ? 2 : 1) * element;
    uint32_t box = bytes % 128 == 0 && !op->gated ? 128 : bytes % 64 == 0 ? 64 : 32;
    struct map_shape out = {.rank = 2,
                            .sizes = {args->out_cols, op->rows.max_rows},
                            .strides = {op->out.stride * element},
                            .box = {box / element, 64},
                            .dtype = op->out.dtype};
    return encode_map(&args->out_map, op->out.data, &out, err);
}

static int fill_args(struct rp_matmul_wide_args *args, const struct rp_matmul_cuda *op,
                     uint32_t cols, uint32_t segment, struct rp_error *err) {
    const struct rp_matrix *w = op->weight;
    const struct rp_live_counts *counts = op->rows.step.counts;
    args->live = op->rows.rows == RP_ROWS_TOKEN ? &counts->token_count : &counts->logit_row_count;
    args->stamp = op->rows.stamp;
    args->bias = op->bias;
    args->dtype = w->dtype;
    args->weight_scales = w->scales;
    args->in_scales = op->in_scales;
    args->out = op->out.data;
    args->out_stride = op->out.stride;
    args->out_bf16 = op->out.dtype == RP_DTYPE_BF16;
    args->accumulate = op->accumulate;
    args->gated = op->gated;
    args->fn = op->fn;
    args->dependent = op->limits.dependent_launch;
    args->out_cols = op->gated ? w->rows / 2 : w->rows;
    args->blocks = RP_CEIL_DIV(rp_matmul_cuda_units(w), RP_MATMUL_BLOCK);
    args->segment_blocks = segment / RP_MATMUL_BLOCK;
    args->cols = cols;
    args->token_tiles = RP_CEIL_DIV(op->rows.max_rows, RP_WIDE_TOKENS);
    args->col_tiles = RP_CEIL_DIV(w->rows, cols);
    args->grid = RP_MIN(args->token_tiles * args->col_tiles, op->limits.sm_count);
    RP_ASSERT(op->in_stride >= w->cols);
    int status = encode_maps(args, op, err);
    if (status == RP_OK && rp_matmul_wide_cuda_prepare(args) != RP_OK)
        status = rp_error_set(err, RP_STATUS_DEVICE, "no kernel for tiles of %u outputs", cols);
    return status;
}

int rp_matmul_wide_cuda_plan(const struct rp_matmul_cuda *op, uint32_t cols, uint32_t segment,
                             struct rp_arena *memory, struct rp_cuda_launch *out_launch,
                             struct rp_error *err) {
    RP_ASSERT(segment > 0 && segment % RP_MATMUL_BLOCK == 0);
    RP_ASSERT(op->out.dtype == RP_DTYPE_F32 || !op->accumulate);
    /* The arena aligns to 16 bytes, tensor maps want 64. */
    unsigned char *bytes = rp_arena_alloc(memory, sizeof(struct rp_matmul_wide_args) + 64);
    if (!bytes)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for the arguments of a product");
    struct rp_matmul_wide_args *args = (void *)RP_ALIGN_UP((uintptr_t)bytes, 64);
    memset(args, 0, sizeof *args);
    int status = fill_args(args, op, cols ? cols : choose(op), segment, err);
    if (status == RP_OK)
        *out_launch = (struct rp_cuda_launch){"matmul_wide", rp_matmul_wide_cuda_run, args};
    return status;
}
