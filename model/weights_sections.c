/* The order of rows in tensors that hold several parts unit by unit: q and the gate of attention's
 * output head by head, or the input of the delta rule key head by key head. */
#include "model/family.h"
#include "model/weights_internal.h"

uint32_t rp_row_section_place(const struct rp_row_order *order, uint32_t row) {
    uint32_t unit_rows = 0, before = 0, section = 0;
    for (uint32_t i = 0; i < order->section_count; i++)
        unit_rows += order->sections[i];
    uint32_t unit = row / unit_rows, i = row % unit_rows;
    while (i >= order->sections[section]) {
        i -= order->sections[section];
        before += order->sections[section++];
    }
    if (order->reversed)
        before = unit_rows - before - order->sections[section];
    return order->units * before + unit * order->sections[section] + i;
}

void rp_row_order_set_sections(const struct rp_model_config *config,
                               const struct rp_tensor_rule *rule, struct rp_row_order *order) {
    const struct rp_model_state *state = &config->state;
    bool qkv = rule->role == RP_WEIGHT_QKV || rule->role == RP_WEIGHT_QKV_BIAS;
    if (qkv && rule->span == RP_SPAN_Q && config->output_gate) {
        order->units = config->heads;
        order->section_count = 2;
        order->sections[0] = order->sections[1] = config->head_dim;
        order->reversed = true;
    }
    if (rule->span != RP_SPAN_GROUPED)
        return;
    uint32_t each = state->value_heads / state->key_heads;
    order->units = state->key_heads;
    order->section_count = rule->role == RP_WEIGHT_MIX_BA ? 2 : 4;
    if (rule->role == RP_WEIGHT_MIX_BA) {
        order->sections[0] = order->sections[1] = each;
    } else {
        order->sections[0] = order->sections[1] = state->key_dim;
        order->sections[2] = order->sections[3] = each * state->value_dim;
    }
}
