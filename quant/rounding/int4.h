/* int4.h - quantizes rows to blocks of 4-bit integers (base/block_type.h), one scale per group.
 *
 *   w(n, k) ~ scale(n, k / group) * (code - 8),  code 0 to 15, scale a bf16 number above 0
 *
 * Weights are rounded to nearest. The scale is the best, in the sum of squares, of a few around
 * max|w| / 7.5, and then the one of least squares for its codes where that is better still: what is
 * cut off at -8 and 7 costs less than a coarser step for all others. The result has the same bits
 * on every machine. Threads: no shared state. */
#ifndef RP_QUANT_INT4_H
#define RP_QUANT_INT4_H

#include "quant/rounding/quantize.h"

/* The type that --quantization makes: groups of 128. */
#define RP_INT4_GROUP_DEFAULT 128u
/* Blocks of symmetric integers with bf16 scales; group: 32, 64 or 128. */
static inline uint32_t rp_int4_type(uint32_t group) {
    return rp_block_int4(group, RP_INT4_BF16, false);
}

/* `cols` values to blocks of rp_int4_type. Adds to loss unless NULL. False: a value is a NaN or an
 * infinity; what was written is void. */
bool rp_int4_quantize_row(const float *values, size_t cols, uint32_t type, unsigned char *blocks,
                          struct rp_quant_loss *loss) RP_MUST_USE;

/* The bf16 scale of up to 128 finite values, and its codes less 8, by the search above. */
uint16_t rp_int4_quantize_group(const float *values, size_t count, int8_t *codes);

#endif
