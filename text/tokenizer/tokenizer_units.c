#include "text/tokenizer/tokenizer_units.h"

#include "base/utf8.h"
#include "text/tokenizer/tokenizer_internal.h"

#include <string.h>

/* The same as keeps_boundary, by merging. */
static bool stay_apart(const struct rp_tokenizer *tok, int32_t x, int32_t y) {
    int32_t ids[RP_TOK_MERGE_FEW];
    size_t count = 0;
    const int32_t both[2] = {x, y};
    for (int i = 0; i < 2; i++) {
        struct rp_tok_slice piece = tok->entries[both[i]].piece;
        count += rp_tok_symbols(tok, ids + count, rp_tok_ptr(tok, piece), piece.len);
    }
    count = rp_tok_merge_few(tok, ids, count);
    return count == 2 && ids[0] == x && ids[1] == y;
}

/* Whether merging leaves the boundary between two regular units alone. `below`: until the two
 * themselves could merge. */
static bool keeps_boundary(const struct rp_tokenizer *tok, int32_t x, int32_t y, bool below) {
    const struct rp_tok_unit *all = tok->units.all;
    uint32_t limit = UINT32_MAX; /* the merge that ended this state; from there on nothing counts */
    for (bool look = !below;; look = true) {
        const struct rp_tok_unit *left = &all[x], *right = &all[y];
        if (look && left->extends_right && right->extends_left) {
            const struct rp_tok_merge *m = rp_tok_merges_find(&tok->merges, x, y);
            if (m && m->rank + 1 < limit)
                return false;
        }
        /* Among merges of one rule the left one comes first, so the right one is undone first. */
        if (left->rank > right->rank) {
            limit = left->rank;
            x = left->right;
        } else if (right->rank) {
            limit = right->rank + 1; /* across is further left, so it comes first */
            y = right->left;
        } else {
            return true;
        }
    }
}

/* Merging begins with bytes or characters. */
static bool is_symbol(const struct rp_tokenizer *tok, const struct rp_tok_entry *e) {
    if (!(e->flags & RP_TOK_HAS_PIECE))
        return false;
    return tok->byte_level
               ? e->piece.len == 1
               : rp_utf8_decode(rp_tok_ptr(tok, e->piece), e->piece.len, NULL) == (int)e->piece.len;
}

static void set_symbols(struct rp_tokenizer *tok) {
    for (uint32_t id = 0; id < tok->id_limit; id++) {
        struct rp_tok_unit *unit = &tok->units.all[id];
        unit->left = unit->right = unit->shorter = -1;
        if (is_symbol(tok, &tok->entries[id]))
            unit->len = (uint16_t)tok->entries[id].piece.len;
    }
}

static bool is_current(const struct rp_tokenizer *tok, const struct rp_tok_rule *rule,
                       uint32_t rank) {
    return rp_tok_merges_find(&tok->merges, rule->left, rule->right)->rank == rank;
}

/* Follows the rules in their order: what each unit is made of. *irregular: rules can happen that
 * break the order.
 * False: the units do not fit the tables. */
static bool derive(struct rp_tokenizer *tok, const struct rp_tok_rule *rules, uint32_t count,
                   bool *irregular) {
    struct rp_tok_unit *all = tok->units.all;
    for (int turn = 0; turn < 2; turn++) {
        for (uint32_t i = 0; i < count; i++) {
            const struct rp_tok_rule *rule = &rules[i];
            if (rule->merged < 0 || !is_current(tok, rule, i))
                continue; /* a comment, or listed again further down */
            struct rp_tok_unit *left = &all[rule->left], *right = &all[rule->right];
            left->extends_right = right->extends_left = true;
            /* A part that comes about only after the rule: on the second turn all are known. */
            bool late = RP_MAX(left->rank, right->rank) > i;
            if (!left->len || !right->len || late != (turn > 0) ||
                !keeps_boundary(tok, rule->left, rule->right, true))
                continue;
            struct rp_tok_unit *unit = &all[rule->merged];
            size_t len = (size_t)left->len + right->len;
            if (late) {
                *irregular = true;
                continue;
            }
            if (unit->len || len > RP_TOK_UNIT_LEN_MAX)
                return false;
            *unit = (struct rp_tok_unit){.left = rule->left,
                                         .right = rule->right,
                                         .rank = i + 1,
                                         .shorter = -1,
                                         .len = (uint16_t)len,
                                         .extends_left = unit->extends_left,
                                         .extends_right = unit->extends_right};
        }
    }
    return true;
}

/* Finds the units that the order does not lead to, by merging the text of each token. */
static bool find_irregular(struct rp_tokenizer *tok, const struct rp_tok_rule *rules,
                           uint32_t count) {
    int32_t ids[RP_TOK_MERGE_FEW];
    for (uint32_t i = 0; i < count; i++) {
        int32_t id = rules[i].merged;
        if (id < 0 || !(tok->entries[id].flags & RP_TOK_HAS_PIECE))
            continue;
        struct rp_tok_slice piece = tok->entries[id].piece;
        if (piece.len > RP_TOK_UNIT_LEN_MAX)
            return false;
        size_t symbols = rp_tok_symbol_count(tok, rp_tok_ptr(tok, piece), piece.len);
        if (symbols > RP_TOK_IRREGULAR_MAX)
            return false;
        struct rp_tok_unit *unit = &tok->units.all[id];
        if (unit->len)
            continue;
        symbols = rp_tok_symbols(tok, ids, rp_tok_ptr(tok, piece), piece.len);
        if (rp_tok_merge_few(tok, ids, symbols) != 1 || ids[0] != id)
            continue;
        unit->len = (uint16_t)piece.len;
        unit->irregular = true;
    }
    return true;
}

int rp_tok_units_build(struct rp_tok_load *load, const struct rp_tok_rule *rules, uint32_t count) {
    struct rp_tokenizer *tok = load->tok;
    bool irregular = false;
    tok->units.all = rp_arena_calloc(&tok->arena, tok->id_limit, sizeof *tok->units.all);
    if (!tok->units.all)
        return rp_tok_no_memory(load);
    set_symbols(tok);
    if (!derive(tok, rules, count, &irregular) ||
        (irregular && !find_irregular(tok, rules, count))) {
        tok->units.all = NULL; /* its memory goes with the arena */
        return RP_OK;
    }
    return rp_tok_nodes_build(load);
}

/* The longest unit that the text begins with, or -1. */
static inline int32_t longest(const struct rp_tok_units *units, const char *text, size_t len) {
    const struct rp_tok_node *nodes = units->nodes;
    uint32_t base = nodes[RP_TOK_NODE_ROOT].link >> 9;
    int32_t unit = -1;
    for (size_t i = 0; i < len; i++) {
        uint32_t byte = (unsigned char)text[i];
        const struct rp_tok_node *node = &nodes[base ^ byte];
        if ((node->link & 511) != byte)
            break;
        base = node->link >> 9;
        if (node->unit >= 0) {
            unit = node->unit;
        } else if (node->unit < -1) {
            const uint8_t *tail = units->tails + base;
            size_t left = len - i - 1, same = 0;
            while (same < tail[0] && same < left && tail[1 + same] == (uint8_t)text[i + 1 + same])
                same++;
            return same == tail[0] ? -2 - node->unit : unit;
        }
    }
    return unit;
}

static inline bool bit(const uint64_t *bits, size_t at) { return bits[at / 64] >> (at % 64) & 1; }

/* Judged once: the same pairs come again and again. */
static inline bool fit_together(struct rp_tokenizer_scratch *s, int32_t x, int32_t y) {
    const struct rp_tok_unit *all = s->tok->units.all;
    /* The top bit tells it from an empty entry, the lowest one is the answer. */
    uint64_t key = (uint64_t)1 << 63 | (uint64_t)(uint32_t)x << 25 | (uint64_t)(uint32_t)y << 1;
    uint64_t *entry = &s->pairs[(key * 0x9E3779B97F4A7C15u) >> (64 - RP_TOK_PAIR_BITS)];
    if (RP_LIKELY((*entry & ~(uint64_t)1) == key))
        return *entry & 1;
    bool fits = all[x].irregular || all[y].irregular ? stay_apart(s->tok, x, y)
                                                     : keeps_boundary(s->tok, x, y, false);
    *entry = key | fits;
    return fits;
}

size_t rp_tok_units_encode(struct rp_tokenizer_scratch *s, const char *text, size_t len,
                           uint64_t *dead, int32_t *out, size_t *end) {
    const struct rp_tok_unit *all = s->tok->units.all;
    const struct rp_tok_units *units = &s->tok->units;
    size_t pos = 0, count = 0;
    int32_t unit = longest(units, text, len);
    while (unit >= 0) {
        size_t next = pos + all[unit].len;
        s->work++;
        if (!bit(dead, next) && (count == 0 || fit_together(s, out[count - 1], unit))) {
            out[count++] = unit;
            pos = next;
            unit = longest(units, text + pos, len - pos);
            continue;
        }
        unit = all[unit].shorter;
        while (unit < 0 && count > 0) {
            dead[pos / 64] |= (uint64_t)1 << (pos % 64);
            unit = out[--count];
            pos -= all[unit].len;
            unit = all[unit].shorter;
        }
    }
    *end = pos;
    return count;
}
