#include "device/nvrtc_cuda.h"

#include "base/hash.h"
#include "base/memory.h"
#include "device/nvrtc_internal_cuda.h"
#include "device/shared_library_cuda.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

/* The part of nvrtc.h that is used; its results are ints, 0 for success. */
typedef void *nvrtc_program;
struct nvrtc_api {
    int (*version)(int *major, int *minor);
    const char *(*error_text)(int result);
    int (*create)(nvrtc_program *program, const char *text, const char *name, int header_count,
                  const char *const *headers, const char *const *names);
    int (*destroy)(nvrtc_program *program);
    int (*compile)(nvrtc_program program, int option_count, const char *const *options);
    int (*log_size)(nvrtc_program program, size_t *bytes);
    int (*log)(nvrtc_program program, char *log);
    int (*cubin_size)(nvrtc_program program, size_t *bytes);
    int (*cubin)(nvrtc_program program, char *cubin);
};

struct rp_nvrtc {
    void *library;
    struct nvrtc_api api;
    int major, minor;
    char *cache_dir; /* NULL: nothing is kept */
    char path[PATH_MAX], description[PATH_MAX + 64];
    struct rp_nvrtc_stats stats;
};

static bool accept(void *ctx, void *library) {
    struct nvrtc_api *api = ctx;
    const struct {
        const char *name;
        void *to;
    } symbols[] = {
        {"nvrtcVersion", &api->version},        {"nvrtcGetErrorString", &api->error_text},
        {"nvrtcCreateProgram", &api->create},   {"nvrtcDestroyProgram", &api->destroy},
        {"nvrtcCompileProgram", &api->compile}, {"nvrtcGetProgramLogSize", &api->log_size},
        {"nvrtcGetProgramLog", &api->log},      {"nvrtcGetCUBINSize", &api->cubin_size},
        {"nvrtcGetCUBIN", &api->cubin}};
    for (size_t i = 0; i < RP_ARRAY_COUNT(symbols); i++) {
        void *symbol = dlsym(library, symbols[i].name);
        if (!symbol)
            return false;
        memcpy(symbols[i].to, &symbol, sizeof symbol);
    }
    return true;
}

int rp_nvrtc_open(const char *cache_dir, struct rp_nvrtc **out, struct rp_error *err) {
    static const char *const sonames[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
    struct rp_nvrtc *nvrtc = rp_calloc(1, sizeof *nvrtc);
    *out = NULL;
    if (!nvrtc)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "NVRTC: out of memory");
    nvrtc->library = rp_shared_library_open(sonames, RP_ARRAY_COUNT(sonames), accept, &nvrtc->api,
                                            nvrtc->path, sizeof nvrtc->path, err);
    if (!nvrtc->library) {
        rp_free(nvrtc);
        rp_error_hint(
            err,
            "mask programs are compiled by NVRTC: install libnvrtc of CUDA 12 or 13 (the package "
            "cuda-nvrtc-13-0, or pip install nvidia-cuda-nvrtc), or let CUDA_HOME name the "
            "toolkit");
        return RP_STATUS_NOT_FOUND;
    }
    if (cache_dir && !(nvrtc->cache_dir = rp_strdup(cache_dir))) {
        rp_nvrtc_close(nvrtc);
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "NVRTC: out of memory");
    }
    nvrtc->api.version(&nvrtc->major, &nvrtc->minor);
    snprintf(nvrtc->description, sizeof nvrtc->description, "NVRTC %d.%d, %s", nvrtc->major,
             nvrtc->minor, nvrtc->path);
    *out = nvrtc;
    return RP_OK;
}

void rp_nvrtc_close(struct rp_nvrtc *nvrtc) {
    if (!nvrtc)
        return;
    dlclose(nvrtc->library);
    rp_free(nvrtc->cache_dir);
    rp_free(nvrtc);
}

const char *rp_nvrtc_describe(const struct rp_nvrtc *nvrtc) { return nvrtc->description; }
struct rp_nvrtc_stats rp_nvrtc_stats(const struct rp_nvrtc *nvrtc) {
    return nvrtc->stats;
}

/* Every text with its length, so that no two lists run together. */
static struct rp_hash128 add_text(struct rp_hash128 hash, const char *text) {
    uint64_t bytes = strlen(text);
    hash = rp_hash128_chain(hash, 0, &bytes, sizeof bytes);
    return rp_hash128_chain(hash, 0, text, bytes);
}

static struct rp_hash128 hash_of(const struct rp_nvrtc *nvrtc,
                                 const struct rp_nvrtc_source *source) {
    const uint32_t numbers[] = {(uint32_t)nvrtc->major, (uint32_t)nvrtc->minor,
                                source->compute_capability, source->header_count,
                                source->option_count};
    struct rp_hash128 hash =
        rp_hash128_chain((struct rp_hash128){0, 0}, 0, numbers, sizeof numbers);
    hash = add_text(hash, source->text);
    for (uint32_t i = 0; i < source->header_count; i++)
        hash = add_text(add_text(hash, source->headers[i].name), source->headers[i].text);
    for (uint32_t i = 0; i < source->option_count; i++)
        hash = add_text(hash, source->options[i]);
    return hash;
}

#define OPTIONS_MAX 32

/* What the compiler says, cut to what an error holds. */
static int refuse(struct rp_nvrtc *nvrtc, nvrtc_program program,
                  const struct rp_nvrtc_source *source, int result, struct rp_error *err) {
    size_t bytes = 0;
    char *log = NULL;
    if (nvrtc->api.log_size(program, &bytes) == 0 && bytes > 1 && (log = rp_alloc(bytes)))
        nvrtc->api.log(program, log);
    rp_error_fill(err, RP_STATUS_UNSUPPORTED, "%s: %s does not compile it (%s): %.300s",
                  source->name, nvrtc->description, nvrtc->api.error_text(result),
                  log ? log : "no log");
    rp_free(log);
    return RP_STATUS_UNSUPPORTED;
}

static int run_compiler(struct rp_nvrtc *nvrtc, nvrtc_program program,
                        const struct rp_nvrtc_source *source, struct rp_buffer *out,
                        struct rp_error *err) {
    char arch[32];
    const char *options[OPTIONS_MAX] = {arch, "-std=c++17", "-default-device",
                                        "--no-source-include", "--disable-warnings"};
    int count = 5, result;
    size_t bytes = 0;
    snprintf(arch, sizeof arch, "-arch=sm_%u%s", source->compute_capability,
             source->compute_capability == 90 ? "a" : "");
    if (source->option_count > OPTIONS_MAX - (uint32_t)count)
        return rp_error_set(err, RP_STATUS_INVALID, "%s: too many options", source->name);
    for (uint32_t i = 0; i < source->option_count; i++)
        options[count++] = source->options[i];
    result = nvrtc->api.compile(program, count, options);
    if (result != 0)
        return refuse(nvrtc, program, source, result, err);
    result = nvrtc->api.cubin_size(program, &bytes);
    if (result != 0 || bytes == 0)
        return refuse(nvrtc, program, source, result, err);
    if (!rp_buffer_reserve(out, bytes))
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "NVRTC: no memory for %zu bytes", bytes);
    result = nvrtc->api.cubin(program, out->data + out->len);
    if (result != 0)
        return refuse(nvrtc, program, source, result, err);
    out->len += bytes;
    return RP_OK;
}

static int compile(struct rp_nvrtc *nvrtc, const struct rp_nvrtc_source *source,
                   struct rp_buffer *out, struct rp_error *err) {
    const char **texts = rp_calloc(2 * (size_t)source->header_count + 1, sizeof *texts);
    const char **names = texts + source->header_count;
    nvrtc_program program = NULL;
    if (!texts)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "NVRTC: out of memory");
    for (uint32_t i = 0; i < source->header_count; i++) {
        texts[i] = source->headers[i].text;
        names[i] = source->headers[i].name;
    }
    int result = nvrtc->api.create(&program, source->text, source->name, (int)source->header_count,
                                   texts, names);
    int status = result == 0 ? run_compiler(nvrtc, program, source, out, err)
                             : rp_error_set(err, RP_STATUS_UNSUPPORTED, "%s: NVRTC: %s",
                                            source->name, nvrtc->api.error_text(result));
    if (program)
        nvrtc->api.destroy(&program);
    rp_free(texts);
    return status;
}

int rp_nvrtc_compile(struct rp_nvrtc *nvrtc, const struct rp_nvrtc_source *source,
                     struct rp_buffer *out, struct rp_error *err) {
    struct rp_hash128 hash = hash_of(nvrtc, source);
    char path[PATH_MAX] = "";
    if (nvrtc->cache_dir) {
        int len = snprintf(path, sizeof path, "%s/nvrtc-%016llx%016llx.cubin", nvrtc->cache_dir,
                           (unsigned long long)hash.high, (unsigned long long)hash.low);
        if (len >= (int)sizeof path)
            path[0] = '\0';
    }
    if (path[0] && rp_nvrtc_file_read(path, hash, out)) {
        nvrtc->stats.from_disk++;
        return RP_OK;
    }
    size_t before = out->len;
    int status = compile(nvrtc, source, out, err);
    if (status != RP_OK)
        return status;
    nvrtc->stats.compiled++;
    if (path[0])
        (void)rp_nvrtc_file_write(path, hash, out->data + before, out->len - before);
    return RP_OK;
}
