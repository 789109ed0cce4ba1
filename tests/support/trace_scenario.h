/* trace_scenario.h - scripted events of a server: three requests, prompt chunks, decode steps
 * launched while their predecessor runs, a swap, idle gaps, node times of one step. The clock is
 * virtual, so every run has the same events. */
#ifndef RP_TESTS_TRACE_SCENARIO_H
#define RP_TESTS_TRACE_SCENARIO_H

#include "metrics/trace_model.h"

#define RP_SCENARIO_BEGIN_NS UINT64_C(5000000000) /* the window: 20 ms */
#define RP_SCENARIO_END_NS   UINT64_C(5020000000)
enum { RP_SCENARIO_EVENTS_MAX = 512 };

/* Copies the events of its three rings, sorted; returns their number. */
uint64_t rp_scenario_events(struct rp_trace_event out[RP_SCENARIO_EVENTS_MAX]);
/* The window, its names (one with quotes and invalid UTF-8), and no reason. */
struct rp_trace_info rp_scenario_info(void);

#endif
