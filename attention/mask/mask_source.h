/* mask_source.h - writes a mask program as C source, to specialize a CUDA kernel
 * (device/nvrtc_cuda.h).
 *
 * The text needs no header and compiles as C11, C++ and CUDA C alike; with CUDA its functions are
 * __device__:
 *
 *   int   rp_mask_sees(int q, int kv, int h, const int *params);            1 or 0
 *   float rp_mask_score(float score, int q, int kv, int h, const int *params);
 *   int   rp_mask_classify(int q_begin, int q_end, int kv_begin, int kv_end, int h_begin, int h_end, const int *params);
 *                                                                           enum rp_mask_class, as rp_mask_classify gives it
 *   #define RP_MASK_HAS_SCORE 0|1     #define RP_MASK_READS_HEAD 0|1     #define RP_MASK_CAUSAL 0|1
 *   #define RP_MASK_PARAMS n
 *
 * Positions, tiles and parameters must be those that the program was proved for (mask.h): then no
 * `int` in it overflows. A tile that intervals cannot decide is searched by the calling thread, if
 * it has at most RP_MASK_SEARCH_MAX (16384) pairs; defined as 0 before the text, only intervals
 * decide. RP_MASK_FN is the specifier of the three functions: `static __device__ __forceinline__`
 * or `static inline` unless defined before the text. Several texts in one file: the includer
 * renames the functions and undefines the four macros above; helpers are emitted once.
 *
 * Same bits as mask.h's functions on every device (host compilers need -ffp-contract=off), exp and
 * tanh aside: those call expf and tanhf. A program whose canonical text is the same gives the same
 * bytes, under the same number of heads. */
#ifndef RP_ATTENTION_MASK_SOURCE_H
#define RP_ATTENTION_MASK_SOURCE_H

#include "attention/mask/mask.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The program must not read `layer` (rp_mask_at_layer first): asserted. */
void rp_mask_source(const struct rp_mask *mask, struct rp_buffer *out);

#ifdef __cplusplus
}
#endif
#endif
