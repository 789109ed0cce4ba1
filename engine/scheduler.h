/* scheduler.h - who computes what in the next step: a pure library.
 *
 * submit, cancel (a flag in the request), plan(now) -> step, commit(step, results). It knows no
 * clock, no device and no thread, and allocates nothing after init, so that a simulator can run
 * millions of steps anywhere and the engine links the same object.
 *
 * States of a sequence:   WAITING -> RUNNING <-> SWAPPED
 *                            |          |
 *                            +--> CLOSED (exactly one CLOSED event)
 *
 * Run-ahead: plan may be called once more before commit: at most one planned step beyond the last
 * committed one with run_ahead 1, none with 0. A row planned for a sequence that turns out to have
 * stopped in the step before is wasted, never wrong. Pages and the slot of a closed sequence wait
 * until the last planned step that names them has been committed.
 *
 * Admission: scheduler_tenants.c picks the first request of the least served tenant. It needs a
 * slot, pages for the prompt and one more token now, and the rule that nobody can get stuck: either
 * all admitted sequences fit the device pool at their
 * worst (prompt + max_tokens), or all but the oldest fit the host pool. A sequence whose worst case
 * does not fit the device pool alone is refused at submit. Preemption: when a running sequence
 * needs a page and none is free or evictable, the youngest running sequence is swapped out whole
 * (its pages are copied to host pages); swapped sequences return in order of age, before anybody
 * new is admitted. It never recomputes. Chunks: decode rows first, then prompt chunks in order of
 * age; the chunk is cut so that the step fills a token bucket. Whole prompts (whole_prompts: the
 * model's mask lets a token see what is behind it): each prompt is one chunk, never cut and never
 * taken from the prefix cache. Where it does not fit beside the decode rows, these leave it room in
 * every other step. K and V are written for positions 0 .. prompt + max_tokens - 2: nothing reads
 * those of the last token. NaN: only logits without NaN prove that pages are clean, so pages are
 * entered in the prefix cache when a row that samples behind them is committed, never earlier.
 * Pages without that proof are zeroed before they are used again. Scored prompts (prompt_logprobs):
 * each token of a chunk takes one of the step's logit rows, so chunks are as short as what is left
 * of those; nothing is taken from the prefix cache. Windows: groups of layers have their own pages
 * (kvcache/kv_groups.h). One with a window takes the pages of a prompt chunk by chunk and gives
 * them back when its window has passed them; a prefix hit needs only the pages that the window
 * still covers. Prefix cache: full pages only, the last prompt
 * token is always recomputed (it must give logits), least recently used pages go first, a hit
 * compares the tokens (kv_prefix.h).
 *
 * Recurrent state (state_unit): a sequence's slot has it, swapped out or not, so nothing is copied.
 * A prefix hit needs a snapshot of the state after its last page (kvcache/kv_snapshot.h). They are
 * taken at the last multiple of state_unit before a prompt's last token, and at every multiple of
 * snapshot_interval; a chunk contains one of these positions at most.
 *
 * Thread: one owner (the engine thread). Invariants: rp_scheduler_check, called after every plan
 * and commit in debug builds and by the simulator. */
#ifndef RP_ENGINE_SCHEDULER_H
#define RP_ENGINE_SCHEDULER_H

#include "base/status.h"
#include "engine/request.h"
#include "kvcache/kv_groups.h"
#include "kvcache/kv_prefix.h"

struct rp_scheduler;

struct rp_scheduler_config {
    uint32_t slot_count;     /* --max-num-seqs: sequences admitted at once, swapped ones included */
    uint32_t queue_capacity; /* waiting requests */
    uint32_t row_capacity;   /* rows of one step */
    uint32_t page_tokens;    /* tokens per page, a power of two */
    struct rp_kv_groups groups;  /* of the model's layers: each has its own pages */
    uint32_t page_count;         /* device pages, the padding page 0 included */
    uint32_t host_page_count;    /* pages of the swap pool */
    uint32_t max_model_len;      /* tokens of prompt and answer together */
    uint32_t page_edit_capacity; /* page-table entries that one step may write; at least the most
                                    pages that a sequence of max_model_len holds */
    /* ascending token counts of the captured mixed sets; the largest is the token budget of a step.
     * Copied. */
    const uint32_t *token_buckets;
    uint32_t token_bucket_count;
    /* A step with prompts has so many tokens, or more where much of its time does not depend on
     * them (scheduler_times.c); 0: the largest bucket. Where layers have windows, one sequence has
     * at most so many in a step. */
    uint32_t step_tokens;
    uint64_t step_ns_max;     /* steps that delay running answers should end in time; 0: no limit */
    uint32_t decode_rows_max; /* rows of the largest decode set */
    uint32_t logit_rows_max;  /* rows of one step that may sample */
    uint32_t join_capacity;   /* sequences that may join in one step; 0: no limit but slot_count */
    bool prefix_cache;
    bool whole_prompts; /* not with prefix_cache */
    /* generated tokens are not cached: for kernels that do not give the same bits in decode as in a
     * prompt */
    bool prefix_prompt_only;
    bool run_ahead;
    uint32_t state_unit;        /* tokens; 0: the model has no recurrent state */
    uint32_t snapshot_count;    /* with state_unit: 0: no prefix hits */
    uint32_t snapshot_interval; /* tokens, rounded up to pages and units */
    uint64_t hash_key;          /* secret of this process, for the prefix cache */
};

/* A sequence's part of a step, in the order of the packet's rows. */
struct rp_sched_row {
    struct rp_request *request; /* not to be read any more once its CLOSED event was handed on */
    uint32_t slot;
    uint32_t start;  /* position of its first token */
    uint32_t count;  /* tokens: 1 for decode, a chunk of the prompt otherwise */
    bool decode;     /* input is the slot's last token */
    bool samples;    /* its last token gets logits and a sampled token */
    uint32_t output; /* index of that token in the answer */
    bool scores;     /* each of its tokens gets logits: those of a prompt that is to be scored */
};

/* A page-table entry to write before the step. The table of group g begins at index g *
 * rp_scheduler_pages_per_slot. */
struct rp_sched_page {
    uint32_t slot, index, page;
};

/* A sequence that enters its slot in this step: its parameters must be written before its first
 * row. */
struct rp_sched_join {
    struct rp_request *request;
    uint32_t slot;
    uint32_t length;   /* tokens already in pages (prefix hits) */
    uint32_t snapshot; /* with recurrent state and a hit: its state is that of this snapshot */
};

/* The state of a row's sequence after `position` tokens, which are the row's last ones or before,
 * becomes a snapshot. */
struct rp_sched_save {
    uint32_t slot, position, snapshot;
};

enum rp_sched_copy_kind { RP_COPY_TO_HOST, RP_COPY_TO_DEVICE, RP_COPY_ON_DEVICE };

/* Page copies, done in order before the step's forward graph. */
struct rp_sched_copy {
    enum rp_sched_copy_kind kind;
    uint32_t from, to; /* page numbers in their pools */
};

/* A sequence that left the device's pages in this step, or came back to them. */
struct rp_sched_swap {
    uint64_t request_id;
    uint32_t page_count; /* copied */
    bool out;
};

/* In stream order: copies, then zero_pages, then joins and pages (edits of the slots), then the
 * rows. A page may be copied out and given to another sequence in one step, and zeroed in
 * between. */
struct rp_sched_step {
    uint64_t id; /* 1, 2, 3, ... */
    const struct rp_sched_row *rows;
    uint32_t row_count;
    uint32_t token_count, sample_count; /* sample_count: tokens that get logits */
    bool decode_only;                   /* every row is a decode row: a decode set can run it */
    bool scored;                        /* a row's request wants logprobs, of prompt or answer */
    bool holds;                         /* a sampling row's request has a hold (engine/request.h) */
    const struct rp_sched_page *pages;
    uint32_t page_count;
    const struct rp_sched_join *joins;
    uint32_t join_count;
    const struct rp_sched_save *saves;
    uint32_t save_count;
    const struct rp_sched_copy *copies;
    uint32_t copy_count;
    const uint32_t *zero_pages; /* pages to fill with zeros before the step (held NaN) */
    uint32_t zero_page_count;
    const struct rp_sched_swap *swaps; /* informative: the copies do the work */
    uint32_t swap_count;
};

/* Scores of one token (struct rp_token_scores of device/step.h). */
struct rp_sched_scores {
    int32_t token;
    float logprob;
    uint32_t rank, top_count;
    struct rp_logprob top[RP_LOGPROBS_MAX];
};

/* What the device said of one row of the step, in row order (struct rp_row_result of
 * device/step.h). */
struct rp_sched_result {
    int32_t token; /* -1: none */
    float logprob;
    uint32_t flags; /* rp_sched_result_flags */
    /* One for each of the row's tokens with logits, in order: in a scored row for the next token of
     * the prompt; at a sampling row's last one, with logprobs, for the sampled token. NULL when the
     * step is not `scored`. */
    const struct rp_sched_scores *scores;
};

/* The values of RP_RESULT_* (device/step.h), which this header must not include. */
enum rp_sched_result_flags {
    RP_SCHED_RESULT_STOPPED = 1,
    RP_SCHED_RESULT_NAN = 2,
    RP_SCHED_RESULT_SKIPPED = 4,
    RP_SCHED_RESULT_WITHHELD = 8
};

/* What a request was doing when it was swapped out. The cause is always one: an older request
 * needed a page for its next token. */
enum rp_preempted { RP_PREEMPTED_PREFILL, RP_PREEMPTED_DECODE, RP_PREEMPTED_COUNT };

struct rp_sched_stats {
    uint32_t waiting, running, swapped;
    uint32_t pages_total, pages_free, pages_cached, pages_held, pages_pending; /* without page 0 */
    uint32_t host_pages_total, host_pages_free;
    uint64_t preemptions, preempted[RP_PREEMPTED_COUNT]; /* all, and by phase */
    uint64_t prefix_query_tokens, prefix_hit_tokens, steps;
    uint32_t snapshots_kept;
    uint64_t snapshots_saved, snapshot_hits, snapshot_evictions;
};

int rp_scheduler_create(const struct rp_scheduler_config *config, struct rp_scheduler **out,
                        struct rp_error *err) RP_MUST_USE;
void rp_scheduler_destroy(struct rp_scheduler *scheduler);

/* RP_STATUS_FULL: the queue is full. RP_STATUS_RANGE: it can never fit (the server checks
 * rp_scheduler_fits first, so this is for the engine's own safety). */
int rp_scheduler_submit(struct rp_scheduler *scheduler, struct rp_request *request) RP_MUST_USE;

/* Tokens of the longest prompt that one step holds, where prompts are computed whole; 0: they may
 * be cut. scored: a prompt with prompt_logprobs, of which each token takes a row of logits. */
uint32_t rp_scheduler_whole_prompt_max(const struct rp_scheduler_config *config, bool scored);

/* The largest max_tokens that a request with this prompt may have; 0: the prompt itself is too
 * long. */
uint32_t rp_scheduler_output_max(const struct rp_scheduler_config *config, uint32_t prompt_count);
/* Whether a prompt fits whose answer is not wanted (rp_request.prompt_only). */
bool rp_scheduler_prompt_fits(const struct rp_scheduler_config *config, uint32_t prompt_count);
/* Whether a request of this size could ever be served with this configuration. */
static inline bool rp_scheduler_fits(const struct rp_scheduler_config *config,
                                     uint32_t prompt_count, uint32_t max_tokens) {
    return max_tokens >= 1 && max_tokens <= rp_scheduler_output_max(config, prompt_count);
}

/* Plans one step. event_room: free entries of the ring that the events go to; what is not drained
 * yet and what steps in flight may produce is counted against it here. A row needs two (its token
 * and its end); rows that might not find room are not planned. The ends of cancelled requests may
 * come without reservation: they wait in the scheduler until they are drained. False: nothing to do
 * now (no step is made, but CLOSED events of cancelled requests may be waiting). Also false while
 * as many steps are in flight as run_ahead allows. The step's arrays live until it is committed.
 * now_ns stamps request->scheduled_ns and the ends of cancelled requests. */
bool rp_scheduler_plan(struct rp_scheduler *scheduler, uint64_t now_ns, uint32_t event_room,
                       struct rp_sched_step *out_step);

/* Results of the oldest planned step, one per row. now_ns stamps the events. */
void rp_scheduler_commit(struct rp_scheduler *scheduler, uint64_t step_id,
                         const struct rp_sched_result *results, uint64_t now_ns);

/* Takes the next event in order; false when there is none. Drain after each plan and commit. */
bool rp_scheduler_next_event(struct rp_scheduler *scheduler, struct rp_event *out_event);

/* Closes everything waiting or admitted with this reason (device failure, shutdown). Planned steps
 * are forgotten; nothing may be planned after. */
void rp_scheduler_fail_all(struct rp_scheduler *scheduler, enum rp_finish_reason reason,
                           uint64_t now_ns);

/* The request of this slot's row in a planned, uncommitted step, and the number of its pages on the
 * device; NULL when that request has ended meanwhile (rp_sched_row.request must then not be
 * read). */
struct rp_request *rp_scheduler_request_of(const struct rp_scheduler *scheduler, uint32_t slot,
                                           uint32_t *out_pages);

/* Entries of one group's page table of a slot. */
uint32_t rp_scheduler_pages_per_slot(const struct rp_scheduler_config *config);

/* Steps planned and not yet committed: 0, 1 or 2. */
uint32_t rp_scheduler_in_flight(const struct rp_scheduler *scheduler);
/* No sequence waiting or admitted, nothing in flight. */
bool rp_scheduler_is_idle(const struct rp_scheduler *scheduler);
void rp_scheduler_stats(const struct rp_scheduler *scheduler, struct rp_sched_stats *out_stats);
/* Places in pages of running sequences that hold nothing yet: a walk over all of them. */
uint64_t rp_scheduler_wasted_tokens(const struct rp_scheduler *scheduler);

/* Calls `note` whenever a device page changes its state (kvcache/kv_pool.h). NULL: nobody. */
void rp_scheduler_watch_pages(struct rp_scheduler *scheduler,
                              void (*note)(void *ctx, uint32_t page, enum rp_kv_state from,
                                           enum rp_kv_state to),
                              void *ctx);
/* Calls `note` whenever a page is entered in the prefix cache or removed (kvcache/kv_prefix.h).
 * NULL: nobody. */
void rp_scheduler_watch_prefix(struct rp_scheduler *scheduler,
                               void (*note)(void *ctx, const struct rp_kv_prefix_change *change),
                               void *ctx);
/* Any thread: the device pool's map (kvcache/kv_pool.h), as far as it fits; returns the pages there
 * are. */
uint32_t rp_scheduler_page_map(const struct rp_scheduler *scheduler, uint32_t *out,
                               uint32_t capacity);

/* Invariants (reference counts against tables, free + held + cached + pending = total, states).
 * Returns NULL when all hold, else a text that names the broken one. */
const char *rp_scheduler_check(const struct rp_scheduler *scheduler);

#endif
