/* grammar_trie.c - makes the trie of a vocabulary. */
#include "text/grammar/grammar_trie.h"

#include "base/memory.h"
#include "base/utf8.h"
#include "text/grammar/grammar_internal.h"

#include <stdlib.h>
#include <string.h>

static int compare_tokens(const void *a, const void *b, const struct rp_trie_token *tokens) {
    const struct rp_trie_token *x = &tokens[*(const uint32_t *)a],
                               *y = &tokens[*(const uint32_t *)b];
    int order = memcmp(x->bytes, y->bytes, RP_MIN(x->len, y->len));
    if (order != 0)
        return order;
    return x->len != y->len ? (x->len > y->len) - (x->len < y->len)
                            : (*(const uint32_t *)a > *(const uint32_t *)b) -
                                  (*(const uint32_t *)a < *(const uint32_t *)b);
}

/* Merge sort: qsort has no argument for the tokens. */
static void sort_ids(uint32_t *ids, uint32_t *spare, size_t count,
                     const struct rp_trie_token *tokens) {
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t begin = 0; begin < count; begin += 2 * width) {
            size_t middle = RP_MIN(begin + width, count), end = RP_MIN(begin + 2 * width, count);
            size_t i = begin, k = middle;
            for (size_t to = begin; to < end; to++) {
                bool left =
                    i < middle && (k >= end || compare_tokens(&ids[i], &ids[k], tokens) <= 0);
                spare[to] = left ? ids[i++] : ids[k++];
            }
        }
        memcpy(ids, spare, count * sizeof *ids);
    }
}

/* Sorted tokens to nodes. */
static int build(struct rp_token_trie *trie, struct trie_part *part, const uint32_t *ids,
                 size_t count) {
    uint32_t path[TRIE_DEPTH_MAX + 1] = {0};
    size_t capacity = 1024, depth = 0;
    const struct rp_trie_token *before = NULL;
    uint32_t before_id = 0;
    part->nodes = rp_alloc(capacity * sizeof *part->nodes);
    if (!part->nodes)
        return RP_STATUS_NO_MEMORY;
    part->nodes[0] = (struct trie_node){TRIE_NO_TOKEN, 0};
    part->count = 1;
    for (size_t i = 0; i < count; i++) {
        const struct rp_trie_token *t = &trie->tokens[ids[i]];
        size_t common = 0;
        while (before && common < before->len && common < t->len &&
               before->bytes[common] == t->bytes[common])
            common++;
        if (before && common == t->len && common == before->len) {
            trie->twins[before_id] = ids[i];
            before_id = ids[i];
            part->nodes[path[depth]].token |= TRIE_TWIN;
            continue;
        }
        for (; depth > common; depth--)
            part->nodes[path[depth]].size_byte |= (part->count - path[depth]) << 8;
        if (part->count + t->len > capacity) {
            capacity = 2 * (part->count + t->len);
            struct trie_node *nodes = rp_realloc(part->nodes, capacity * sizeof *nodes);
            if (!nodes)
                return RP_STATUS_NO_MEMORY;
            part->nodes = nodes;
        }
        for (; depth < t->len;) {
            uint8_t byte = (uint8_t)t->bytes[depth++];
            path[depth] = part->count;
            part->nodes[part->count++] = (struct trie_node){TRIE_NO_TOKEN, byte};
        }
        part->nodes[path[depth]].token = ids[i];
        before = t;
        before_id = ids[i];
    }
    for (; depth > 0; depth--)
        part->nodes[path[depth]].size_byte |= (part->count - path[depth]) << 8;
    part->nodes[0].size_byte = part->count << 8;
    trie->bytes += capacity * sizeof *part->nodes;
    for (uint32_t i = 1; i < part->count; i += trie_size(part->nodes[i])) {
        part->root_bytes[part->root_count] = trie_byte(part->nodes[i]);
        part->roots[part->root_count++] = i;
    }
    part->roots[part->root_count] = part->count;
    return part->count < 1u << 24 ? RP_OK : RP_STATUS_RANGE;
}

/* Characters of a clean token, or 0. */
static uint32_t clean_chars(const struct rp_trie_token *t) {
    uint32_t count = 0;
    for (size_t i = 0; i < t->len; count++) {
        unsigned char c = (unsigned char)t->bytes[i];
        uint32_t code;
        int n = rp_utf8_decode(t->bytes + i, t->len - i, &code);
        if (n <= 0 || c < 0x20 || c == '"' || c == '\\' || code == 0x2028 || code == 0x2029)
            return 0;
        i += (size_t)n;
    }
    return count;
}

static uint32_t *new_mask(struct rp_token_trie *trie) {
    trie->bytes += trie->words * sizeof(uint32_t);
    return rp_calloc(trie->words, sizeof(uint32_t));
}

/* Slices, and the sorted ids of all other tokens, which stay in `ids`. */
static int make_slices(struct rp_token_trie *trie, uint32_t *ids, size_t *count) {
    for (int i = 0; i <= CLEAN_MAX; i++)
        if (!(trie->slices[i] = new_mask(trie)))
            return RP_STATUS_NO_MEMORY;
    size_t used = 0;
    for (size_t i = 0; i < *count; i++) {
        uint32_t id = ids[i], chars = clean_chars(&trie->tokens[id]);
        for (uint32_t k = chars; k > 0 && k <= CLEAN_MAX; k++)
            trie->slices[k][id / 32] |= 1u << id % 32;
        trie->chars_max = RP_MAX(trie->chars_max, chars ? chars : trie->tokens[id].len);
        if (chars == 0 || chars > CLEAN_MAX)
            ids[used++] = id;
    }
    *count = used;
    return RP_OK;
}

/* Inside and exits, by a grammar of nothing but strings. */
static int make_inside(struct rp_token_trie *trie) {
    struct {
        uint32_t end, rx, chars;
    } stack[TRIE_DEPTH_MAX + 1];
    struct rp_grammar *g = grammar_create(NULL);
    trie->inside = new_mask(trie);
    trie->exits = rp_alloc(trie->rest.count * sizeof *trie->exits);
    trie->bytes += trie->rest.count * sizeof *trie->exits;
    if (!g || !trie->inside || !trie->exits) {
        rp_grammar_free(g);
        return RP_STATUS_NO_MEMORY;
    }
    memcpy(trie->inside, trie->slices[CLEAN_MAX], trie->words * sizeof(uint32_t));
    size_t depth = 0;
    stack[0].end = trie->rest.count;
    stack[0].rx = NODE_EPS;
    stack[0].chars = 0;
    for (uint32_t i = 1; i < trie->rest.count; i++) {
        while (i >= stack[depth].end)
            depth--;
        struct trie_node n = trie->rest.nodes[i];
        bool start = stack[depth].rx == NODE_EPS;
        if (start && trie_byte(n) == '"') {
            uint32_t below = i; /* the first token of the subtree */
            while (trie->rest.nodes[below].token == TRIE_NO_TOKEN)
                below++;
            trie->exits[trie->exit_count++] = (struct trie_exit){
                i, stack[depth].chars, trie->rest.nodes[below].token & ~TRIE_TWIN, (uint32_t)depth};
            i += trie_size(n) - 1;
            continue;
        }
        uint32_t rx = rx_delta(g, start ? g->json_char : stack[depth].rx, trie_byte(n));
        if (rx == NODE_NONE) {
            i += trie_size(n) - 1;
            continue;
        }
        if (n.token != TRIE_NO_TOKEN)
            mask_set(trie, trie->inside, n.token);
        uint32_t chars = stack[depth].chars + start;
        depth++;
        stack[depth].end = i + trie_size(n);
        stack[depth].rx = rx;
        stack[depth].chars = chars;
    }
    int rc = g->status;
    rp_grammar_free(g);
    return rc;
}

/* Bytes of a token in the trie; 0: it is never allowed. Text has no SPECIAL_MARK. */
static uint32_t length_in_trie(const struct rp_trie_token *t) {
    if (t->len == 0 || t->len > TRIE_DEPTH_MAX)
        return 0;
    if (t->special)
        return SPECIAL_BYTES;
    return memchr(t->bytes, SPECIAL_MARK, t->len) ? 0 : t->len;
}

static bool in_class(const struct rp_trie_token *t, int name) {
    uint32_t k = 0, chars = clean_chars(t);
    if (name == TRIE_SOLID)
        return chars > 0 && chars <= CLEAN_MAX && !memchr(t->bytes, ' ', t->len);
    while (k < t->len && trie_class_has(name, (uint8_t)t->bytes[k]))
        k++;
    return k == t->len && k <= CLEAN_MAX;
}

static int make_classes(struct rp_token_trie *trie, const uint32_t *sorted, size_t count) {
    uint32_t *others = rp_alloc(count * sizeof *others);
    int rc = others ? RP_OK : RP_STATUS_NO_MEMORY;
    for (int name = 0; name < TRIE_CLASSES && rc == RP_OK; name++) {
        struct trie_class *class = &trie->classes[name];
        size_t used = 0;
        if (!(class->mask = new_mask(trie))) {
            rc = RP_STATUS_NO_MEMORY;
            break;
        }
        for (size_t i = 0; i < count; i++) {
            const struct rp_trie_token *t = &trie->tokens[sorted[i]];
            if (in_class(t, name))
                class->mask[sorted[i] / 32] |= 1u << sorted[i] % 32;
            else
                others[used++] = sorted[i];
        }
        rc = build(trie, &class->rest, others, used);
    }
    rp_free(others);
    return rc;
}

static int copy_tokens(struct rp_token_trie *trie, const struct rp_trie_token *tokens) {
    size_t bytes = 0, at = 0;
    for (uint32_t i = 0; i < trie->token_count; i++)
        bytes += length_in_trie(&tokens[i]);
    trie->tokens = rp_calloc(trie->token_count, sizeof *trie->tokens);
    trie->twins = rp_alloc(trie->token_count * sizeof *trie->twins);
    trie->text = rp_alloc(bytes);
    trie->bytes += bytes + trie->token_count * (sizeof *trie->tokens + sizeof *trie->twins);
    if (!trie->tokens || !trie->twins || !trie->text)
        return RP_STATUS_NO_MEMORY;
    for (uint32_t i = 0; i < trie->token_count; i++) {
        uint32_t len = length_in_trie(&tokens[i]);
        trie->twins[i] = TRIE_NO_TOKEN;
        if (len == 0)
            continue;
        if (tokens[i].special)
            trie_special_code(i, trie->text + at);
        else
            memcpy(trie->text + at, tokens[i].bytes, len);
        trie->tokens[i] = (struct rp_trie_token){trie->text + at, len, tokens[i].special};
        at += len;
    }
    return trie_make_specials(trie, tokens);
}

static int fill(struct rp_token_trie *trie, const struct rp_trie_token *tokens) {
    int rc = copy_tokens(trie, tokens);
    uint32_t *ids = rp_alloc((size_t)trie->token_count * 2 * sizeof *ids);
    if (rc != RP_OK || !ids) {
        rp_free(ids);
        return RP_STATUS_NO_MEMORY;
    }
    size_t count = 0;
    for (uint32_t i = 0; i < trie->token_count; i++)
        if (trie->tokens[i].len > 0)
            ids[count++] = i;
    sort_ids(ids, ids + trie->token_count, count, trie->tokens);
    rc = build(trie, &trie->all, ids, count);
    if (rc == RP_OK)
        rc = trie_make_kinds(trie);
    if (rc == RP_OK)
        rc = make_classes(trie, ids, count);
    if (rc == RP_OK)
        rc = make_slices(trie, ids, &count);
    if (rc == RP_OK)
        rc = build(trie, &trie->rest, ids, count);
    if (rc == RP_OK)
        rc = make_inside(trie);
    if (rc == RP_OK)
        rc = trie_make_text(trie);
    rp_free(ids);
    return rc;
}

int rp_token_trie_make(const struct rp_trie_token *tokens, uint32_t count, uint32_t width,
                       const uint32_t *end_ids, uint32_t end_count, struct rp_token_trie **out,
                       struct rp_error *err) {
    *out = NULL;
    if (width < count || width > 1u << 24)
        return rp_error_set(err, RP_STATUS_RANGE, "a mask of %u bits for %u tokens", width, count);
    for (uint32_t i = 0; i < end_count; i++)
        if (end_ids[i] >= count)
            return rp_error_set(err, RP_STATUS_RANGE, "end id %u of %u tokens", end_ids[i], count);
    struct rp_token_trie *trie = rp_calloc(1, sizeof *trie);
    if (!trie)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory for a token trie");
    trie->token_count = count;
    trie->width = width;
    trie->words = (width + 31) / 32;
    trie->bytes = sizeof *trie;
    trie->end_ids = rp_alloc(end_count * sizeof *end_ids);
    int rc = trie->end_ids ? fill(trie, tokens) : RP_STATUS_NO_MEMORY;
    if (rc != RP_OK) {
        rp_token_trie_free(trie);
        return rp_error_set(err, rc, "the token trie: %s", rp_status_text(rc));
    }
    if (end_count > 0)
        memcpy(trie->end_ids, end_ids, end_count * sizeof *end_ids);
    trie->end_count = end_count;
    *out = trie;
    return RP_OK;
}

void rp_token_trie_free(struct rp_token_trie *trie) {
    if (!trie)
        return;
    rp_free(trie->all.nodes);
    rp_free(trie->all.kinds);
    rp_free(trie->all.first);
    rp_free(trie->all.order);
    rp_free(trie->all.chars);
    rp_free(trie->token_kinds);
    rp_free(trie->rest.nodes);
    for (int i = 0; i <= CLEAN_MAX; i++)
        rp_free(trie->slices[i]);
    rp_free(trie->inside);
    rp_free(trie->exits);
    rp_free(trie->end_ids);
    rp_free(trie->twins);
    rp_free(trie->tokens);
    rp_free(trie->text);
    for (int i = 0; i < TRIE_CLASSES; i++) {
        rp_free(trie->classes[i].mask);
        rp_free(trie->classes[i].rest.nodes);
    }
    rp_free(trie->text_mask);
    rp_free(trie->having);
    rp_free(trie->specials);
    rp_free(trie->special_text);
    rp_free(trie);
}

size_t rp_token_trie_memory(const struct rp_token_trie *trie) { return trie->bytes; }
