/* attention_program_texts.h - the sources of a program's kernels, embedded as texts:
 * attention_program.cuh first, then the files that it includes (cmake/embed_sources.cmake). */
#ifndef RP_ATTENTION_ATTENTION_PROGRAM_TEXTS_H
#define RP_ATTENTION_ATTENTION_PROGRAM_TEXTS_H

#include "device/nvrtc_cuda.h"

extern const struct rp_nvrtc_header rp_attention_program_texts[];
extern const uint32_t rp_attention_program_texts_count;

#endif
