/* attention_case.h - one case of bench_attention: step state, KV pages and captured graph.
 *
 * Files of a dump: DIR/case<N>.json (shape, text of the mask, types) and, in row-major order,
 *   case<N>.q    (batch, queries, heads, head_dim) f32      case<N>.k, .v  (batch, kv_heads, length, head_dim)
 *   case<N>.out  (batch, queries, heads, head_dim)          in the benchmark's dtype; queries: 1, or length */
#ifndef RP_BENCH_ATTENTION_CASE_H
#define RP_BENCH_ATTENTION_CASE_H

#include "bench/bench_attention.h"
#include "kvcache/kv_layout.h"

struct attention_bench {
    const struct rp_bench_attention_config *config;
    const struct rp_backend *backend;
    struct rp_device *device;
    struct rp_device_info info;
    uint64_t cold_bytes;
    unsigned char *pattern; /* rp_random_pattern */
};

struct attention_case {
    struct attention_bench *bench;
    struct rp_attention_shape shape; /* the shape with all defaults filled in */
    struct rp_bucket bucket;
    struct rp_step_view host, view; /* step state, on the host and on the device */
    unsigned char *host_state, *device_state, *rings;
    size_t state_bytes;
    struct rp_kv_layout kv;
    unsigned char *arena, *pages;
    uint32_t slot_pages; /* pages per sequence */
    uint32_t copies;     /* copies of tensors, and of layers of pages */
    uint32_t repeats;
    struct rp_graph *graph, *start;
    char kernel[64];
};

/* Allocates memory and fills the step state. RP_STATUS_NO_MEMORY when it does not fit. The caller
 * must close it also after a failure. */
int rp_attention_case_open(struct attention_bench *bench, const struct rp_attention_shape *shape,
                           struct attention_case *out, struct rp_error *err) RP_MUST_USE;
/* Captures `repeats` repetitions; may be called again. */
int rp_attention_case_capture(struct attention_case *c, uint32_t repeats,
                              struct rp_error *err) RP_MUST_USE;
void rp_attention_case_close(struct attention_case *c);

/* Type of the pages. */
enum rp_dtype rp_attention_page_dtype(const struct rp_bench_attention_config *config);
/* Arena offset of copy 0's q (0) or output (1). */
size_t rp_attention_case_offset(const struct attention_case *c, uint32_t tensor);
/* The page that contains a sequence's tokens. */
uint32_t rp_attention_case_page(const struct attention_case *c, uint32_t sequence, uint32_t index);

/* Runs the case once with non-repeating values, and writes its files. */
int rp_attention_case_dump(struct attention_case *c, const char *dir, uint32_t number,
                           struct rp_error *err) RP_MUST_USE;

#endif
