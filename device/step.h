/* step.h - the layouts that host and device share: slots, packets, results.
 *
 * A running sequence lives in a slot: an array of 32-bit words on the device. The host changes a slot
 * only by edits in a packet; the sample operator advances it. `length` on the device is the truth
 * (tokens whose K and V are written); the host holds an upper bound.
 *
 *   slot:   | scalar fields ... | stop ids | mask parameters | page table (pages_per_slot) |
 *
 *   packet ring (4 entries, host writes, device reads):
 *           | header | rows (row_capacity) | edits (edit_capacity) |
 *   result ring (4 entries, device writes, host reads):
 *           | header | one rp_row_result per row of the packet |
 *
 * The first operator of the forward graph picks the packet entry by a counter on the device, so a
 * replayed graph never has an argument that the host would have to change. An entry is refilled only
 * after that step's result was read. Everything here is plain data: the same bytes on CPU and GPU. */
#ifndef RP_DEVICE_STEP_H
#define RP_DEVICE_STEP_H

#include "base/base.h"
#include "base/limits.h"

#define RP_STEP_RING_ENTRIES 4

/* Word offsets inside a slot. Floats are stored as their bits. */
enum rp_slot_field {
    RP_SLOT_LENGTH,       /* tokens whose K/V are in pages */
    RP_SLOT_LAST_TOKEN,   /* input of the next decode step */
    RP_SLOT_OUTPUT_COUNT, /* tokens sampled so far: the output position of the next one */
    RP_SLOT_FINISHED,     /* nonzero: rows of this slot are dead until the slot is joined again */
    RP_SLOT_TEMPERATURE,  /* f32; 0 = greedy */
    RP_SLOT_TOP_K,        /* 0 = off */
    RP_SLOT_TOP_P,        /* f32; 1 = off */
    RP_SLOT_MIN_P,        /* f32; 0 = off */
    RP_SLOT_SEED_LOW,
    RP_SLOT_SEED_HIGH,
    RP_SLOT_MIN_TOKENS, /* stop ids may not be chosen before this many tokens */
    RP_SLOT_ADAPTER,    /* reserved for adapters */
    RP_SLOT_STOP_COUNT,
    RP_SLOT_STOP_IDS,
    RP_SLOT_MASK_PARAMS = RP_SLOT_STOP_IDS + RP_STOP_IDS_MAX,
    RP_SLOT_PAGES = RP_SLOT_MASK_PARAMS + RP_MASK_PARAMS_MAX /* then pages_per_slot words */
};

/* slot.words[field + index] = value, applied before the step's rows are read. No two edits of one packet
 * name the same word: a device may apply them at once. */
struct rp_slot_edit {
    uint32_t slot, field, index, value;
};

enum rp_step_row_flags {
    RP_ROW_DECODE = 1, /* its one token is the slot's last token; otherwise prompt tokens */
    RP_ROW_SAMPLE = 2  /* its last token gets logits and a sampled token */
};

struct rp_step_row {
    uint32_t slot;
    uint32_t token_count;   /* at least 1 */
    uint32_t prompt_offset; /* first token in the prompt staging ring (index, wraps) */
    uint32_t flags;
};

struct rp_packet_header {
    uint64_t step; /* must equal the device's counter; a mismatch is a sticky error */
    uint32_t row_count, token_count, logit_row_count, edit_count;
    uint32_t flags; /* reserved: which stamps to take */
    uint32_t pad;
};

enum rp_row_result_flags {
    RP_RESULT_STOPPED = 1, /* the token is one of the slot's stop ids */
    RP_RESULT_NAN = 2,     /* the logits held a NaN: no token; the request must fail */
    RP_RESULT_SKIPPED = 4  /* the slot was already finished: nothing was done */
};

struct rp_row_result {
    int32_t token; /* -1: this row did not sample */
    float logprob; /* of the token under the unmodified logits (log-softmax) */
    uint32_t flags;
    uint32_t length; /* slot length after the step */
};

struct rp_result_header {
    uint64_t step; /* written last: the entry is complete when it equals the step asked for */
    uint32_t row_count;
    uint32_t error; /* nonzero: sticky, the device's step counter and the packet's disagreed */
    /* The device's clock when the step's first kernel began and when its result was published. */
    uint64_t begin_ns, end_ns;
};

/* Sizes, fixed at start. */
struct rp_step_config {
    uint32_t slot_count;
    uint32_t pages_per_slot;
    uint32_t row_capacity;         /* rows of a step */
    uint32_t token_capacity;       /* tokens of a step, padding included */
    uint32_t logit_row_capacity;   /* logit rows of a step, padding included */
    uint32_t edit_capacity;        /* edits of a step */
    uint32_t prompt_ring_capacity; /* tokens; a power of two */
};

/* One row of the step, expanded by STEP_BEGIN for the operators. */
struct rp_live_row {
    uint32_t slot;
    uint32_t token_begin, token_count; /* in the step's tokens */
    uint32_t kv_begin;                 /* position of its first token */
    uint32_t flags;     /* rp_step_row_flags; 0 when the slot is finished: a dead row */
    uint32_t logit_row; /* valid when RP_ROW_SAMPLE */
};

/* Counters of the step in work. Rows, tokens and logit rows past these counts are padding. */
struct rp_live_counts {
    uint64_t step; /* the step in work; the next one is step + 1 */
    uint32_t row_count, token_count, logit_row_count;
    uint32_t error;    /* sticky */
    uint64_t begin_ns; /* of the step in work, by the device's clock */
};

/* Addresses on the device of everything above. Passed by value to the operators; the memory is made
 * once at start and never moves. */
struct rp_step_view {
    struct rp_step_config config;
    uint32_t slot_words; /* words per slot */
    uint32_t *slots;     /* (slot_count, slot_words) */
    const unsigned char *packets;
    size_t packet_bytes; /* stride of one entry */
    unsigned char *results;
    size_t result_bytes; /* stride of one entry */
    const int32_t *prompt_ring;
    struct rp_live_counts *counts;
    struct rp_live_row *rows; /* (row_capacity) */
    int32_t *token_ids;       /* (token_capacity); padding: 0 */
    uint32_t *positions;      /* (token_capacity); padding: 0 */
    uint32_t *token_rows;     /* (token_capacity) index into rows; padding: RP_ROW_NONE */
    uint32_t *logit_tokens;   /* (logit_row_capacity) token of each logit row; padding: 0 */
    uint32_t *logit_rows;     /* (logit_row_capacity) row of each logit row; padding: RP_ROW_NONE */
};

#define RP_ROW_NONE 0xFFFFFFFFu

static inline size_t rp_packet_bytes(const struct rp_step_config *config) {
    return RP_ALIGN_UP(sizeof(struct rp_packet_header) +
                           (size_t)config->row_capacity * sizeof(struct rp_step_row) +
                           (size_t)config->edit_capacity * sizeof(struct rp_slot_edit),
                       RP_CACHE_LINE);
}

static inline size_t rp_result_bytes(const struct rp_step_config *config) {
    return RP_ALIGN_UP(sizeof(struct rp_result_header) +
                           (size_t)config->row_capacity * sizeof(struct rp_row_result),
                       RP_CACHE_LINE);
}

static inline struct rp_step_row *rp_packet_rows(void *packet) {
    return (struct rp_step_row *)((unsigned char *)packet + sizeof(struct rp_packet_header));
}

static inline struct rp_slot_edit *rp_packet_edits(void *packet,
                                                   const struct rp_step_config *config) {
    return (struct rp_slot_edit *)(rp_packet_rows(packet) + config->row_capacity);
}

static inline struct rp_row_result *rp_result_rows(void *result) {
    return (struct rp_row_result *)((unsigned char *)result + sizeof(struct rp_result_header));
}

#endif
