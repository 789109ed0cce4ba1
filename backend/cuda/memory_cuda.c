/* Memory of a GPU: plain blocks, address ranges that are committed later, constants, scratch,
 * weights. */
#include "backend/cuda/device_cuda.h"

#include "base/hash.h"

#include <string.h>

/* One block of cudaMalloc; a list, because there are a few hundred at most and only close walks
 * it. */
struct rp_cuda_allocation {
    void *data;
    size_t bytes;
    struct rp_cuda_allocation *next;
};

static bool find_call(const char *name, void **out) {
    enum cudaDriverEntryPointQueryResult found;
    return cudaGetDriverEntryPointByVersion(name, out, 12000, cudaEnableDefault, &found) ==
               cudaSuccess &&
           found == cudaDriverEntryPointSuccess;
}

static CUmemAllocationProp piece_properties(const struct rp_device *device) {
    CUmemAllocationProp prop;
    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device->ordinal;
    return prop;
}

int rp_cuda_memory_open(struct rp_device *device, struct rp_error *err) {
    struct rp_cuda_driver *driver = &device->driver;
    const struct {
        const char *name;
        void *call;
    } calls[] = {
        {"cuMemAddressReserve", &driver->address_reserve},
        {"cuMemAddressFree", &driver->address_free},
        {"cuMemCreate", &driver->create},
        {"cuMemRelease", &driver->release},
        {"cuMemMap", &driver->map},
        {"cuMemUnmap", &driver->unmap},
        {"cuMemSetAccess", &driver->set_access},
        {"cuMemGetAllocationGranularity", &driver->granularity},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(calls); i++)
        if (!find_call(calls[i].name, calls[i].call))
            return rp_error_set(err, RP_STATUS_DEVICE, "cuda: the driver has no %s", calls[i].name);
    CUmemAllocationProp prop = piece_properties(device);
    if (driver->granularity(&device->granule, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) !=
        CUDA_SUCCESS)
        return rp_error_set(err, RP_STATUS_DEVICE, "cuda: no granularity of allocations");
    return RP_OK;
}

void *rp_cuda_alloc(struct rp_device *device, size_t bytes, enum rp_memory_kind kind) {
    void *data = NULL;
    rp_cuda_select(device);
    bytes = RP_MAX(bytes, (size_t)1);
    if (kind != RP_MEMORY_DEVICE)
        return rp_cuda_host_alloc(device, bytes);
    struct rp_cuda_allocation *entry = rp_alloc(sizeof *entry);
    if (!entry)
        return NULL;
    if (RP_CUDA_TRY(device, cudaMalloc(&data, bytes)) != RP_OK) {
        rp_free(entry);
        return NULL;
    }
    *entry = (struct rp_cuda_allocation){data, bytes, device->allocations};
    device->allocations = entry;
    device->allocated_bytes += bytes;
    device->allocation_count++;
    return data;
}

void rp_cuda_free(struct rp_device *device, void *ptr, enum rp_memory_kind kind) {
    if (!ptr)
        return;
    rp_cuda_select(device);
    if (kind != RP_MEMORY_DEVICE) {
        rp_cuda_host_free(device, ptr);
        return;
    }
    for (struct rp_cuda_allocation **at = &device->allocations; *at; at = &(*at)->next) {
        struct rp_cuda_allocation *entry = *at;
        if (entry->data != ptr)
            continue;
        (void)RP_CUDA_TRY(device, cudaFree(ptr));
        device->allocated_bytes -= entry->bytes;
        *at = entry->next;
        rp_free(entry);
        return;
    }
    RP_ASSERT(!"a pointer that alloc did not give");
}

static struct rp_cuda_range *find_range(struct rp_device *device, const void *base) {
    for (uint32_t i = 0; i < RP_CUDA_RANGES_MAX; i++)
        if (device->ranges[i].base == base)
            return &device->ranges[i];
    return NULL;
}

void *rp_cuda_reserve(struct rp_device *device, size_t bytes) {
    struct rp_cuda_range *range = find_range(device, NULL);
    CUdeviceptr at = 0;
    rp_cuda_select(device);
    bytes = RP_ALIGN_UP(RP_MAX(bytes, (size_t)1), device->granule);
    if (!range || device->driver.address_reserve(&at, bytes, 0, 0, 0) != CUDA_SUCCESS)
        return NULL;
    memset(range, 0, sizeof *range);
    range->base = (unsigned char *)at;
    range->reserved = bytes;
    return range->base;
}

int rp_cuda_commit(struct rp_device *device, void *base, size_t bytes) {
    struct rp_cuda_range *range = find_range(device, base);
    struct rp_cuda_driver *driver = &device->driver;
    rp_cuda_select(device);
    bytes = RP_ALIGN_UP(bytes, device->granule);
    if (!range || bytes > range->reserved)
        return RP_STATUS_RANGE;
    if (bytes <= range->committed)
        return RP_OK;
    if (range->piece_count == RP_CUDA_PIECES_MAX)
        return RP_STATUS_FULL;
    size_t more = bytes - range->committed;
    CUdeviceptr at = (CUdeviceptr)(range->base + range->committed);
    CUmemAllocationProp prop = piece_properties(device);
    CUmemAccessDesc access = {.location = prop.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUresult result = driver->create(&handle, more, &prop, 0);
    if (result != CUDA_SUCCESS)
        return result == CUDA_ERROR_OUT_OF_MEMORY ? RP_STATUS_NO_MEMORY : RP_STATUS_DEVICE;
    if (driver->map(at, more, 0, handle, 0) != CUDA_SUCCESS) {
        driver->release(handle);
        return RP_STATUS_DEVICE;
    }
    if (driver->set_access(at, more, &access, 1) != CUDA_SUCCESS) {
        driver->unmap(at, more);
        driver->release(handle);
        return RP_STATUS_DEVICE;
    }
    range->pieces[range->piece_count].handle = handle;
    range->pieces[range->piece_count++].bytes = more;
    range->committed = bytes;
    device->allocated_bytes += more;
    device->allocation_count++;
    return RP_OK;
}

void rp_cuda_release(struct rp_device *device, void *base) {
    struct rp_cuda_range *range = base ? find_range(device, base) : NULL;
    if (!range)
        return;
    rp_cuda_select(device);
    size_t offset = 0;
    for (uint32_t i = 0; i < range->piece_count; i++) {
        device->driver.unmap((CUdeviceptr)(range->base + offset), range->pieces[i].bytes);
        device->driver.release(range->pieces[i].handle);
        offset += range->pieces[i].bytes;
    }
    device->driver.address_free((CUdeviceptr)range->base, range->reserved);
    device->allocated_bytes -= range->committed;
    memset(range, 0, sizeof *range);
}

void rp_cuda_memory(struct rp_device *device, struct rp_device_memory *out) {
    size_t free_bytes = 0, total_bytes = 0;
    rp_cuda_select(device);
    (void)RP_CUDA_TRY(device, cudaMemGetInfo(&free_bytes, &total_bytes));
    *out = (struct rp_device_memory){.total_bytes = total_bytes,
                                     .free_bytes = free_bytes,
                                     .allocated_bytes = device->allocated_bytes,
                                     .allocation_count = device->allocation_count};
}

/* A hash over its first and last bytes: whole tables would cost too much at each capture. */
static uint64_t sample_of(const unsigned char *data, size_t bytes) {
    size_t part = RP_MIN(bytes, (size_t)256);
    return rp_hash64(data, part, rp_hash64(data + bytes - part, part, bytes));
}

void *rp_cuda_constant(struct rp_device *device, const void *host, size_t bytes) {
    uint64_t sample = sample_of(host, bytes);
    for (struct rp_cuda_constant *c = device->constants; c; c = c->next)
        if (c->host == host && c->bytes == bytes && c->sample == sample)
            return c->device;
    struct rp_cuda_constant *made = rp_alloc(sizeof *made);
    void *data = made ? rp_cuda_alloc(device, bytes, RP_MEMORY_DEVICE) : NULL;
    if (!data || rp_cuda_copy_in(device, data, host, bytes) != RP_OK) {
        rp_free(made);
        return NULL;
    }
    *made = (struct rp_cuda_constant){host, bytes, sample, data, device->constants};
    device->constants = made;
    return data;
}

unsigned char *rp_cuda_scratch(struct rp_device *device, enum rp_cuda_scratch_kind kind,
                               size_t bytes, uint64_t layout) {
    struct rp_cuda_scratch *newest = device->scratch[kind];
    for (const struct rp_cuda_scratch *s = newest; s; s = s->older)
        if (s->bytes >= bytes && s->layout == layout)
            return s->data;
    struct rp_cuda_scratch *made = rp_alloc(sizeof *made);
    unsigned char *data = made ? rp_cuda_alloc(device, bytes, RP_MEMORY_DEVICE) : NULL;
    if (!data ||
        RP_CUDA_TRY(device, cudaMemsetAsync(data, 0, RP_MAX(bytes, (size_t)1), device->stream))) {
        rp_free(made);
        return NULL;
    }
    *made = (struct rp_cuda_scratch){data, bytes, layout, newest};
    device->scratch[kind] = made;
    return data;
}

int rp_cuda_matrix_block(struct rp_device *device, const struct rp_matrix *matrix, void **out,
                         struct rp_error *err) {
    size_t bytes = rp_matrix_bytes(matrix);
    *out = bytes ? rp_cuda_alloc(device, bytes, RP_MEMORY_DEVICE) : NULL;
    if (*out)
        return RP_OK;
    struct rp_device_memory memory;
    rp_cuda_memory(device, &memory);
    return rp_error_set(err, RP_STATUS_NO_MEMORY,
                        "cuda: no memory for a matrix of %zu bytes: the GPU has %llu of %llu "
                        "bytes free",
                        bytes, (unsigned long long)memory.free_bytes,
                        (unsigned long long)memory.total_bytes);
}

/* Scratch memory of GEMMs with 8-bit weights. */
static int check_8_bits(const struct rp_matrix *matrix, struct rp_error *err) {
    bool channels = matrix->scale_kind == RP_SCALE_TENSOR || matrix->scale_kind == RP_SCALE_CHANNEL;
    bool blocks = matrix->scale_kind == RP_SCALE_BLOCK_128 && matrix->dtype == RP_DTYPE_FP8_E4M3;
    if (!channels && !blocks)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "cuda: %s weights take one scale per tensor or output channel%s",
                            rp_dtype_name(matrix->dtype),
                            matrix->dtype == RP_DTYPE_INT8 ? "" : ", or blocks of 128");
    if (matrix->cols > RP_INT8_COLS_MAX)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "cuda: 8-bit matrices have up to %u columns, this one has %u",
                            RP_INT8_COLS_MAX, matrix->cols);
    return RP_OK;
}

static float *scales_block(struct rp_device *device, size_t count, struct rp_error *err) {
    float *scales = rp_cuda_alloc(device, count * sizeof *scales, RP_MEMORY_DEVICE);
    if (!scales)
        (void)rp_error_set(err, RP_STATUS_NO_MEMORY, "cuda: no memory for %zu scales of a matrix",
                           count);
    return scales;
}

/* A scale per tensor is written to each output: kernels know channels and blocks. */
static int upload_scales(struct rp_device *device, struct rp_matrix *matrix, float **out,
                         struct rp_error *err) {
    bool spread = matrix->scale_kind == RP_SCALE_TENSOR;
    size_t count = spread ? matrix->rows : rp_matrix_scale_count(matrix);
    float *each = spread ? rp_alloc(RP_MAX(count, (size_t)1) * sizeof *each) : NULL;
    if (spread && !each)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "cuda: no memory for %zu scales", count);
    for (size_t i = 0; spread && i < count; i++)
        each[i] = matrix->scales[0];
    int status = RP_STATUS_NO_MEMORY;
    *out = scales_block(device, count, err);
    if (*out) {
        status = rp_cuda_upload(device, *out, spread ? each : matrix->scales, count * sizeof *each);
        if (status != RP_OK) {
            rp_cuda_free(device, *out, RP_MEMORY_DEVICE);
            (void)rp_error_set(err, status, "%s", device->error);
        }
    }
    rp_free(each);
    return status;
}

int rp_cuda_matrix_prepare(struct rp_device *device, struct rp_matrix *matrix,
                           struct rp_error *err) {
    void *data;
    float *scales = NULL;
    bool is_8_bits = rp_dtype_bytes(matrix->dtype) == 1;
    if (matrix->layout != RP_LAYOUT_ROW_MAJOR)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED, "cuda: the matrix is packed already");
    if (matrix->dtype == RP_DTYPE_BLOCKS)
        return rp_cuda_blocks_prepare(device, matrix, err);
    int status = is_8_bits ? check_8_bits(matrix, err) : RP_OK;
    if (status == RP_OK)
        status = rp_cuda_matrix_block(device, matrix, &data, err);
    if (status != RP_OK)
        return status;
    status = rp_cuda_upload(device, data, matrix->data, rp_matrix_bytes(matrix));
    if (status != RP_OK)
        (void)rp_error_set(err, status, "%s", device->error);
    else if (is_8_bits)
        status = upload_scales(device, matrix, &scales, err);
    if (status != RP_OK) {
        rp_cuda_free(device, data, RP_MEMORY_DEVICE);
        return status;
    }
    rp_free_aligned(matrix->data);
    matrix->data = data;
    if (is_8_bits) {
        rp_free_aligned((void *)(uintptr_t)matrix->scales);
        matrix->scales = scales;
        if (matrix->scale_kind == RP_SCALE_TENSOR)
            matrix->scale_kind = RP_SCALE_CHANNEL;
    }
    return RP_OK;
}

/* To a matrix with data and scales on the GPU. */
static int quantize_rows(struct rp_device *device, const struct rp_matrix *values, uint32_t col,
                         const struct rp_matrix *matrix, struct rp_error *err) {
    bool is_bad = false;
    RP_ASSERT(matrix->scale_kind == RP_SCALE_CHANNEL && matrix->rows == values->rows &&
              values->cols <= RP_INT8_COLS_MAX && col + matrix->cols <= values->cols);
    const struct rp_cuda_weight_rows rows = {.from = values->dtype,
                                             .to = matrix->dtype,
                                             .wide = values->cols,
                                             .col = col,
                                             .cols = matrix->cols,
                                             .quantized = matrix->data,
                                             .scales = (float *)(uintptr_t)matrix->scales};
    int status = rp_cuda_upload_rows(device, &rows, values->data, values->rows, &is_bad);
    if (status == RP_STATUS_NO_MEMORY)
        return rp_error_set(err, status, "cuda: no memory to quantize weights in");
    if (status != RP_OK)
        return rp_error_set(err, status, "%s", device->error);
    return is_bad ? rp_error_set(err, RP_STATUS_FORMAT, "cuda: a weight is not finite") : RP_OK;
}

int rp_cuda_matrix_quantize(struct rp_device *device, const struct rp_matrix *values, uint32_t col,
                            struct rp_matrix *matrix, struct rp_error *err) {
    struct rp_matrix made = *matrix;
    RP_ASSERT(!matrix->data);
    int status = rp_cuda_matrix_block(device, matrix, &made.data, err);
    if (status != RP_OK)
        return status;
    made.scales = scales_block(device, matrix->rows, err);
    status = made.scales ? quantize_rows(device, values, col, &made, err) : RP_STATUS_NO_MEMORY;
    if (status == RP_OK)
        *matrix = made;
    else
        rp_cuda_matrix_release(device, &made);
    return status;
}

static int clear(struct rp_device *device, const void *data, size_t bytes, struct rp_error *err) {
    int status =
        RP_CUDA_TRY(device, cudaMemsetAsync((void *)(uintptr_t)data, 0, bytes, device->stream));
    return status == RP_OK ? RP_OK : rp_error_set(err, status, "%s", device->error);
}

int rp_cuda_matrix_reserve(struct rp_device *device, struct rp_matrix *matrix,
                           struct rp_error *err) {
    struct rp_matrix made = *matrix;
    bool is_8_bits = rp_dtype_bytes(matrix->dtype) == 1;
    RP_ASSERT(matrix->layout == RP_LAYOUT_ROW_MAJOR && matrix->dtype != RP_DTYPE_BLOCKS &&
              matrix->scale_kind != RP_SCALE_TENSOR && !matrix->data && !matrix->scales);
    int status = is_8_bits ? check_8_bits(matrix, err) : RP_OK;
    if (status != RP_OK)
        return status;
    status = rp_cuda_upload_begin(device, is_8_bits);
    if (status != RP_OK)
        return rp_error_set(err, status, "cuda: no memory to copy weights with");
    status = rp_cuda_matrix_block(device, matrix, &made.data, err);
    if (status == RP_OK)
        status = clear(device, made.data, rp_matrix_bytes(&made), err);
    if (status == RP_OK && is_8_bits) {
        size_t count = rp_matrix_scale_count(matrix);
        made.scales = scales_block(device, count, err);
        status = made.scales ? clear(device, made.scales, count * sizeof(float), err)
                             : RP_STATUS_NO_MEMORY;
    }
    if (status == RP_OK)
        *matrix = made;
    else
        rp_cuda_matrix_release(device, &made);
    return status;
}

int rp_cuda_matrix_fill(struct rp_device *device, const struct rp_matrix *values,
                        const struct rp_matrix *matrix, struct rp_error *err) {
    if (values->dtype != matrix->dtype)
        return quantize_rows(device, values, 0, matrix, err);
    int status = rp_cuda_upload(device, matrix->data, values->data, rp_matrix_bytes(matrix));
    if (status == RP_OK && matrix->scales)
        status = rp_cuda_upload(device, (void *)(uintptr_t)matrix->scales, values->scales,
                                rp_matrix_scale_count(matrix) * sizeof(float));
    return status == RP_OK ? RP_OK : rp_error_set(err, status, "%s", device->error);
}

int rp_cuda_matrix_random(struct rp_device *device, struct rp_matrix *matrix, uint64_t seed,
                          float scale, struct rp_error *err) {
    void *data;
    float *scales = NULL;
    bool is_8_bits = rp_dtype_bytes(matrix->dtype) == 1;
    if (matrix->dtype == RP_DTYPE_BLOCKS)
        return rp_cuda_blocks_random(device, matrix, seed, scale, err);
    if (is_8_bits && matrix->scale_kind != RP_SCALE_CHANNEL)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "cuda: random 8-bit weights have a scale per output channel");
    int status = rp_cuda_matrix_block(device, matrix, &data, err);
    if (status != RP_OK)
        return status;
    size_t count = (size_t)matrix->rows * matrix->cols;
    if (is_8_bits) {
        scales = scales_block(device, matrix->rows, err);
        if (!scales) {
            rp_cuda_free(device, data, RP_MEMORY_DEVICE);
            return RP_STATUS_NO_MEMORY;
        }
    }
    status = rp_cuda_check(
        device,
        (cudaError_t)(is_8_bits
                          ? rp_cuda_fill_random_quantized(data, scales, matrix->dtype, matrix->rows,
                                                          matrix->cols, seed, scale, device->stream)
                          : rp_cuda_fill_random(data, matrix->dtype, count, seed, scale,
                                                device->stream)),
        "random weights");
    if (status != RP_OK) {
        rp_cuda_free(device, data, RP_MEMORY_DEVICE);
        rp_cuda_free(device, scales, RP_MEMORY_DEVICE);
        return rp_error_set(err, status, "%s", device->error);
    }
    matrix->data = data;
    if (is_8_bits)
        matrix->scales = scales;
    return RP_OK;
}

void rp_cuda_matrix_release(struct rp_device *device, struct rp_matrix *matrix) {
    rp_cuda_free(device, matrix->data, RP_MEMORY_DEVICE);
    matrix->data = NULL;
    if (rp_dtype_bytes(matrix->dtype) == 1) {
        rp_cuda_free(device, (void *)(uintptr_t)matrix->scales, RP_MEMORY_DEVICE);
        matrix->scales = NULL;
    }
}

void rp_cuda_memory_close(struct rp_device *device) {
    rp_cuda_upload_end(device);
    for (uint32_t i = 0; i < RP_CUDA_RANGES_MAX; i++)
        rp_cuda_release(device, device->ranges[i].base);
    while (device->constants) {
        struct rp_cuda_constant *next = device->constants->next;
        rp_free(device->constants);
        device->constants = next;
    }
    for (int kind = 0; kind < RP_CUDA_SCRATCH_COUNT; kind++)
        while (device->scratch[kind]) {
            struct rp_cuda_scratch *older = device->scratch[kind]->older;
            rp_free(device->scratch[kind]);
            device->scratch[kind] = older;
        }
    while (device->allocations) /* their blocks, and what the caller forgot */
        rp_cuda_free(device, device->allocations->data, RP_MEMORY_DEVICE);
}
