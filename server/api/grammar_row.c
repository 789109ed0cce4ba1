/* grammar_row.c - masks of the answers that follow a grammar, made by threads of their own. */
#include "base/memory.h"
#include "base/threads.h"
#include "engine/engine.h"
#include "server/api/grammar_service_internal.h"

#include <string.h>

enum { BATCH = 32 }; /* rows that a mask thread takes at once */

struct made_mask {
    enum rp_grammar_row_status status;
    double seconds;
};

struct rp_grammar_row {
    struct rp_sample_hold hold;
    struct rp_grammar_service *service;
    struct rp_grammar_entry *entry;
    struct rp_request *request;  /* alive while the row is not closed */
    struct rp_grammar_row *next; /* handed over or in the queue */
    bool busy, closed;           /* handed over to mask threads; no longer used by the loop */
    _Atomic int status;          /* enum rp_grammar_row_status */
    uint32_t state;              /* before `token` */
    uint32_t index;              /* tokens of the answer so far, `token` included */
    int32_t token;               /* the last one; -1: none yet */
    /* copies of the request's fields */
    uint32_t min_tokens, stop_count;
    int32_t stop_ids[RP_STOP_IDS_MAX];
    uint32_t words;
    /* From min_tokens on its masks follow from the grammar's states alone, or from them and the end
     * ids being removed (ignore_eos): part of their keys. */
    bool shared, without_ends;
    const uint32_t *allowed; /* after the mask; NULL: all */
    uint32_t mask[];
};

static void row_free(struct rp_grammar_row *row) {
    rp_grammar_entry_release(row->service, row->entry);
    rp_free(row);
}

static void clear_bits(uint32_t *mask, const int32_t *ids, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        mask[(uint32_t)ids[i] / 32] &= ~(1u << ((uint32_t)ids[i] % 32));
}

/* Whether the request ends when the model samples this id. */
static bool ends_request(const struct rp_grammar_row *row, int32_t id) {
    for (uint32_t i = 0; i < row->stop_count; i++)
        if (row->stop_ids[i] == id)
            return true;
    return false;
}

/* How many of the model's end ids end the request. */
static uint32_t count_ends(const struct rp_grammar_row *row) {
    const struct rp_grammar_config *config = &row->service->config;
    uint32_t count = 0;
    for (uint32_t i = 0; i < config->end_count; i++)
        count += ends_request(row, config->end_ids[i]);
    return count;
}

/* The grammar's mask less what the request does not allow now; end ids that would not end the
 * request (ignore_eos) are no way to end the text. */
static enum rp_grammar_row_status settle(struct rp_grammar_row *row) {
    const struct rp_grammar_config *config = &row->service->config;
    uint32_t any = 0;
    for (uint32_t i = 0; i < config->end_count; i++)
        if (!ends_request(row, config->end_ids[i]))
            clear_bits(row->mask, &config->end_ids[i], 1);
    if (row->index < row->min_tokens)
        clear_bits(row->mask, row->stop_ids, row->stop_count);
    for (uint32_t i = 0; i < row->words; i++) {
        row->mask[i] &= row->allowed ? row->allowed[i] : UINT32_MAX;
        any |= row->mask[i];
    }
    if (any)
        return RP_GRAMMAR_ROW_OK;
    return rp_matcher_is_accepting(row->entry->matcher, row->state) ? RP_GRAMMAR_ROW_DONE
                                                                    : RP_GRAMMAR_ROW_DEAD_END;
}

static enum rp_grammar_row_status make_mask(struct rp_grammar_row *row) {
    struct rp_matcher *matcher = row->entry->matcher;
    int status = RP_OK;
    if (row->token >= 0)
        status = rp_matcher_advance(matcher, row->state, (uint32_t)row->token, &row->state);
    bool shared = row->shared && row->index >= row->min_tokens;
    uint64_t key =
        shared ? (uint64_t)row->entry->serial << 33 | (uint64_t)row->without_ends << 32 | row->state
               : 0;
    if (status == RP_OK && key && key == row->hold.key)
        return RP_GRAMMAR_ROW_OK; /* the row has these bits already, as inside a string */
    row->hold.key = key;
    if (status == RP_OK)
        status = rp_matcher_mask(matcher, row->state, row->mask, RP_MASK_FUEL);
    if (status == RP_OK)
        return settle(row);
    return status == RP_STATUS_NO_MEMORY ? RP_GRAMMAR_ROW_NO_MEMORY
           : status == RP_STATUS_FULL    ? RP_GRAMMAR_ROW_TOO_COMPLEX
                                         : RP_GRAMMAR_ROW_DEAD_END;
}

/* Under the queue's lock: releases the row's next token, or ends its request. */
static void publish(struct rp_grammar_row *row, enum rp_grammar_row_status status) {
    struct rp_grammar_metrics *metrics = &row->service->metrics;
    if (status == RP_GRAMMAR_ROW_OK) {
        atomic_store_explicit(&row->hold.released, row->index + 1, memory_order_release);
        return;
    }
    if (status == RP_GRAMMAR_ROW_TOO_COMPLEX)
        rp_counter_add(&metrics->too_complex, 1);
    if (status == RP_GRAMMAR_ROW_DEAD_END)
        rp_counter_add(&metrics->dead_ends, 1);
    atomic_store_explicit(&row->status, (int)status, memory_order_release);
    atomic_store_explicit(&row->request->cancelled, true, memory_order_relaxed);
}

/* Under the queue's lock: an equal share of the waiting rows; 0: the service stops. */
static uint32_t take_rows(struct rp_grammar_service *service, struct rp_grammar_row **rows) {
    while (!service->queued && !service->stopping)
        pthread_cond_wait(&service->wake, &service->queue_lock);
    uint32_t count = RP_MIN(RP_CEIL_DIV(service->queued, service->thread_count), (uint32_t)BATCH);
    for (uint32_t i = 0; i < count; i++) {
        rows[i] = service->first;
        service->first = rows[i]->next;
    }
    service->queued -= count;
    return count;
}

/* Under the queue's lock. */
static void finish_rows(struct rp_grammar_service *service, struct rp_grammar_row **rows,
                        const struct made_mask *masks, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        rp_histogram_observe(&service->metrics.mask, masks[i].seconds);
        rows[i]->busy = false; /* before the release: after it the loop may hand over again */
        if (rows[i]->closed)
            row_free(rows[i]);
        else
            publish(rows[i], masks[i].status);
    }
}

/* Takes several rows at once: a futex call for each row would cost more than its mask. */
static void *run(void *ctx) {
    struct rp_grammar_service *service = ctx;
    struct rp_grammar_row *rows[BATCH];
    struct made_mask masks[BATCH];
    uint32_t count;
    rp_thread_begin("rp-grammar", RP_THREAD_HOST);
    pthread_mutex_lock(&service->queue_lock);
    while ((count = take_rows(service, rows))) {
        pthread_mutex_unlock(&service->queue_lock);
        for (uint32_t i = 0; i < count; i++) {
            uint64_t begin_ns = rp_clock_ns();
            masks[i].status = make_mask(rows[i]);
            masks[i].seconds = (double)(rp_clock_ns() - begin_ns) / 1e9;
        }
        pthread_mutex_lock(&service->queue_lock);
        finish_rows(service, rows, masks, count);
        rp_engine_notify(service->config.engine);
    }
    pthread_mutex_unlock(&service->queue_lock);
    rp_thread_end();
    return NULL;
}

/* Loop: the row goes to the mask threads with the next flush. */
static void hand_over(struct rp_grammar_row *row) {
    struct rp_grammar_service *service = row->service;
    row->busy = true;
    row->next = service->handed_over;
    service->handed_over = row;
}

void rp_grammar_flush(struct rp_grammar_service *service) {
    struct rp_grammar_row *row = service->handed_over;
    if (!row)
        return;
    service->handed_over = NULL;
    pthread_mutex_lock(&service->queue_lock);
    while (row) {
        struct rp_grammar_row *next = row->next;
        row->next = service->first;
        service->first = row;
        service->queued++;
        row = next;
    }
    pthread_cond_broadcast(&service->wake);
    pthread_mutex_unlock(&service->queue_lock);
}

struct rp_grammar_row *rp_grammar_row_open(struct rp_grammar_service *service,
                                           struct rp_grammar_entry *entry,
                                           struct rp_request *request) {
    uint32_t words = RP_CEIL_DIV(service->config.vocab_size, 32u);
    size_t masks = request->allowed ? 2 : 1;
    struct rp_grammar_row *row = rp_calloc(1, sizeof *row + masks * words * sizeof row->mask[0]);
    if (!row)
        return NULL;
    row->service = service;
    row->request = request;
    row->words = words;
    row->token = -1;
    row->min_tokens = request->min_tokens;
    row->stop_count = request->stop_count;
    memcpy(row->stop_ids, request->stop_ids, sizeof row->stop_ids);
    if (request->allowed) {
        memcpy(row->mask + words, request->allowed, words * sizeof row->mask[0]);
        row->allowed = row->mask + words;
    }
    row->hold.allowed = row->mask;
    uint32_t ends = count_ends(row);
    row->without_ends = ends == 0;
    row->shared = !row->allowed && (ends == 0 || ends == service->config.end_count);
    pthread_mutex_lock(&service->lock);
    row->entry = entry;
    entry->users++;
    pthread_mutex_unlock(&service->lock);
    row->state = rp_matcher_start(entry->matcher);
    request->hold = &row->hold;
    hand_over(row);
    return row;
}

uint32_t rp_grammar_row_allowed(const struct rp_grammar_row *row) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < row->words; i++)
        count += (uint32_t)__builtin_popcount(row->mask[i]);
    return count;
}

bool rp_grammar_row_take(struct rp_grammar_row *row, int32_t token) {
    if (!(row->mask[(uint32_t)token / 32] >> ((uint32_t)token % 32) & 1))
        return false;
    row->token = token;
    row->index++;
    hand_over(row);
    return true;
}

enum rp_grammar_row_status rp_grammar_row_status(const struct rp_grammar_row *row) {
    return (enum rp_grammar_row_status)atomic_load_explicit(&row->status, memory_order_acquire);
}

void rp_grammar_row_close(struct rp_grammar_row *row) {
    if (!row)
        return;
    struct rp_grammar_service *service = row->service;
    pthread_mutex_lock(&service->queue_lock);
    row->closed = true;
    bool busy = row->busy;
    pthread_mutex_unlock(&service->queue_lock);
    if (!busy)
        row_free(row);
}

/* --- The service ----------------------------------------------------------------------------- */

static const double compile_bounds[] = {0.0005, 0.005, 0.05, 0.25};
static const double mask_bounds[] = {5e-6, 2e-5, 1e-4, 1e-3, 1e-2};

int rp_grammar_service_create(uint32_t threads, struct rp_grammar_service **out,
                              struct rp_error *err) {
    struct rp_grammar_service *service = rp_calloc(1, sizeof *service);
    RP_ASSERT_CMP(threads, <=, RP_GRAMMAR_THREADS_MAX);
    *out = NULL;
    if (!service)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for grammars");
    pthread_mutex_init(&service->trie_lock, NULL);
    pthread_mutex_init(&service->lock, NULL);
    pthread_mutex_init(&service->queue_lock, NULL);
    pthread_cond_init(&service->wake, NULL);
    rp_histogram_init(&service->metrics.compile, compile_bounds, RP_ARRAY_COUNT(compile_bounds));
    rp_histogram_init(&service->metrics.mask, mask_bounds, RP_ARRAY_COUNT(mask_bounds));
    while (service->thread_count < threads) {
        int failure = pthread_create(&service->threads[service->thread_count], NULL, run, service);
        if (failure) {
            rp_grammar_service_destroy(service);
            return rp_error_set(err, RP_STATUS_NO_MEMORY,
                                "cannot start %u threads for grammar masks: %s", threads,
                                strerror(failure));
        }
        service->thread_count++;
    }
    *out = service;
    return RP_OK;
}

void rp_grammar_service_set_model(struct rp_grammar_service *service,
                                  const struct rp_grammar_config *config) {
    service->config = *config;
}

void rp_grammar_service_destroy(struct rp_grammar_service *service) {
    if (!service)
        return;
    rp_grammar_flush(service);
    pthread_mutex_lock(&service->queue_lock);
    service->stopping = true;
    pthread_cond_broadcast(&service->wake);
    pthread_mutex_unlock(&service->queue_lock);
    for (uint32_t i = 0; i < service->thread_count; i++)
        pthread_join(service->threads[i], NULL);
    rp_grammar_cache_clear(service);
    pthread_cond_destroy(&service->wake);
    pthread_mutex_destroy(&service->queue_lock);
    pthread_mutex_destroy(&service->lock);
    pthread_mutex_destroy(&service->trie_lock);
    rp_free(service);
}

void rp_grammar_service_register(struct rp_grammar_service *service, struct rp_registry *registry) {
    static const struct rp_metric_family families[] = {
        {"reprise_grammar_compile_seconds", "seconds",
         "Time to compile the grammar of a request that was not in the cache.", RP_METRIC_HISTOGRAM,
         RP_METRICS_OWN},
        {"reprise_grammar_mask_seconds", "seconds",
         "Time to advance an answer's grammar by a token and to make the next mask.",
         RP_METRIC_HISTOGRAM, RP_METRICS_OWN},
        {"reprise_grammar_cache_hits_total", NULL,
         "Requests whose grammar had been compiled before.", RP_METRIC_COUNTER, RP_METRICS_OWN},
        {"reprise_grammar_cache_misses_total", NULL, "Requests whose grammar had to be compiled.",
         RP_METRIC_COUNTER, RP_METRICS_OWN},
        {"reprise_grammar_refused_total", NULL,
         "Requests refused because their grammar cannot be enforced.", RP_METRIC_COUNTER,
         RP_METRICS_OWN},
    };
    static const struct rp_metric_family failed = {
        "reprise_grammar_failed_answers_total", NULL,
        "Answers that ended because their grammar allowed no token or took too much work.",
        RP_METRIC_COUNTER, RP_METRICS_OWN};
    struct rp_grammar_metrics *metrics = &service->metrics;
    const void *values[] = {&metrics->compile, &metrics->mask, &metrics->cache_hits,
                            &metrics->cache_misses, &metrics->refused};
    for (size_t i = 0; i < RP_ARRAY_COUNT(families); i++)
        rp_registry_add(registry, &families[i], NULL, values[i]);
    rp_registry_add(registry, &failed, "reason=\"dead_end\"", &metrics->dead_ends);
    rp_registry_add(registry, &failed, "reason=\"too_complex\"", &metrics->too_complex);
}
