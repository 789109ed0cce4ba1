/* attention_program_cuda.h - the kernels of one mask program: compiled when a model is loaded,
 * cached on disk.
 *
 * A program (mask_source.h) together with the attention sizes is compiled into one module. The
 * launchers then use the module's kernels instead of the built-in ones: the same arguments, grids
 * and guarantees. The planner's kernel writes the lists that they read (attention_internal_cuda.h).
 * Thread: one at a time. Never called while serving a request: compiling takes seconds. */
#ifndef RP_ATTENTION_ATTENTION_PROGRAM_CUDA_H
#define RP_ATTENTION_ATTENTION_PROGRAM_CUDA_H

#include "attention/attention_cuda.h"
#include "base/buffer.h"
#include "device/nvrtc_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Kernels of the runtime API, as it takes any kernel's address; NULL for kernels that these sizes
 * do not use. */
struct rp_attention_program {
    const void *plan, *decode, *prefill, *generic;
    void *library;
};

/* The machine code for the GPU's compute capability. text: what rp_mask_source wrote.
 * RP_STATUS_UNSUPPORTED: it does not compile. Needs no GPU. */
int rp_attention_program_compile(struct rp_nvrtc *nvrtc,
                                 const struct rp_attention_cuda_config *config, const char *text,
                                 struct rp_buffer *out, struct rp_error *err);

/* Compiles and loads. The caller closes *out when no graph uses it any more. */
int rp_attention_program_open(struct rp_nvrtc *nvrtc, const struct rp_attention_cuda_config *config,
                              const char *text, struct rp_attention_program **out,
                              struct rp_error *err);
void rp_attention_program_close(struct rp_attention_program *program); /* legal on NULL */

#ifdef __cplusplus
}
#endif
#endif
