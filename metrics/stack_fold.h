/* stack_fold.h - sampled stacks as text and as a picture.
 *
 * Folded: one line for each different stack, "thread;outermost;...;innermost COUNT", which
 * flamegraph.pl, speedscope.app and Perfetto read. Lines are sorted so that stacks with the same
 * outer frames follow each other.
 * Thread: any. */
#ifndef RP_METRICS_STACK_FOLD_H
#define RP_METRICS_STACK_FOLD_H

#include "base/buffer.h"
#include "metrics/stack_sampler.h"
#include "metrics/symbols.h"

/* NO_MEMORY: out is not complete. */
int rp_stacks_fold(const struct rp_stacks *stacks, const struct rp_symbols *symbols,
                   struct rp_buffer *out) RP_MUST_USE;
/* A flame graph of folded lines (text of rp_stacks_fold, NUL-terminated), as SVG without scripts;
 * title: its first line. Frames too narrow to be seen are left out. */
int rp_stacks_flame(const char *folded, const char *title, struct rp_buffer *out) RP_MUST_USE;

#endif
