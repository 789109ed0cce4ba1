#include "attention/program/attention_program_cuda.h"

#include "attention/attention_internal_cuda.h"
#include "attention/program/attention_program_texts.h"
#include "base/memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

/* Selects the kernels used for these sizes: those that attention_cuda.c chooses from. */
struct needs {
    bool decode, prefill, wgmma, generic;
};

static struct needs needs_of(const struct rp_attention_cuda_config *config) {
    struct needs needs = {.decode = rp_attention_decode_cuda_supports(config),
                          .prefill = rp_attention_prefill_cuda_supports(config)};
    needs.wgmma = needs.prefill && rp_attention_prefill_cuda_has_wgmma(config);
    needs.generic = !needs.decode || !needs.prefill;
    return needs;
}

#define HEADERS_MAX 64

/* External headers: the prelude declares what is needed of them. */
static const char *const foreign[] = {
    "assert.h", "stdbool.h", "stddef.h",          "stdint.h",
    "math.h",   "cuda.h",    "cuda_bf16.h",       "cuda_runtime.h",
    "string.h", "stdio.h",   "cuda_runtime_api.h"};
static const char prelude[] = "#include \"device/nvrtc_prelude.cuh\"\n";

static int list_headers(const char *text, struct rp_nvrtc_header headers[HEADERS_MAX],
                        uint32_t *out_count, struct rp_error *err) {
    uint32_t count = 0;
    if (rp_attention_program_texts_count + RP_ARRAY_COUNT(foreign) > HEADERS_MAX)
        return rp_error_set(err, RP_STATUS_INVALID, "attention: too many headers for NVRTC");
    headers[count++] = (struct rp_nvrtc_header){"mask_program.h", text};
    for (uint32_t i = 1; i < rp_attention_program_texts_count; i++)
        headers[count++] = rp_attention_program_texts[i];
    for (size_t i = 0; i < RP_ARRAY_COUNT(foreign); i++)
        headers[count++] = (struct rp_nvrtc_header){foreign[i], prelude};
    *out_count = count;
    return RP_OK;
}

#define SHORT_NODES 24

/* Whether the conditions have few nodes; each node is one line of the text. */
static bool is_short(const char *text) {
    const char *at = strstr(text, "int rp_mask_sees("), *end = at ? strstr(at, "\n}") : NULL;
    uint32_t nodes = 0;
    for (; at && end && at < end; nodes++)
        at = strstr(at + 1, "const int v");
    return end && nodes <= SHORT_NODES;
}

int rp_attention_program_compile(struct rp_nvrtc *nvrtc,
                                 const struct rp_attention_cuda_config *config, const char *text,
                                 struct rp_buffer *out, struct rp_error *err) {
    struct rp_nvrtc_header headers[HEADERS_MAX];
    char dim[40], page[40], tiles[40], args[48], align[48];
    const char *options[12] = {"-DRP_MASK_PROGRAM=<mask_program.h>",
                               is_short(text) ? "-DRP_PROGRAM_IS_SHORT=1"
                                              : "-DRP_PROGRAM_IS_SHORT=0",
                               dim,
                               page,
                               tiles,
                               args,
                               align};
    uint32_t count = 7, header_count = 0;
    struct needs needs = needs_of(config);
    snprintf(dim, sizeof dim, "-DRP_PROGRAM_DIM=%u", config->head_dim);
    snprintf(page, sizeof page, "-DRP_PROGRAM_PAGE=%u", (unsigned)config->kv.dtype);
    snprintf(tiles, sizeof tiles, "-DRP_PROGRAM_TILES=%u",
             config->heads / config->kv_heads <= 8 ? 1u : 2u);
    snprintf(args, sizeof args, "-DRP_PROGRAM_ARGS_BYTES=%zu",
             sizeof(struct rp_attention_cuda_args));
    snprintf(align, sizeof align, "-DRP_TENSOR_MAP_ALIGN=%zu", _Alignof(CUtensorMap));
    if (needs.decode || needs.prefill)
        options[count++] = "-DRP_PROGRAM_PLAN=1";
    if (needs.decode)
        options[count++] = "-DRP_PROGRAM_DECODE=1";
    if (needs.prefill)
        options[count++] = needs.wgmma ? "-DRP_PROGRAM_WGMMA=1" : "-DRP_PROGRAM_PREFILL=1";
    if (needs.generic)
        options[count++] = "-DRP_PROGRAM_GENERIC=1";
    int status = list_headers(text, headers, &header_count, err);
    if (status != RP_OK)
        return status;
    const struct rp_nvrtc_source source = {.name = "mask program",
                                           .text = rp_attention_program_texts[0].text,
                                           .headers = headers,
                                           .header_count = header_count,
                                           .options = options,
                                           .option_count = count,
                                           .compute_capability = config->limits.compute_capability};
    return rp_nvrtc_compile(nvrtc, &source, out, err);
}

static int find_kernels(struct rp_attention_program *program, struct needs needs,
                        struct rp_error *err) {
    const struct {
        bool needed;
        const char *name;
        const void **to;
    } kernels[] = {{needs.decode || needs.prefill, "rp_program_plan", &program->plan},
                   {needs.decode, "rp_program_decode", &program->decode},
                   {needs.prefill, "rp_program_prefill", &program->prefill},
                   {needs.generic, "rp_program_generic", &program->generic}};
    for (size_t i = 0; i < RP_ARRAY_COUNT(kernels); i++) {
        cudaKernel_t kernel;
        if (!kernels[i].needed)
            continue;
        cudaError_t error = cudaLibraryGetKernel(&kernel, program->library, kernels[i].name);
        if (error != cudaSuccess)
            return rp_error_set(err, RP_STATUS_DEVICE, "mask program: no kernel %s: %s",
                                kernels[i].name, cudaGetErrorString(error));
        *kernels[i].to = (const void *)kernel;
    }
    return RP_OK;
}

int rp_attention_program_open(struct rp_nvrtc *nvrtc, const struct rp_attention_cuda_config *config,
                              const char *text, struct rp_attention_program **out,
                              struct rp_error *err) {
    struct rp_attention_program *program = rp_calloc(1, sizeof *program);
    struct rp_buffer code;
    cudaLibrary_t library = NULL;
    *out = NULL;
    if (!program)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "mask program: out of memory");
    rp_buffer_init(&code, 0);
    int status = rp_attention_program_compile(nvrtc, config, text, &code, err);
    if (status == RP_OK) {
        cudaError_t error = cudaLibraryLoadData(&library, code.data, NULL, NULL, 0, NULL, NULL, 0);
        if (error != cudaSuccess)
            status = rp_error_set(err, RP_STATUS_DEVICE, "mask program: does not load: %s",
                                  cudaGetErrorString(error));
        program->library = library;
    }
    if (status == RP_OK)
        status = find_kernels(program, needs_of(config), err);
    rp_buffer_deinit(&code);
    if (status != RP_OK) {
        rp_attention_program_close(program);
        return status;
    }
    *out = program;
    return RP_OK;
}

void rp_attention_program_close(struct rp_attention_program *program) {
    if (!program)
        return;
    if (program->library)
        (void)cudaLibraryUnload(program->library);
    rp_free(program);
}
