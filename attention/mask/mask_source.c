/* mask_source.c - writes a program as C text: one statement per node, intervals as calls of helpers
 * that mirror mask_range.c, then the search of mask_classify.c. */
#include "attention/mask/mask_source.h"

#include "attention/mask/mask_internal.h"

#include <inttypes.h>

/* `int` is enough for intervals: rp_mask_prove saw that none leaves it. f32 operations of CUDA by
 * name, so that none is contracted; host compilers want -ffp-contract=off. */
static const char prelude[] =
    "#ifndef RP_MASK_HELPERS\n"
    "#define RP_MASK_HELPERS\n"
    "#ifdef __CUDACC__\n"
    "#define RP_MASK_INLINE static __device__ __forceinline__\n"
    "#define RP_MASK_TABLE static __device__ const\n"
    "#define RP_MASK_ADD(a, b) __fadd_rn(a, b)\n"
    "#define RP_MASK_SUB(a, b) __fsub_rn(a, b)\n"
    "#define RP_MASK_MUL(a, b) __fmul_rn(a, b)\n"
    "#define RP_MASK_DIV(a, b) __fdiv_rn(a, b)\n"
    "#define RP_MASK_ABS(a) fabsf(a)\n"
    "#define RP_MASK_TANH(a) tanhf(a)\n"
    "#define RP_MASK_EXP(a) expf(a)\n"
    "#else\n"
    "#define RP_MASK_INLINE static inline\n"
    "#define RP_MASK_TABLE static const\n"
    "#define RP_MASK_ADD(a, b) ((a) + (b))\n"
    "#define RP_MASK_SUB(a, b) ((a) - (b))\n"
    "#define RP_MASK_MUL(a, b) ((a) * (b))\n"
    "#define RP_MASK_DIV(a, b) ((a) / (b))\n"
    "#define RP_MASK_ABS(a) __builtin_fabsf(a)\n"
    "#define RP_MASK_TANH(a) __builtin_tanhf(a)\n"
    "#define RP_MASK_EXP(a) __builtin_expf(a)\n"
    "#endif\n"
    "#ifndef RP_MASK_FN\n"
    "#define RP_MASK_FN RP_MASK_INLINE\n"
    "#endif\n"
    "#ifndef RP_MASK_SEARCH_MAX\n"
    "#define RP_MASK_SEARCH_MAX 16384\n"
    "#endif\n"
    "struct rp_mask_range { int lo, hi; };\n"
    "typedef struct rp_mask_range rp_mask_r;\n"
    "RP_MASK_INLINE int rp_mask_lower(int a, int b) { return a < b ? a : b; }\n"
    "RP_MASK_INLINE int rp_mask_upper(int a, int b) { return a > b ? a : b; }\n"
    "RP_MASK_INLINE rp_mask_r rp_mask_of(int lo, int hi) { rp_mask_r r; r.lo = lo; r.hi = hi; "
    "return r; }\n"
    "RP_MASK_INLINE rp_mask_r rp_mask_hull(int a, int b, int c, int d) {\n"
    "    return rp_mask_of(rp_mask_lower(rp_mask_lower(a, b), rp_mask_lower(c, d)),\n"
    "                      rp_mask_upper(rp_mask_upper(a, b), rp_mask_upper(c, d)));\n"
    "}\n"
    "RP_MASK_INLINE rp_mask_r rp_mask_neg(rp_mask_r a) { return rp_mask_of(-a.hi, -a.lo); }\n"
    "RP_MASK_INLINE rp_mask_r rp_mask_not(rp_mask_r a) { return rp_mask_of(1 - a.hi, 1 - a.lo); }\n"
    "RP_MASK_INLINE rp_mask_r rp_mask_abs(rp_mask_r a) {\n"
    "    return rp_mask_of(a.lo >= 0 ? a.lo : a.hi <= 0 ? -a.hi : 0, rp_mask_upper(a.hi, -a.lo));\n"
    "}\n"
    "RP_MASK_INLINE rp_mask_r rp_mask_min(rp_mask_r a, rp_mask_r b) {\n"
    "    return rp_mask_of(rp_mask_lower(a.lo, b.lo), rp_mask_lower(a.hi, b.hi));\n"
    "}\n"
    "RP_MASK_INLINE rp_mask_r rp_mask_max(rp_mask_r a, rp_mask_r b) {\n"
    "    return rp_mask_of(rp_mask_upper(a.lo, b.lo), rp_mask_upper(a.hi, b.hi));\n"
    "}\n"
    "RP_MASK_INLINE rp_mask_r rp_mask_mul(rp_mask_r a, rp_mask_r b) {\n"
    "    return rp_mask_hull(a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi);\n"
    "}\n"
    "RP_MASK_INLINE rp_mask_r rp_mask_div(rp_mask_r a, rp_mask_r b) {\n"
    "    return rp_mask_hull(a.lo / b.lo, a.lo / b.hi, a.hi / b.lo, a.hi / b.hi);\n"
    "}\n"
    "RP_MASK_INLINE rp_mask_r rp_mask_mod(rp_mask_r a, rp_mask_r b) {\n"
    "    int most = rp_mask_upper(-b.lo, b.hi) - 1;\n"
    "    if (b.lo == b.hi && a.lo / b.lo == a.hi / b.lo)\n"
    "        return rp_mask_of(a.lo % b.lo, a.hi % b.lo);\n"
    "    return rp_mask_of(a.lo >= 0 ? 0 : rp_mask_upper(a.lo, -most),\n"
    "                      a.hi <= 0 ? 0 : rp_mask_lower(a.hi, most));\n"
    "}\n"
    "RP_MASK_INLINE rp_mask_r rp_mask_add(rp_mask_r a, rp_mask_r b) {\n"
    "    return rp_mask_of(a.lo + b.lo, a.hi + b.hi);\n"
    "}\n"
    "RP_MASK_INLINE rp_mask_r rp_mask_sub(rp_mask_r a, rp_mask_r b) {\n"
    "    return rp_mask_of(a.lo - b.hi, a.hi - b.lo);\n"
    "}\n"
    "RP_MASK_INLINE rp_mask_r rp_mask_lt(rp_mask_r a, rp_mask_r b) {\n"
    "    return rp_mask_of(a.hi < b.lo, a.lo < b.hi);\n"
    "}\n"
    "RP_MASK_INLINE rp_mask_r rp_mask_le(rp_mask_r a, rp_mask_r b) {\n"
    "    return rp_mask_of(a.hi <= b.lo, a.lo <= b.hi);\n"
    "}\n"
    "RP_MASK_INLINE rp_mask_r rp_mask_eq(rp_mask_r a, rp_mask_r b) {\n"
    "    return rp_mask_of(a.lo == a.hi && b.lo == b.hi && a.lo == b.lo, a.lo <= b.hi && b.lo <= "
    "a.hi);\n"
    "}\n"
    "RP_MASK_INLINE rp_mask_r rp_mask_select(rp_mask_r a, rp_mask_r b, rp_mask_r c) {\n"
    "    if (a.lo == a.hi)\n"
    "        return a.lo ? b : c;\n"
    "    return rp_mask_of(rp_mask_lower(b.lo, c.lo), rp_mask_upper(b.hi, c.hi));\n"
    "}\n"
    "#endif\n";

/* --- Values ---------------------------------------------------------------------------- */

/* Digits that read back as the same f32. */
static void write_float(struct rp_buffer *out, float value) {
    rp_buffer_printf(out, "(%.9ef)", (double)value);
}

static void write_leaf(struct rp_buffer *out, const struct rp_mask_node *node) {
    switch (node->op) {
    case RP_MASK_OP_PARAM:
        rp_buffer_printf(out, "params[%" PRId32 "]", node->value.i);
        break;
    case RP_MASK_OP_FLOAT:
        write_float(out, node->value.f);
        break;
    case RP_MASK_OP_INT:
    case RP_MASK_OP_BOOL:
        rp_buffer_printf(out, "(%" PRId32 ")", node->value.i);
        break;
    default:
        RP_ASSERT(node->op != RP_MASK_OP_LAYER);
        rp_buffer_puts(out, rp_mask_ops[node->op].text); /* an argument's name */
        break;
    }
}

static void write_unary(struct rp_buffer *out, const struct rp_mask_node *node) {
    uint32_t a = node->child[0];
    switch (node->op) {
    case RP_MASK_OP_TO_FLOAT:
        rp_buffer_printf(out, "(float)v%u", a);
        break;
    case RP_MASK_OP_ABS:
        if (node->type == RP_MASK_FLOAT)
            rp_buffer_printf(out, "RP_MASK_ABS(v%u)", a);
        else
            rp_buffer_printf(out, "v%u < 0 ? -v%u : v%u", a, a, a);
        break;
    case RP_MASK_OP_TANH:
        rp_buffer_printf(out, "RP_MASK_TANH(v%u)", a);
        break;
    case RP_MASK_OP_EXP:
        rp_buffer_printf(out, "RP_MASK_EXP(v%u)", a);
        break;
    case RP_MASK_OP_SLOPE:
        rp_buffer_printf(out, "slopes[v%u]", a);
        break;
    default:
        rp_buffer_printf(out, "%sv%u", rp_mask_ops[node->op].text, a);
        break;
    }
}

static void write_binary(struct rp_buffer *out, const struct rp_mask_node *node) {
    uint32_t a = node->child[0], b = node->child[1];
    const char *text = rp_mask_ops[node->op].text;
    bool real = node->type == RP_MASK_FLOAT;
    switch (node->op) {
    case RP_MASK_OP_MIN:
        rp_buffer_printf(out, "v%u < v%u ? v%u : v%u", a, b, a, b);
        break;
    case RP_MASK_OP_MAX:
        rp_buffer_printf(out, "v%u > v%u ? v%u : v%u", a, b, a, b);
        break;
    case RP_MASK_OP_AND:
        rp_buffer_printf(out, "v%u & v%u", a, b); /* both sides are evaluated: no branch */
        break;
    case RP_MASK_OP_OR:
        rp_buffer_printf(out, "v%u | v%u", a, b);
        break;
    default:
        if (real)
            rp_buffer_printf(out, "RP_MASK_%s(v%u, v%u)",
                             node->op == RP_MASK_OP_ADD   ? "ADD"
                             : node->op == RP_MASK_OP_SUB ? "SUB"
                             : node->op == RP_MASK_OP_MUL ? "MUL"
                                                          : "DIV",
                             a, b);
        else
            rp_buffer_printf(out, "v%u %s v%u", a, text, b);
        break;
    }
}

/* Writes the statements of root i; the last variable holds its value. */
static void write_values(const struct rp_mask *mask, uint32_t root, struct rp_buffer *out) {
    for (uint32_t i = rp_mask_root_begin(mask, root); i <= mask->roots[root]; i++) {
        const struct rp_mask_node *node = &mask->nodes[i];
        rp_buffer_printf(out, "    const %s v%u = ", node->type == RP_MASK_FLOAT ? "float" : "int",
                         i);
        switch (rp_mask_ops[node->op].arity) {
        case 0:
            write_leaf(out, node);
            break;
        case 1:
            write_unary(out, node);
            break;
        case 2:
            write_binary(out, node);
            break;
        default:
            rp_buffer_printf(out, "v%u ? v%u : v%u", node->child[0], node->child[1],
                             node->child[2]);
            break;
        }
        rp_buffer_puts(out, ";\n");
    }
}

static void write_slopes(const struct rp_mask *mask, struct rp_buffer *out) {
    rp_buffer_printf(out, "    RP_MASK_TABLE float slopes[%u] = {", mask->limits.heads);
    for (uint32_t h = 0; h < mask->limits.heads; h++) {
        rp_buffer_puts(out, h ? ", " : "");
        write_float(out, mask->slopes[h]);
    }
    rp_buffer_puts(out, "};\n");
}

/* --- Intervals ------------------------------------------------------------------------- */

static void write_range_leaf(struct rp_buffer *out, const struct rp_mask_node *node) {
    switch (node->op) {
    case RP_MASK_OP_Q:
    case RP_MASK_OP_KV:
    case RP_MASK_OP_H:
        rp_buffer_printf(out, "rp_mask_of(%s_begin, %s_end - 1)", rp_mask_ops[node->op].text,
                         rp_mask_ops[node->op].text);
        break;
    default:
        rp_buffer_puts(out, "rp_mask_of(");
        write_leaf(out, node);
        rp_buffer_puts(out, ", ");
        write_leaf(out, node);
        rp_buffer_puts(out, ")");
        break;
    }
}

static void write_range(struct rp_buffer *out, const struct rp_mask_node *node) {
    static const char *const names[RP_MASK_OP_COUNT] = {
        [RP_MASK_OP_NEG] = "neg",      [RP_MASK_OP_NOT] = "not", [RP_MASK_OP_ABS] = "abs",
        [RP_MASK_OP_MIN] = "min",      [RP_MASK_OP_AND] = "min", [RP_MASK_OP_MAX] = "max",
        [RP_MASK_OP_OR] = "max",       [RP_MASK_OP_MUL] = "mul", [RP_MASK_OP_DIV] = "div",
        [RP_MASK_OP_MOD] = "mod",      [RP_MASK_OP_ADD] = "add", [RP_MASK_OP_SUB] = "sub",
        [RP_MASK_OP_LT] = "lt",        [RP_MASK_OP_LE] = "le",   [RP_MASK_OP_GT] = "lt",
        [RP_MASK_OP_GE] = "le",        [RP_MASK_OP_EQ] = "eq",   [RP_MASK_OP_NE] = "eq",
        [RP_MASK_OP_SELECT] = "select"};
    bool flips = node->op == RP_MASK_OP_GT || node->op == RP_MASK_OP_GE;
    bool negates = node->op == RP_MASK_OP_NE;
    rp_buffer_printf(out, "%srp_mask_%s(r%u", negates ? "rp_mask_not(" : "", names[node->op],
                     node->child[flips]);
    if (rp_mask_ops[node->op].arity > 1)
        rp_buffer_printf(out, ", r%u", node->child[!flips]);
    if (rp_mask_ops[node->op].arity > 2)
        rp_buffer_printf(out, ", r%u", node->child[2]);
    rp_buffer_puts(out, negates ? "))" : ")");
}

static const char search[] = "    rows = q_end - q_begin;\n"
                             "    keys = kv_end - kv_begin;\n"
                             "    heads = RP_MASK_READS_HEAD ? h_end - h_begin : 1;\n"
                             "    if (rows > RP_MASK_SEARCH_MAX || keys > RP_MASK_SEARCH_MAX || "
                             "heads > RP_MASK_SEARCH_MAX ||\n"
                             "        (long long)rows * keys * heads > RP_MASK_SEARCH_MAX)\n"
                             "        return 2;\n"
                             "    for (q = q_begin; q < q_end; q++)\n"
                             "        for (h = h_begin; h < h_begin + heads; h++)\n"
                             "            for (kv = kv_begin; kv < kv_end; kv++) {\n"
                             "                if (rp_mask_sees(q, kv, h, params))\n"
                             "                    any = 1;\n"
                             "                else\n"
                             "                    all = 0;\n"
                             "                if (any && !all)\n"
                             "                    return 2;\n"
                             "            }\n"
                             "    return any;\n";

static void write_classify(const struct rp_mask *mask, struct rp_buffer *out) {
    rp_buffer_puts(out, "RP_MASK_FN int rp_mask_classify(int q_begin, int q_end, int kv_begin, int "
                        "kv_end, int h_begin,\n                                int h_end, const "
                        "int *params) {\n");
    for (uint32_t i = 0; i <= mask->roots[0]; i++) {
        const struct rp_mask_node *node = &mask->nodes[i];
        rp_buffer_printf(out, "    const rp_mask_r r%u = ", i);
        if (rp_mask_ops[node->op].arity == 0)
            write_range_leaf(out, node);
        else
            write_range(out, node);
        rp_buffer_puts(out, ";\n");
    }
    rp_buffer_puts(out, "    int q, kv, h, rows, keys, heads, any = 0, all = 1;\n");
    rp_buffer_printf(out, "    if (r%u.lo == r%u.hi)\n        return r%u.lo;\n", mask->roots[0],
                     mask->roots[0], mask->roots[0]);
    rp_buffer_puts(out, search);
    rp_buffer_puts(out, "}\n");
}

/* --- The three functions --------------------------------------------------------------- */

static void write_sees(const struct rp_mask *mask, struct rp_buffer *out) {
    rp_buffer_puts(out, "RP_MASK_FN int rp_mask_sees(int q, int kv, int h, const int *params) {\n");
    rp_buffer_puts(out, "    (void)q;\n    (void)kv;\n    (void)h;\n    (void)params;\n");
    write_values(mask, 0, out);
    rp_buffer_printf(out, "    return v%u;\n}\n", mask->roots[0]);
}

static void write_score(const struct rp_mask *mask, struct rp_buffer *out) {
    rp_buffer_puts(out, "RP_MASK_FN float rp_mask_score(float score, int q, int kv, int h, const "
                        "int *params) {\n");
    rp_buffer_puts(out, "    (void)q;\n    (void)kv;\n    (void)h;\n    (void)params;\n");
    if (mask->slopes)
        write_slopes(mask, out);
    for (uint32_t i = 1; i <= mask->rule_count; i++) {
        write_values(mask, i, out);
        rp_buffer_printf(out, "    score = v%u;\n", mask->roots[i]);
    }
    rp_buffer_puts(out, "    return score;\n}\n");
}

void rp_mask_source(const struct rp_mask *mask, struct rp_buffer *out) {
    RP_ASSERT(!mask->reads_layer);
    rp_buffer_puts(out, prelude);
    rp_buffer_printf(out,
                     "#define RP_MASK_HAS_SCORE %d\n#define RP_MASK_READS_HEAD %d\n"
                     "#define RP_MASK_CAUSAL %d\n#define RP_MASK_PARAMS %u\n",
                     mask->rule_count > 0, mask->reads_head, mask->causal, mask->param_count);
    write_sees(mask, out);
    write_score(mask, out);
    write_classify(mask, out);
}
