/* Host memory that a GPU sees: pinned and mapped, at one address for both.
 *
 * The driver pins 4 GiB in two seconds, page by page. Large blocks are therefore ours, in huge
 * pages that several threads touch first, and only registered with the driver. */
#include "backend/cuda/device_cuda.h"

#include <pthread.h>

#define LARGE_BYTES ((size_t)64 << 20)
#define TOUCH_STEP  ((size_t)4096)
#define TOUCHERS    8

struct rp_cuda_host_block {
    void *data;
    struct rp_cuda_host_block *next;
};

struct touch {
    unsigned char *begin, *end;
    pthread_t thread;
};

static void *touch_pages(void *arg) {
    const struct touch *touch = arg;
    for (unsigned char *at = touch->begin; at < touch->end; at += TOUCH_STEP)
        *(volatile unsigned char *)at = 0;
    return NULL;
}

static void touch_all(unsigned char *data, size_t bytes) {
    struct touch parts[TOUCHERS];
    bool started[TOUCHERS];
    size_t share = RP_ALIGN_UP(RP_CEIL_DIV(bytes, TOUCHERS), (size_t)2 << 20);
    for (size_t i = 0; i < TOUCHERS; i++) {
        size_t begin = RP_MIN(i * share, bytes), end = RP_MIN(begin + share, bytes);
        parts[i] = (struct touch){.begin = data + begin, .end = data + end};
        started[i] = pthread_create(&parts[i].thread, NULL, touch_pages, &parts[i]) == 0;
    }
    for (size_t i = 0; i < TOUCHERS; i++)
        if (started[i])
            pthread_join(parts[i].thread, NULL);
        else
            touch_pages(&parts[i]);
}

/* NULL when the driver refuses: it may still be able to allocate pinned memory itself. */
static void *register_block(struct rp_device *device, size_t bytes) {
    int same_address = 0;
    if (cudaDeviceGetAttribute(&same_address, cudaDevAttrCanUseHostPointerForRegisteredMem,
                               device->ordinal) != cudaSuccess ||
        !same_address)
        return NULL;
    struct rp_cuda_host_block *block = rp_alloc(sizeof *block);
    void *data = rp_alloc_aligned(bytes, 4096);
    if (block && data) {
        touch_all(data, bytes);
        if (cudaHostRegister(data, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped) ==
            cudaSuccess) {
            *block = (struct rp_cuda_host_block){data, device->host_blocks};
            device->host_blocks = block;
            return data;
        }
        (void)cudaGetLastError();
    }
    rp_free_aligned(data);
    rp_free(block);
    return NULL;
}

void *rp_cuda_host_alloc(struct rp_device *device, size_t bytes) {
    void *data = bytes >= LARGE_BYTES ? register_block(device, bytes) : NULL;
    if (data)
        return data;
    return cudaHostAlloc(&data, bytes, cudaHostAllocPortable | cudaHostAllocMapped) == cudaSuccess
               ? data
               : NULL;
}

void rp_cuda_host_free(struct rp_device *device, void *ptr) {
    for (struct rp_cuda_host_block **at = &device->host_blocks; *at; at = &(*at)->next) {
        struct rp_cuda_host_block *block = *at;
        if (block->data != ptr)
            continue;
        (void)RP_CUDA_TRY(device, cudaHostUnregister(ptr));
        *at = block->next;
        rp_free_aligned(ptr);
        rp_free(block);
        return;
    }
    (void)RP_CUDA_TRY(device, cudaFreeHost(ptr));
}
