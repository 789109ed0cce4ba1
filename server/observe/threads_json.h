/* threads_json.h - the threads of the process as JSON, for /debug/env. Thread: any. */
#ifndef RP_SERVER_THREADS_JSON_H
#define RP_SERVER_THREADS_JSON_H

#include "base/json_writer.h"

/* Writes "threads": [...] and, beyond RP_THREAD_STATS_MAX, "threads_omitted". */
void rp_threads_json(struct rp_json *json);

#endif
