/* shared_library_cuda.h - NVIDIA's libraries, opened by soname when the program runs.
 *
 * Searched in this order, and in each place for the sonames in the order given:
 *   $CUDA_HOME/lib64 and $CUDA_PATH/lib64
 *   what the loader knows (LD_LIBRARY_PATH, its cache), /usr/local/cuda/lib64
 *   nvidia/<any>/lib in the site-packages of Python: of $VIRTUAL_ENV, of the folders beside those of
 *   $PATH, of ~/.local, and of the usual system paths. Python itself is not run.
 * Thread: any. */
#ifndef RP_DEVICE_SHARED_LIBRARY_CUDA_H
#define RP_DEVICE_SHARED_LIBRARY_CUDA_H

#include "base/status.h"

/* Called with every library that could be loaded, until it returns true. */
typedef bool (*rp_library_accept)(void *ctx, void *library);

/* Returns the handle (dlsym; dlclose when done) and the file's path; NULL, and why in err, when no
 * library was found or none was accepted. accept may be NULL. */
void *rp_shared_library_open(const char *const *sonames, uint32_t count, rp_library_accept accept,
                             void *ctx, char *out_path, size_t path_bytes, struct rp_error *err);

#endif
