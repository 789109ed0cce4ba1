/* grammar_cache.c - compiled grammars by their source, shared by the requests that use them. */
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "server/api/grammar_service_internal.h"
#include "text/tokenizer/tokenizer.h"

#include <jansson.h>
#include <string.h>

/* --- The model's tokens ---------------------------------------------------------------------- */

static int make_trie(struct rp_grammar_service *service) {
    const struct rp_grammar_config *config = &service->config;
    struct rp_trie_token *tokens = rp_calloc(config->vocab_size, sizeof *tokens);
    uint32_t ends[RP_STOP_IDS_MAX];
    uint64_t begin_ns = rp_clock_ns();
    struct rp_error err;
    if (!tokens)
        return RP_STATUS_NO_MEMORY;
    for (uint32_t i = 0; i < config->vocab_size; i++) {
        struct rp_token_bytes token = rp_tokenizer_token(config->tokenizer, (int32_t)i);
        if (token.known)
            tokens[i] = (struct rp_trie_token){
                .bytes = token.bytes, .len = token.len, .special = token.special};
    }
    for (uint32_t i = 0; i < config->end_count; i++)
        ends[i] = (uint32_t)config->end_ids[i];
    int status = rp_token_trie_make(tokens, config->vocab_size, config->vocab_size, ends,
                                    config->end_count, &service->trie, &err);
    rp_free(tokens);
    if (status == RP_OK)
        rp_log(RP_LOG_INFO, "grammar: a trie of %u tokens, %.1f MiB, in %.0f ms",
               config->vocab_size, (double)rp_token_trie_memory(service->trie) / 1048576,
               (double)(rp_clock_ns() - begin_ns) / 1e6);
    else
        rp_log(RP_LOG_ERROR, "grammar: no trie of the tokens: %s", err.text);
    return status;
}

/* The first compile makes it. */
static const struct rp_token_trie *get_trie(struct rp_grammar_service *service) {
    pthread_mutex_lock(&service->trie_lock);
    if (!service->trie && make_trie(service) != RP_OK)
        service->trie = NULL;
    const struct rp_token_trie *trie = service->trie;
    pthread_mutex_unlock(&service->trie_lock);
    return trie;
}

/* --- Compiling ------------------------------------------------------------------------------- */

static int compile_choice(const struct rp_grammar_spec *spec, struct rp_grammar **out,
                          struct rp_error *err) {
    json_t *list = json_loadb(spec->source, spec->len, 0, NULL);
    size_t count = json_array_size(list), i;
    const char **texts = rp_calloc(count, sizeof *texts);
    json_t *item;
    int status = RP_STATUS_NO_MEMORY;
    if (texts) {
        json_array_foreach(list, i, item) texts[i] = json_string_value(item);
        status = rp_grammar_compile_choice(texts, count, NULL, out, err);
    }
    rp_free(texts);
    json_decref(list);
    return status;
}

static int compile(const struct rp_grammar_spec *spec, const struct rp_token_trie *trie,
                   struct rp_grammar **out, struct rp_error *err) {
    const struct rp_grammar_limits limits = {.trie = trie};
    switch (spec->kind) {
    case RP_GRAMMAR_JSON_OBJECT:
        return rp_grammar_compile_json_object(NULL, out, err);
    case RP_GRAMMAR_JSON_SCHEMA:
        return rp_grammar_compile_json_schema(spec->source, spec->len, NULL, out, err);
    case RP_GRAMMAR_REGEX:
        return rp_grammar_compile_regex(spec->source, spec->len, NULL, out, err);
    case RP_GRAMMAR_CHOICE:
        return compile_choice(spec, out, err);
    case RP_GRAMMAR_STRUCTURAL_TAG:
        return rp_grammar_compile_structural_tag(spec->source, spec->len, &limits, out, err);
    case RP_GRAMMAR_GBNF:
        return rp_grammar_compile_gbnf(spec->source, spec->len, &limits, out, err);
    case RP_GRAMMAR_LARK:
        return rp_grammar_compile_lark(spec->source, spec->len, &limits, out, err);
    case RP_GRAMMAR_NONE:
        break;
    }
    return RP_STATUS_INVALID;
}

static struct rp_matcher *make_matcher(struct rp_grammar_service *service,
                                       const struct rp_grammar_spec *spec,
                                       struct rp_http_error *error) {
    const struct rp_token_trie *trie = get_trie(service);
    struct rp_grammar *grammar = NULL;
    struct rp_matcher *matcher = NULL;
    struct rp_error err = {.text = ""};
    int status = trie ? compile(spec, trie, &grammar, &err) : RP_STATUS_NO_MEMORY;
    if (status == RP_OK)
        status = rp_matcher_make(grammar, trie, 0, &matcher);
    if (status == RP_OK)
        return matcher;
    if (status == RP_STATUS_NO_MEMORY) {
        rp_http_error_set(error, 503, NULL, "overloaded", "out of memory");
        return NULL;
    }
    pthread_mutex_lock(&service->lock);
    rp_counter_add(&service->metrics.refused, 1);
    pthread_mutex_unlock(&service->lock);
    if (status == RP_STATUS_FULL)
        rp_http_error_set(error, 400, spec->field, "grammar_too_complex",
                          "%s is too complex: %.300s", spec->field,
                          err.text[0] ? err.text : "it needs too much work or memory");
    else
        rp_http_error_set(error, 400, spec->field, "invalid_grammar",
                          "%s cannot be enforced: %.300s", spec->field, err.text);
    return NULL;
}

/* --- The cache ------------------------------------------------------------------------------- */

static void unlink_entry(struct rp_grammar_service *service, struct rp_grammar_entry **at) {
    struct rp_grammar_entry *entry = *at;
    *at = entry->next;
    rp_matcher_free(entry->matcher);
    rp_free(entry->source);
    rp_free(entry);
    service->entry_count--;
}

/* Under the lock: frees the least recently used entries without users until the idle ones are
 * within their bound. *out_live: bytes of entries in use. */
static void trim(struct rp_grammar_service *service, size_t *out_live) {
    for (;;) {
        struct rp_grammar_entry **oldest = NULL;
        size_t idle = 0, live = 0;
        for (struct rp_grammar_entry **at = &service->entries; *at; at = &(*at)->next) {
            size_t bytes = rp_matcher_memory((*at)->matcher);
            *((*at)->users ? &live : &idle) += bytes;
            if (!(*at)->users && (!oldest || (*at)->used_at < (*oldest)->used_at))
                oldest = at;
        }
        *out_live = live;
        if (!oldest || (idle <= RP_GRAMMAR_IDLE_BYTES && service->entry_count <= RP_GRAMMARS_MAX))
            return;
        unlink_entry(service, oldest);
    }
}

static struct rp_grammar_entry *find(struct rp_grammar_service *service, uint64_t hash,
                                     const struct rp_grammar_spec *spec) {
    for (struct rp_grammar_entry *entry = service->entries; entry; entry = entry->next)
        if (entry->hash == hash && entry->kind == spec->kind && entry->len == spec->len &&
            (spec->len == 0 || memcmp(entry->source, spec->source, spec->len) == 0))
            return entry;
    return NULL;
}

static struct rp_grammar_entry *use(struct rp_grammar_service *service,
                                    struct rp_grammar_entry *entry) {
    entry->users++;
    entry->used_at = ++service->uses;
    return entry;
}

/* Takes the matcher over. Two threads may have compiled the same grammar: the first one's stays. */
static struct rp_grammar_entry *insert(struct rp_grammar_service *service, uint64_t hash,
                                       const struct rp_grammar_spec *spec,
                                       struct rp_matcher *matcher, struct rp_http_error *error) {
    struct rp_grammar_entry *entry = rp_calloc(1, sizeof *entry);
    char *source = spec->len ? rp_alloc(spec->len) : NULL;
    size_t live;
    if (entry && (source || !spec->len)) {
        *entry = (struct rp_grammar_entry){.matcher = matcher,
                                           .hash = hash,
                                           .kind = spec->kind,
                                           .source = source,
                                           .len = spec->len,
                                           .serial = ++service->serials,
                                           .next = service->entries};
        if (spec->len)
            memcpy(source, spec->source, spec->len);
        service->entries = entry;
        service->entry_count++;
        use(service, entry);
        trim(service, &live);
        if (live <= RP_GRAMMAR_LIVE_BYTES)
            return entry;
        rp_http_error_set(error, 503, spec->field, "overloaded",
                          "the grammars in use need too much memory, try again later");
        entry->users = 0;
        unlink_entry(service, &service->entries);
        return NULL;
    }
    rp_free(entry);
    rp_free(source);
    rp_matcher_free(matcher);
    rp_http_error_set(error, 503, NULL, "overloaded", "out of memory");
    return NULL;
}

struct rp_grammar_entry *rp_grammar_compile(struct rp_grammar_service *service,
                                            const struct rp_grammar_spec *spec,
                                            struct rp_http_error *error) {
    uint64_t hash = rp_hash64(spec->source, spec->len, (uint64_t)spec->kind);
    uint64_t begin_ns = rp_clock_ns();
    pthread_mutex_lock(&service->lock);
    struct rp_grammar_entry *entry = find(service, hash, spec);
    if (entry)
        use(service, entry);
    rp_counter_add(entry ? &service->metrics.cache_hits : &service->metrics.cache_misses, 1);
    pthread_mutex_unlock(&service->lock);
    if (entry)
        return entry;
    struct rp_matcher *matcher = make_matcher(service, spec, error);
    if (!matcher)
        return NULL;
    pthread_mutex_lock(&service->lock);
    rp_histogram_observe(&service->metrics.compile, (double)(rp_clock_ns() - begin_ns) / 1e9);
    entry = find(service, hash, spec);
    if (entry) {
        rp_matcher_free(matcher);
        use(service, entry);
    } else {
        entry = insert(service, hash, spec, matcher, error);
    }
    pthread_mutex_unlock(&service->lock);
    return entry;
}

void rp_grammar_entry_release(struct rp_grammar_service *service, struct rp_grammar_entry *entry) {
    size_t live;
    if (!entry)
        return;
    pthread_mutex_lock(&service->lock);
    entry->users--;
    trim(service, &live);
    pthread_mutex_unlock(&service->lock);
}

void rp_grammar_cache_clear(struct rp_grammar_service *service) {
    while (service->entries) {
        RP_ASSERT(service->entries->users == 0);
        unlink_entry(service, &service->entries);
    }
    rp_token_trie_free(service->trie);
}
