/* grammar_service_internal.h - shared by grammar_cache.c and grammar_row.c. */
#ifndef RP_SERVER_GRAMMAR_SERVICE_INTERNAL_H
#define RP_SERVER_GRAMMAR_SERVICE_INTERNAL_H

#include "base/clock.h"
#include "server/api/grammar_service.h"
#include "text/grammar/grammar.h"

#include <pthread.h>

enum { RP_GRAMMARS_MAX = 1024, RP_GRAMMAR_THREADS_MAX = 8 };

struct rp_grammar_metrics {
    struct rp_histogram compile, mask; /* seconds */
    struct rp_counter cache_hits, cache_misses;
    struct rp_counter refused; /* schemas and patterns that cannot be enforced */
    struct rp_counter too_complex, dead_ends;
};

/* A compiled grammar. Guarded by the service's lock, but for the matcher, which has its own. */
struct rp_grammar_entry {
    struct rp_grammar_entry *next;
    struct rp_matcher *matcher;
    uint64_t hash, used_at;
    enum rp_grammar_kind kind;
    char *source;
    size_t len;
    uint32_t users;
    uint32_t serial; /* from 1 on: no other grammar of this server has it */
};

struct rp_grammar_service {
    struct rp_grammar_config config;
    pthread_mutex_t trie_lock;
    struct rp_token_trie *trie;

    pthread_mutex_t lock; /* entries and their metrics */
    struct rp_grammar_entry *entries;
    uint32_t entry_count, serials;
    uint64_t uses;

    pthread_mutex_t queue_lock; /* what follows, and the rows' queue fields */
    pthread_cond_t wake;
    struct rp_grammar_row *first; /* rows that wait for a mask, in any order */
    uint32_t queued;
    bool stopping;

    struct rp_grammar_row *handed_over; /* loop: rows until the next flush */

    pthread_t threads[RP_GRAMMAR_THREADS_MAX];
    uint32_t thread_count;
    struct rp_grammar_metrics metrics;
};

/* Frees entries and trie. */
void rp_grammar_cache_clear(struct rp_grammar_service *service);

#endif
