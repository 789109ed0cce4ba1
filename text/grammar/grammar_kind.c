/* grammar_kind.c - kinds of characters.
 * Most expressions of patterns come back to themselves after a letter, so a walk need not look at a
 * subtree of the trie whose tokens have only such characters. */
#include "text/grammar/grammar_internal.h"
#include "text/grammar/grammar_trie.h"

#include "base/memory.h"

#include <string.h>

/* By bit: characters of ASCII. Bits 11, 12 and 31 are KIND_WIDE, KIND_OTHER and KIND_GAPS. */
static const char *const kinds[32] = {"abcdef",     "ghijklmnopqrstuvwxyz",
                                      "ABCDEF",     "GHIJKLMNOPQRSTUVWXYZ",
                                      "0123456789", "_",
                                      "-",          ".",
                                      "/",          ":",
                                      " ",          "",
                                      "",           "!",
                                      "#",          "$",
                                      "%",          "&",
                                      "'",          "()",
                                      "*",          "+",
                                      ",",          ";",
                                      "<>",         "=",
                                      "?",          "@",
                                      "[]",         "^`|~",
                                      "{}",         ""};

/* ---- Tokens ------------------------------------------------------------ */

static void make_table(uint32_t table[256]) {
    for (int byte = 0; byte < 256; byte++)
        table[byte] = KIND_OTHER;
    for (int kind = 0; kind < 32; kind++)
        for (const char *at = kinds[kind]; *at; at++)
            table[(uint8_t)*at] = 1u << kind;
}

/* Where a character is in UTF-8: place as in utf8_step(), or -1; its first byte, where the second
 * follows. */
struct spot {
    int place;
    uint8_t lead;
};

/* Characters that begin so: NBSP, U+1680, U+2000 to U+207F, U+3000 to U+303F, U+FEFF. */
static bool has_gaps(uint8_t lead, uint8_t second) {
    return lead == 0xC2 || (lead == 0xE1 && second == 0x9A) ||
           (lead == 0xE2 && (second == 0x80 || second == 0x81)) ||
           (lead == 0xE3 && second == 0x80) || (lead == 0xEF && second == 0xBB);
}

static uint32_t kind_of(const uint32_t *table, struct spot *at, uint8_t byte) {
    if (at->place == 0 && byte < 0x80)
        return table[byte];
    uint8_t lead = at->place == 0 ? 0 : at->lead;
    at->lead = at->place == 0 ? byte : 0;
    if (at->place >= 0)
        at->place = utf8_step((uint32_t)at->place, byte);
    if (at->place < 0)
        return KIND_OTHER;
    return has_gaps(lead ? lead : byte, byte) ? KIND_GAPS : KIND_WIDE;
}

/* The kinds of each node's byte, and whether a character begins there. */
static void mark_nodes(struct trie_part *part, const uint32_t *table) {
    struct {
        uint32_t end;
        struct spot at;
    } stack[TRIE_DEPTH_MAX + 1] = {{part->count, {0, 0}}};
    uint32_t depth = 0, used = 0;
    part->kinds[0] = KIND_OTHER;
    part->chars[0] = UINT16_MAX;
    part->first[0] = 0;
    for (uint32_t i = 1; i < part->count; i++) {
        while (i >= stack[depth].end)
            depth--;
        struct trie_node n = part->nodes[i];
        struct spot at = stack[depth].at;
        part->chars[i] = at.place == 0;
        part->kinds[i] = kind_of(table, &at, trie_byte(n));
        part->first[i] = used;
        if (n.token != TRIE_NO_TOKEN)
            part->order[used++] = n.token;
        depth++;
        stack[depth].end = i + trie_size(n);
        stack[depth].at = at;
    }
    part->first[part->count] = used;
}

int trie_make_kinds(struct rp_token_trie *trie) {
    struct trie_part *part = &trie->all;
    const uint32_t *table = trie->byte_kinds;
    part->kinds = rp_alloc(part->count * sizeof *part->kinds);
    part->first = rp_alloc((part->count + 1) * sizeof *part->first);
    part->order = rp_alloc(trie->token_count * sizeof *part->order);
    part->chars = rp_alloc(part->count * sizeof *part->chars);
    trie->token_kinds = rp_alloc(32 * (size_t)trie->words * sizeof *trie->token_kinds);
    trie->bytes += (size_t)part->count * 10 + (trie->token_count + 32 * (size_t)trie->words) * 4;
    if (!part->kinds || !part->first || !part->order || !part->chars || !trie->token_kinds)
        return RP_STATUS_NO_MEMORY;
    make_table(trie->byte_kinds);
    mark_nodes(part, table);
    for (uint32_t i = part->count; i-- > 1;) {
        uint32_t most = 0, end = i + trie_size(part->nodes[i]);
        for (uint32_t k = i + 1; k < end; k += trie_size(part->nodes[k])) {
            part->kinds[i] |= part->kinds[k];
            most = RP_MAX(most, part->chars[k]);
        }
        part->chars[i] = (uint16_t)(part->chars[i] + most);
    }
    for (uint32_t id = 0; id < 32 * trie->words; id++) {
        const struct rp_trie_token *t = id < trie->token_count ? &trie->tokens[id] : NULL;
        struct spot at = {0, 0};
        trie->token_kinds[id] = t && t->len > 0 ? 0 : KIND_OTHER;
        for (uint32_t k = 0; t && k < t->len; k++)
            trie->token_kinds[id] |= kind_of(table, &at, (uint8_t)t->bytes[k]);
    }
    return RP_OK;
}

/* ---- Expressions ------------------------------------------------------------ */

/* low..high and `left` - 1 bytes more lead from `at` to `id`. */
static bool rest_loops(struct rp_grammar *g, uint32_t id, uint32_t at, int left, uint32_t low,
                       uint32_t high) {
    uint32_t before = NODE_NONE;
    for (uint32_t byte = low; byte <= high; byte++) {
        uint32_t to = rx_delta(g, at, (uint8_t)byte);
        if (to == NODE_NONE || (left == 1 && to != id))
            return false;
        if (left > 1 && to != before && !rest_loops(g, id, to, left - 1, 0x80, 0xBF))
            return false;
        before = to;
    }
    return true;
}

/* KIND_WIDE and KIND_GAPS. */
static uint32_t wide_loops(struct rp_grammar *g, uint32_t id) {
    static const struct {
        uint8_t first, last, low, high;
    } leads[] = {{0xC2, 0xDF, 0x80, 0xBF}, {0xE0, 0xE0, 0xA0, 0xBF}, {0xE1, 0xEC, 0x80, 0xBF},
                 {0xED, 0xED, 0x80, 0x9F}, {0xEE, 0xEF, 0x80, 0xBF}, {0xF0, 0xF0, 0x90, 0xBF},
                 {0xF1, 0xF3, 0x80, 0xBF}, {0xF4, 0xF4, 0x80, 0x8F}};
    uint32_t out = KIND_WIDE | KIND_GAPS;
    for (size_t i = 0; i < RP_ARRAY_COUNT(leads) && out & KIND_WIDE; i++)
        for (uint32_t lead = leads[i].first; lead <= leads[i].last && out & KIND_WIDE; lead++) {
            int left = lead < 0xE0 ? 0 : lead < 0xF0 ? 1 : 2; /* after the second byte */
            uint32_t at = rx_delta(g, id, (uint8_t)lead), before = NODE_NONE;
            for (uint32_t byte = leads[i].low; byte <= leads[i].high; byte++) {
                uint32_t kind = has_gaps((uint8_t)lead, (uint8_t)byte) ? KIND_GAPS : KIND_WIDE;
                uint32_t to = at == NODE_NONE ? at : rx_delta(g, at, (uint8_t)byte);
                bool fits = to != NODE_NONE &&
                            (left == 0 ? to == id
                                       : to == before || rest_loops(g, id, to, left, 0x80, 0xBF));
                before = fits ? to : NODE_NONE;
                out &= fits ? ~0u : ~kind;
            }
        }
    return out & KIND_WIDE ? out : 0;
}

uint32_t rx_loops(struct rp_grammar *g, uint32_t id) {
    static const char frequent[] = "eE0";
    uint64_t charges = g->charges;
    uint32_t row = g->nodes.at[id].row, out = 0;
    if (g->nodes.at[id].flags & NODE_MIXED) /* each byte may need a search */
        return 0;
    if (row && g->rows.at[row - 1][ROW_SIZE - 1] != ROW_UNKNOWN)
        return g->rows.at[row - 1][ROW_SIZE - 1];
    const char *some = frequent;
    while (*some && rx_delta(g, id, (uint8_t)*some) != id)
        some++;
    for (int kind = 0; kind < 32 && *some; kind++) {
        const char *at = kinds[kind];
        while (*at && rx_delta(g, id, (uint8_t)*at) == id)
            at++;
        out |= at > kinds[kind] && !*at ? 1u << kind : 0;
    }
    if (*some)
        out |= wide_loops(g, id);
    row = g->nodes.at[id].row;
    if (row && g->status == RP_OK && g->charges == charges) /* else its searches count again */
        g->rows.at[row - 1][ROW_SIZE - 1] = out;
    return g->status == RP_OK ? out : 0;
}
