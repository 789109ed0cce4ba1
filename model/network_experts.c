/* network_experts.c - a mixture of experts in the place of an MLP: the route, the order of the
 * choices, the experts' GEMMs and their sum, and the shared expert beside them. */
#include "model/network.h"

static struct rp_view expert_gemm(struct rp_emit *e, enum rp_op_kind kind, const char *name,
                                  struct rp_view in, struct rp_view order, enum rp_weight_role role,
                                  uint32_t cols) {
    struct rp_experts experts = {e->config->experts.count, e->config->experts.used};
    uint32_t rows = rp_program_add_domain(e->program, "choices", RP_ROWS_TOKEN, experts.used, 0);
    struct rp_op gemm = rp_emit_op(e, kind, name);
    gemm.rows = rows;
    rp_op_add_input(&gemm, in);
    rp_op_add_input(&gemm, order);
    bool down = kind == RP_OP_EXPERT_DOWN;
    enum rp_weight_role bias = down ? RP_WEIGHT_EXPERT_DOWN_BIAS : RP_WEIGHT_EXPERT_GATE_UP_BIAS;
    gemm.weight = rp_model_matrix(e->model, role, e->layer);
    gemm.out = rp_emit_tensor_of(e, name, rows, e->model->dtype, cols);
    gemm.u.experts.experts = experts;
    gemm.u.experts.fn = e->config->activation;
    gemm.u.experts.bias = e->config->experts.linear_bias;
    gemm.u.experts.first_rank_bias = gemm.u.experts.bias && down && e->model->ranks > 1;
    if (gemm.u.experts.bias) {
        gemm.vector = rp_model_vector(e->model, bias, e->layer);
        gemm.vector_step = rp_emit_vector_step(e, bias);
    }
    rp_emit_push(e, &gemm);
    return gemm.out;
}

/* The experts of each row, and their weights. */
static struct rp_view route(struct rp_emit *e, struct rp_view in) {
    const struct rp_model_experts *experts = &e->config->experts;
    struct rp_op route = rp_emit_op(e, RP_OP_ROUTE, "moe.route");
    rp_op_add_input(&route, rp_emit_linear(e, "moe.router", in, RP_WEIGHT_ROUTER));
    route.out = rp_emit_tensor(e, "moe.route", RP_DTYPE_F32, 2 * experts->used);
    route.vector = rp_model_vector(e->model, RP_WEIGHT_ROUTER_BIAS, e->layer);
    route.u.route.experts = (struct rp_experts){experts->count, experts->used};
    route.u.route.score = experts->score;
    route.u.route.bias = experts->bias;
    route.u.route.renormalize = experts->renormalize;
    route.u.route.groups = experts->groups;
    route.u.route.groups_used = experts->groups_used;
    route.u.route.group_best = experts->group_best;
    route.u.route.factor = experts->factor;
    route.bias = rp_model_vector(e->model, RP_WEIGHT_ROUTER_SCALES, e->layer);
    route.u.route.scaled = experts->parallel;
    rp_emit_push(e, &route);
    return route.out;
}

static struct rp_view expert_order(struct rp_emit *e, struct rp_view ids) {
    struct rp_experts experts = {e->config->experts.count, e->config->experts.used};
    uint32_t rows = rp_program_add_domain(e->program, "expert order", RP_ROWS_TOKEN, experts.used,
                                          experts.count + 1);
    struct rp_op order = rp_emit_op(e, RP_OP_EXPERT_ORDER, "moe.order");
    rp_op_add_input(&order, ids);
    order.out = rp_emit_tensor_of(e, "moe.order", rows, RP_DTYPE_I32, 1);
    order.u.experts.experts = experts;
    rp_emit_push(e, &order);
    return order.out;
}

/* A larger shared expert takes memory bandwidth from the routed ones: it runs beside them in steps
 * of one token alone (bench/results/2026-11-27_h200_models.md). */
#define BESIDE_BYTES ((size_t)8 << 20)

static uint32_t shared_branch_tokens(const struct rp_emit *e) {
    size_t bytes = rp_matrix_bytes(rp_model_matrix(e->model, RP_WEIGHT_SHARED_GATE_UP, e->layer)) +
                   rp_matrix_bytes(rp_model_matrix(e->model, RP_WEIGHT_SHARED_DOWN, e->layer));
    return bytes <= BESIDE_BYTES ? RP_BRANCH_TOKENS : 1;
}

/* y = sum over the chosen experts of weight * (act(g) * u) Wdown^T, g, u = in Wgate_up^T, plus the
 * same of the shared expert (* sigmoid(in Wgate^T)), which is a branch of its own. */
struct rp_view rp_emit_experts(struct rp_emit *e, struct rp_view router_in, struct rp_view in) {
    const struct rp_model_experts *experts = &e->config->experts;
    if (experts->shared) {
        e->branch = RP_BRANCH_MAIN;
        e->branch_tokens = shared_branch_tokens(e);
    }
    struct rp_view chosen = route(e, router_in);
    struct rp_view order = expert_order(e, rp_emit_columns(chosen, experts->used, experts->used));
    struct rp_view act =
        expert_gemm(e, RP_OP_EXPERT_GATE_UP, "moe.gate_up", in, order, RP_WEIGHT_EXPERT_GATE_UP,
                    rp_model_rank_expert_intermediate(e->model));
    struct rp_view down = expert_gemm(e, RP_OP_EXPERT_DOWN, "moe.down", act, order,
                                      RP_WEIGHT_EXPERT_DOWN, e->config->hidden);
    struct rp_view shared = {0}, gate = {0};
    if (experts->shared) {
        e->branch = RP_BRANCH_SIDE;
        shared = rp_emit_linear(e, "moe.shared_gate_up", in, RP_WEIGHT_SHARED_GATE_UP);
        shared = rp_emit_linear(e, "moe.shared_down", rp_emit_activation(e, shared),
                                RP_WEIGHT_SHARED_DOWN);
    }
    if (experts->shared_gate)
        gate = rp_emit_linear(e, "moe.shared_gate", in, RP_WEIGHT_SHARED_GATE);
    e->branch = RP_BRANCH_NONE;
    struct rp_op sum = rp_emit_op(e, RP_OP_EXPERT_SUM, "moe.sum");
    rp_op_add_input(&sum, down);
    rp_op_add_input(&sum, rp_emit_columns(chosen, 0, experts->used));
    if (experts->shared)
        rp_op_add_input(&sum, shared);
    if (experts->shared_gate)
        rp_op_add_input(&sum, gate);
    sum.out = rp_emit_tensor(e, "moe.sum", RP_DTYPE_F32, e->config->hidden);
    sum.u.expert_sum.experts = (struct rp_experts){experts->count, experts->used};
    sum.u.expert_sum.shared = experts->shared > 0;
    sum.u.expert_sum.gated = experts->shared_gate;
    rp_emit_push(e, &sum);
    rp_emit_allreduce(e, "moe.reduce", sum.out, e->model->dtype);
    return sum.out;
}
