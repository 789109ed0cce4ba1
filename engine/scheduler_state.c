/* Snapshots of recurrent state: at which positions they are taken.
 *
 * The last token of a prompt is always computed, so what the next request with the same beginning
 * can use lies before it: the last multiple of state_unit there. Long prompts and long answers have
 * more, at every multiple of snapshot_interval. */
#include "engine/scheduler_internal.h"

/* The first position after `from` at which the state is saved. */
static uint64_t next_save(const struct rp_scheduler *scheduler, const struct rp_sequence *sequence,
                          uint32_t from) {
    uint32_t interval = scheduler->snapshot_interval, unit = scheduler->state_unit;
    uint64_t periodic = ((uint64_t)from / interval + 1) * interval;
    uint32_t last = (sequence->prompt_count - 1) / unit * unit;
    return from < last ? RP_MIN(periodic, (uint64_t)last) : periodic;
}

uint32_t rp_sched_limit_saves(const struct rp_scheduler *scheduler,
                              const struct rp_sequence *sequence, uint32_t count) {
    uint32_t begin = sequence->planned_length;
    if (scheduler->state_unit == 0)
        return count;
    uint64_t first = next_save(scheduler, sequence, begin);
    if (first >= (uint64_t)begin + count ||
        next_save(scheduler, sequence, (uint32_t)first) > (uint64_t)begin + count)
        return count;
    return (uint32_t)first - begin;
}

void rp_sched_plan_saves(struct rp_scheduler *scheduler, struct rp_step_store *step) {
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct rp_sched_row *row = &step->rows[i];
        struct rp_sequence *sequence = &scheduler->sequences[row->slot];
        uint64_t position = next_save(scheduler, sequence, row->start);
        if (position > (uint64_t)row->start + row->count ||
            (scheduler->config.prefix_prompt_only && position > sequence->prompt_count))
            continue;
        uint32_t snapshot = rp_kv_snapshots_take(&scheduler->snapshots, (uint32_t)position,
                                                 step->id, &sequence->pending_snapshots);
        if (snapshot != RP_NO_SNAPSHOT)
            step->saves[step->save_count++] =
                (struct rp_sched_save){row->slot, (uint32_t)position, snapshot};
    }
}
