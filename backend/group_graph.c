/* group_graph.c - a step on all ranks of a group: capture, launch, wait, and failed ranks. */
#include "backend/group_internal.h"
#include "base/memory.h"
#include "kvcache/kv_layout.h"

#include <stdio.h>
#include <string.h>

void rp_group_wait(struct rp_device *group) { (void)rp_group_synchronize(group); }

int rp_group_settle(struct rp_device *group, uint64_t deadline_ns) {
    int status = RP_OK;
    for (uint32_t rank = 1; rank < group->count; rank++) {
        struct rp_group_launcher *launcher = group->launchers[rank];
        if (!launcher)
            continue;
        if (!rp_group_launcher_settle(launcher, deadline_ns))
            return RP_STATUS_NOT_FOUND;
        status = status == RP_OK ? rp_group_launcher_status(launcher) : status;
    }
    return status;
}

struct rp_device *rp_group_rank(struct rp_device *group, uint32_t rank) {
    (void)rp_group_settle(group, UINT64_MAX); /* a failure is said by the next launch or wait */
    return group->ranks[rank];
}

int rp_group_synchronize(struct rp_device *group) {
    int status = rp_group_settle(group, UINT64_MAX);
    for (uint32_t rank = 0; rank < group->count; rank++) {
        int one = group->member->synchronize(group->ranks[rank]);
        status = status == RP_OK ? one : status;
    }
    return status;
}

/* --- what differs between the ranks ---------------------------------------------------------- */

static const struct rp_group_results *find_results(const struct rp_device *group,
                                                   const struct rp_step_view *view) {
    for (uint32_t i = 0; i < group->result_count; i++)
        if (group->results[i].results == view->results)
            return &group->results[i];
    return NULL;
}

/* Memory for the results and stamps of ranks past the first, at the first capture with a view. */
static const struct rp_group_results *make_results(struct rp_device *group,
                                                   const struct rp_step_view *view) {
    const struct rp_group_results *found = find_results(group, view);
    if (found || group->result_count == RP_GROUP_RESULTS)
        return found;
    struct rp_group_results *made = &group->results[group->result_count];
    *made =
        (struct rp_group_results){.results = view->results,
                                  .stamp_ring = view->stamp_ring,
                                  .result_bytes = view->result_bytes * RP_STEP_RING_ENTRIES,
                                  .stamp_bytes = (size_t)view->config.stamp_capacity *
                                                 RP_STEP_RING_ENTRIES * sizeof *view->stamp_ring};
    size_t bytes = made->result_bytes + made->stamp_bytes;
    group->result_count++; /* close frees what is there */
    for (uint32_t rank = 1; rank < group->count; rank++) {
        made->blocks[rank] = group->member->alloc(rp_group_rank(group, rank),
                                                  RP_MAX(bytes, (size_t)1), RP_MEMORY_HOST);
        if (!made->blocks[rank])
            return NULL;
        memset(made->blocks[rank], 0, bytes);
    }
    return made;
}

#define MOVE(field) moved.field = rp_group_address(group, rank, moved.field)

/* The view with a rank's addresses. */
static struct rp_step_view view_of_rank(struct rp_device *group, uint32_t rank,
                                        const struct rp_step_view *view) {
    struct rp_step_view moved = *view;
    const struct rp_group_results *results = find_results(group, view);
    MOVE(slots);
    MOVE(packets);
    MOVE(prompt_ring);
    MOVE(late_inputs);
    MOVE(late_flags);
    MOVE(mask_inputs);
    MOVE(masks);
    MOVE(counts);
    MOVE(rows);
    MOVE(token_ids);
    MOVE(positions);
    MOVE(token_rows);
    MOVE(logit_tokens);
    MOVE(logit_rows);
    MOVE(logit_targets);
    MOVE(stamps);
    MOVE(stamp_waits);
    MOVE(sample_state);
    MOVE(sample_inputs);
    if (rank > 0 && results) {
        moved.results = results->blocks[rank];
        moved.stamp_ring = (void *)(results->blocks[rank] + results->result_bytes);
    }
    return moved;
}

void *rp_group_rank_address(struct rp_device *group, uint32_t rank, const void *address) {
    uintptr_t at = (uintptr_t)address;
    for (uint32_t i = 0; i < group->result_count && rank > 0; i++) {
        const struct rp_group_results *results = &group->results[i];
        uintptr_t ring = (uintptr_t)results->results, stamps = (uintptr_t)results->stamp_ring;
        if (at >= ring && at - ring < results->result_bytes)
            return results->blocks[rank] + (at - ring);
        if (at >= stamps && at - stamps < results->stamp_bytes)
            return results->blocks[rank] + results->result_bytes + (at - stamps);
    }
    return rp_group_address(group, rank, address);
}

static void set_rank(struct rp_op *op, uint32_t rank) {
    if (op->weight)
        op->weight += rank;
    if (op->vector)
        op->vector += (size_t)rank * op->vector_step;
    if (op->kind == RP_OP_EMBED)
        op->u.embed.first_id = rank * op->weight->rows;
    if (op->kind == RP_OP_ATTENTION)
        op->u.attention.first_head = rank * op->u.attention.heads;
    if (op->kind == RP_OP_LINEAR && op->u.linear.first_rank_bias && rank > 0) {
        op->u.linear.bias = false;
        op->vector = NULL;
    }
    if (op->kind == RP_OP_EXPERT_DOWN && op->u.experts.first_rank_bias && rank > 0) {
        op->u.experts.bias = false;
        op->vector = NULL;
    }
}

/* The program with a rank's weights, vectors and ids; `out` owns copies of the arrays. */
static int program_of_rank(const struct rp_program *program, uint32_t rank,
                           struct rp_program *out) {
    RP_ASSERT_CMP(rank, <, RP_MAX(program->ranks, 1u));
    *out = *program;
    out->op_capacity = program->op_count;
    out->tensor_capacity = program->tensor_count;
    out->ops = rp_calloc(RP_MAX(program->op_count, 1u), sizeof *out->ops);
    out->tensors = rp_calloc(RP_MAX(program->tensor_count, 1u), sizeof *out->tensors);
    if (!out->ops || !out->tensors) {
        rp_program_deinit(out);
        return RP_STATUS_NO_MEMORY;
    }
    memcpy(out->ops, program->ops, program->op_count * sizeof *out->ops);
    memcpy(out->tensors, program->tensors, program->tensor_count * sizeof *out->tensors);
    for (uint32_t i = 0; i < out->op_count; i++)
        set_rank(&out->ops[i], rank);
    return RP_OK;
}

/* --- graphs ---------------------------------------------------------------------------------- */

static int capture_rank(struct rp_device *group, uint32_t rank, const struct rp_program *program,
                        uint32_t begin, uint32_t end, const struct rp_bucket *bucket,
                        const struct rp_bindings *bindings, const struct rp_lower_options *options,
                        bool eager, struct rp_graph **out, struct rp_error *err) {
    struct rp_program own;
    struct rp_bindings moved = *bindings;
    struct rp_kv_layout kv;
    moved.arena = rp_group_address(group, rank, moved.arena);
    moved.step = view_of_rank(group, rank, &bindings->step);
    if (bindings->kv) {
        kv = *bindings->kv;
        kv.base = rp_group_address(group, rank, kv.base);
        moved.kv = &kv;
    }
    if (program_of_rank(program, rank, &own) != RP_OK)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "group: out of memory");
    int status = group->member->capture(group->ranks[rank], &own, begin, end, bucket, &moved,
                                        options, eager, out, err);
    rp_program_deinit(&own);
    return status;
}

int rp_group_capture(struct rp_device *group, const struct rp_program *program, uint32_t begin,
                     uint32_t end, const struct rp_bucket *bucket,
                     const struct rp_bindings *bindings, const struct rp_lower_options *options,
                     bool eager, struct rp_graph **out, struct rp_error *err) {
    struct rp_graph *graph = rp_calloc(1, sizeof *graph);
    if (!graph || !make_results(group, &bindings->step)) {
        rp_free(graph);
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "group: out of memory");
    }
    /* What is not divided among ranks (measurements) runs on rank 0. */
    uint32_t count = program->ranks > 1 ? group->count : 1;
    RP_ASSERT(count == 1 || count == program->ranks);
    graph->group = group;
    graph->eager = eager;
    int status = rp_group_settle(group, UINT64_MAX);
    if (status == RP_OK)
        status = group->member->reserve_exchange(group->ranks, group->count,
                                                 rp_program_exchange_bytes(program, bucket), err);
    else
        status = rp_error_set(err, status, "group: a launch failed before");
    for (uint32_t rank = 0; rank < count && status == RP_OK; rank++)
        status = capture_rank(group, rank, program, begin, end, bucket, bindings, options, eager,
                              &graph->ranks[rank], err);
    if (status != RP_OK) {
        rp_group_graph_destroy(group, graph);
        return status;
    }
    *out = graph;
    return RP_OK;
}

void rp_group_graph_destroy(struct rp_device *group, struct rp_graph *graph) {
    if (!graph)
        return;
    rp_group_wait(group);
    for (uint32_t rank = 0; rank < group->count; rank++)
        if (graph->ranks[rank])
            group->member->graph_destroy(group->ranks[rank], graph->ranks[rank]);
    rp_free(graph);
}

uint32_t rp_group_launch_count(const struct rp_graph *graph) {
    return graph->group->member->graph_launch_count(graph->ranks[0]);
}

void rp_group_launch_info(const struct rp_graph *graph, uint32_t index,
                          struct rp_launch_info *out) {
    graph->group->member->graph_launch_info(graph->ranks[0], index, out);
}

void rp_group_graph_info(const struct rp_graph *graph, struct rp_graph_info *out) {
    graph->group->member->graph_info(graph->ranks[0], out);
}

/* A launch that failed in a launch thread is said by the next launch, or by the wait for its step.
 * Where rank 0's fails, the others may have been launched: as with any failure, their waits end
 * when the group closes. */
static int launch_each(struct rp_device *group, struct rp_graph *graph) {
    for (uint32_t rank = 1; rank < group->count; rank++) {
        int status = rp_group_launcher_status(group->launchers[rank]);
        if (status != RP_OK)
            return status;
    }
    for (uint32_t rank = 1; rank < group->count; rank++)
        if (graph->ranks[rank])
            rp_group_launcher_post(group->launchers[rank], graph->ranks[rank]);
    return group->member->launch(group->ranks[0], graph->ranks[0]);
}

int rp_group_launch(struct rp_device *group, struct rp_graph *graph) {
    if (group->launchers[1] && !graph->eager) /* hundreds of calls are not made by two threads */
        return launch_each(group, graph);
    int status = rp_group_settle(group, UINT64_MAX);
    for (uint32_t rank = 0; rank < group->count && status == RP_OK; rank++)
        if (graph->ranks[rank])
            status = group->member->launch(group->ranks[rank], graph->ranks[rank]);
    return status;
}

/* --- steps ----------------------------------------------------------------------------------- */

/* All ranks: what the host writes for the next steps must not be read by one that is behind. */
int rp_group_wait_step(struct rp_device *group, const struct rp_step_view *view, uint64_t step,
                       uint64_t deadline_ns) {
    int status = rp_group_settle(group, deadline_ns);
    for (uint32_t rank = 0; rank < group->count && status == RP_OK; rank++) {
        const struct rp_step_view own = view_of_rank(group, rank, view);
        status = group->member->wait_step(group->ranks[rank], &own, step, deadline_ns);
    }
    return status;
}

int rp_group_wait_idle(struct rp_device *group, uint64_t deadline_ns) {
    int status = rp_group_settle(group, deadline_ns);
    for (uint32_t rank = 0; rank < group->count && status == RP_OK; rank++)
        status = group->member->wait_idle(group->ranks[rank], deadline_ns);
    return status;
}

uint64_t rp_group_progress(struct rp_device *group) {
    uint64_t sum = 0;
    for (uint32_t rank = 0; rank < group->count; rank++)
        sum += group->member->progress(group->ranks[rank]);
    return sum;
}

uint64_t rp_group_last_replay_ns(struct rp_device *group) {
    uint64_t longest = 0;
    for (uint32_t rank = 0; rank < group->count; rank++)
        longest = RP_MAX(longest, group->member->last_replay_ns(group->ranks[rank]));
    return longest;
}

/* --- faults ---------------------------------------------------------------------------------- */

/* The rank that has done less than the others: they wait for it. "": all have done the same. */
static const char *who_is_behind(struct rp_device *group) {
    uint64_t least = UINT64_MAX, most = 0;
    uint32_t last = 0;
    for (uint32_t rank = 0; rank < group->count; rank++) {
        uint64_t done = group->member->progress(group->ranks[rank]);
        if (done < least)
            last = rank;
        least = RP_MIN(least, done);
        most = RP_MAX(most, done);
    }
    return least < most ? group->behind[last] : "";
}

/* The text of the first rank that has one: a rank that fails because another did has none. */
const char *rp_group_last_error(struct rp_device *group) {
    for (uint32_t rank = 0; rank < group->count; rank++) {
        const char *said = group->member->last_error(group->ranks[rank]);
        if (!*said)
            continue;
        snprintf(group->error, sizeof group->error, "rank %u of %u: %.300s", rank, group->count,
                 said);
        return group->error;
    }
    return who_is_behind(group);
}

/* The last rank: the others must learn of it. */
int rp_group_inject_fault(struct rp_device *group, enum rp_device_fault fault) {
    return group->member->inject_fault(rp_group_rank(group, group->count - 1), fault);
}
