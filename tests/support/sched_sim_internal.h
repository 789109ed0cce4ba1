/* sched_sim_internal.h - shared by the simulator's files: sched_sim_clients.c (sizes, requests,
 * the oracle), sched_sim_device.c (shadow KV), sched_sim.c (the engine's part and the run). */
#ifndef RP_TESTS_SUPPORT_SCHED_SIM_INTERNAL_H
#define RP_TESTS_SUPPORT_SCHED_SIM_INTERNAL_H

#include "engine/scheduler_internal.h"
#include "tests/support/sched_sim.h"

#define SLOTS_MAX     16u
#define REQUESTS_MAX  40u
#define SIM_TENANTS   4u
#define MODEL_MAX     160u /* tokens */
#define GROUPS_MAX    4u
#define TABLE_MAX     (GROUPS_MAX * (MODEL_MAX + 1))
#define PAGES_MAX     512u
#define PAGE_STRIDE   32u /* largest page */
#define ROWS_MAX      24u
#define EDITS_MAX     (TABLE_MAX + 16)
#define RING_MAX      128u
#define SNAPSHOTS_MAX 8u

/* Values of a position that are not chain values (chain values are odd). */
#define POISON 0xDEADDEADDEADDEA0u
#define NAN_KV 0x7FF800000000000Eu
/* Chain values are stored with their group's number in it, so that pages of two groups differ. */
#define OF_GROUP(value, group) ((value) == NAN_KV ? NAN_KV : (value) ^ (uint64_t)(group) << 8)

struct sim_request {
    struct rp_request base;
    int32_t prompt[MODEL_MAX];
    uint64_t order; /* of submission */
    bool open;
    bool told_stop;       /* the last TOKEN event was a stop id */
    uint32_t nan_at;      /* K and V are NaN from this position on */
    uint32_t withhold_at; /* the token of the answer that is withheld */
    uint32_t outputs;     /* TOKEN events seen */
    uint32_t scored;      /* PROMPT events seen */
    /* The oracle: positions 0 .. length-1 are folded. */
    uint32_t length;
    uint64_t chain;
    uint64_t values[MODEL_MAX + 1]; /* of the positions */
};

/* The contents of a slot after a join. */
struct device_join {
    uint32_t slot, length, snapshot;
    uint64_t root;
    uint32_t nan_at, withhold_at, stop_count;
    int32_t stop_id;
};

struct device_slot {
    uint32_t table[TABLE_MAX];
    struct device_join join;
    uint32_t length;
    int32_t last_token;
    bool finished;
};

/* A launched step, copied as an engine would encode it. */
struct device_step {
    uint64_t id;
    bool done, scored;
    uint32_t row_count, page_count, join_count, copy_count, zero_count, save_count;
    struct rp_sched_save saves[ROWS_MAX];
    struct rp_sched_row rows[ROWS_MAX];
    int32_t tokens[ROWS_MAX][MODEL_MAX];
    struct rp_sched_page pages[EDITS_MAX];
    struct device_join joins[SLOTS_MAX];
    struct rp_sched_copy copies[PAGES_MAX + EDITS_MAX];
    uint32_t zero_pages[EDITS_MAX];
    struct rp_sched_result results[ROWS_MAX];
    struct rp_sched_scores scores[ROWS_MAX]; /* of the tokens with logits */
    uint32_t score_count;
};

struct sim {
    uint64_t random;
    struct sched_sim_report *report;
    struct rp_scheduler_config config;
    uint32_t buckets[8];
    uint32_t group_count, pages_per_slot;
    struct rp_scheduler *scheduler;

    /* Configuration of this run. */
    uint32_t vocab, template_count, salt_count, request_count, nan_percent, withhold_percent,
        cancel_percent;
    uint32_t prompt_max, stop_percent, submit_percent, late_percent, drain_percent, ring_capacity;
    bool nan_finishes, fails;
    int32_t templates[4][MODEL_MAX];

    struct sim_request requests[REQUESTS_MAX];
    struct device_slot slots[SLOTS_MAX];
    uint64_t kv[PAGES_MAX * PAGE_STRIDE];
    uint64_t host_kv[PAGES_MAX * PAGE_STRIDE];
    /* Written by a decode row: its bits may differ from those of a prompt row. */
    bool by_decode[PAGES_MAX * PAGE_STRIDE], host_by_decode[PAGES_MAX * PAGE_STRIDE];
    /* Recurrent state: the chain value after the last token. */
    uint64_t states[SLOTS_MAX], snapshots[SNAPSHOTS_MAX];
    bool is_free[PAGES_MAX]; /* as the scheduler last reported */

    /* The host's own view of the tables, and the last step that names a page or slot. */
    uint32_t tables[SLOTS_MAX][TABLE_MAX];
    uint64_t page_step[PAGES_MAX], slot_step[SLOTS_MAX];
    uint32_t starved[SLOTS_MAX]; /* steps without a row */
    uint64_t starved_age[SLOTS_MAX];

    struct device_step launched[4]; /* by id */
    uint64_t planned, committed;
    struct rp_event ring[RING_MAX];
    uint32_t ring_count;
    uint64_t submitted, closed, swap_sum, now_ns, alloc_count;
    uint64_t joined_order[SIM_TENANTS]; /* of each tenant's last request that joined */
};

#define CHECK(sim, ok, text, a, b)                                                                 \
    do {                                                                                           \
        if (!(ok)) {                                                                               \
            sched_sim_fail(sim, text, (uint64_t)(a), (uint64_t)(b));                               \
            return;                                                                                \
        }                                                                                          \
    } while (0)

/* Records the first failure of a run; a and b are numbers to print. */
void sched_sim_fail(struct sim *sim, const char *text, uint64_t a, uint64_t b);

/* All random choices of a run. */
uint64_t sched_sim_mix(uint64_t z);
uint32_t sched_sim_choose(struct sim *sim, uint32_t count);
bool sched_sim_chance(struct sim *sim, uint32_t percent);
uint32_t sched_sim_between(struct sim *sim, uint32_t low, uint32_t high);

/* The value of a position, and the logits of all positions, for device and oracle. */
uint64_t sched_sim_kv_root(uint64_t salt);
uint64_t sched_sim_kv_value(uint32_t position, int32_t token, uint64_t before);
uint64_t sched_sim_fold(uint64_t fold, uint64_t value);
/* The first position of a group's pages that the token at `position` sees. */
uint32_t sched_sim_first(const struct sim *sim, uint32_t group, uint32_t position);

void sched_sim_draw_config(struct sim *sim);
void sched_sim_submit_some(struct sim *sim);
void sched_sim_cancel_some(struct sim *sim);
/* The loop's side of the event ring, and the engine's. */
void sched_sim_consume_ring(struct sim *sim);
void sched_sim_drain_events(struct sim *sim);

void sched_sim_poison_page(struct sim *sim, uint32_t page);
/* Runs everything launched up to this step, in order. */
void sched_sim_run_device(struct sim *sim, uint64_t up_to);

#endif
