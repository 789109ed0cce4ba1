#include "server/observe/otlp_export.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/ring.h"
#include "metrics/exposition_otlp.h"
#include "server/observe/otlp_client.h"
#include "server/observe/request_json.h"
#include "server/server_internal.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>

#define SECOND      ((uint64_t)1000000000u)
#define POST_NS     (10 * SECOND) /* for one post */
#define BACKOFF_NS  SECOND        /* the first one; doubled up to: */
#define BACKOFF_MAX (30 * SECOND)
#define RETRY_NS    (300 * SECOND) /* for all repetitions of one post */
/* stop waits so much longer than the flush, for a name that is being resolved. */
#define JOIN_NS SECOND

enum record_result { SENT, DROPPED, FAILED, NOT_SAMPLED, RESULTS };
enum signal { TRACES, METRICS, SIGNALS };
enum outcome { OK, RETRIED, REFUSED, OUTCOMES };

static const char *const paths[SIGNALS] = {"/v1/traces", "/v1/metrics"};

struct rp_otlp {
    struct rp_otlp_config config;
    struct rp_server *server;
    struct rp_otlp_client client;
    struct rp_ring queue;                /* of records: from the loop thread */
    _Atomic(struct rp_buffer *) metrics; /* the newest that were not sent; NULL: none */
    struct rp_otlp_resource resource;
    char instance[33];
    uint64_t metrics_due_ns;
    sem_t wake, ended;
    pthread_t thread;
    _Atomic bool stopping;
    /* DROPPED and NOT_SAMPLED: the loop thread's, until the exporter's has ended. */
    struct rp_counter records[RESULTS];
    struct rp_counter posts[SIGNALS][OUTCOMES]; /* the exporter's */
    struct rp_request_record batch[RP_OTLP_BATCH];
    const struct rp_request_record *pointers[RP_OTLP_BATCH];
    bool down; /* the last post failed: logged once */
};

/* --- Sampling -------------------------------------------------------------------------------- */

bool rp_otlp_is_in_share(uint64_t trace_low, double ratio) {
    const double all = 0x1p56;
    return (double)(trace_low & (((uint64_t)1 << 56) - 1)) >= (1 - ratio) * all;
}

void rp_otlp_sample(const struct rp_otlp *otlp, struct rp_trace_context *context) {
    if (otlp && !rp_otlp_is_in_share(context->trace_low, otlp->config.sample_ratio))
        context->flags &= (uint8_t)~RP_TRACE_SAMPLED;
}

/* --- The loop thread ------------------------------------------------------------------------- */

void rp_otlp_put(void *ctx, const struct rp_request_record *record) {
    struct rp_otlp *otlp = ctx;
    if (!otlp)
        return;
    if (!(record->trace.flags & RP_TRACE_SAMPLED))
        rp_counter_add(&otlp->records[NOT_SAMPLED], 1);
    else if (!rp_ring_try_push(&otlp->queue, record))
        rp_counter_add(&otlp->records[DROPPED], 1);
    else if (rp_ring_free_count(&otlp->queue) == RP_OTLP_QUEUE / 2)
        sem_post(&otlp->wake); /* before its second is over */
}

static void free_text(struct rp_buffer *text) {
    if (text)
        rp_buffer_deinit(text);
    rp_free(text);
}

static void write_metrics(struct rp_otlp *otlp) {
    struct rp_buffer *text = rp_calloc(1, sizeof *text);
    if (!text)
        return;
    rp_server_metrics_sample(&otlp->server->metrics);
    rp_buffer_reserve(text, 192 * 1024);
    rp_exposition_otlp(&otlp->server->registry, RP_METRICS_OWN, &otlp->resource, rp_unix_ns(),
                       text);
    if (text->failed) {
        free_text(text);
        return;
    }
    /* Values are sums since the start: newer ones replace those that were not sent. */
    free_text(atomic_exchange(&otlp->metrics, text));
}

void rp_otlp_tick(struct rp_otlp *otlp, uint64_t now_ns) {
    if (!otlp || otlp->config.interval_s <= 0 || now_ns < otlp->metrics_due_ns)
        return;
    otlp->metrics_due_ns = now_ns + (uint64_t)(otlp->config.interval_s * 1e9);
    write_metrics(otlp);
}

/* --- The exporter's thread ------------------------------------------------------------------- */

static bool is_over(const struct rp_otlp *otlp) {
    uint64_t stop_ns = atomic_load(&otlp->client.stop_ns);
    return stop_ns && rp_clock_ns() >= stop_ns;
}

/* Until then, or until stop; a post that is repeated is given up at the end of the flush. */
static void sleep_until(struct rp_otlp *otlp, uint64_t due_ns, bool stops) {
    while (rp_clock_ns() < due_ns && !is_over(otlp) && !(stops && atomic_load(&otlp->stopping))) {
        uint64_t until = RP_MIN(due_ns, rp_clock_ns() + SECOND / 20);
        struct timespec time = {.tv_sec = (time_t)(until / SECOND),
                                .tv_nsec = (long)(until % SECOND)};
        if (stops)
            time = (struct timespec){.tv_sec = (time_t)(due_ns / SECOND),
                                     .tv_nsec = (long)(due_ns % SECOND)};
        if (sem_clockwait(&otlp->wake, CLOCK_MONOTONIC, &time) == 0 && stops)
            return;
    }
}

static bool may_repeat(int status, const struct rp_otlp_answer *answer) {
    int code = answer->status;
    return status != RP_OK || code == 429 || code == 502 || code == 503 || code == 504;
}

static void tell_state(struct rp_otlp *otlp, bool down, const char *why) {
    if (down && !otlp->down)
        rp_log(RP_LOG_WARN, "otlp: %s: %s", otlp->config.endpoint, why);
    else if (!down && otlp->down)
        rp_log(RP_LOG_INFO, "otlp: %s accepts posts again", otlp->config.endpoint);
    otlp->down = down;
}

/* True: the collector has taken it. */
static bool post(struct rp_otlp *otlp, enum signal signal, const struct rp_buffer *body) {
    uint64_t give_up_ns = rp_clock_ns() + RETRY_NS, wait_ns = BACKOFF_NS;
    struct rp_counter *posts = otlp->posts[signal];
    for (;;) {
        struct rp_otlp_answer answer;
        struct rp_error err = {0};
        char why[64];
        int status = rp_otlp_post(&otlp->client, paths[signal], body->data, body->len, POST_NS,
                                  &answer, &err);
        if (status == RP_OK && answer.status >= 200 && answer.status < 300) {
            rp_counter_add(&posts[OK], 1);
            tell_state(otlp, false, NULL);
            return true;
        }
        snprintf(why, sizeof why, "status %d", answer.status);
        tell_state(otlp, true, status == RP_OK ? why : err.text);
        uint64_t pause_ns = answer.retry_after_s == UINT32_MAX
                                ? wait_ns + wait_ns / 4 * (rp_clock_ns() % 64) / 64
                                : answer.retry_after_s * SECOND;
        if (!may_repeat(status, &answer) || rp_clock_ns() + pause_ns > give_up_ns ||
            is_over(otlp)) {
            rp_counter_add(&posts[REFUSED], 1);
            return false;
        }
        rp_counter_add(&posts[RETRIED], 1);
        sleep_until(otlp, rp_clock_ns() + pause_ns, false);
        wait_ns = RP_MIN(2 * wait_ns, BACKOFF_MAX);
    }
}

/* One batch; false: there was none. */
static bool send_records(struct rp_otlp *otlp) {
    const struct rp_record_context context = {.model = otlp->server->serving.model_name};
    struct rp_buffer body = {.data = NULL};
    struct rp_json json;
    uint32_t count = 0;
    while (count < RP_OTLP_BATCH && rp_ring_try_pop(&otlp->queue, &otlp->batch[count]))
        count++;
    if (count == 0)
        return false;
    rp_json_init(&json, &body);
    rp_request_otlp(&json, otlp->pointers, count, &context);
    bool sent = !body.failed && post(otlp, TRACES, &body);
    rp_counter_add(&otlp->records[sent ? SENT : FAILED], count);
    rp_buffer_deinit(&body);
    return true;
}

static void send_metrics(struct rp_otlp *otlp) {
    struct rp_buffer *text = atomic_exchange(&otlp->metrics, NULL);
    if (text)
        (void)post(otlp, METRICS, text);
    free_text(text);
}

static void *otlp_main(void *arg) {
    struct rp_otlp *otlp = arg;
    for (bool stopping = false; !stopping;) {
        sleep_until(otlp, rp_clock_ns() + SECOND, true);
        stopping = atomic_load(&otlp->stopping);
        while (!is_over(otlp) && send_records(otlp))
            ;
        if (!is_over(otlp))
            send_metrics(otlp);
        stopping = stopping || is_over(otlp);
    }
    sem_post(&otlp->ended);
    return NULL;
}

/* --- Start and stop -------------------------------------------------------------------------- */

static int read_headers(char out[RP_OTLP_HEADERS_MAX], struct rp_error *err) {
    const char *text = getenv("OTEL_EXPORTER_OTLP_HEADERS");
    int status = rp_otlp_headers_parse(text ? text : "", out, err);
    if (status != RP_OK)
        rp_error_hint(err, "check OTEL_EXPORTER_OTLP_HEADERS");
    return status;
}

int rp_otlp_check(const struct rp_otlp_config *config, struct rp_error *err) {
    struct rp_otlp_client client;
    if (!config->endpoint || !*config->endpoint)
        return RP_OK;
    int status = rp_otlp_url_parse(config->endpoint, &client.url, err);
    if (status != RP_OK)
        rp_error_hint(err, "--otlp-endpoint is a URL such as http://localhost:4318");
    return status == RP_OK ? read_headers(client.headers, err) : status;
}

static void destroy(struct rp_otlp *otlp) {
    rp_otlp_client_close(&otlp->client);
    rp_ring_deinit(&otlp->queue);
    free_text(atomic_load(&otlp->metrics));
    sem_destroy(&otlp->wake);
    sem_destroy(&otlp->ended);
    rp_free(otlp);
}

static int open_client(struct rp_otlp *otlp, struct rp_error *err) {
    int status = rp_otlp_url_parse(otlp->config.endpoint, &otlp->client.url, err);
    if (status == RP_OK)
        status = read_headers(otlp->client.headers, err);
    return status == RP_OK ? rp_otlp_client_open(&otlp->client, err) : status;
}

int rp_otlp_start(struct rp_server *server, struct rp_otlp **out, struct rp_error *err) {
    const struct rp_otlp_config *config = &server->config.otlp;
    *out = NULL;
    if (!config->endpoint || !*config->endpoint)
        return RP_OK;
    struct rp_otlp *otlp = rp_calloc(1, sizeof *otlp);
    if (!otlp)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for the export of traces");
    otlp->config = *config;
    otlp->server = server;
    sem_init(&otlp->wake, 0, 0);
    sem_init(&otlp->ended, 0, 0);
    for (uint32_t i = 0; i < RP_OTLP_BATCH; i++)
        otlp->pointers[i] = &otlp->batch[i];
    snprintf(otlp->instance, sizeof otlp->instance, "%016llx%016llx",
             (unsigned long long)rp_server_random(server),
             (unsigned long long)rp_server_random(server));
    uint64_t start_s = (uint64_t)rp_gauge_read(&server->metrics.start_time);
    otlp->resource = (struct rp_otlp_resource){.name = "reprise",
                                               .version = RP_VERSION,
                                               .instance = otlp->instance,
                                               .start_unix_ns = start_s * SECOND};
    int status = open_client(otlp, err);
    if (status == RP_OK &&
        !rp_ring_init(&otlp->queue, RP_OTLP_QUEUE, sizeof(struct rp_request_record)))
        status = rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for the queue of traces");
    if (status == RP_OK && pthread_create(&otlp->thread, NULL, otlp_main, otlp) != 0)
        status = rp_error_set(err, RP_STATUS_NO_MEMORY, "no thread for the export of traces");
    if (status != RP_OK) {
        destroy(otlp);
        return status;
    }
    *out = otlp;
    return RP_OK;
}

void rp_otlp_stop(struct rp_otlp *otlp) {
    struct rp_request_record record;
    uint64_t left = 0, now = rp_clock_ns(), flush_ns;
    int waited;
    if (!otlp)
        return;
    if (otlp->config.interval_s > 0)
        write_metrics(otlp);
    flush_ns = (uint64_t)(otlp->config.flush_s * 1e9) + 1;
    atomic_store(&otlp->client.stop_ns, now + flush_ns);
    atomic_store(&otlp->stopping, true);
    sem_post(&otlp->wake);
    uint64_t until = now + flush_ns + JOIN_NS;
    struct timespec time = {.tv_sec = (time_t)(until / SECOND), .tv_nsec = (long)(until % SECOND)};
    while ((waited = sem_clockwait(&otlp->ended, CLOCK_MONOTONIC, &time)) != 0 && errno == EINTR)
        ;
    if (waited != 0) {
        /* It resolves a name and may use its memory at any time: both stay until the end of the
         * process. */
        rp_log(RP_LOG_WARN, "otlp: the export is still busy and is left behind");
        pthread_detach(otlp->thread);
        return;
    }
    pthread_join(otlp->thread, NULL);
    while (rp_ring_try_pop(&otlp->queue, &record))
        left++;
    rp_counter_add(&otlp->records[DROPPED], left);
    uint64_t lost =
        rp_counter_read(&otlp->records[DROPPED]) + rp_counter_read(&otlp->records[FAILED]);
    rp_log(lost ? RP_LOG_WARN : RP_LOG_DEBUG, "otlp: ended sent=%llu lost=%llu",
           (unsigned long long)rp_counter_read(&otlp->records[SENT]), (unsigned long long)lost);
    destroy(otlp);
}

void rp_otlp_register(struct rp_otlp *otlp, struct rp_registry *registry) {
    static const struct rp_metric_family records = {
        "reprise_otlp_records_total", NULL,
        "Records of ended requests by what became of their spans: sent; dropped, because the queue "
        "was full; failed, because the collector refused them or did not answer; not sampled.",
        RP_METRIC_COUNTER, RP_METRICS_OWN};
    static const struct rp_metric_family posts = {
        "reprise_otlp_posts_total", NULL,
        "Posts to the collector by outcome; a retried one is sent again.", RP_METRIC_COUNTER,
        RP_METRICS_OWN};
    static const char *const results[RESULTS] = {"result=\"sent\"", "result=\"dropped\"",
                                                 "result=\"failed\"", "result=\"not_sampled\""};
    static const char *const labels[SIGNALS][OUTCOMES] = {
        {"signal=\"traces\",outcome=\"ok\"", "signal=\"traces\",outcome=\"retried\"",
         "signal=\"traces\",outcome=\"failed\""},
        {"signal=\"metrics\",outcome=\"ok\"", "signal=\"metrics\",outcome=\"retried\"",
         "signal=\"metrics\",outcome=\"failed\""}};
    for (uint32_t i = 0; otlp && i < RESULTS; i++)
        rp_registry_add(registry, &records, results[i], &otlp->records[i]);
    for (uint32_t i = 0; otlp && i < SIGNALS * OUTCOMES; i++)
        rp_registry_add(registry, &posts, labels[i / OUTCOMES][i % OUTCOMES],
                        &otlp->posts[i / OUTCOMES][i % OUTCOMES]);
}
