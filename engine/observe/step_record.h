/* step_record.h - one record for each step, with its times; the newest RP_STEP_RECORDS are kept.
 * Written by the engine thread when the step was read. All times are
 * rp_tick_ns (metrics/tick.h); the device's were mapped to it (device_clock.h): a step begins
 * after the end of the one before it, and ends before it was read.
 *
 *   idle_ns, summed  =  begin_ns - the end of the step before (the start of the engine thread, for the first) */
#ifndef RP_ENGINE_STEP_RECORD_H
#define RP_ENGINE_STEP_RECORD_H

#include "metrics/event.h"

#include <stdatomic.h>

struct rp_engine;

struct rp_step_record {
    uint64_t step;                  /* the device's number */
    uint32_t graph;                 /* index of the bucket it ran in: rp_engine_graph */
    uint32_t rows, tokens, samples; /* live */
    uint32_t decode_rows, prompt_tokens;
    uint32_t padded_tokens;
    /* positions that its tokens attended to: the sum over rows of tokens in pages */
    uint64_t kv_tokens;
    uint32_t preempted;                     /* sequences swapped out before it */
    uint64_t swap_out_bytes, swap_in_bytes; /* of pages copied to and from the host before it */
    bool decode_only, behind, stamped;
    uint8_t miss;                          /* rp_replay_miss */
    uint32_t copied_in, copied_out;        /* pages copied from and to the host before it */
    uint64_t plan_ns, planned_ns;          /* begin and end of planning */
    uint64_t launch_ns, launched_ns;       /* of encoding, copying pages and launching */
    uint64_t begin_ns, end_ns;             /* on the device */
    uint64_t read_ns;                      /* the engine thread had its result */
    uint64_t idle_ns[RP_IDLE_CAUSE_COUNT]; /* of the device before it, by cause */
};

#define RP_STEP_RECORDS 8192u

/* Cuts off what lies before since_ns: of the step, and of the idle time before it. Only sums of the
 * latter are kept: time without work is taken to be its first part, other causes keep their
 * ratios. */
void rp_step_record_clip(struct rp_step_record *record, uint64_t since_ns);
/* Copies the newest records that ended at or after since_ns, at most `capacity`, oldest first;
 * returns how many. Any thread; the engine thread is never held up, and what it writes over
 * meanwhile is left out. */
uint32_t rp_engine_copy_steps(const struct rp_engine *engine, uint64_t since_ns,
                              struct rp_step_record *out, uint32_t capacity);

/* The ring, as words: a reader that races sees old or new words. Memory: at init. One writer. */
struct rp_step_records {
    _Atomic uint64_t *words; /* (RP_STEP_RECORDS, words of a record) */
    _Atomic uint64_t head;   /* records written */
};
bool rp_step_records_init(struct rp_step_records *records);
void rp_step_records_deinit(struct rp_step_records *records); /* legal on a zeroed struct */
void rp_step_records_put(struct rp_step_records *records, const struct rp_step_record *record);
uint32_t rp_step_records_copy(const struct rp_step_records *records, uint64_t since_ns,
                              struct rp_step_record *out, uint32_t capacity);

#endif
