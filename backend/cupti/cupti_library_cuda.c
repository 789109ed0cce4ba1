/* CUPTI's library, for kernel records (profile_cuda.c) and for hardware counters
 * (counters_cuda.c). */
#include "backend/cuda/device_cuda.h"
#include "device/shared_library_cuda.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* Looked for once, and never closed: CUPTI does not outlive that. */
void *rp_cuda_cupti_library(struct rp_error *err) {
    static const char *const sonames[] = {"libcupti.so.13", "libcupti.so.12"};
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static void *library;
    char path[256];
    pthread_mutex_lock(&lock);
    if (!library)
        library = rp_shared_library_open(sonames, RP_ARRAY_COUNT(sonames), NULL, NULL, path,
                                         sizeof path, err);
    void *found = library;
    pthread_mutex_unlock(&lock);
    return found;
}

/* CUPTI opens libnvperf_host.so by its name alone, which the loader knows once it is loaded. */
void rp_cuda_cupti_load_host(void *library) {
    char path[PATH_MAX];
    Dl_info info;
    const void *inside = dlsym(library, "cuptiGetVersion");
    if (!inside || dladdr(inside, &info) == 0 || !info.dli_fname)
        return;
    const char *slash = strrchr(info.dli_fname, '/');
    if (slash && snprintf(path, sizeof path, "%.*s/libnvperf_host.so",
                          (int)(slash - info.dli_fname), info.dli_fname) < (int)sizeof path)
        (void)dlopen(path, RTLD_NOW | RTLD_LOCAL);
}
