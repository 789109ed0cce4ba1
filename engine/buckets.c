#include "engine/buckets.h"

#include <string.h>

#define LARGE_TOKENS 2048

/* Eight steps for each doubling: a power of two. */
static uint32_t eighth(uint32_t value) {
    uint32_t power = 8;
    while (power <= value / 2)
        power *= 2;
    return power / 8;
}

static uint32_t next_decode_rows(uint32_t rows) {
    return rows < 8 ? rows * 2 : rows < 256 ? rows + 8 : rows + 16;
}

static uint32_t next_mixed_tokens(uint32_t tokens) {
    return tokens < 64             ? tokens * 2
           : tokens < 512          ? tokens + 64
           : tokens < LARGE_TOKENS ? tokens + 128
                                   : tokens + eighth(tokens);
}

static uint32_t next_logit_rows(uint32_t rows, uint32_t tokens) {
    if (tokens > LARGE_TOKENS)
        return RP_NUM_SEQS_MAX;
    return rows == 8 ? 64 : rows == 64 ? 256 : rows * 2;
}

static bool add_bucket(struct rp_bucket_list *list, struct rp_bucket bucket) {
    if (list->count == RP_BUCKETS_MAX)
        return false;
    list->buckets[list->count++] = bucket;
    return true;
}

static bool add_mixed(struct rp_bucket_list *list, uint32_t tokens, uint32_t max_num_seqs) {
    if (list->token_bucket_count == RP_TOKEN_BUCKETS_MAX)
        return false;
    list->token_buckets[list->token_bucket_count++] = tokens;
    uint32_t logits_max = RP_MIN(tokens, max_num_seqs);
    for (uint32_t logits = tokens > LARGE_TOKENS ? 64 : 8;;
         logits = next_logit_rows(logits, tokens)) {
        uint32_t rows = RP_MIN(logits, logits_max);
        /* Rows without logits (middle chunks) do not count: every row may be in the step. */
        struct rp_bucket bucket = {tokens, RP_MIN(tokens, max_num_seqs), rows, false};
        if (!add_bucket(list, bucket))
            return false;
        if (rows == logits_max)
            return true;
    }
}

int rp_buckets_plan(uint32_t max_num_seqs, uint32_t max_num_batched_tokens,
                    struct rp_bucket_list *out, struct rp_error *err) {
    memset(out, 0, sizeof *out);
    bool ok = max_num_seqs > 0 && max_num_seqs <= RP_NUM_SEQS_MAX && max_num_batched_tokens > 0 &&
              max_num_batched_tokens <= RP_STEP_TOKENS_MAX;
    for (uint32_t rows = 1; ok; rows = next_decode_rows(rows)) {
        uint32_t last = RP_MIN(rows, max_num_seqs);
        ok = add_bucket(out, (struct rp_bucket){last, last, last, true});
        if (rows >= max_num_seqs)
            break;
    }
    for (uint32_t tokens = 16; ok; tokens = next_mixed_tokens(tokens)) {
        ok = add_mixed(out, RP_MIN(tokens, max_num_batched_tokens), max_num_seqs);
        if (tokens >= max_num_batched_tokens)
            break;
    }
    if (!ok) {
        int status =
            rp_error_set(err, RP_STATUS_RANGE,
                         "max_num_seqs %u and max_num_batched_tokens %u give no usable set "
                         "of graphs",
                         max_num_seqs, max_num_batched_tokens);
        rp_error_hint(err, "try --max-num-seqs 256 "
                           "--max-num-batched-tokens 2048");
        return status;
    }
    out->decode_rows_max = max_num_seqs;
    out->logit_rows_max = RP_MIN(max_num_seqs, max_num_batched_tokens);
    return RP_OK;
}
