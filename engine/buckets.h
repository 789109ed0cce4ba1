/* buckets.h - the shapes that are captured.
 *
 * decode, by rows: 1, 2, 4, 8, then every 8 up to 256, every 16 up to max_num_seqs. mixed, by
 * tokens: 16, 32, every 64 to 512, every 128 to 2,048, from there 8 for each doubling; each with
 * logit rows 8, 64, 256 and doubled, as far as max_num_seqs goes, above 2,048 tokens with 64 and
 * max_num_seqs: there the output layer is a small part. The last one of each list is the maximum
 * itself. The lists hold what the largest maxima need. */
#ifndef RP_ENGINE_BUCKETS_H
#define RP_ENGINE_BUCKETS_H

#include "device/program.h"

#define RP_BUCKETS_MAX       1024
#define RP_NUM_SEQS_MAX      4096
#define RP_STEP_TOKENS_MAX   65536
#define RP_TOKEN_BUCKETS_MAX 128

struct rp_bucket_list {
    struct rp_bucket buckets[RP_BUCKETS_MAX];
    uint32_t count;
    uint32_t token_buckets[RP_TOKEN_BUCKETS_MAX]; /* ascending token counts of the mixed sets */
    uint32_t token_bucket_count;
    uint32_t decode_rows_max, logit_rows_max;
};

/* RANGE when a maximum is 0 or above RP_NUM_SEQS_MAX or RP_STEP_TOKENS_MAX. */
int rp_buckets_plan(uint32_t max_num_seqs, uint32_t max_num_batched_tokens,
                    struct rp_bucket_list *out, struct rp_error *err) RP_MUST_USE;

#endif
