#include "tests/support/mask_program.h"

#include "base/buffer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* %a, %b, %c are children in brackets. */
#define KIND_MAP(X)                                                                                \
    X(Q, "q")                                                                                      \
    X(KV, "kv")                                                                                    \
    X(H, "h")                                                                                      \
    X(LAYER, "layer")                                                                              \
    X(SCORE, "score")                                                                              \
    X(INT, "%i")                                                                                   \
    X(FLOAT, "%f")                                                                                 \
    X(PARAM, "%p")                                                                                 \
    X(NEG, "(-%a)")                                                                                \
    X(ABS, "abs(%a)")                                                                              \
    X(ADD, "(%a + %b)")                                                                            \
    X(SUB, "(%a - %b)")                                                                            \
    X(MUL, "(%a * %b)")                                                                            \
    X(DIV, "(%a / %b)")                                                                            \
    X(MOD, "(%a % %b)")                                                                            \
    X(MIN, "min(%a, %b)")                                                                          \
    X(MAX, "max(%a, %b)")                                                                          \
    X(SELECT, "(%a ? %b : %c)")                                                                    \
    X(LT, "(%a < %b)")                                                                             \
    X(LE, "(%a <= %b)")                                                                            \
    X(GT, "(%a > %b)")                                                                             \
    X(GE, "(%a >= %b)")                                                                            \
    X(EQ, "(%a == %b)")                                                                            \
    X(NE, "(%a != %b)")                                                                            \
    X(AND, "(%a && %b)")                                                                           \
    X(OR, "(%a || %b)")                                                                            \
    X(NOT, "!%a")                                                                                  \
    X(CAUSAL, "causal")                                                                            \
    X(WINDOW, "sliding_window(%a)")                                                                \
    X(SINK, "sink(%a)")                                                                            \
    X(PREFIX, "prefix_lm(%a)")                                                                     \
    X(CHUNKED, "chunked(%a)")                                                                      \
    X(DOCUMENT, "document(%a, %b)")                                                                \
    X(DILATED, "dilated(%a)")                                                                      \
    X(TANH, "tanh(%a)")                                                                            \
    X(EXP, "exp(%a)")                                                                              \
    X(SLOPE, "slope(%a)")                                                                          \
    X(ALIBI, "alibi")                                                                              \
    X(SOFT_CAP, "soft_cap(%a)")

enum kind {
#define X(name, text) K_##name,
    KIND_MAP(X)
#undef X
};
static const char *const texts[] = {
#define X(name, text) text,
    KIND_MAP(X)
#undef X
};

uint64_t mask_random(uint64_t *seed, uint64_t below) {
    uint64_t x = *seed += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return (x ^ (x >> 31)) % below;
}

/* --- Generating
 *
 --------------------------------------------------------------------------------------------- */

struct maker {
    struct mask_program *p;
    uint64_t *seed;
    bool full, in_argument;
};

static uint64_t roll(struct maker *m, uint64_t below) { return mask_random(m->seed, below); }

static uint16_t add(struct maker *m, enum kind kind, bool is_float, int count, uint16_t a,
                    uint16_t b, uint16_t c) {
    if (m->p->node_count == MASK_PROGRAM_NODES) {
        m->full = true;
        return 0;
    }
    m->p->nodes[m->p->node_count] = (struct mask_program_node){
        .kind = (uint8_t)kind, .is_float = is_float, .count = (uint8_t)count, .child = {a, b, c}};
    return (uint16_t)m->p->node_count++;
}

static uint16_t make_int(struct maker *m, int32_t value) {
    uint16_t node = add(m, K_INT, false, 0, 0, 0, 0);
    m->p->nodes[node].i = value;
    return node;
}

static uint16_t make_condition(struct maker *m, int depth);

/* At least 1, so that it can be a divisor. */
static uint16_t positive(struct maker *m) {
    static const int32_t sizes[] = {1, 2, 3, 4, 7, 16, 31, 64, 100};
    if (m->p->param_count == 0 || roll(m, 3) > 0)
        return make_int(m, sizes[roll(m, RP_ARRAY_COUNT(sizes))]);
    uint16_t param = add(m, K_PARAM, false, 0, 0, 0, 0);
    m->p->nodes[param].i = (int32_t)roll(m, m->p->param_count);
    if (m->p->params[m->p->nodes[param].i].min > 0)
        return param;
    return add(m, K_MAX, false, 2, param, make_int(m, 1), 0);
}

static uint16_t int_leaf(struct maker *m) {
    uint64_t kind = roll(m, 12);
    if (kind < 3 && !m->in_argument)
        return add(m, K_Q, false, 0, 0, 0, 0);
    if (kind < 6 && !m->in_argument)
        return add(m, K_KV, false, 0, 0, 0, 0);
    if (kind == 6)
        return add(m, K_H, false, 0, 0, 0, 0);
    if (kind == 7)
        return add(m, K_LAYER, false, 0, 0, 0, 0);
    if (kind < 10)
        return make_int(m, (int32_t)roll(m, 128));
    if (kind == 10)
        return make_int(m, -(int32_t)roll(m, 64));
    return positive(m);
}

static uint16_t make_integer(struct maker *m, int depth) {
    static const enum kind kinds[] = {K_ADD, K_SUB, K_SUB, K_ADD, K_MIN, K_MAX};
    uint16_t a, b;
    if (depth <= 0 || m->full)
        return int_leaf(m);
    uint64_t kind = roll(m, 14);
    switch (kind) {
    case 6:
        return add(m, K_NEG, false, 1, make_integer(m, depth - 1), 0, 0);
    case 7:
        return add(m, K_ABS, false, 1, make_integer(m, depth - 1), 0, 0);
    case 8:
        a = make_integer(m, depth - 1);
        b = roll(m, 2) ? make_integer(m, depth - 2) : make_int(m, (int32_t)roll(m, 9) - 4);
        return add(m, K_MUL, false, 2, a, b, 0);
    case 9:
    case 10:
        a = make_integer(m, depth - 1);
        b = positive(m);
        if (roll(m, 4) == 0)
            b = add(m, K_NEG, false, 1, b, 0, 0);
        return add(m, kind == 9 ? K_DIV : K_MOD, false, 2, a, b, 0);
    case 11:
        a = make_condition(m, depth - 2);
        b = make_integer(m, depth - 1);
        return add(m, K_SELECT, false, 3, a, b, make_integer(m, depth - 1));
    case 12:
    case 13:
        return int_leaf(m);
    default:
        a = make_integer(m, depth - 1);
        return add(m, kinds[kind], false, 2, a, make_integer(m, depth - 1), 0);
    }
}

static uint16_t argument(struct maker *m) {
    bool before = m->in_argument;
    m->in_argument = true;
    uint16_t node = roll(m, 3) ? positive(m) : make_integer(m, 1);
    m->in_argument = before;
    return node;
}

static uint16_t block(struct maker *m) {
    uint16_t a;
    switch (roll(m, 7)) {
    case 0:
        return add(m, K_CAUSAL, false, 0, 0, 0, 0);
    case 1:
        return add(m, K_WINDOW, false, 1, argument(m), 0, 0);
    case 2:
        return add(m, K_SINK, false, 1, argument(m), 0, 0);
    case 3:
        return add(m, K_PREFIX, false, 1, argument(m), 0, 0);
    case 4:
        return add(m, K_CHUNKED, false, 1, positive(m), 0, 0);
    case 5:
        a = argument(m);
        return add(m, K_DOCUMENT, false, 2, a, argument(m), 0);
    default:
        return add(m, K_DILATED, false, 1, positive(m), 0, 0);
    }
}

static uint16_t make_condition(struct maker *m, int depth) {
    uint16_t a, b;
    uint64_t kind = roll(m, 12);
    if (m->in_argument || depth <= 0 || (kind >= 7 && kind < 9)) {
        a = make_integer(m, RP_MIN(depth, 2));
        b = make_integer(m, RP_MIN(depth, 2) - 1);
        return add(m, (enum kind)(K_LT + roll(m, 6)), false, 2, a, b, 0);
    }
    if (kind < 3 || m->full)
        return block(m);
    if (kind < 7) {
        a = make_condition(m, depth - 1);
        return add(m, kind < 5 ? K_AND : K_OR, false, 2, a, make_condition(m, depth - 1), 0);
    }
    if (kind == 9)
        return add(m, K_NOT, false, 1, make_condition(m, depth - 1), 0, 0);
    a = make_condition(m, depth - 1);
    b = make_condition(m, depth - 1);
    if (kind == 10)
        return add(m, roll(m, 2) ? K_EQ : K_NE, false, 2, a, b, 0);
    return add(m, K_SELECT, false, 3, a, b, make_condition(m, depth - 1));
}

static uint16_t make_number(struct maker *m, int depth) {
    static const float numbers[] = {0.5f, -0.125f, 1.0f, 3.1415927f, 1e-3f, 30.0f, -7.25f};
    static const enum kind kinds[] = {K_ADD, K_SUB, K_MUL, K_MIN, K_MAX, K_DIV};
    uint64_t kind = depth <= 0 || m->full ? roll(m, 4) : roll(m, 13);
    uint16_t a, b;
    if (kind < 2)
        return add(m, K_SCORE, true, 0, 0, 0, 0);
    if (kind == 2) {
        a = add(m, K_FLOAT, true, 0, 0, 0, 0);
        m->p->nodes[a].f = numbers[roll(m, RP_ARRAY_COUNT(numbers))];
        return a;
    }
    if (kind == 3)
        return add(m, K_SLOPE, true, 1, add(m, K_H, false, 0, 0, 0, 0), 0, 0);
    if (kind < 10) {
        a = make_number(m, depth - 1);
        b = roll(m, 3) ? make_number(m, depth - 1) : make_integer(m, 1);
        if (kind == 9)
            b = positive(m);
        return add(m, kinds[kind - 4], true, 2, a, b, 0);
    }
    if (kind == 10)
        return add(m, roll(m, 2) ? K_TANH : K_EXP, true, 1, make_number(m, depth - 1), 0, 0);
    if (kind == 11)
        return add(m, roll(m, 2) ? K_NEG : K_ABS, true, 1, make_number(m, depth - 1), 0, 0);
    a = make_number(m, depth - 2);
    a = roll(m, 2) ? make_condition(m, 1)
                   : add(m, (enum kind)(K_LT + roll(m, 6)), false, 2, a, make_number(m, 0), 0);
    b = make_number(m, depth - 1);
    return add(m, K_SELECT, true, 3, a, b, make_number(m, depth - 1));
}

/* --- Writing
 *
 --------------------------------------------------------------------------------------------- */

static void write_node(const struct mask_program *p, uint16_t index, struct rp_buffer *out) {
    const struct mask_program_node *node = &p->nodes[index];
    for (const char *c = texts[node->kind]; *c; c++) {
        if (*c != '%' || c[1] == ' ')
            rp_buffer_append(out, c, 1);
        else if (*++c == 'i')
            rp_buffer_printf(out, "%" PRId32, node->i);
        else if (*c == 'f')
            rp_buffer_printf(out, "%.9e", (double)node->f);
        else if (*c == 'p')
            rp_buffer_puts(out, p->params[node->i].name);
        else
            write_node(p, node->child[*c - 'a'], out);
    }
}

static bool write_text(struct mask_program *p) {
    struct rp_buffer out;
    rp_buffer_init(&out, 0);
    for (uint32_t i = 0; i < p->param_count; i++)
        rp_buffer_printf(&out, "param %s = %d in %d..%d;\n", p->params[i].name, p->params[i].value,
                         p->params[i].min, p->params[i].max);
    for (uint32_t i = 0; i < p->condition_count; i++) {
        write_node(p, p->conditions[i], &out);
        rp_buffer_puts(&out, "; ");
    }
    for (uint32_t i = 0; i < p->rule_count; i++) {
        uint8_t kind = p->nodes[p->rules[i]].kind;
        rp_buffer_puts(&out, kind == K_ALIBI || kind == K_SOFT_CAP ? "" : "score = ");
        write_node(p, p->rules[i], &out);
        rp_buffer_puts(&out, ";");
    }
    bool fits = !out.failed && out.len <= RP_MASK_TEXT_MAX;
    if (fits) {
        memcpy(p->text, out.data, out.len);
        p->text[out.len] = '\0';
    }
    rp_buffer_deinit(&out);
    return fits;
}

bool mask_program_random(uint64_t *seed, const struct rp_mask_limits *limits,
                         struct mask_program *out) {
    static const struct rp_mask_param params[] = {
        {"n", 5, 1, 64}, {"far_away", 100, 0, 900}, {"shift", -3, -20, 20}};
    struct maker m = {.p = out, .seed = seed};
    *out = (struct mask_program){.limits = *limits};
    out->param_count = (uint32_t)roll(&m, MASK_PROGRAM_PARAMS + 1);
    memcpy(out->params, params, out->param_count * sizeof *params);
    out->condition_count = 1 + (roll(&m, 4) == 0);
    for (uint32_t i = 0; i < out->condition_count; i++)
        out->conditions[i] = make_condition(&m, 1 + (int)roll(&m, 4));
    out->rule_count = (uint32_t)roll(&m, 3);
    for (uint32_t i = 0; i < out->rule_count; i++) {
        uint64_t kind = roll(&m, 6);
        if (kind == 0)
            out->rules[i] = add(&m, K_ALIBI, true, 0, 0, 0, 0);
        else if (kind == 1)
            out->rules[i] = add(&m, K_SOFT_CAP, true, 1, positive(&m), 0, 0);
        else
            out->rules[i] = make_number(&m, 4);
    }
    return !m.full && write_text(out);
}

void mask_program_random_params(const struct mask_program *program, uint64_t *seed,
                                int32_t *params) {
    for (uint32_t i = 0; i < program->param_count; i++) {
        const struct rp_mask_param *p = &program->params[i];
        uint64_t kind = mask_random(seed, 4);
        uint64_t span = (uint64_t)((int64_t)p->max - p->min) + 1;
        params[i] = kind == 0   ? p->min
                    : kind == 1 ? p->max
                                : (int32_t)(p->min + (int64_t)mask_random(seed, span));
    }
}

/* --- Evaluating
 *
 --------------------------------------------------------------------------------------------- */

struct evaluation {
    const struct mask_program *p;
    const struct rp_mask_pair *pair;
    const int32_t *params;
    float score;
    bool undefined;
};

static float number_of(struct evaluation *e, uint16_t index);

static int64_t divide(struct evaluation *e, int64_t a, int64_t b, bool remainder) {
    if (b == 0) {
        e->undefined = true;
        return 0;
    }
    return remainder ? a % b : a / b;
}

/* No document begins between them. */
static int64_t same_side(int64_t q, int64_t kv, int64_t begin) {
    return (q < begin && kv < begin) || (q >= begin && kv >= begin);
}

static int64_t block_of(struct evaluation *e, const struct mask_program_node *node, int64_t n,
                        int64_t second) {
    int64_t q = e->pair->q, kv = e->pair->kv;
    switch (node->kind) {
    case K_CAUSAL:
        return kv <= q;
    case K_WINDOW:
        return kv > q - n;
    case K_SINK:
        return kv < n;
    case K_PREFIX:
        return kv <= q || kv < n;
    case K_CHUNKED:
        return kv - divide(e, kv, n, true) == q - divide(e, q, n, true);
    case K_DOCUMENT:
        return same_side(q, kv, n) && same_side(q, kv, second);
    default:
        return divide(e, q > kv ? q - kv : kv - q, n, true) == 0;
    }
}

static int64_t int_of(struct evaluation *e, uint16_t index);

static int64_t compare(struct evaluation *e, const struct mask_program_node *node) {
    if (e->p->nodes[node->child[0]].is_float || e->p->nodes[node->child[1]].is_float) {
        float a = number_of(e, node->child[0]), b = number_of(e, node->child[1]);
        bool results[] = {a<b, a <= b, a> b, a >= b, a == b, a != b};
        return results[node->kind - K_LT];
    }
    int64_t a = int_of(e, node->child[0]), b = int_of(e, node->child[1]);
    bool results[] = {a<b, a <= b, a> b, a >= b, a == b, a != b};
    return results[node->kind - K_LT];
}

static int64_t operation(struct evaluation *e, const struct mask_program_node *node) {
    int64_t v[3] = {0, 0, 0};
    if (node->kind >= K_LT && node->kind <= K_NE)
        return compare(e, node);
    for (int i = 0; i < node->count; i++)
        v[i] = int_of(e, node->child[i]);
    switch (node->kind) {
    case K_NEG:
        return -v[0];
    case K_ABS:
        return llabs(v[0]);
    case K_ADD:
        return v[0] + v[1];
    case K_SUB:
        return v[0] - v[1];
    case K_MUL:
        return v[0] * v[1];
    case K_DIV:
        return divide(e, v[0], v[1], false);
    case K_MOD:
        return divide(e, v[0], v[1], true);
    case K_MIN:
        return RP_MIN(v[0], v[1]);
    case K_MAX:
        return RP_MAX(v[0], v[1]);
    case K_SELECT:
        return v[0] ? v[1] : v[2];
    case K_AND:
        return v[0] && v[1];
    case K_OR:
        return v[0] || v[1];
    case K_NOT:
        return !v[0];
    default:
        return block_of(e, node, v[0], v[1]);
    }
}

static int64_t int_of(struct evaluation *e, uint16_t index) {
    const struct mask_program_node *node = &e->p->nodes[index];
    int64_t out;
    switch (node->kind) {
    case K_Q:
        return e->pair->q;
    case K_KV:
        return e->pair->kv;
    case K_H:
        return e->pair->h;
    case K_LAYER:
        return e->pair->layer;
    case K_INT:
        return node->i;
    case K_PARAM:
        return e->params[node->i];
    default:
        out = operation(e, node);
        e->undefined |= out > INT32_MAX || out < -INT32_MAX;
        return out > INT32_MAX || out < -INT32_MAX ? 0 : out;
    }
}

/* 2^(-8/n) to the power h + 1; if the number of heads is not a power of two, the rest are those of
 * twice as many heads. */
static float slope_of(uint32_t heads, int64_t h) {
    uint32_t floor_heads = 1;
    while (floor_heads * 2 <= heads)
        floor_heads *= 2;
    if (h < floor_heads)
        return (float)pow(2.0, -8.0 * (double)(h + 1) / floor_heads);
    return (float)pow(2.0, -4.0 * (double)(2 * (h - floor_heads) + 1) / floor_heads);
}

static float number_of(struct evaluation *e, uint16_t index) {
    const struct mask_program_node *node = &e->p->nodes[index];
    float v[3] = {0.0f, 0.0f, 0.0f};
    if (!node->is_float)
        return (float)int_of(e, index);
    if (node->kind == K_SLOPE)
        return slope_of(e->p->limits.heads, int_of(e, node->child[0]));
    if (node->kind == K_SELECT) {
        v[1] = number_of(e, node->child[1]);
        v[2] = number_of(e, node->child[2]);
        return int_of(e, node->child[0]) ? v[1] : v[2];
    }
    for (int i = 0; i < node->count; i++)
        v[i] = number_of(e, node->child[i]);
    switch (node->kind) {
    case K_SCORE:
        return e->score;
    case K_FLOAT:
        return node->f;
    case K_NEG:
        return -v[0];
    case K_ABS:
        return fabsf(v[0]);
    case K_ADD:
        return v[0] + v[1];
    case K_SUB:
        return v[0] - v[1];
    case K_MUL:
        return v[0] * v[1];
    case K_DIV:
        return v[0] / v[1];
    case K_MIN:
        return v[0] < v[1] ? v[0] : v[1];
    case K_MAX:
        return v[0] > v[1] ? v[0] : v[1];
    case K_TANH:
        return tanhf(v[0]);
    case K_EXP:
        return expf(v[0]);
    case K_SOFT_CAP:
        return v[0] * tanhf(e->score / v[0]);
    default: /* ALiBi */
        return e->score -
               slope_of(e->p->limits.heads, e->pair->h) * (float)(e->pair->q - e->pair->kv);
    }
}

bool mask_program_sees(const struct mask_program *program, const struct rp_mask_pair *pair,
                       const int32_t *params, bool *undefined) {
    struct evaluation e = {program, pair, params, 0.0f, false};
    bool sees = true;
    for (uint32_t i = 0; i < program->condition_count; i++)
        sees &= int_of(&e, program->conditions[i]) != 0;
    *undefined |= e.undefined;
    return sees;
}

float mask_program_score(const struct mask_program *program, const struct rp_mask_pair *pair,
                         const int32_t *params, float score, bool *undefined) {
    struct evaluation e = {program, pair, params, score, false};
    for (uint32_t i = 0; i < program->rule_count; i++)
        e.score = number_of(&e, program->rules[i]);
    *undefined |= e.undefined;
    return e.score;
}
