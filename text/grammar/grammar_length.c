/* grammar_length.c - numbers of characters of the texts of an expression, so that a pattern with
 * minLength or maxLength needs no search to tell whether it can still match; and how much work a
 * byte is. */
#include "text/grammar/grammar_internal.h"

#define LIVE_DEPTH   4 /* of an expression that rx_quick_live() looks at */
#define LIVE_MEMBERS 8

static uint32_t add(uint32_t a, uint32_t b) {
    uint64_t sum = (uint64_t)a + b;
    return a == REP_INF || b == REP_INF || sum >= REP_INF ? REP_INF : (uint32_t)sum;
}

static uint32_t times(uint32_t a, uint32_t n) {
    uint64_t product = (uint64_t)a * n;
    if (a == 0 || n == 0)
        return 0;
    return a == REP_INF || n == REP_INF || product >= REP_INF ? REP_INF : (uint32_t)product;
}

/* A finite bound that does not fit in 32 bits is unknown: nothing is said about such texts. */
static bool too_long(const struct rx_lengths *l) { return l->min == REP_INF || l->from == REP_INF; }

/* Adds from..to to the run when they overlap or touch, else keeps the longer one. */
static void extend(struct rx_lengths *l, uint32_t from, uint32_t to) {
    if (from <= add(l->to, 1) && l->from <= add(to, 1)) {
        l->from = RP_MIN(l->from, from);
        l->to = RP_MAX(l->to, to);
    } else if (to - from > l->to - l->from) {
        l->from = from;
        l->to = to;
    }
}

static struct rx_lengths sum(struct rx_lengths a, struct rx_lengths b) {
    struct rx_lengths l = {add(a.min, b.min), add(a.max, b.max), add(a.from, b.from),
                           add(a.to, b.to)};
    extend(&l, add(a.min, b.from), add(a.min, b.to));
    extend(&l, add(a.from, b.min), add(a.to, b.min));
    return l;
}

/* lo to hi texts, one after another. */
static struct rx_lengths repeated(struct rx_lengths a, uint32_t lo, uint32_t hi) {
    struct rx_lengths l = {times(a.min, lo), times(a.max, hi), times(a.from, lo), times(a.to, lo)};
    uint32_t k = lo; /* from here on the runs of k and k + 1 texts touch */
    if (a.from > 1 && a.to == REP_INF)
        k = RP_MAX(lo, 1u);
    else if (a.from > 1)
        k = a.to == a.from ? hi : RP_MAX(lo, (a.from - 2) / (a.to - a.from) + 1);
    if (k < hi)
        extend(&l, times(a.from, k), times(a.to, hi));
    if (lo == 0)
        extend(&l, 0, 0);
    return l;
}

/* Characters that a JSON string can have as they are. */
static bool is_raw(const struct rp_grammar *g, uint32_t set) {
    bool all;
    return !charset_touches(g, set, 0, 0x1F, &all) && !charset_has(g, set, '"') &&
           !charset_has(g, set, '\\');
}

static bool is_continuation(const struct node *n) {
    return n->kind == RX_RANGE && n->lo == 0x80 && n->hi == 0xBF;
}

static void measure_chars(const struct rp_grammar *g, struct node *n) {
    bool known = false;
    switch (n->kind) {
    case RX_EPS:
        known = true;
        break;
    case RX_PART: /* the rest of a character, which is counted at its first byte */
    case RX_ESC:
    case RX_HEX:
    case RX_LOW:
        known = true;
        break;
    case RX_RANGE:
        if (is_continuation(n)) {
            known = true;
            break;
        }
        known = n->lo >= 0x20 && n->hi < 0x7F && !(n->lo <= '"' && n->hi >= '"') &&
                !(n->lo <= '\\' && n->hi >= '\\');
        n->chars = (struct rx_lengths){1, 1, 1, 1};
        break;
    case RX_CHARS:
        known = is_raw(g, n->a);
        n->chars = (struct rx_lengths){1, 1, 1, 1};
        break;
    case RX_CAT:
        known = node_at(g, n->a)->flags & node_at(g, n->b)->flags & NODE_STRING;
        n->chars = sum(node_at(g, n->a)->chars, node_at(g, n->b)->chars);
        break;
    case RX_REP:
        known = node_at(g, n->a)->flags & NODE_STRING;
        n->chars = repeated(node_at(g, n->a)->chars, n->lo, n->hi);
        break;
    case RX_OR:
        known = true;
        for (uint32_t i = 0; i < n->b; i++) {
            const struct node *m = node_at(g, g->lists.at[n->a + i]);
            known &= (m->flags & NODE_STRING) != 0;
            if (i == 0)
                n->chars = m->chars;
            n->chars.min = RP_MIN(n->chars.min, m->chars.min);
            n->chars.max = RP_MAX(n->chars.max, m->chars.max);
            extend(&n->chars, m->chars.from, m->chars.to);
        }
        break;
    default:
        break;
    }
    if (known && !too_long(&n->chars))
        n->flags |= NODE_STRING;
}

static uint64_t steps_of(const struct rp_grammar *g, const struct node *n) {
    uint64_t steps = 1;
    switch (n->kind) {
    case RX_CAT:
        steps += node_at(g, n->a)->steps;
        return node_nullable(g, n->a) ? steps + node_at(g, n->b)->steps : steps;
    case RX_NOT:
    case RX_REP:
    case G_LEX:
        return steps + node_at(g, n->a)->steps;
    case G_CAT:
        return node_at(g, n->a)->steps;
    case RX_OR:
    case RX_AND:
    case G_STATE:
        for (uint32_t i = 0; i < n->b; i++)
            steps += node_at(g, g->lists.at[n->a + i])->steps;
        return steps;
    default:
        return steps;
    }
}

void grammar_measure(const struct rp_grammar *g, struct node *n) {
    n->steps = (uint32_t)RP_MIN(steps_of(g, n), (uint64_t)STEPS_MAX + 1);
    if (n->kind < G_LIT)
        measure_chars(g, n);
}

/* The rest of one character of any value. */
static bool is_any_rest(const struct rp_grammar *g, const struct node *n) {
    if (n->kind == RX_PART)
        return n->a == node_at(g, g->json_char)->a;
    if (n->kind == RX_ESC || n->kind == RX_HEX || n->kind == RX_LOW)
        return n->a == CHARSET_ANY;
    return is_continuation(n->kind == RX_REP ? node_at(g, n->a) : n);
}

/* So many characters of any value, perhaps from the middle of the first one on. */
static bool is_counter(const struct rp_grammar *g, uint32_t id) {
    const struct node *n = node_at(g, id);
    if (n->kind == RX_CAT && is_any_rest(g, node_at(g, n->a))) {
        id = n->b;
        n = node_at(g, id);
    }
    return id == g->json_char || (n->kind == RX_REP && n->a == g->json_char) || is_any_rest(g, n);
}

enum rx_answer rx_fits(const struct rx_lengths *l, uint32_t low, uint32_t high) {
    if (low > high || l->min > high || l->max < low)
        return RX_DEAD;
    if (l->to == REP_INF && high == REP_INF)
        return RX_LIVE;
    bool live = (l->min >= low && l->min <= high) ||
                (l->max != REP_INF && l->max >= low && l->max <= high) ||
                (l->from <= high && l->to >= low);
    return live ? RX_LIVE : RX_UNSURE;
}

/* For a pattern and counters of any characters; all but finitely many of the texts when `some`
 * are excluded. A character of the pattern is one of the counters' as well. */
static enum rx_answer fits(const struct rx_lengths *l, uint32_t low, uint32_t high, bool some) {
    enum rx_answer answer = rx_fits(l, low, high);
    bool many = l->to == REP_INF && high == REP_INF;
    return answer == RX_LIVE && some && !many ? RX_UNSURE : answer;
}

static enum rx_answer conditions_live(const struct rp_grammar *g, const struct node *n) {
    const struct node *pattern = NULL;
    uint32_t low = 0, high = REP_INF;
    bool some = false, counted = false;
    for (uint32_t i = 0; i < n->b; i++) {
        uint32_t member = g->lists.at[n->a + i];
        const struct node *m = node_at(g, member);
        if (is_counter(g, member)) {
            low = RP_MAX(low, m->chars.min);
            high = RP_MIN(high, m->chars.max);
            counted = true;
        } else if (m->kind == RX_NOT && node_at(g, m->a)->flags & NODE_FINITE) {
            some = true;
        } else if (m->flags & NODE_STRING && !pattern) {
            pattern = m;
        } else {
            return RX_UNSURE;
        }
    }
    if (!pattern && !counted)
        return RX_LIVE; /* all texts but finitely many */
    struct rx_lengths any = {0, REP_INF, 0, REP_INF};
    return fits(pattern ? &pattern->chars : &any, low, high, some);
}

static enum rx_answer live_at(const struct rp_grammar *g, uint32_t id, int depth) {
    const struct node *n = node_at(g, id);
    if (id == NODE_NONE)
        return RX_DEAD;
    if (n->flags & NODE_NULLABLE || !(n->flags & NODE_MIXED))
        return RX_LIVE;
    if (n->kind == RX_AND)
        return conditions_live(g, n);
    if (depth == LIVE_DEPTH)
        return RX_UNSURE;
    if (n->kind == RX_CAT) {
        enum rx_answer a = live_at(g, n->a, depth + 1);
        return a == RX_LIVE ? live_at(g, n->b, depth + 1) : a;
    }
    if (n->kind != RX_OR)
        return RX_UNSURE;
    bool dead = true;
    for (uint32_t i = 0; i < n->b && i < LIVE_MEMBERS; i++) {
        enum rx_answer answer = live_at(g, g->lists.at[n->a + i], depth + 1);
        if (answer == RX_LIVE)
            return answer;
        dead &= answer == RX_DEAD;
    }
    return dead && n->b <= LIVE_MEMBERS ? RX_DEAD : RX_UNSURE;
}

enum rx_answer rx_quick_live(const struct rp_grammar *g, uint32_t id) { return live_at(g, id, 0); }
