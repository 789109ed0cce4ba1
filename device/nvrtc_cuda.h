/* nvrtc_cuda.h - CUDA C compiled while the program runs, by NVIDIA's NVRTC, and kept on disk.
 *
 * The library is opened by soname (shared_library_cuda.h): nothing links it, and no header of CUDA
 * or of the C library is needed where it runs. Text is compiled against headers that are passed as
 * texts, too.
 *
 * On disk: one file for each (texts, options, NVRTC), named by their hash, written aside and
 * renamed. A file that is broken, or somebody else's, is compiled anew.
 * Thread: one at a time. */
#ifndef RP_DEVICE_NVRTC_CUDA_H
#define RP_DEVICE_NVRTC_CUDA_H

#include "base/buffer.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct rp_nvrtc;

struct rp_nvrtc_header {
    const char *name; /* as it is included */
    const char *text;
};

struct rp_nvrtc_source {
    const char *name; /* for messages */
    const char *text;
    const struct rp_nvrtc_header *headers;
    uint32_t header_count;
    const char *const *options; /* "-DNAME=1"; the architecture, C++17 and -O3 need none */
    uint32_t option_count;
    uint32_t compute_capability; /* 90: compiled for sm_90a */
};

struct rp_nvrtc_stats {
    uint32_t compiled, from_disk;
};

/* cache_dir: made when it is missing; NULL: nothing is kept. It is copied. RP_STATUS_NOT_FOUND:
 * there is no NVRTC; the text says what to install. */
int rp_nvrtc_open(const char *cache_dir, struct rp_nvrtc **out, struct rp_error *err);
void rp_nvrtc_close(struct rp_nvrtc *nvrtc); /* legal on NULL */

/* Machine code (a cubin) is appended to *out. RP_STATUS_UNSUPPORTED: the text does not compile; the
 * compiler's first lines are in err. */
int rp_nvrtc_compile(struct rp_nvrtc *nvrtc, const struct rp_nvrtc_source *source,
                     struct rp_buffer *out, struct rp_error *err);

/* "NVRTC 13.0, /usr/local/cuda/lib64/libnvrtc.so.13". Lives as long as nvrtc. */
const char *rp_nvrtc_describe(const struct rp_nvrtc *nvrtc);
/* Since it was opened. */
struct rp_nvrtc_stats rp_nvrtc_stats(const struct rp_nvrtc *nvrtc);

#ifdef __cplusplus
}
#endif
#endif
