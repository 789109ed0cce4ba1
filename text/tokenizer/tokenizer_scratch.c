/* One thread's encoding buffers: allocated once, grown to the longest text, never shared. */
#include "text/tokenizer/tokenizer_internal.h"

#include <string.h>

struct rp_tokenizer_scratch *rp_tokenizer_scratch_create(const struct rp_tokenizer *tok) {
    struct rp_tokenizer_scratch *s = rp_calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->tok = tok;
    size_t cache_bytes = 2 * RP_TOK_CACHE_SETS * sizeof *s->cache;
    s->cache = rp_alloc_aligned(cache_bytes, RP_CACHE_LINE);
    s->pairs = rp_calloc((size_t)1 << RP_TOK_PAIR_BITS, sizeof *s->pairs);
    if (!s->cache || !s->pairs) {
        rp_tokenizer_scratch_destroy(s);
        return NULL;
    }
    memset(s->cache, 0, cache_bytes);
    return s;
}

void rp_tokenizer_scratch_destroy(struct rp_tokenizer_scratch *s) {
    if (!s)
        return;
    rp_buffer_deinit(&s->input.text);
    rp_buffer_deinit(&s->input.allow);
    for (int i = 0; i < 2; i++) {
        rp_buffer_deinit(&s->normalized[i].text);
        rp_buffer_deinit(&s->normalized[i].allow);
    }
    for (int i = 0; i < RP_TOK_STEPS_MAX; i++)
        rp_buffer_deinit(&s->step_text[i]);
    rp_free_aligned(s->cache);
    rp_free(s->pairs);
    rp_free(s->symbols);
    rp_free(s->prev);
    rp_free(s->next);
    rp_free(s->dead);
    rp_free(s->heap);
    rp_free(s->best);
    rp_free(s->unused_cuts);
    rp_buffer_deinit(&s->unmapped);
    rp_free(s->points);
    rp_free(s->points_spare);
    pcre2_match_data_free(s->match);
    pcre2_match_context_free(s->match_context);
    if (s->jit_stack)
        pcre2_jit_stack_free(s->jit_stack);
    rp_free(s);
}

size_t rp_tokenizer_scratch_memory(const struct rp_tokenizer_scratch *s) {
    size_t bytes = sizeof *s + 2 * RP_TOK_CACHE_SETS * sizeof *s->cache;
    bytes += ((size_t)1 << RP_TOK_PAIR_BITS) * sizeof *s->pairs;
    bytes += s->input.text.capacity + s->input.allow.capacity;
    for (int i = 0; i < 2; i++)
        bytes += s->normalized[i].text.capacity + s->normalized[i].allow.capacity;
    for (int i = 0; i < RP_TOK_STEPS_MAX; i++)
        bytes += s->step_text[i].capacity;
    bytes += s->symbol_capacity * sizeof *s->symbols + s->dead_capacity * sizeof *s->dead;
    bytes += s->link_capacity * (sizeof *s->prev + sizeof *s->next);
    bytes += s->heap_capacity * sizeof *s->heap;
    bytes += s->best_capacity * sizeof *s->best + s->unmapped.capacity;
    bytes += s->unused_cuts ? s->tok->id_limit * sizeof *s->unused_cuts : 0;
    bytes += s->point_capacity * (sizeof *s->points + sizeof *s->points_spare);
    return bytes;
}

size_t rp_tokenizer_memory(const struct rp_tokenizer *tok) {
    return sizeof *tok + tok->arena.used_bytes + tok->blob.capacity;
}
