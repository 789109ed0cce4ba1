/* step.h - the layouts that host and device share: slots, packets, results.
 *
 * A running sequence lives in a slot: an array of 32-bit words on the device. The host changes a
 * slot only by edits in a packet; the sample operator advances it. `length` on the device is the
 * truth (tokens whose K and V are written); the host holds an upper bound.
 *
 *   slot:   | scalars | stop ids | mask parameters | last tokens | state | page tables (pages_per_slot) |
 *
 *   packet ring (4 entries, host writes, device reads):
 *           | header | rows (row_capacity) | edits (edit_capacity) |
 *   late flags (4 entries, host writes while forward of the step runs, SAMPLE reads):
 *           | rp_step_row_flags to add to each row (row_capacity words) |
 *   mask pool:
 *           | ids that a row's token may be (mask words) | ... (mask_capacity) |
 *           Both: host memory that the host writes, and on a GPU a copy in device memory that SAMPLE
 *           reads; the host copies what is new before it launches SAMPLE. (Every block that reads
 *           one word of host memory made a step of 128 rows 5 ms longer.)
 *   result ring (4 entries, device writes, host reads):
 *           | header | one rp_row_result per row of the packet | one rp_token_scores per logit row |
 *
 * Recurrent state of models that have it, f32, as the program's operators lay it out: a pool of
 * places of state_stride bytes. Places [0, slot_count) are those of the slots; the others hold
 * snapshots, the state of a sequence after some of its tokens, from which another one may begin.
 * A row reads its state from one place and leaves it in its slot's; where a snapshot is due within
 * the row's tokens, the operators store it on the way. A sequence begins with zeros, which are
 * nowhere stored. All of it happens in stream order, so that no place needs a fence.
 *
 * Sampling features that few requests use and that do not fit a slot have two more blocks per slot:
 *
 *   sample inputs (host memory):  | biases | bad words | allowed ids | ids of the prompt |
 *           written by the host before the packet that joins the slot. No step in flight reads them then: a
 *           slot is reused after the last step that names it was read.
 *   sample state  (device):       | biases | bad words | allowed ids | penalty counts |
 *           SAMPLE copies it from the inputs when it chooses the slot's first token.
 *
 * The first operator of the forward graph picks the packet entry by a counter on the device, so a
 * replayed graph never has an argument that the host would have to change. An entry is refilled
 * only after that step's result was read. Everything here is plain data: the same bytes on CPU and
 * GPU. */
#ifndef RP_DEVICE_STEP_H
#define RP_DEVICE_STEP_H

#include "base/base.h"
#include "base/limits.h"

#include <assert.h>

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
    RP_SLOT_FEATURES,   /* rp_sample_features; 0: the eight words below mean nothing */
    RP_SLOT_REPETITION, /* f32, above 0; 1 = off */
    RP_SLOT_PRESENCE,   /* f32 */
    RP_SLOT_FREQUENCY,  /* f32 */
    RP_SLOT_BIAS_COUNT, /* in the sample state, as the next */
    RP_SLOT_BAD_COUNT,
    RP_SLOT_TOP_LOGPROBS,        /* likeliest tokens reported with each token of the answer */
    RP_SLOT_TOP_PROMPT_LOGPROBS, /* and of the prompt */
    RP_SLOT_STOP_COUNT,
    RP_SLOT_STOP_IDS,
    RP_SLOT_MASK_PARAMS = RP_SLOT_STOP_IDS + RP_STOP_IDS_MAX,
    /* The answer's token i is word i % RP_BAD_WORD_MAX, as far as the last ones go; only with bad
     * words. */
    RP_SLOT_LAST_TOKENS = RP_SLOT_MASK_PARAMS + RP_MASK_PARAMS_MAX,
    /* For the slot's next row, whose STEP_BEGIN clears them; all 0: begin with the slot's own
     * state, save none. */
    RP_SLOT_STATE = RP_SLOT_LAST_TOKENS + RP_BAD_WORD_MAX, /* 1 + place that the row begins with */
    RP_SLOT_SAVE_AT, /* tokens of the sequence after which its state is stored ... */
    RP_SLOT_SAVE_TO, /* ... in this place */
    RP_SLOT_PAGES    /* then pages_per_slot words */
};

/* Sampling features of a slot beyond its words up to RP_SLOT_MIN_TOKENS. */
enum rp_sample_features {
    RP_FEATURE_PENALTIES = 1,
    RP_FEATURE_BIASES = 2,
    RP_FEATURE_BAD_WORDS = 4,
    RP_FEATURE_ALLOWED = 8,
    RP_FEATURE_LOGPROBS = 16,       /* scores of each chosen token */
    RP_FEATURE_PROMPT_LOGPROBS = 32 /* of each token of rows with RP_ROW_SCORE */
};
#define RP_FEATURES_MODIFYING                                                                      \
    (RP_FEATURE_PENALTIES | RP_FEATURE_BIASES | RP_FEATURE_BAD_WORDS | RP_FEATURE_ALLOWED)

/* Word offsets inside a slot's sample inputs and its sample state. mask words: a bit for each id of
 * the vocabulary, bit id % 32 of word id / 32; rp_mask_words of them. */
enum rp_sampling_field {
    RP_SAMPLING_BIASES = 0, /* id, value (f32) */
    /* A head for each word, then all tokens. Head: first token's offset from here << 8 | tokens. */
    RP_SAMPLING_BAD_WORDS = RP_SAMPLING_BIASES + 2 * RP_LOGIT_BIAS_MAX,
    RP_SAMPLING_ALLOWED = RP_SAMPLING_BAD_WORDS + 2 * RP_BAD_TOKENS_MAX /* mask words */
    /* RP_SAMPLING_ALLOWED + mask words: inputs: mask words of the prompt's ids;
     *                                   state: a uint16_t for each id, see RP_COUNT_PROMPT */
};
static_assert(RP_SAMPLING_ALLOWED % 4 == 0, "the masks are read as vectors");

/* A penalty count: how often the answer has the id, up to RP_COUNT_MAX, and whether the prompt has
 * it. */
#define RP_COUNT_PROMPT 0x8000u
#define RP_COUNT_MAX    0x7FFFu

/* slot.words[field + index] = value, applied before the step's rows are read. No two edits of one
 * packet name the same word: a device may apply them at once. */
struct rp_slot_edit {
    uint32_t slot, field, index, value;
};

enum rp_step_row_flags {
    RP_ROW_DECODE = 1, /* its one token is the slot's last token; otherwise prompt tokens */
    RP_ROW_SAMPLE = 2, /* its last token gets logits and a sampled token */
    /* All its tokens (of a prompt) get logits: each but a sampling last one scores the token after
     * it. The prompt ring has one more token than the row for the last of them. */
    RP_ROW_SCORE = 4,
    /* Late flags only. Its token is one of the ids of mask flags >> RP_ROW_MASK_SHIFT of
     * the mask pool, not the slot's; needs RP_FEATURE_ALLOWED. */
    RP_ROW_MASK = 8,
    /* The row gets no token, and its slot is finished. */
    RP_ROW_WITHHELD = 16
};
#define RP_ROW_MASK_SHIFT 8

struct rp_step_row {
    uint32_t slot;
    uint32_t token_count;   /* at least 1 */
    uint32_t prompt_offset; /* first token in the prompt staging ring (index, wraps) */
    uint32_t flags;
};

struct rp_packet_header {
    uint64_t step; /* must equal the device's counter; a mismatch is a sticky error */
    uint32_t row_count, token_count, logit_row_count, edit_count;
    uint32_t flags; /* rp_packet_flags */
    uint32_t pad;
};

enum rp_packet_flags {
    RP_PACKET_STAMP = 1, /* every node of the step's graphs stores when it began and ended */
    /* SAMPLE adds the step's late flags to those of its rows. They must be complete when the sample
     * graph is launched; without this flag nothing reads them. */
    RP_PACKET_LATE_FLAGS = 2
};
static_assert(sizeof(struct rp_packet_header) == 32, "STEP_BEGIN on CUDA reads it as two vectors");

/* Times of one node (launch) of a step, by the device's clock: when its first block began, and when
 * its last one ended or, where the next node was already waiting for it, when its results were
 * visible to that node (on a GPU a kernel ends some hundred nanoseconds after its last
 * instruction). begin_ns > end_ns: not taken. The nodes of the forward graph come first, then those
 * of the sample graph, in launch order. */
struct rp_node_stamp {
    uint64_t begin_ns, end_ns;
};
#define RP_NODE_STAMP_NONE ((struct rp_node_stamp){UINT64_MAX, 0})

/* The stamp of node i. A library's kernel stores none: it gets the time between its neighbors,
 * since it runs alone between them. Without stamps of both: not taken. */
static inline struct rp_node_stamp rp_node_stamp_at(const struct rp_node_stamp *stamps,
                                                    uint32_t count, uint32_t i) {
    struct rp_node_stamp stamp = stamps[i];
    if (stamp.begin_ns <= stamp.end_ns || i == 0 || i + 1 >= count ||
        stamps[i - 1].begin_ns > stamps[i - 1].end_ns ||
        stamps[i + 1].begin_ns > stamps[i + 1].end_ns)
        return stamp;
    stamp.begin_ns = stamps[i - 1].end_ns;
    stamp.end_ns = RP_MAX(stamps[i + 1].begin_ns, stamp.begin_ns);
    return stamp;
}

enum rp_row_result_flags {
    RP_RESULT_STOPPED = 1, /* the token is one of the slot's stop ids */
    RP_RESULT_NAN = 2,     /* the logits held a NaN: no token; the request must fail */
    RP_RESULT_SKIPPED = 4, /* the slot was already finished: nothing was done */
    RP_RESULT_WITHHELD = 8 /* RP_ROW_WITHHELD: no token, the slot is finished */
};

struct rp_row_result {
    int32_t token; /* -1: this row did not sample */
    float logprob; /* with RP_FEATURE_LOGPROBS: of the token under the unmodified logits; else 0 */
    uint32_t flags;
    uint32_t length; /* slot length after the step */
};

struct rp_token_score {
    int32_t token;
    float logprob; /* log-softmax of the unmodified logits */
};

/* Scores of a logit row: of the chosen token, or of the prompt's next one. */
struct rp_token_scores {
    int32_t token;
    float logprob; /* NaN when a logit is, or none is finite */
    uint32_t rank; /* how many tokens have a larger logit, plus one */
    uint32_t top_count;
    struct rp_token_score top[RP_LOGPROBS_MAX]; /* falling, equal ones by rising id */
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
    uint32_t pages_per_slot;       /* of all its page tables, one for each group of layers */
    uint32_t row_capacity;         /* rows of a step */
    uint32_t token_capacity;       /* tokens of a step, padding included */
    uint32_t logit_row_capacity;   /* logit rows of a step, padding included */
    uint32_t edit_capacity;        /* edits of a step */
    uint32_t prompt_ring_capacity; /* tokens; a power of two */
    uint32_t stamp_capacity; /* nodes of the largest bucket's graphs; 0: no stamps are taken */
    uint32_t vocab; /* ids that penalties, masks and scores are for; 0: no slot may ask for any */
    uint32_t mask_capacity; /* masks of the pool */
    bool late_copies;       /* SAMPLE reads copies of late flags and masks in device memory */
    uint32_t state_places;  /* of recurrent state; 0: the model has none */
    size_t state_stride;    /* bytes of a place, a multiple of RP_CACHE_LINE */
};

/* One row of the step, expanded by STEP_BEGIN for the operators. */
struct rp_live_row {
    uint32_t slot;
    uint32_t token_begin, token_count; /* in the step's tokens */
    uint32_t kv_begin;                 /* position of its first token */
    uint32_t flags;     /* rp_step_row_flags; 0 when the slot is finished: a dead row */
    uint32_t logit_row; /* of its last token: valid when RP_ROW_SAMPLE */
    /* Recurrent state (zeros on a backend without operators that have it): the place that the row
     * begins with, or RP_STATE_ZERO; and the place that gets the state after the row's first
     * save_at tokens, where that is not 0. */
    uint32_t state_from, save_at, save_to;
};
#define RP_STATE_ZERO 0xFFFFFFFFu

/* Counters of the current step. Rows, tokens and logit rows past these counts are padding. */
struct rp_live_counts {
    uint64_t step; /* the last completed step; the current one is step + 1 */
    uint32_t row_count, token_count, logit_row_count;
    uint32_t error;    /* sticky */
    uint32_t flags;    /* of the packet: rp_packet_flags */
    uint32_t scored;   /* 1: a row of the step has RP_ROW_SCORE */
    uint64_t begin_ns; /* of the current step, by the device's clock */
};

/* Addresses on the device of everything above. Passed by value to the operators; the memory is made
 * once at start and never moves. */
struct rp_expert_stats;

struct rp_step_view {
    struct rp_step_config config;
    uint32_t slot_words; /* words per slot */
    uint32_t *slots;     /* (slot_count, slot_words) */
    const unsigned char *packets;
    size_t packet_bytes; /* stride of one entry */
    unsigned char *results;
    size_t result_bytes; /* stride of one entry */
    const int32_t *prompt_ring;
    /* (RP_STEP_RING_ENTRIES, row_capacity), and (mask_capacity, rp_mask_words): as the host writes
     * them, and as SAMPLE reads them */
    const uint32_t *late_inputs, *late_flags;
    const uint32_t *mask_inputs, *masks;
    struct rp_live_counts *counts;
    struct rp_live_row *rows; /* (row_capacity) */
    int32_t *token_ids;       /* (token_capacity); padding: 0 */
    uint32_t *positions;      /* (token_capacity); padding: 0 */
    uint32_t *token_rows;     /* (token_capacity) index into rows; padding: RP_ROW_NONE */
    uint32_t *logit_tokens;   /* (logit_row_capacity) token of each logit row; padding: 0 */
    uint32_t *logit_rows;     /* (logit_row_capacity) row of each logit row; padding: RP_ROW_NONE */
    /* (logit_row_capacity) the token to score; RP_NO_TARGET: of a row that samples, or padding */
    int32_t *logit_targets;
    /* (stamp_capacity) of the current step. With RP_PACKET_STAMP, STEP_BEGIN fills it with
     * RP_NODE_STAMP_NONE, nodes store into it, and SAMPLE copies it into the step's entry of the
     * ring before it publishes. */
    struct rp_node_stamp *stamps;
    /* (stamp_capacity) GPU only, in every step: when a node's first block had waited for the node
     * before it; 0: it found that node complete. */
    uint64_t *stamp_waits;
    /* (RP_STEP_RING_ENTRIES, stamp_capacity): the host reads it */
    struct rp_node_stamp *stamp_ring;
    uint32_t *sample_state;        /* (slot_count, sample_state_words) */
    size_t sample_state_words;     /* a multiple of 4; 0 without a vocabulary */
    const uint32_t *sample_inputs; /* (slot_count, sample_input_words) */
    size_t sample_input_words;
    unsigned char *state;                 /* (state_places, state_stride): recurrent state */
    struct rp_expert_stats *expert_stats; /* host memory: what EXPERT_ORDER counts (experts.h) */
};

#define RP_ROW_NONE  0xFFFFFFFFu
#define RP_NO_TARGET (-1)

/* Where the late flags of device step `step` are in the ring of late flags. */
static inline size_t rp_late_entry(const struct rp_step_view *view, uint64_t step) {
    return (size_t)(step % RP_STEP_RING_ENTRIES) * view->config.row_capacity;
}

/* Masks of the pool: more than twice a step's rows, and so many that the states which the answers
 * to a few schemas are in most of the time stay there. */
static inline uint32_t rp_mask_capacity(uint32_t row_capacity) {
    return RP_MAX(1024u, 4 * row_capacity);
}

/* Words of a mask over the ids, a multiple of 4. */
static inline size_t rp_mask_words(const struct rp_step_config *config) {
    return RP_ALIGN_UP((size_t)config->vocab, 128) / 32;
}

/* A place of recurrent state. */
static inline unsigned char *rp_state_place(const struct rp_step_view *view, uint32_t place) {
    return view->state + (size_t)place * view->config.state_stride;
}

static inline size_t rp_packet_bytes(const struct rp_step_config *config) {
    return RP_ALIGN_UP(sizeof(struct rp_packet_header) +
                           (size_t)config->row_capacity * sizeof(struct rp_step_row) +
                           (size_t)config->edit_capacity * sizeof(struct rp_slot_edit),
                       RP_CACHE_LINE);
}

static inline size_t rp_result_bytes(const struct rp_step_config *config) {
    size_t scores = config->vocab ? config->logit_row_capacity : 0;
    return RP_ALIGN_UP(sizeof(struct rp_result_header) +
                           (size_t)config->row_capacity * sizeof(struct rp_row_result) +
                           scores * sizeof(struct rp_token_scores),
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

/* (logit_row_capacity); only those that were asked for are written. */
static inline struct rp_token_scores *rp_result_scores(void *result,
                                                       const struct rp_step_config *config) {
    return (struct rp_token_scores *)(rp_result_rows(result) + config->row_capacity);
}

#endif
