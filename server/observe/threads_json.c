#include "server/observe/threads_json.h"

#include "base/cpu_list.h"
#include "metrics/thread_stats.h"

static void write_known(struct rp_json *json, const char *key, int64_t value) {
    if (value < 0)
        rp_json_null(json, key);
    else
        rp_json_int(json, key, value);
}

static void write_thread(struct rp_json *json, const struct rp_thread_stats *thread) {
    char affinity[RP_CPU_LIST_MAX];
    rp_cpu_list_format(&thread->affinity, affinity, sizeof affinity);
    rp_json_object_begin(json, NULL);
    rp_json_string(json, "name", thread->name);
    rp_json_int(json, "tid", thread->tid);
    rp_json_bool(json, "computes_steps", thread->computes_steps);
    rp_json_string(json, "affinity", affinity);
    write_known(json, "processor", thread->processor);
    write_known(json, "numa_node", thread->node);
    rp_json_double(json, "run_seconds", (double)thread->run_ns / 1e9);
    rp_json_double(json, "run_queue_seconds", (double)thread->wait_ns / 1e9);
    write_known(json, "migrations", thread->migrations);
    rp_json_uint(json, "voluntary_switches", thread->voluntary);
    rp_json_uint(json, "involuntary_switches", thread->involuntary);
    rp_json_object_end(json);
}

void rp_threads_json(struct rp_json *json) {
    struct rp_thread_stats threads[RP_THREAD_STATS_MAX];
    uint32_t all, count = rp_thread_stats_read(threads, RP_THREAD_STATS_MAX, &all);
    rp_json_array_begin(json, "threads");
    for (uint32_t i = 0; i < count; i++)
        write_thread(json, &threads[i]);
    rp_json_array_end(json);
    if (all > count)
        rp_json_uint(json, "threads_omitted", all - count);
}
