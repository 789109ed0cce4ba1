/* mask_programs.h - mask programs of the GPU tests, and their parallel compilation into a
 * folder. */
#ifndef RP_TESTS_GPU_MASK_PROGRAMS_H
#define RP_TESTS_GPU_MASK_PROGRAMS_H

#include "attention/attention_internal_cuda.h"
#include "attention/mask/mask_source.h"
#include "attention/program/attention_program_cuda.h"
#include "base/memory.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct mask_shape {
    uint32_t heads, kv_heads, head_dim, page_tokens, length;
    enum rp_dtype kv, out;
};

#define MASK_LENGTH 600

static const char *const mask_programs[] = {
    "causal",
    "causal && sliding_window(100)",
    "causal && (sliding_window(64) || sink(4))",
    "param n = 70 in 0..600; prefix_lm(n)",
    "causal && chunked(96)",
    "causal && dilated(3)",
    "alibi",
    "causal && sliding_window(200); soft_cap(2); score = score - abs(q - kv) * 0.01",
    "h % 2 == 0 ? causal : causal && sliding_window(33)",
    "causal && q - kv >= 40", /* rows that see nothing */
    "causal && (kv / 128 % 2 == 1 || q == kv)",
    "true",
    "param w = 256 in 1..600; param s = 2 in 0..64; causal && (sliding_window(w) || kv < s)",
    "causal && kv % 7 != q % 5; score = h < 3 ? score * 2 : score + tanh(score)",
};

static const struct mask_shape mask_shapes[] = {
    {8, 2, 128, 64, MASK_LENGTH, RP_DTYPE_BF16, RP_DTYPE_F32},
    {14, 2, 64, 16, MASK_LENGTH, RP_DTYPE_BF16, RP_DTYPE_BF16},
    {4, 4, 96, 32, MASK_LENGTH, RP_DTYPE_BF16, RP_DTYPE_F32},
    {16, 1, 256, 64, MASK_LENGTH, RP_DTYPE_BF16, RP_DTYPE_BF16},
    {6, 2, 40, 16, MASK_LENGTH, RP_DTYPE_F32, RP_DTYPE_F32},
    {16, 1, 128, 32, MASK_LENGTH, RP_DTYPE_BF16, RP_DTYPE_F32},
    {8, 2, 128, 64, MASK_LENGTH, RP_DTYPE_INT8, RP_DTYPE_F32},
    {14, 2, 64, 16, MASK_LENGTH, RP_DTYPE_FP8_E4M3, RP_DTYPE_BF16},
    {4, 2, 40, 16, MASK_LENGTH, RP_DTYPE_INT8, RP_DTYPE_F32},
};

/* Each program runs on two shapes, the first one on all. */
static inline bool mask_program_meets(size_t program, size_t shape) {
    return program == 0 || shape % 3 == program % 3;
}

static inline uint32_t mask_shape_pages(const struct mask_shape *shape) {
    return RP_CEIL_DIV(shape->length, shape->page_tokens) + 1;
}

/* The compile-time part of a shape's configuration, on this GPU. */
static inline void mask_shape_config(const struct mask_shape *shape,
                                     const struct rp_cuda_limits *limits,
                                     struct rp_attention_cuda_config *config) {
    config->limits = *limits;
    config->heads = shape->heads;
    config->kv_heads = shape->kv_heads;
    config->head_dim = shape->head_dim;
    config->kv.kv_heads = shape->kv_heads;
    config->kv.head_dim = shape->head_dim;
    config->kv.page_tokens = shape->page_tokens;
    config->kv.dtype = shape->kv;
}

/* The program, and its text as C; the caller frees both. */
static inline int mask_program_text(const char *text, const struct mask_shape *shape,
                                    struct rp_mask **out_mask, struct rp_buffer *out,
                                    struct rp_error *err) {
    const struct rp_mask_limits limits = {
        .length = mask_shape_pages(shape) * shape->page_tokens, .heads = shape->heads, .layers = 2};
    rp_buffer_init(out, 0);
    int status = rp_mask_parse(text, strlen(text), &limits, out_mask, err);
    if (status != RP_OK)
        return status;
    rp_mask_source(*out_mask, out);
    rp_buffer_append(out, "", 1);
    return out->failed ? RP_STATUS_NO_MEMORY : RP_OK;
}

/* Compiles one to machine code; returns its size, or 0 with the reason on stdout. */
static inline size_t mask_program_compile(struct rp_nvrtc *nvrtc, const char *text,
                                          const struct mask_shape *shape,
                                          const struct rp_cuda_limits *limits) {
    struct rp_attention_cuda_config config = {0};
    struct rp_error err = {0};
    struct rp_buffer source, code;
    struct rp_mask *mask = NULL;
    mask_shape_config(shape, limits, &config);
    config.step.config.row_capacity = 8;
    rp_buffer_init(&code, 0);
    int status = mask_program_text(text, shape, &mask, &source, &err);
    if (status == RP_OK)
        status = rp_attention_program_compile(nvrtc, &config, source.data, &code, &err);
    if (status != RP_OK)
        printf("%s: %s\n", text, err.text);
    size_t bytes = status == RP_OK ? code.len : 0;
    rp_buffer_deinit(&source);
    rp_buffer_deinit(&code);
    rp_mask_free(mask);
    return bytes;
}

/* Compiles all programs for their shapes, or for this one, with one process per core; returns how
 * many failed. Uses no thread and no CUDA context of this process. */
static inline int mask_programs_compile(const char *folder, const struct rp_cuda_limits *limits,
                                        const struct mask_shape *alone) {
    long workers = sysconf(_SC_NPROCESSORS_ONLN);
    int failed = 0;
    fflush(stdout);
    workers = RP_MAX(1, RP_MIN(workers, 16));
    for (long worker = 0; worker < workers; worker++) {
        if (fork() != 0)
            continue;
        struct rp_error err = {0};
        struct rp_nvrtc *nvrtc = NULL;
        int bad = rp_nvrtc_open(folder, &nvrtc, &err) == RP_OK ? 0 : 1;
        long turn = 0;
        for (size_t p = 0; p < RP_ARRAY_COUNT(mask_programs) && nvrtc; p++)
            for (size_t s = 0; s < (alone ? 1 : RP_ARRAY_COUNT(mask_shapes)); s++)
                if ((alone || mask_program_meets(p, s)) && turn++ % workers == worker)
                    bad += mask_program_compile(nvrtc, mask_programs[p],
                                                alone ? alone : &mask_shapes[s], limits) == 0;
        rp_nvrtc_close(nvrtc);
        fflush(stdout);
        _exit(RP_MIN(bad, 100));
    }
    for (int status = 0; wait(&status) > 0;)
        failed += WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    return failed;
}

/* Deletes the folder and the compiled programs in it. */
static inline void mask_programs_delete(const char *folder) {
    char pattern[256];
    glob_t found = {0};
    snprintf(pattern, sizeof pattern, "%s/nvrtc-*", folder);
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++)
            (void)unlink(found.gl_pathv[i]);
    globfree(&found);
    (void)rmdir(folder);
}

#endif
