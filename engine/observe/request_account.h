/* request_account.h - attribution: the device time of each step, split over the requests that were
 * in it.
 *
 * A step's device time T has three parts, in proportion to their modelled cost: operators over
 * tokens (most weights), operators over sampled rows (the head), and attention. The first is split
 * by tokens, the second by samples, the third by the keys that each row read. The
 * share of padding is counted as padding, that of requests which had ended meanwhile as unused
 * rows. The parts are integers and add up to T exactly.
 *
 * Cost of a part: bytes, or operations over `balance` (operations that the device does in the time
 * of a byte) when that is more; from backend/op_cost.h. Steps whose nodes were stamped say what a
 * unit of each part's cost takes in their bucket (rp_account_measure): later steps of it are split
 * with that.
 *
 * Padding costs nothing on a device that walks live rows only (the CPU).
 *
 * Energy: a share of time times the device's power in that step, which is its mean of the last
 * second. So requests, padding and unused rows add up to the energy of steps; idle time is not in
 * it.
 *
 * A part of a request's share stays in the account until the request ends or leaves the batch
 * (request_notes.h): rp_account_close.
 * Thread: the engine thread. Memory: all at init. */
#ifndef RP_ENGINE_REQUEST_ACCOUNT_H
#define RP_ENGINE_REQUEST_ACCOUNT_H

#include "device/program.h"
#include "engine/observe/request_notes.h"

enum rp_account_part { RP_PART_TOKENS, RP_PART_SAMPLES, RP_PART_ATTENTION, RP_PART_COUNT };

enum { RP_ACCOUNT_WINDOWS = 4, RP_ACCOUNT_PROGRAMS = 4 };
/* For decode rows a mask program is evaluated only at every so many positions. */
enum { RP_ACCOUNT_REACH_STEPS = 16 };

struct rp_account_config {
    const struct rp_program *program; /* read at init only */
    enum rp_dtype kv_dtype;
    uint32_t graph_count, slot_count, row_capacity;
    bool padding_costs;
    double balance; /* operations per byte */
    /* of requests without values for a mask program's parameters; borrowed */
    const int32_t *mask_defaults;
};

/* A row of a step that was read; a slot has one in a step. */
struct rp_account_row {
    struct rp_request *request; /* NULL: it had ended before, nobody wanted the row */
    uint32_t slot;
    uint32_t start, count; /* position of its first token, tokens */
    uint32_t pages;        /* that its sequence holds on the device */
    bool decode, samples;
    bool sampled; /* a token came of it */
};

struct rp_account_step {
    uint64_t step; /* the device's number */
    uint32_t graph;
    struct rp_bucket bucket;
    uint32_t token_count, sample_count; /* live */
    bool swaps;                         /* its plan swapped somebody out or in */
    uint64_t device_ns;
    uint64_t begin_ns, end_ns; /* on the device, by rp_tick_ns */
    uint64_t read_ns;          /* when its result was read */
    uint32_t power_mw;         /* of the device; 0: unknown */
};

/* A row's own bytes and operations, its weight in the split of the step's time, and its share. */
struct rp_account_cost {
    uint64_t bytes, flops, ns;
    double weight;
    bool goes_on; /* with its streak */
};

/* Where the time of a step, or of all of them, went. Bytes and operations by the same rule. */
struct rp_account_totals {
    uint64_t device_ns, attributed_ns, padding_ns, unused_ns;
    uint64_t bytes, flops; /* of requests, padding and unused rows together */
    uint64_t attributed_uj, padding_uj, unused_uj;
};

/* Keys that a request's row reads with a program, from position `from` on. */
struct rp_account_reach {
    uint64_t request; /* its id + 1; 0: none */
    uint32_t from;
    uint64_t keys;
};

struct rp_account {
    struct {
        uint64_t fixed_bytes, row_bytes, row_flops;
    } linear[2]; /* TOKENS, SAMPLES */
    struct {
        uint32_t window;
        uint64_t key_bytes, key_flops; /* a row's token and one key */
    } windows[RP_ACCOUNT_WINDOWS];
    uint32_t window_count;
    /* Layers with a mask program, by what it says. */
    struct {
        const struct rp_mask *mask; /* the model's */
        const char *text;
        int32_t layer; /* of one of them */
        uint64_t key_bytes, key_flops;
    } programs[RP_ACCOUNT_PROGRAMS];
    uint32_t program_count, heads;
    const int32_t *mask_defaults;
    /* (slot_count, RP_ACCOUNT_PROGRAMS) what decode rows read */
    struct rp_account_reach *reaches;
    bool padding_costs;
    double byte_per_flop; /* 1 / balance */
    double key_cost;      /* of a row's token and one key where no layer has a window; else 0 */
    /* (graph_count) ns that a unit of cost takes, as measured; 0: not yet */
    float (*rates)[RP_PART_COUNT];
    uint32_t graph_count, row_capacity;
    struct rp_account_row *rows;   /* (row_capacity) scratch of whoever calls rp_account_step */
    struct rp_account_cost *costs; /* (row_capacity) scratch */
    struct rp_streaks streaks;
    struct rp_account_totals totals;
    uint32_t power_mw;          /* of the step before: that of all open streaks */
    uint64_t rests_pj[3];       /* of the three energies in totals, below a microjoule */
    uint64_t prefill_ns, steps; /* device time of prompt rows, steps: of all that were read */
    /* when a step was planned last while the event ring had no room for all rows */
    uint64_t squeezed_ns;
};

/* False when memory is out. */
bool rp_account_init(struct rp_account *account, const struct rp_account_config *config);
void rp_account_deinit(struct rp_account *account); /* legal on a zeroed struct */
/* What the parts of a step took, of which only proportions count. Before the same step is accounted
 * for. */
void rp_account_measure(struct rp_account *account, const struct rp_account_step *step,
                        const struct rp_account_row *rows, uint32_t row_count,
                        const uint64_t parts_ns[RP_PART_COUNT]);
/* row_count: at least 1. Adds a step to the stats of its requests and to the totals. *out (may be
 * NULL): this step's. */
void rp_account_step(struct rp_account *account, const struct rp_account_step *step,
                     const struct rp_account_row *rows, uint32_t row_count,
                     struct rp_account_totals *out);

/* Its stats are complete: before its CLOSED event is handed on, and legal for a request that never
 * had a row. */
void rp_account_close(struct rp_account *account, struct rp_request *request);

/* engine_account.c */
struct rp_engine;
struct rp_pending_step;
/* The same for the engine: a step was read and is about to be committed. */
void rp_engine_account_step(struct rp_engine *engine, const struct rp_pending_step *step,
                            uint64_t read_ns);
int rp_engine_account_init(struct rp_engine *engine, const struct rp_program *program,
                           struct rp_error *err);

#endif
