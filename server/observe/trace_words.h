/* trace_words.h - names of buckets, graph nodes and finish reasons in traces of this server.
 * Thread: any. */
#ifndef RP_SERVER_TRACE_WORDS_H
#define RP_SERVER_TRACE_WORDS_H

#include "metrics/trace_model.h"

struct rp_engine;

/* engine is borrowed while the names are used. */
struct rp_trace_names rp_server_trace_names(const struct rp_engine *engine);

#endif
