/* scheduler_internal.h - what the scheduler's files share; nobody else includes it.
 *
 * Reading order: scheduler_plan.c (makes a step), scheduler_admit.c (admission),
 * scheduler_tenants.c (fair shares), scheduler_times.c (how long steps take), scheduler_pages.c (a
 * sequence's pages), scheduler_swap.c (preemption), scheduler_state.c (snapshots of recurrent
 * state), scheduler_commit.c (results, events, ends), scheduler.c (the calls of scheduler.h),
 * scheduler_check.c (invariants).
 *
 * Lengths of a sequence, in tokens whose K and V are in pages:
 *
 *   0 ........ verified_length ........ planned_length ........ worst case
 *   | committed, no NaN seen   | planned, or not yet proven clean |
 *
 * verified_length moves only when a row that sampled is committed without NaN: logits without NaN
 * are the only proof that the pages they were computed from are clean. */
#ifndef RP_ENGINE_SCHEDULER_INTERNAL_H
#define RP_ENGINE_SCHEDULER_INTERNAL_H

#include "engine/rows.h"
#include "kvcache/kv_pool.h"
#include "kvcache/kv_prefix.h"
#include "kvcache/kv_snapshot.h"

#include <stddef.h>
#include <string.h>

#define RP_SCHED_NOBODY UINT32_MAX

/* Steps that may be planned and not committed, with run-ahead. */
#define RP_SCHED_IN_FLIGHT_MAX 2
/* Events of one sampled row: its token, and the end of its request. A scored token has one. */
#define RP_SCHED_ROW_EVENTS 2

enum rp_sequence_state {
    RP_SEQUENCE_FREE,    /* the slot is free */
    RP_SEQUENCE_RUNNING, /* pages on the device */
    RP_SEQUENCE_SWAPPED, /* pages on the host */
    RP_SEQUENCE_CLOSED   /* its CLOSED event is out; the slot waits for its last planned step */
};

/* A sequence's pages of one group (kvcache/kv_groups.h): device pages when running, host pages when
 * swapped. */
struct rp_held_pages {
    uint32_t *table;     /* (pages_per_slot) */
    uint32_t first, end; /* entries [first, end) are held; those below name pages given back */
};

/* An admitted request. It keeps its slot, and so its place in the array, to its end. */
struct rp_sequence {
    struct rp_request *request; /* NULL once closed: the loop may have reused it */
    enum rp_sequence_state state;
    uint32_t slot;
    uint64_t age;         /* order of admission */
    uint64_t last_step;   /* last planned step with a row of it; 0: none */
    uint64_t skip_step;   /* the step in which its tenant has no row for it; 0: none */
    uint64_t chosen_step; /* the step in which its turn has come; 0: none */
    /* Order of its last decode row when there were too few for all, and of the one chosen now. */
    uint64_t turn, next_turn;
    uint64_t return_step; /* step in which it was swapped in last */
    uint32_t prompt_count, max_tokens;
    uint64_t salt;
    uint32_t worst_pages; /* pages of its longest possible life */
    uint32_t planned_length, verified_length;
    uint32_t planned_outputs, outputs;           /* tokens requested, tokens received */
    struct rp_held_pages held[RP_KV_GROUPS_MAX]; /* by group */
    /* Prefix cache: pages [0, hashed_pages) are in the chain, of which [0, proven_pages) may be
     * found. Generated tokens of the page being filled are kept here, at position % page_tokens. */
    struct rp_hash128 chain;
    uint32_t hashed_pages, proven_pages;
    int32_t *tail_tokens;       /* (page_tokens) */
    uint32_t pending_snapshots; /* list; RP_NO_SNAPSHOT: none */
    struct rp_hash128 hit;      /* the chain after the pages that it found */
};

/* Whose requests share one fair share; exists while one of them waits or is admitted. */
struct rp_tenant {
    uint64_t id;                /* rp_request.tenant; 0 is never limited */
    uint64_t service_ns;        /* virtual time: step time charged to it, see lift_service */
    uint32_t waiting, admitted; /* requests */
    uint64_t waiting_tokens;    /* prompt tokens of those that wait */
    uint32_t place;             /* in active_tenants */
    uint32_t yielded;           /* steps left to first tokens of others, less those it had since */
    /* For the step being planned. */
    bool yields;               /* it has no part in the step */
    uint32_t ready, row_limit; /* sequences that can decode, and how many of them may */
    uint32_t prompt_left;      /* prompt tokens it may still add; UINT32_MAX: no limit */
    uint64_t prompt_tokens;    /* not planned yet, of running and waiting prompts */
};

/* The arrays of one planned step, kept until it is committed. */
struct rp_step_store {
    uint64_t id;
    struct rp_sched_row *rows;    /* (row_capacity) */
    struct rp_sched_page *pages;  /* (page_edit_capacity) */
    struct rp_sched_join *joins;  /* (slot_count) */
    struct rp_sched_save *saves;  /* (row_capacity) */
    struct rp_sched_copy *copies; /* (copy_capacity) */
    uint32_t *zero_pages;         /* (page_edit_capacity) */
    struct rp_sched_swap *swaps;  /* (slot_count) */
    uint32_t row_count, page_count, join_count, copy_count, zero_count, swap_count, save_count;
    uint32_t token_count, sample_count, chunk_count;
    bool scored, holds;
    uint64_t now_ns;
    /* What the step still has room for. */
    uint32_t token_room;  /* prompt tokens */
    uint32_t sample_room; /* tokens with logits */
};

struct rp_sched_events {
    struct rp_event *slots; /* (capacity) */
    uint32_t capacity, first, count;
    uint32_t closed_count; /* CLOSED events among them */
};

struct rp_scheduler {
    struct rp_scheduler_config config; /* token_buckets is our copy */
    struct rp_kv_pool pool, host;
    struct rp_kv_prefix prefix;             /* only with config.prefix_cache */
    struct rp_kv_snapshots snapshots;       /* empty without recurrent state or prefix_cache */
    uint32_t state_unit, snapshot_interval; /* in whole pages; 0: no snapshots */
    uint32_t pages_per_slot;                /* of one group */
    uint32_t group_count, windowed_count;   /* windowed: groups with a window */
    uint32_t lead_group;                    /* the one whose prefix entries are noted */
    uint32_t token_budget;

    struct rp_sequence *sequences; /* (slot_count), by slot */
    uint32_t *page_tables;         /* (slot_count, group_count, pages_per_slot) */
    int32_t *tail_tokens;          /* (slot_count, page_tokens) */
    uint32_t *free_slots, free_slot_count;
    uint32_t *running, running_count; /* slots in order of age */
    uint32_t *swapped, swapped_count; /* slots in order of age */
    uint32_t *closed, closed_count;   /* slots that wait for their last step */
    uint64_t age_next;
    uint64_t worst_page_sum; /* over all admitted sequences */
    bool decodes_yielded;    /* to a whole prompt, in the step planned last */

    struct rp_request **waiting; /* (queue_capacity) ring, in order of arrival */
    uint32_t waiting_first, waiting_count;
    struct rp_tenant *tenants; /* (queue_capacity + slot_count) */
    uint32_t *active_tenants, active_tenant_count;
    uint32_t *free_tenants, free_tenant_count;
    uint64_t turns;            /* decode rows chosen so far when there were too few */
    uint64_t service_floor_ns; /* service of a tenant that becomes active */
    uint64_t *size_ns;         /* mean time of the steps of each size; 0: none yet */
    /* In steps with prompts, 0: none yet: a prompt's token, and what a decode row adds. */
    uint64_t prompt_token_ns, decode_row_ns;
    uint64_t committed_ns;       /* time of the last commit */
    bool limits;                 /* the tenants' limits of a step are in force */
    uint64_t contended_until_ns; /* the limits of steps apply until then */
    /* A picked request that had no pages is not hashed again before pages were released. */
    const struct rp_request *blocked_head;
    uint64_t blocked_epoch, release_epoch;

    struct rp_sched_events events;
    struct rp_step_store stores[RP_SCHED_IN_FLIGHT_MAX]; /* by step id */
    uint64_t planned_step, committed_step;
    bool failed;

    uint32_t *order;  /* (slot_count) scratch of plan: sequences in the order of decode rows */
    uint32_t *chosen; /* (slot_count + 1) scratch of plan: those whose turn it is */
    uint32_t *order_victims; /* (slot_count) scratch of plan */
    uint32_t *match;         /* (group_count, pages_per_slot) scratch of admission: pages found */
    int32_t *page_scratch;   /* (page_tokens) scratch of hashing */
    uint32_t *ref_scratch;   /* (max of both pools' pages) zeros between calls */
    uint64_t preempted[RP_PREEMPTED_COUNT], prefix_query_tokens, prefix_hit_tokens;
};

static inline uint32_t rp_sched_pages_of(const struct rp_scheduler *scheduler, uint64_t tokens) {
    return (uint32_t)RP_CEIL_DIV(tokens, scheduler->config.page_tokens);
}
/* The hash of a group's page; the lead group's is the chain's. */
static inline struct rp_hash128 rp_sched_group_hash(const struct rp_scheduler *scheduler,
                                                    struct rp_hash128 chain, uint32_t group) {
    return rp_kv_prefix_of_group(chain, group ^ scheduler->lead_group);
}
static inline bool rp_sequence_in_prompt(const struct rp_sequence *sequence) {
    return sequence->planned_length < sequence->prompt_count;
}
/* Whether an answer of so many tokens has reached its length. The one place that decides it: plan
 * counts planned tokens, commit those received. */
static inline bool rp_sequence_is_complete(const struct rp_sequence *sequence, uint32_t outputs) {
    return outputs >= sequence->max_tokens;
}
/* All of its tokens are planned: only results are missing. */
static inline bool rp_sequence_is_ending(const struct rp_sequence *sequence) {
    return rp_sequence_is_complete(sequence, sequence->planned_outputs);
}
/* Whether it may have a decode row in this step: it has none yet. */
static inline bool rp_sequence_can_decode(const struct rp_sequence *sequence, uint64_t step) {
    return !rp_sequence_in_prompt(sequence) && !rp_sequence_is_ending(sequence) &&
           sequence->last_step != step && sequence->skip_step != step;
}
/* Positions whose K and V are written at most: nothing reads those of the last token. */
static inline uint64_t rp_sched_written_max(uint32_t prompt_count, uint32_t max_tokens) {
    return (uint64_t)prompt_count + max_tokens - 1;
}
static inline struct rp_sequence *rp_sched_oldest(const struct rp_scheduler *scheduler) {
    struct rp_sequence *running =
        scheduler->running_count ? &scheduler->sequences[scheduler->running[0]] : NULL;
    struct rp_sequence *swapped =
        scheduler->swapped_count ? &scheduler->sequences[scheduler->swapped[0]] : NULL;
    if (!running || !swapped)
        return running ? running : swapped;
    return running->age < swapped->age ? running : swapped;
}

/* Lists of slots in order of age. */
void rp_sched_list_insert(const struct rp_scheduler *scheduler, uint32_t *list, uint32_t *count,
                          uint32_t slot);
void rp_sched_list_remove(uint32_t *list, uint32_t *count, uint32_t slot);

/* The most tokens of one sequence in a step where layers have windows. */
static inline uint32_t rp_sched_chunk_max(const struct rp_scheduler_config *config) {
    uint32_t largest = config->token_buckets[config->token_bucket_count - 1];
    return config->step_tokens ? RP_MIN(config->step_tokens, largest) : largest;
}

/* scheduler_pages.c: the most pages that a sequence of so many written positions holds at once. */
uint64_t rp_sched_pages_max(const struct rp_scheduler_config *config, uint64_t tokens);
/* Positions that one sequence can write when it has all pages, at most max_model_len. */
uint64_t rp_sched_tokens_max(const struct rp_scheduler_config *config);
/* Pages that a sequence holds, and those of them that its planned tokens lie in. */
uint32_t rp_sched_held(const struct rp_scheduler *scheduler, const struct rp_sequence *sequence);
uint32_t rp_sched_content(const struct rp_scheduler *scheduler, const struct rp_sequence *sequence);
/* A page for the end of a group's table, with its edit. One must be available. overwritten: a copy
 * fills all of it, so it need not be zeroed. */
uint32_t rp_sched_take_page(struct rp_scheduler *scheduler, struct rp_step_store *step,
                            struct rp_sequence *sequence, uint32_t group, bool overwritten);
/* Gives back the pages that no token from planned_length on sees. */
void rp_sched_drop_passed(struct rp_scheduler *scheduler, struct rp_sequence *sequence);
/* Gives back a running sequence's device pages; those that are not proven clean become dirty. */
void rp_sched_release_pages(struct rp_scheduler *scheduler, struct rp_sequence *sequence,
                            uint64_t fence);
/* Enters the pages that became full and clean in the prefix table. */
void rp_sched_prove_pages(struct rp_scheduler *scheduler, struct rp_sequence *sequence);
/* Pages that it gave back and that were never proven leave the prefix table. */
void rp_sched_forget_unproven(struct rp_scheduler *scheduler, struct rp_sequence *sequence);

/* scheduler_state.c. How many of the next `count` tokens of a prompt a chunk may have, so that one
 * position at most is saved. */
uint32_t rp_sched_limit_saves(const struct rp_scheduler *scheduler,
                              const struct rp_sequence *sequence, uint32_t count);
/* The snapshots that the rows of a planned step take; with snapshots alone. */
void rp_sched_plan_saves(struct rp_scheduler *scheduler, struct rp_step_store *step);

/* Marks (chosen_step) up to `limit` sequences of a tenant (RP_SCHED_NOBODY: of all) that can
 * decode, those first that had a row longest ago. Returns how many. */
uint32_t rp_sched_choose_decodes(struct rp_scheduler *scheduler, const struct rp_step_store *step,
                                 uint32_t tenant, uint32_t limit);
/* A row for the next part of its prompt; false: no room. */
bool rp_sched_plan_chunk(struct rp_scheduler *scheduler, struct rp_step_store *step,
                         struct rp_sequence *sequence);

/* Whether a prompt that must be computed whole finds room in this step; others always do. */
static inline bool rp_sched_has_room(const struct rp_scheduler *scheduler,
                                     const struct rp_step_store *step,
                                     const struct rp_request *request) {
    return !scheduler->config.whole_prompts ||
           (request->prompt_count <= step->token_room &&
            (!request->prompt_logprobs || request->prompt_count <= step->sample_room));
}

/* Steps are timed by size: at most 1, 2, 4 or 8 tokens, then by token bucket, which begin at 16. */
#define RP_SCHED_SMALL_SIZES 4u

static inline uint32_t rp_sched_size_count(const struct rp_scheduler *scheduler) {
    return RP_SCHED_SMALL_SIZES + scheduler->config.token_bucket_count;
}
/* The most tokens of a size. */
static inline uint32_t rp_sched_size_tokens(const struct rp_scheduler *scheduler, uint32_t size) {
    const uint32_t *buckets = scheduler->config.token_buckets;
    return size < RP_SCHED_SMALL_SIZES ? RP_MIN(1u << size, buckets[0])
                                       : buckets[size - RP_SCHED_SMALL_SIZES];
}

/* scheduler_times.c: the size of a step. */
uint32_t rp_sched_size_of(const struct rp_scheduler *scheduler, uint32_t tokens);
/* Expected time of a size's steps, ns. */
uint64_t rp_sched_size_time(const struct rp_scheduler *scheduler, uint32_t size);
void rp_sched_step_took(struct rp_scheduler *scheduler, const struct rp_step_store *step,
                        uint64_t took_ns);
/* The largest bucket that so many tokens fill; 0: none. */
uint32_t rp_sched_bucket_below(const struct rp_scheduler *scheduler, uint32_t tokens);
/* The most tokens of a step with prompts and so many decode rows. */
uint32_t rp_sched_step_tokens(struct rp_scheduler *scheduler, uint32_t decodes);

/* scheduler_tenants.c. The place in `waiting` of the request to admit next, or RP_SCHED_NOBODY. */
uint32_t rp_sched_tenant_pick(const struct rp_scheduler *scheduler);
/* A request begins to wait (false: its tenant fills the queue), leaves the queue, is admitted from
 * it, and is closed after it was admitted. */
bool rp_sched_tenant_enqueue(struct rp_scheduler *scheduler, struct rp_request *request);
void rp_sched_tenant_dequeue(struct rp_scheduler *scheduler, const struct rp_request *request);
void rp_sched_tenant_admit(struct rp_scheduler *scheduler, const struct rp_request *request);
void rp_sched_tenant_close(struct rp_scheduler *scheduler, const struct rp_request *request);
/* Limits of the step that is being planned; to be called while several tenants are or were just
 * active (contended_until_ns), or limits are in force. The next two: while limits are in force. */
void rp_sched_tenants_begin_step(struct rp_scheduler *scheduler, const struct rp_step_store *step);
/* Removes them where they are in vain; false: they stay. */
bool rp_sched_tenants_lift(struct rp_scheduler *scheduler, const struct rp_step_store *step);
/* The step is planned. */
void rp_sched_tenants_end_step(struct rp_scheduler *scheduler);
uint32_t rp_sched_tenant_prompt_left(const struct rp_scheduler *scheduler,
                                     const struct rp_sequence *sequence);
void rp_sched_tenant_use_prompt(struct rp_scheduler *scheduler, const struct rp_sequence *sequence,
                                uint32_t tokens);
/* Before the step's rows are committed. */
void rp_sched_tenants_charge(struct rp_scheduler *scheduler, const struct rp_step_store *step,
                             uint64_t now_ns);
bool rp_sched_tenants_alloc(struct rp_scheduler *scheduler);
void rp_sched_tenants_free(struct rp_scheduler *scheduler);
const char *rp_sched_tenants_check(const struct rp_scheduler *scheduler);

/* scheduler_admit.c: admits the request that is picked and plans its first chunk; false: not
 * now. */
bool rp_sched_try_admit(struct rp_scheduler *scheduler, struct rp_step_store *step);

/* scheduler_swap.c: swapped sequences come back while their pages fit. */
void rp_sched_return_swapped(struct rp_scheduler *scheduler, struct rp_step_store *step);
/* Makes `need` pages available for the sequence, by swapping out younger ones; false: wait a
 * step. */
bool rp_sched_make_room(struct rp_scheduler *scheduler, struct rp_step_store *step,
                        const struct rp_sequence *sequence, uint32_t need);
/* Pages that must remain after an admission: each running sequence may need one of each group
 * soon. */
uint32_t rp_sched_margin(const struct rp_scheduler *scheduler);

/* Most events have no likeliest tokens, which are most of an event. */
static inline void rp_sched_copy_event(struct rp_event *to, const struct rp_event *from) {
    memcpy(to, from, offsetof(struct rp_event, top));
    if (from->top_count)
        memcpy(to->top, from->top, from->top_count * sizeof *to->top);
}

/* scheduler_commit.c */
void rp_sched_push_event(struct rp_scheduler *scheduler, const struct rp_event *event);
void rp_sched_close_request(struct rp_scheduler *scheduler, struct rp_request *request,
                            uint32_t tokens, enum rp_finish_reason reason, uint64_t now_ns);
void rp_sched_close(struct rp_scheduler *scheduler, struct rp_sequence *sequence,
                    enum rp_finish_reason reason, uint64_t now_ns);
/* Slots and pages whose last planned step is committed. */
void rp_sched_retire(struct rp_scheduler *scheduler);

#endif
