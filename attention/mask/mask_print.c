/* mask_print.c - prints a program as its canonical text, and as a readable tree. */
#include "attention/mask/mask_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

void rp_mask_write_float(struct rp_buffer *out, float value) {
    char text[64];
    bool usual =
        value == 0.0f || (value > -1e9f && value < 1e9f && (value >= 1e-4f || value <= -1e-4f));
    /* 13 decimals hold the 9 digits of 1e-4, which every f32 reads back from. */
    for (int digits = 1; digits <= 13; digits++) {
        snprintf(text, sizeof text, usual ? "%.*f" : "%.*e", digits, (double)value);
        if (strtof(text, NULL) == value)
            break;
    }
    rp_buffer_puts(out, text);
}

/* Left-to-right chains need no brackets. Brackets that only help the reader are written too: around
 * && inside ||, and around comparisons inside == and !=. */
static uint32_t least_precedence(const struct rp_mask_node *node, uint32_t child) {
    uint32_t own = rp_mask_ops[node->op].precedence;
    switch (node->op) {
    case RP_MASK_OP_AND:
        return own;
    case RP_MASK_OP_OR:
        return own; /* && is bracketed by the caller */
    case RP_MASK_OP_LT:
    case RP_MASK_OP_LE:
    case RP_MASK_OP_GT:
    case RP_MASK_OP_GE:
    case RP_MASK_OP_EQ:
    case RP_MASK_OP_NE:
        return rp_mask_ops[RP_MASK_OP_ADD].precedence;
    case RP_MASK_OP_SELECT:
        return child == 0 ? own + 1 : own;
    default:
        return own + (child == 1);
    }
}

static void write_node(const struct rp_mask *mask, uint16_t index, struct rp_buffer *out);

static void write_child(const struct rp_mask *mask, const struct rp_mask_node *node, uint32_t i,
                        struct rp_buffer *out) {
    uint16_t index = node->child[i];
    const struct rp_mask_node *child = &mask->nodes[index];
    while (child->op == RP_MASK_OP_TO_FLOAT) /* is not written */
        child = &mask->nodes[child->child[0]];
    bool bracket = rp_mask_ops[child->op].precedence < least_precedence(node, i) ||
                   (node->op == RP_MASK_OP_OR && child->op == RP_MASK_OP_AND);
    rp_buffer_puts(out, bracket ? "(" : "");
    write_node(mask, index, out);
    rp_buffer_puts(out, bracket ? ")" : "");
}

static void write_call(const struct rp_mask *mask, const struct rp_mask_node *node,
                       struct rp_buffer *out) {
    rp_buffer_printf(out, "%s(", rp_mask_ops[node->op].text);
    for (uint32_t i = 0; i < rp_mask_ops[node->op].arity; i++) {
        rp_buffer_puts(out, i ? ", " : "");
        write_node(mask, node->child[i], out);
    }
    rp_buffer_puts(out, ")");
}

static void write_node(const struct rp_mask *mask, uint16_t index, struct rp_buffer *out) {
    const struct rp_mask_node *node = &mask->nodes[index];
    const struct rp_mask_op_info *info = &rp_mask_ops[node->op];
    switch (node->op) {
    case RP_MASK_OP_INT:
        rp_buffer_printf(out, "%" PRId32, node->value.i);
        return;
    case RP_MASK_OP_BOOL:
        rp_buffer_puts(out, node->value.i ? "true" : "false");
        return;
    case RP_MASK_OP_FLOAT:
        rp_mask_write_float(out, node->value.f);
        return;
    case RP_MASK_OP_PARAM:
        rp_buffer_puts(out, mask->params[node->value.i].name);
        return;
    case RP_MASK_OP_TO_FLOAT:
        write_node(mask, node->child[0], out);
        return;
    case RP_MASK_OP_SELECT:
        write_child(mask, node, 0, out);
        rp_buffer_puts(out, " ? ");
        write_child(mask, node, 1, out);
        rp_buffer_puts(out, " : ");
        write_child(mask, node, 2, out);
        return;
    default:
        break;
    }
    if (info->arity == 0) {
        rp_buffer_puts(out, info->text);
    } else if (info->precedence == 9) {
        write_call(mask, node, out);
    } else if (info->arity == 1) {
        rp_buffer_puts(out, info->text);
        write_child(mask, node, 0, out);
    } else {
        write_child(mask, node, 0, out);
        rp_buffer_printf(out, " %s ", info->text);
        write_child(mask, node, 1, out);
    }
}

void rp_mask_write_text(const struct rp_mask *mask, struct rp_buffer *out) {
    for (uint32_t i = 0; i < mask->param_count; i++) {
        const struct rp_mask_param *p = &mask->params[i];
        rp_buffer_printf(out, "param %s = %" PRId32 " in %" PRId32 "..%" PRId32 "; ", p->name,
                         p->value, p->min, p->max);
    }
    write_node(mask, mask->roots[0], out);
    for (uint32_t i = 1; i <= mask->rule_count; i++) {
        rp_buffer_puts(out, "; score = ");
        write_node(mask, mask->roots[i], out);
    }
}

static void print_node(const struct rp_mask *mask, uint16_t index, uint32_t depth,
                       struct rp_buffer *out) {
    const struct rp_mask_node *node = &mask->nodes[index];
    rp_buffer_printf(out, "%*s", (int)depth * 2, "");
    if (rp_mask_ops[node->op].arity == 0) {
        write_node(mask, index, out);
    } else {
        rp_buffer_puts(out, rp_mask_ops[node->op].text);
    }
    rp_buffer_puts(out, "\n");
    for (uint32_t i = 0; i < rp_mask_ops[node->op].arity; i++)
        print_node(mask, node->child[i], depth + 1, out);
}

void rp_mask_print_tree(const struct rp_mask *mask, struct rp_buffer *out) {
    for (uint32_t i = 0; i < mask->param_count; i++) {
        const struct rp_mask_param *p = &mask->params[i];
        rp_buffer_printf(out, "param %s = %" PRId32 " in %" PRId32 "..%" PRId32 "\n", p->name,
                         p->value, p->min, p->max);
    }
    rp_buffer_puts(out, "condition\n");
    print_node(mask, mask->roots[0], 1, out);
    for (uint32_t i = 1; i <= mask->rule_count; i++) {
        rp_buffer_puts(out, "score\n");
        print_node(mask, mask->roots[i], 1, out);
    }
}
