/* trace_words.h - the names that traces of this server use for numbers: of buckets, nodes and
 * finish reasons.
 * Thread: any. */
#ifndef RP_SERVER_TRACE_WORDS_H
#define RP_SERVER_TRACE_WORDS_H

#include "metrics/trace_model.h"

struct rp_engine;

/* engine is borrowed as long as the names are used. */
struct rp_trace_names rp_server_trace_names(const struct rp_engine *engine);

#endif
