#include "engine/observe/request_stats.h"

const char *const rp_gap_causes[RP_GAP_CAUSE_COUNT] = {
#define X(name, text) [RP_GAP_##name] = text,
    RP_GAP_CAUSES(X)
#undef X
};
