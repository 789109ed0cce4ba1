/* gpu.h - shared by GPU tests: skipping without a GPU, poisoned device buffers, comparisons.
 *
 * Every function asserts that CUDA succeeded. Buffers live until rp_gpu_free_all. */
#ifndef RP_TESTS_SUPPORT_GPU_H
#define RP_TESTS_SUPPORT_GPU_H

#include "device/cuda_launch.h"

/* False when there is no GPU or driver. */
bool rp_gpu_available(void);
/* For main(): prints the reason and returns 77 when there is no GPU, else 0. */
int rp_gpu_skip_code(void);
void rp_gpu_limits(struct rp_cuda_limits *out);
/* True when REPRISE_TEST_TINY is set: small cases only, each kernel once, for compute-sanitizer,
 * which makes a program a hundred times slower. */
bool rp_gpu_is_tiny(void);

void *rp_gpu_upload(const void *data, size_t bytes);
/* Every byte 0xFF: NaN in each float type. The 256 bytes after it hold a canary. */
void *rp_gpu_poisoned(size_t bytes);
void *rp_gpu_zeroed(size_t bytes);
void rp_gpu_download(void *to, const void *from, size_t bytes);
/* False when a byte past the end of any of these buffers was written. */
bool rp_gpu_canaries_hold(void);
void rp_gpu_free_all(void);
void rp_gpu_synchronize(void);

/* A step view on the device with these live counts; the caller fills rows, tokens and slots in the
 * host copies. */
struct rp_gpu_step {
    struct rp_step_view host, device; /* the same state, twice */
    unsigned char *host_state, *device_state;
    unsigned char *rings; /* pinned, shared by both views */
    size_t state_bytes;
};
void rp_gpu_step_open(struct rp_gpu_step *step, const struct rp_step_config *config);
/* A step for operators that need only its counts of rows, tokens and logit rows. */
void rp_gpu_step_open_rows(struct rp_gpu_step *step, uint32_t rows);
void rp_gpu_step_upload(struct rp_gpu_step *step);   /* host state -> device */
void rp_gpu_step_download(struct rp_gpu_step *step); /* device state -> host */
void rp_gpu_step_close(struct rp_gpu_step *step);

/* ||a - b|| / ||b|| over n values; infinity if a contains a NaN. */
double rp_relative_error(const float *a, const float *b, size_t n);
/* Element `at` of an array of f32 or bf16. */
void rp_test_put(void *to, enum rp_dtype dtype, size_t at, float value);
float rp_test_get(const void *from, enum rp_dtype dtype, size_t at);
/* f32 <- bf16 or f32 */
void rp_to_f32(float *out, const void *in, enum rp_dtype dtype, size_t n);

#endif
