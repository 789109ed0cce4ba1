/* engine_account.c - the account of device time (request_account.h) of an engine. */
#include "engine/engine_internal.h"

/* Operations in the time of a byte, by data sheets: an H200 does 989e12 in bf16 and reads 4.8e12
 * bytes a second; CPU cores with vectors lie near ten. Only how a step is split between its prompt
 * and its decode rows hangs on it. */
static const double gpu_balance = 206, cpu_balance = 10;

int rp_engine_account_init(struct rp_engine *engine, const struct rp_program *program,
                           struct rp_error *err) {
    bool on_gpu = engine->device_info.separate_memory;
    const struct rp_account_config config = {.program = program,
                                             .kv_dtype = engine->config.kv_dtype,
                                             .graph_count = rp_graph_set_count(engine->graphs),
                                             .slot_count = engine->scheduler_config.slot_count,
                                             .row_capacity = engine->scheduler_config.row_capacity,
                                             .padding_costs = on_gpu,
                                             .mask_defaults = engine->batch.mask_defaults,
                                             .balance = on_gpu ? gpu_balance : cpu_balance};
    if (rp_account_init(&engine->observer.account, &config))
        return RP_OK;
    return rp_engine_no_memory(err, "accounts of steps", config.row_capacity);
}

static void fill_row(const struct rp_engine *engine, const struct rp_sched_row *planned,
                     const struct rp_sched_result *result, struct rp_account_row *out) {
    struct rp_request *request =
        rp_scheduler_request_of(engine->scheduler, planned->slot, &out->pages);
    bool bad = result->flags & (RP_SCHED_RESULT_NAN | RP_SCHED_RESULT_SKIPPED);
    out->request = request;
    out->slot = planned->slot;
    out->start = planned->start;
    out->count = planned->count;
    out->decode = planned->decode;
    out->samples = planned->samples;
    out->sampled = planned->samples && !bad && result->token >= 0;
}

/* The stamps of a step by part: a node's own time, which is none of the node's before it. */
static void measure_stamps(struct rp_engine *engine, const struct rp_pending_step *step,
                           const struct rp_account_step *account_step) {
    const struct rp_profile_nodes *nodes = &engine->observer.profile->nodes;
    const struct rp_profile_bucket *bucket = &nodes->buckets[account_step->graph];
    const struct rp_step_view *view = &engine->batch.view;
    const struct rp_node_stamp *stamps =
        view->stamp_ring + step->device_step % RP_STEP_RING_ENTRIES * view->config.stamp_capacity;
    uint64_t parts_ns[RP_PART_COUNT] = {0}, last_ns = 0;
    for (uint32_t i = 0; i < bucket->count; i++) {
        const struct rp_profile_node *node = &bucket->nodes[i];
        uint64_t begin_ns = RP_MAX(stamps[i].begin_ns, last_ns), end_ns = stamps[i].end_ns;
        if (stamps[i].begin_ns > end_ns || end_ns <= begin_ns)
            continue;
        bool samples = i >= bucket->forward_count ||
                       (node->op_count && nodes->ops[node->ops[0]].rows == RP_ROWS_LOGIT);
        enum rp_account_part part = rp_profile_node_attention(nodes, node) ? RP_PART_ATTENTION
                                    : samples                              ? RP_PART_SAMPLES
                                                                           : RP_PART_TOKENS;
        parts_ns[part] += end_ns - begin_ns;
        last_ns = end_ns;
    }
    rp_account_measure(&engine->observer.account, account_step, engine->observer.account.rows,
                       step->plan.row_count, parts_ns);
}

void rp_engine_account_step(struct rp_engine *engine, const struct rp_pending_step *step,
                            uint64_t read_ns) {
    struct rp_account *account = &engine->observer.account;
    struct rp_engine_metrics *metrics = &engine->metrics;
    struct rp_account_totals totals;
    const struct rp_step_trace *trace = &engine->observer.trace; /* its events were just written */
    const struct rp_account_step account_step = {
        .step = step->device_step,
        .graph = rp_engine_graph_index(engine, step->entry),
        .bucket = step->entry->bucket,
        .token_count = step->plan.token_count,
        .sample_count = step->plan.sample_count,
        .swaps = step->plan.swap_count > 0,
        .device_ns = trace->read_end_ns - trace->read_begin_ns,
        .begin_ns = trace->read_begin_ns,
        .end_ns = trace->read_end_ns,
        .power_mw = (uint32_t)rp_gauge_read(&metrics->power_mw),
        .read_ns = read_ns};
    for (uint32_t i = 0; i < step->plan.row_count; i++)
        fill_row(engine, &step->plan.rows[i], &engine->batch.results[i], &account->rows[i]);
    if (step->stamped)
        measure_stamps(engine, step, &account_step);
    rp_account_step(account, &account_step, account->rows, step->plan.row_count, &totals);
    rp_counter_add(&metrics->attributed_ns, totals.attributed_ns);
    rp_counter_add(&metrics->padding_ns, totals.padding_ns);
    rp_counter_add(&metrics->unused_ns, totals.unused_ns);
    rp_counter_add(&metrics->attributed_uj, totals.attributed_uj);
    rp_counter_add(&metrics->padding_uj, totals.padding_uj);
    rp_counter_add(&metrics->unused_uj, totals.unused_uj);
    rp_counter_add(&metrics->model_bytes, totals.bytes);
    rp_counter_add(&metrics->model_flops, totals.flops);
}
