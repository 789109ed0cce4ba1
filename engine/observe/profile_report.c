#include "engine/observe/profile_report.h"

#include "attention/mask/mask_reach.h"
#include "base/memory.h"
#include "engine/engine_internal.h"

#include <stdio.h>
#include <string.h>

/* Sums of one step for one row, for groups whose calls are steps. */
struct step_sum {
    double self_ns, total_ns, bytes, flops;
    bool any;
};

struct report {
    const struct rp_step_profile *profile;
    const struct rp_profile_query *query;
    struct rp_profile_table *table;
    const struct rp_profile_step *step;
    bool eager;    /* launches by themselves: the time between them is the host's */
    int32_t *rows; /* (buckets, nodes_max): row of each node, or -1 */
    struct step_sum *sums;
    uint32_t sums_capacity;
    /* (row_capacity) of the step in progress, whose rows were requested */
    struct rp_profile_row *step_rows;
    uint32_t step_row_count;
    int32_t *step_lines; /* of the table: of each of these, or [0] of the whole step */
    uint64_t tokens;     /* of these rows */
    uint64_t kv_tokens;  /* KV lengths of these rows, summed; the longest */
    uint32_t kv_max;
    char where[48]; /* bucket and KV lengths of the step, as names of rows show them */
};

/* --- shares of rows in a launch --------------------------------------------------------------- */

/* Positions that a chunk reads, and pairs of its tokens with them; window 0: none. */
static void add_positions(const struct rp_profile_row *row, uint32_t window,
                          struct rp_profile_demand *work) {
    uint64_t end = (uint64_t)row->start + row->count;
    uint64_t seen = window ? RP_MIN(end, (uint64_t)window + row->count - 1) : end;
    /* The token at position p attends to min(p + 1, window): first those that see all before
     * them. */
    uint64_t first = (uint64_t)row->start + 1, whole = window ? RP_MIN(end, (uint64_t)window) : end;
    uint64_t pairs = first <= whole ? (first + whole) * (whole - first + 1) / 2 : 0;
    if (end > whole)
        pairs += window * (end - RP_MAX(whole, first - 1));
    work->kv_read += seen;
    work->kv_pairs += pairs;
}

/* The same of a mask program, with its parameters' defaults: rows of a profile keep no values. */
static void add_reach(const struct rp_profile_row *row, const struct rp_profile_op *attention,
                      struct rp_profile_demand *work) {
    int32_t params[RP_MASK_PARAMS_MAX] = {0};
    struct rp_mask_reach reach;
    for (uint32_t i = 0; i < rp_mask_param_count(attention->mask); i++)
        params[i] = rp_mask_param(attention->mask, i)->value;
    const struct rp_mask_reach_args args = {.mask = attention->mask,
                                            .params = params,
                                            .layer = attention->layer,
                                            .heads = attention->heads,
                                            .start = row->start,
                                            .count = row->count,
                                            .end = row->start + row->count};
    rp_mask_reach(&args, &reach);
    work->kv_read += reach.keys;
    work->kv_pairs += reach.pairs;
}

static struct rp_profile_demand work_of(const struct report *r, const struct rp_profile_row *rows,
                                        uint32_t count, const struct rp_profile_node *node) {
    const struct rp_profile_op *attention = rp_profile_node_attention(&r->profile->nodes, node);
    struct rp_profile_demand work = {.tokens = 0};
    for (uint32_t i = 0; i < count; i++) {
        work.tokens += rows[i].count;
        work.logit_rows += rows[i].samples;
        if (attention && attention->mask)
            add_reach(&rows[i], attention, &work);
        else if (attention)
            add_positions(&rows[i], attention->window, &work);
    }
    return work;
}

/* The part of a launch's time that is due to `mine` of all the step's work. */
static double share_of(const struct report *r, const struct rp_profile_node *node,
                       const struct rp_profile_demand *mine, const struct rp_profile_demand *all) {
    const struct rp_profile_nodes *nodes = &r->profile->nodes;
    bool logits = node->op_count > 0;
    for (uint32_t i = 0; i < node->op_count; i++) {
        const struct rp_profile_op *op = &nodes->ops[node->ops[i]];
        logits = logits && (op->rows == RP_ROWS_LOGIT || op->kind == RP_OP_SAMPLE);
    }
    if (all->kv_pairs)
        return (double)mine->kv_pairs / (double)all->kv_pairs;
    if (logits && all->logit_rows)
        return (double)mine->logit_rows / (double)all->logit_rows;
    return all->tokens ? (double)mine->tokens / (double)all->tokens : 0.0;
}

/* --- rows of the table ------------------------------------------------------------------------ */

static int32_t named_row(struct report *r, const char *name, const char *layer, const char *shape) {
    const struct rp_profile_row_key key = {name, layer, shape};
    int32_t row = rp_profile_table_row(r->table, &key);
    if (row >= 0 && (uint32_t)row >= r->sums_capacity) {
        uint32_t capacity = RP_MAX(64u, 2 * r->sums_capacity);
        struct step_sum *sums = rp_realloc(r->sums, capacity * sizeof *sums);
        if (!sums) {
            r->table->failed = true;
            return -1;
        }
        memset(sums + r->sums_capacity, 0, (capacity - r->sums_capacity) * sizeof *sums);
        r->sums = sums;
        r->sums_capacity = capacity;
    }
    return row;
}

static bool is_by_bucket(enum rp_profile_group group) {
    return group == RP_PROFILE_BY_OP_BUCKET || group == RP_PROFILE_BY_OP_BUCKET_KV;
}

/* " @ decode 8/8", and with KV lengths " @ kv 65-128": the mean of the step's rows, between powers
 * of two; "" for groups without buckets. */
static void name_place(struct report *r) {
    const struct rp_bucket *bucket = &r->profile->nodes.buckets[r->step->graph].bucket;
    r->where[0] = '\0';
    if (!is_by_bucket(r->query->group))
        return;
    int len = snprintf(r->where, sizeof r->where, " @ %s %u/%u",
                       bucket->decode ? "decode" : "mixed", bucket->tokens, bucket->logit_rows);
    if (r->query->group != RP_PROFILE_BY_OP_BUCKET_KV || r->step_row_count == 0)
        return;
    uint64_t mean = r->kv_tokens / r->step_row_count, end = 16;
    while (end < mean)
        end *= 2;
    snprintf(r->where + len, sizeof r->where - (size_t)len, " @ kv %llu-%llu",
             (unsigned long long)(end > 16 ? end / 2 + 1 : 1), (unsigned long long)end);
}

static int32_t make_node_row(struct report *r, const struct rp_profile_node *node) {
    const struct rp_profile_nodes *nodes = &r->profile->nodes;
    char name[RP_PROFILE_NAME_MAX + sizeof r->where], layer[16] = "", shape[48] = "";
    uint16_t number = rp_profile_node_layer(nodes, node);
    if (number != RP_LAYER_NONE)
        snprintf(layer, sizeof layer, "%u", number);
    if (r->query->group == RP_PROFILE_BY_LAYER) {
        snprintf(name, sizeof name, number == RP_LAYER_NONE ? "outside layers" : "layer.%u",
                 number);
    } else {
        rp_profile_node_name(nodes, node, r->query->group == RP_PROFILE_BY_NODE, name);
        size_t len = strlen(name);
        snprintf(name + len, sizeof name - len, "%s", r->where);
        rp_profile_node_shape(nodes, node, shape);
    }
    return named_row(r, name, layer, shape);
}

static int32_t step_row(struct report *r, uint32_t index) {
    char name[64], shape[48] = "";
    const struct rp_bucket *bucket = &r->profile->nodes.buckets[r->step->graph].bucket;
    if (r->query->group == RP_PROFILE_BY_REQUEST) {
        snprintf(name, sizeof name, "request %llu",
                 (unsigned long long)r->step_rows[index].request);
    } else if (r->query->group == RP_PROFILE_BY_PHASE) {
        snprintf(name, sizeof name, "%s", r->step->decode_only ? "decode" : "prefill");
    } else {
        snprintf(name, sizeof name, "%s %u/%u", bucket->decode ? "decode" : "mixed", bucket->tokens,
                 bucket->logit_rows);
        snprintf(shape, sizeof shape, "%u tokens", bucket->tokens);
    }
    return named_row(r, name, "", shape);
}

static bool is_summed(enum rp_profile_group group) {
    return group != RP_PROFILE_BY_OP && group != RP_PROFILE_BY_NODE && !is_by_bucket(group);
}

static void sum(struct report *r, int32_t row, const struct rp_profile_add *call, double share) {
    if (row < 0)
        return;
    struct step_sum *into = &r->sums[row];
    into->any = true;
    into->self_ns += (double)call->self_ns * share;
    into->total_ns += (double)call->total_ns;
    into->bytes += call->bytes * share;
    into->flops += call->flops * share;
}

static void flush_sums(struct report *r) {
    for (uint32_t i = 0; i < r->table->count && i < r->sums_capacity; i++) {
        struct step_sum *from = &r->sums[i];
        if (!from->any)
            continue;
        const struct rp_profile_add call = {.step = r->step->step,
                                            .self_ns = (uint64_t)(from->self_ns + 0.5),
                                            .total_ns = (uint64_t)(from->total_ns + 0.5),
                                            .tokens = r->tokens,
                                            .bytes = from->bytes,
                                            .flops = from->flops,
                                            .rows = r->step_row_count,
                                            .kv_tokens = r->kv_tokens,
                                            .kv_max = r->kv_max};
        rp_profile_table_add(r->table, (int32_t)i, &call);
        memset(from, 0, sizeof *from);
    }
}

/* --- steps ------------------------------------------------------------------------------------ */

static bool is_asked_for(const struct rp_profile_query *query, uint64_t request) {
    for (uint32_t i = 0; i < query->request_count; i++)
        if (query->requests[i] == request)
            return true;
    return query->request_count == 0;
}

/* A launch: its costs, and the rows that share them. */
static void add_node(struct report *r, uint32_t index, uint64_t self_ns, uint64_t total_ns,
                     const struct rp_profile_row *all, uint32_t all_count) {
    const struct rp_profile_node *node = &r->profile->nodes.buckets[r->step->graph].nodes[index];
    struct rp_profile_demand whole = work_of(r, all, all_count, node), mine = whole;
    struct rp_profile_add call = {.step = r->step->step,
                                  .self_ns = self_ns,
                                  .total_ns = total_ns,
                                  .tokens = r->tokens,
                                  .rows = r->step_row_count,
                                  .kv_tokens = r->kv_tokens,
                                  .kv_max = r->kv_max};
    double share = 1.0;
    rp_profile_node_cost(&r->profile->nodes, node, &whole, &call.bytes, &call.flops);
    if (r->query->group == RP_PROFILE_BY_REQUEST) {
        for (uint32_t i = 0; i < r->step_row_count; i++) {
            mine = work_of(r, &r->step_rows[i], 1, node);
            sum(r, r->step_lines[i], &call, share_of(r, node, &mine, &whole));
        }
        return;
    }
    if (r->query->request_count) {
        mine = work_of(r, r->step_rows, r->step_row_count, node);
        share = share_of(r, node, &mine, &whole);
    }
    bool by_step =
        r->query->group == RP_PROFILE_BY_BUCKET || r->query->group == RP_PROFILE_BY_PHASE;
    int32_t *cached = &r->rows[r->step->graph * r->profile->nodes.nodes_max + index];
    /* A bucket is part of the place in the cache, KV lengths are not. */
    if (!by_step && (*cached < 0 || r->query->group == RP_PROFILE_BY_OP_BUCKET_KV))
        *cached = make_node_row(r, node);
    if (is_summed(r->query->group)) {
        sum(r, by_step ? r->step_lines[0] : *cached, &call, share);
    } else {
        call.bytes *= share;
        call.flops *= share;
        call.self_ns = (uint64_t)((double)self_ns * share + 0.5);
        rp_profile_table_add(r->table, *cached, &call);
    }
}

/* Time between the two graphs of the step, or between launches that are no graph's: no operator's,
 * shared by the tokens. */
static void add_between(struct report *r, const char *name, uint64_t ns) {
    const struct rp_profile_add call = {.step = r->step->step,
                                        .self_ns = ns,
                                        .total_ns = ns,
                                        .tokens = r->tokens,
                                        .rows = r->step_row_count,
                                        .kv_tokens = r->kv_tokens,
                                        .kv_max = r->kv_max};
    double tokens = RP_MAX(r->step->tokens, 1u);
    if (r->query->group == RP_PROFILE_BY_REQUEST) {
        for (uint32_t i = 0; i < r->step_row_count; i++)
            sum(r, r->step_lines[i], &call, r->step_rows[i].count / tokens);
    } else if (is_summed(r->query->group)) {
        bool by_layer = r->query->group == RP_PROFILE_BY_LAYER;
        int32_t row = by_layer ? named_row(r, name, "", "") : r->step_lines[0];
        sum(r, row, &call, (double)r->tokens / tokens);
    } else {
        struct rp_profile_add mine = call;
        mine.self_ns = (uint64_t)((double)ns * (double)r->tokens / tokens);
        char placed[96];
        snprintf(placed, sizeof placed, "%s%s", name, r->where);
        rp_profile_table_add(r->table, named_row(r, placed, "", ""), &mine);
    }
}

static void add_step(struct report *r, struct rp_profile_row *all) {
    const struct rp_profile_step *step = r->step;
    struct rp_profile_footer *footer = &r->table->footer;
    uint64_t last = 0, replay = step->end_ns - RP_MIN(step->begin_ns, step->end_ns), own = 0;
    r->step_row_count = 0;
    r->tokens = r->kv_tokens = r->kv_max = 0;
    for (uint32_t i = 0; i < step->row_count; i++) {
        all[i] = rp_profile_step_row(step, i);
        if (!is_asked_for(r->query, all[i].request))
            continue;
        r->step_rows[r->step_row_count++] = all[i];
        r->tokens += all[i].count;
        uint32_t length = all[i].start + all[i].count;
        r->kv_tokens += length;
        r->kv_max = RP_MAX(r->kv_max, length);
    }
    if (r->step_row_count == 0 && r->query->request_count)
        return;
    footer->steps_stamped++;
    name_place(r);
    bool by_request = r->query->group == RP_PROFILE_BY_REQUEST;
    for (uint32_t i = 0; i < (by_request ? r->step_row_count : 1u); i++)
        r->step_lines[i] = is_summed(r->query->group) && r->query->group != RP_PROFILE_BY_LAYER
                               ? step_row(r, i)
                               : -1;
    for (uint32_t i = 0; i < step->node_count; i++) {
        uint64_t begin, end;
        if (!rp_profile_step_node(step, i, &begin, &end)) {
            footer->dropped++;
            continue;
        }
        bool second = i == r->profile->nodes.buckets[step->graph].forward_count;
        if ((second || r->eager) && begin > last && last) {
            add_between(r, second ? "between graphs" : "between launches", begin - last);
            own += begin - last;
            last = begin;
        }
        uint64_t from = RP_MAX(begin, last);
        uint64_t self = end > from ? end - from : 0;
        last = RP_MAX(last, end);
        own += self;
        add_node(r, i, self, end - RP_MIN(begin, end), all, step->row_count);
    }
    if (is_summed(r->query->group))
        flush_sums(r);
    footer->replay_ns += replay;
    footer->unattributed_ns += replay - RP_MIN(own, replay);
}

static bool is_wanted(const struct rp_profile_query *query, const struct rp_profile_step *step) {
    if (query->phase != RP_PROFILE_ANY && (query->phase == RP_PROFILE_DECODE) != step->decode_only)
        return false;
    return (!query->session || query->session == step->session) &&
           (!query->repeat || query->repeat == step->repeat);
}

/* --- the footer ------------------------------------------------------------------------------- */

/* All steps of the window: their count, busy and idle time, and the cost of stamping. */
static void fill_from_records(struct rp_step_record *records, uint32_t count, uint64_t since_ns,
                              struct rp_profile_footer *footer) {
    uint64_t first = UINT64_MAX, last = 0, busy = 0, idle = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct rp_step_record *record = &records[i];
        uint64_t before = 0;
        rp_step_record_clip(record, since_ns);
        footer->misses[record->miss < RP_MISS_COUNT ? record->miss : RP_MISS_NONE]++;
        for (int cause = 0; cause < RP_IDLE_CAUSE_COUNT; cause++) {
            before += record->idle_ns[cause];
            footer->idle_ns[cause] += record->idle_ns[cause];
        }
        idle += before;
        busy += record->end_ns - RP_MIN(record->begin_ns, record->end_ns);
        first = RP_MIN(first, record->begin_ns - RP_MIN(before, record->begin_ns));
        last = RP_MAX(last, record->end_ns);
    }
    if (count && last > first) {
        footer->steps_seen = count;
        footer->window_seconds = (double)(last - first) * 1e-9;
        footer->busy_share = (double)busy / (double)(last - first);
        footer->has_idle = true;
    }
    struct rp_profile_ratio ratio = rp_profile_compare_stamped(records, count);
    footer->perturbation_steps = ratio.steps;
    footer->perturbation = ratio.steps ? ratio.value - 1.0 : 0.0;
    footer->perturbation_spread = ratio.spread;
}

static void fill_footer(const struct rp_engine *engine, const struct rp_profile_copy *copy,
                        struct rp_profile_footer *footer) {
    footer->every = engine->config.profile_every;
    footer->whole = copy->whole;
    footer->peak_bytes = engine->peaks.read_bytes;
    footer->peak_flops = engine->peaks.flops;
    if (copy->count)
        footer->window_seconds =
            (double)(copy->steps[copy->count - 1].end_ns - copy->steps[0].begin_ns) * 1e-9;
}

/* Where the window of a table begins: both rings, of all steps and of stamped ones, must reach back
 * to it. The records are NULL where the table is not about a window. */
static uint64_t window_start(const struct rp_profile_query *query,
                             const struct rp_profile_copy *copy,
                             const struct rp_step_record *records, uint32_t count) {
    uint64_t since_ns = query->since_ns;
    if (!records)
        return 0;
    if (!copy->whole && copy->count)
        since_ns = RP_MAX(since_ns, copy->steps[0].begin_ns);
    if (count > RP_STEP_RECORDS - 16) /* those before it are overwritten */
        since_ns = RP_MAX(since_ns, records[0].begin_ns);
    return since_ns;
}

int rp_profile_table_of(const struct rp_engine *engine, const struct rp_profile_query *query,
                        const struct rp_profile_copy *copy, struct rp_profile_table *out) {
    const struct rp_step_profile *profile = engine->observer.profile;
    const struct rp_profile_nodes *nodes = &profile->nodes;
    size_t cells = (size_t)nodes->bucket_count * nodes->nodes_max;
    struct report r = {
        .profile = profile, .query = query, .table = out, .eager = engine->config.enforce_eager};
    struct rp_profile_row *all = rp_calloc(profile->row_capacity, sizeof *all);
    r.step_rows = rp_calloc(profile->row_capacity, sizeof *r.step_rows);
    r.step_lines = rp_calloc(profile->row_capacity, sizeof *r.step_lines);
    r.rows = rp_alloc(cells * sizeof *r.rows);
    out->with_load = is_by_bucket(query->group) || query->group == RP_PROFILE_BY_BUCKET;
    out->failed = !all || !r.step_rows || !r.step_lines || !r.rows;
    for (size_t i = 0; i < cells && r.rows; i++)
        r.rows[i] = -1;
    struct rp_step_record *records = NULL;
    uint32_t count = 0;
    if (!query->session && !query->request_count) {
        records = rp_calloc(RP_STEP_RECORDS, sizeof *records);
        out->failed |= !records;
        count =
            records ? rp_engine_copy_steps(engine, query->since_ns, records, RP_STEP_RECORDS) : 0;
    }
    uint64_t since_ns = window_start(query, copy, records, count);
    for (uint32_t i = 0; i < copy->count && !out->failed; i++) {
        r.step = &copy->steps[i];
        if (r.step->end_ns >= since_ns && is_wanted(query, r.step))
            add_step(&r, all);
    }
    fill_footer(engine, copy, &out->footer);
    if (records) {
        uint32_t first = 0;
        while (first < count && records[first].end_ns < since_ns)
            first++;
        fill_from_records(records + first, count - first, since_ns, &out->footer);
    }
    rp_free(records);
    rp_profile_table_finish(out, query->sort);
    rp_free(all);
    rp_free(r.step_rows);
    rp_free(r.step_lines);
    rp_free(r.rows);
    rp_free(r.sums);
    return out->failed ? RP_STATUS_NO_MEMORY : RP_OK;
}

int rp_engine_profile_table(const struct rp_engine *engine, const struct rp_profile_query *query,
                            struct rp_profile_table *out) {
    struct rp_profile_copy copy;
    rp_profile_table_init(out);
    if (!rp_step_profile_copy(engine->observer.profile, query->since_ns, &copy))
        return RP_STATUS_NO_MEMORY;
    int status = rp_profile_table_of(engine, query, &copy, out);
    rp_profile_copy_deinit(&copy);
    return status;
}

bool rp_engine_node_name(const struct rp_engine *engine, uint32_t graph, uint32_t node, char *out,
                         size_t size) {
    char name[RP_PROFILE_NAME_MAX];
    const struct rp_step_profile *profile = rp_engine_profile(engine);
    if (!profile || graph >= profile->nodes.bucket_count ||
        node >= profile->nodes.buckets[graph].count)
        return false;
    rp_profile_node_name(&profile->nodes, &profile->nodes.buckets[graph].nodes[node], true, name);
    snprintf(out, size, "%s", name);
    return true;
}
