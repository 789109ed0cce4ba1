#include "engine/observe/step_record.h"

void rp_step_record_clip(struct rp_step_record *record, uint64_t since_ns) {
    uint64_t idle = 0, room = record->begin_ns > since_ns ? record->begin_ns - since_ns : 0;
    for (int cause = 0; cause < RP_IDLE_CAUSE_COUNT; cause++)
        idle += record->idle_ns[cause];
    record->begin_ns = RP_MAX(record->begin_ns, since_ns);
    if (idle <= room)
        return;
    uint64_t *no_work = &record->idle_ns[RP_IDLE_NO_WORK];
    uint64_t cut = RP_MIN(*no_work, idle - room), rest = idle - *no_work;
    *no_work -= cut;
    if (idle - cut <= room)
        return;
    for (int cause = 0; cause < RP_IDLE_CAUSE_COUNT; cause++)
        if (cause != RP_IDLE_NO_WORK)
            record->idle_ns[cause] =
                (uint64_t)((double)record->idle_ns[cause] * (double)room / (double)rest);
}
