/* mask.h - mask programs: which (query, key) pairs of a sequence are visible, and how their scores
 * are modified.
 *
 *   param w = 256 in 1..8192;  causal && (sliding_window(w) || sink(4));  soft_cap(50)
 *
 * A program is text: declarations of parameters, then clauses, all separated by `;`. A clause is a
 * condition over `q`, `kv` (positions of the query's and the key's token in the sequence, from 0),
 * `h` (query head), `layer` and the parameters - several conditions must all hold - or a score
 * rule: `score = EXPRESSION` over `score` too, or a named one. Rules apply in order. Without any
 * condition: `causal`. docs/masks.md has the grammar and the named blocks.
 *
 * Numbers: conditions compute with 32-bit integers; / and % are those of C. rp_mask_parse proves by
 * intervals, over all positions below limits->length rounded up to a multiple of 1024 (so that
 * kernels may request whole tiles) and all values that the parameters may have, that nothing
 * overflows and no divisor is 0, and rejects a program otherwise. So evaluation cannot fail, and
 * every device computes the same results. Other positions must not be evaluated: asserted. Score
 * rules compute in f32, in the order written; `score` is scale * (q . k).
 *
 * Parameters are data: their values travel in a request's slot (RP_SLOT_MASK_PARAMS + index), never
 * in a graph.
 * Memory: a program is one immutable allocation. Thread: any, at once. */
#ifndef RP_ATTENTION_MASK_H
#define RP_ATTENTION_MASK_H

#include "base/buffer.h"
#include "base/limits.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RP_MASK_TEXT_MAX  4096 /* bytes of a program */
#define RP_MASK_NODES_MAX 512
#define RP_MASK_DEPTH_MAX 48
#define RP_MASK_NAME_MAX  32 /* bytes of a parameter's name, including the terminating zero */

struct rp_mask;

/* Limits that a program is proved for. */
struct rp_mask_limits {
    uint32_t length; /* bound on positions; at most 2^24 */
    uint32_t heads;  /* query heads */
    uint32_t layers;
};

struct rp_mask_param {
    char name[RP_MASK_NAME_MAX];
    int32_t value;    /* when a request gives none */
    int32_t min, max; /* a request's value must lie in them */
};

/* RP_STATUS_INVALID: what is wrong, at which column (from 1), and what to do about it. The caller
 * frees *out. */
int rp_mask_parse(const char *text, size_t bytes, const struct rp_mask_limits *limits,
                  struct rp_mask **out, struct rp_error *err) RP_MUST_USE;
void rp_mask_free(struct rp_mask *mask); /* legal on NULL */

/* The canonical text: named blocks written out, constants folded, parameters by name; parsing it
 * gives an equal program. Equal texts under equal limits: equal programs. */
const char *rp_mask_text(const struct rp_mask *mask);
/* The tree, one node per line, indented. */
void rp_mask_print_tree(const struct rp_mask *mask, struct rp_buffer *out);

uint32_t rp_mask_param_count(const struct rp_mask *mask); /* at most RP_MASK_PARAMS_MAX */
const struct rp_mask_param *rp_mask_param(const struct rp_mask *mask, uint32_t index);

/* No query sees a key after it. Proved; false when it could not be. */
bool rp_mask_is_causal(const struct rp_mask *mask);
bool rp_mask_has_score(const struct rp_mask *mask); /* any score rule */
bool rp_mask_reads_head(
    const struct rp_mask *mask); /* the conditions (not the rules) depend on h */
bool rp_mask_reads_layer(const struct rp_mask *mask); /* conditions or rules depend on layer */

/* The program specialized for one layer: `layer` is replaced by a constant and folded. Parameters
 * keep their indices. Fails when out of memory, and when a score rule divides by a number that is 0
 * in this layer. */
int rp_mask_at_layer(const struct rp_mask *mask, uint32_t layer, struct rp_mask **out,
                     struct rp_error *err) RP_MUST_USE;

/* True when the program (of one layer, or independent of the layer) is just what every kernel
 * supports built in: causal, an optional window, an optional score cap, with constants. window,
 * cap: 0 when absent. */
bool rp_mask_is_plain(const struct rp_mask *mask, uint32_t *window, float *cap);

/* True when its only score rule is a constant cap, whatever its conditions are: kernels have a fast
 * path for it. */
bool rp_mask_is_capped(const struct rp_mask *mask, float *cap);

/* --- One pair -------------------------------------------------------------------------- */

struct rp_mask_pair {
    int32_t q, kv, h, layer;
};
/* params: rp_mask_param_count values within their ranges; may be NULL when there are none. */
bool rp_mask_sees(const struct rp_mask *mask, const struct rp_mask_pair *pair,
                  const int32_t *params);
/* The score after the rules. */
float rp_mask_score(const struct rp_mask *mask, const struct rp_mask_pair *pair,
                    const int32_t *params, float score);

/* --- A row of pairs: one query, keys [kv, kv + count) ---------------------------------- */

/* seen[i] = whether pair (pair->q, pair->kv + i) is visible. count at most 64: a block of keys,
 * evaluated node by node. */
void rp_mask_sees_keys(const struct rp_mask *mask, const struct rp_mask_pair *pair,
                       const int32_t *params, uint32_t count, bool *seen);
void rp_mask_score_keys(const struct rp_mask *mask, const struct rp_mask_pair *pair,
                        const int32_t *params, uint32_t count, float *scores);

/* --- A tile of pairs ------------------------------------------------------------------- */

/* SKIP: no pair of it is visible. FULL: every pair is. PARTIAL: some may be; the pairs must be
 * evaluated. SKIP and FULL are proofs. Uses saturating 64-bit intervals over the tree; when these
 * cannot decide a tile of at most 16,384 pairs (times its heads, when the conditions read h), its
 * pairs are evaluated until two differ, so the result is exact there. */
enum rp_mask_class { RP_MASK_SKIP, RP_MASK_FULL, RP_MASK_PARTIAL };
struct rp_mask_tile {
    int32_t q_begin, q_end; /* [begin, end), not empty; as all of these */
    int32_t kv_begin, kv_end;
    int32_t h_begin, h_end;
    int32_t layer;
};
enum rp_mask_class rp_mask_classify(const struct rp_mask *mask, const struct rp_mask_tile *tile,
                                    const int32_t *params);

#ifdef __cplusplus
}
#endif
#endif
