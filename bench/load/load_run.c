/* load_run.c - sends requests at their times and records the results. */
#include "bench/load/load_run.h"

#include "base/clock.h"
#include "base/memory.h"
#include "bench/load/load_body.h"
#include "bench/load/load_client.h"
#include "bench/load/load_stream.h"
#include "bench/load/load_timer.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#define TICK_NS     ((uint64_t)10000000)
#define PROGRESS_NS ((uint64_t)200000000)
/* Limit of requests built ahead of time, so that building them does not delay sends. */
#define AHEAD_BYTES ((size_t)64 << 20)

/* BURST: maximum sends before received data is read again. */
enum { BURST = 32, FILES_AT_LEAST = 4096 };

struct body {
    char *bytes;
    size_t len;
};

struct run {
    uv_loop_t loop;
    struct rp_load_client client;
    struct rp_load_timer timer;
    uv_idle_t maker; /* builds requests while the loop is idle */
    const struct rp_load_run_options *options;
    const struct rp_load_plan *plan;
    struct rp_load_records *out;
    uint64_t lag_capacity, chunk_capacity;

    uint64_t base_ns; /* rp_clock_ns at the start of the run */
    uint64_t tick_ns, progress_ns;
    struct body *bodies; /* (plan->count); [sent, made) are built */
    size_t ahead_bytes;
    uint32_t made, due, sent; /* requests built; due; passed to the client */
    uint32_t done, failed, in_flight;
    uint64_t output_tokens;
    struct rp_load_stream *first, *last; /* in flight, in send order */
    struct rp_load_stream *unused;
    bool closed, is_over; /* nothing more is sent */
    bool is_finished;     /* all handles are closing */
    int status;
};

static uint64_t run_time(const struct run *run) { return rp_clock_ns() - run->base_ns; }

static void set_out_of_memory(struct run *run) {
    run->status = RP_STATUS_NO_MEMORY;
    run->is_over = true;
}

/* --- records --------------------------------------------------------------------------------- */

/* Makes room for `more` entries of 8 bytes; false: out of memory. */
static bool grow(uint64_t **array, uint64_t count, uint64_t *capacity, uint64_t more) {
    if (count + more <= *capacity)
        return true;
    uint64_t larger = RP_MAX(count + more, 2 * *capacity);
    uint64_t *moved = larger > SIZE_MAX / 8 ? NULL : rp_realloc(*array, (size_t)larger * 8);
    if (!moved)
        return false;
    *array = moved;
    *capacity = larger;
    return true;
}

static void add_lag(struct run *run, uint64_t lag_ns) {
    struct rp_load_records *out = run->out;
    if (grow(&out->lag_ns, out->lag_count, &run->lag_capacity, 1))
        out->lag_ns[out->lag_count++] = lag_ns;
    else
        set_out_of_memory(run);
}

static void store_chunks(struct run *run, const struct rp_load_stream *stream,
                         struct rp_load_record *record) {
    struct rp_load_records *out = run->out;
    if (!grow(&out->chunk_ns, out->chunk_total, &run->chunk_capacity, stream->chunk_count)) {
        record->chunk_count = 0;
        set_out_of_memory(run);
        return;
    }
    record->chunks = out->chunk_total;
    for (uint32_t i = 0; i < stream->chunk_count; i++)
        out->chunk_ns[out->chunk_total++] = stream->chunk_ns[i] - run->base_ns;
    if (stream->chunk_count) {
        record->first_ns = out->chunk_ns[record->chunks];
        record->last_ns = out->chunk_ns[out->chunk_total - 1];
    }
}

void rp_load_records_free(struct rp_load_records *records) {
    rp_free(records->records);
    rp_free(records->chunk_ns);
    rp_free(records->lag_ns);
    memset(records, 0, sizeof *records);
}

/* --- requests -------------------------------------------------------------------------------- */

static bool make_next(struct run *run) {
    struct body *body = &run->bodies[run->made];
    if (!rp_load_body_make(&run->options->target, &run->client.url, &run->plan->requests[run->made],
                           &body->bytes, &body->len))
        return false;
    run->ahead_bytes += body->len;
    run->made++;
    return true;
}

static bool may_make(const struct run *run) {
    return !run->is_over && run->made < run->plan->count && run->ahead_bytes < AHEAD_BYTES;
}

static void on_idle(uv_idle_t *idle) {
    struct run *run = idle->data;
    if (may_make(run) && !make_next(run))
        set_out_of_memory(run);
    if (!may_make(run))
        uv_idle_stop(idle);
}

static struct rp_load_stream *open_stream(struct run *run) {
    struct rp_load_stream *stream = run->unused;
    if (stream) {
        run->unused = stream->next;
    } else {
        stream = rp_calloc(1, sizeof *stream);
        if (!stream)
            return NULL;
        rp_load_sse_init(&stream->sse);
    }
    rp_load_stream_reset(stream);
    stream->run = run;
    stream->next = NULL;
    stream->prev = run->last;
    if (run->last)
        run->last->next = stream;
    else
        run->first = stream;
    run->last = stream;
    run->in_flight++;
    run->out->max_in_flight = RP_MAX(run->out->max_in_flight, run->in_flight);
    return stream;
}

static void close_stream(struct run *run, struct rp_load_stream *stream) {
    if (stream->prev)
        stream->prev->next = stream->next;
    else
        run->first = stream->next;
    if (stream->next)
        stream->next->prev = stream->prev;
    else
        run->last = stream->prev;
    stream->next = run->unused;
    run->unused = stream;
    run->in_flight--;
}

static void record_end(struct run *run, struct rp_load_stream *stream, enum rp_load_outcome outcome,
                       const char *why) {
    const struct rp_load_request *request = &run->plan->requests[stream->request];
    struct rp_load_record *record = &run->out->records[stream->request];
    rp_load_stream_result(stream, request, !run->options->target.no_ignore_eos, outcome, why,
                          record);
    record->intended_ns = stream->intended_ns;
    record->sent_ns = stream->exchange.sent_ns ? stream->exchange.sent_ns - run->base_ns : 0;
    store_chunks(run, stream, record);
    record->end_ns = run_time(run);
    run->out->end_ns = RP_MAX(run->out->end_ns, record->end_ns);
    if (outcome != RP_LOAD_NOT_SENT) {
        run->done += record->outcome == RP_LOAD_OK;
        run->failed += record->outcome != RP_LOAD_OK;
        run->output_tokens += record->output_tokens;
    }
    close_stream(run, stream);
}

static void pump(struct run *run);

static void on_end(struct rp_load_exchange *exchange, enum rp_load_outcome outcome,
                   const char *why) {
    struct rp_load_stream *stream = (struct rp_load_stream *)exchange;
    struct run *run = stream->run;
    record_end(run, stream, outcome, why);
    pump(run);
}

static const struct rp_load_handler handler = {rp_load_stream_head, rp_load_stream_body, on_end};

static void send_next(struct run *run) {
    uint32_t index = run->sent;
    if (run->made == index && !make_next(run)) {
        set_out_of_memory(run);
        return;
    }
    struct rp_load_stream *stream = open_stream(run);
    if (!stream) {
        set_out_of_memory(run);
        return;
    }
    struct body *body = &run->bodies[index];
    run->sent++;
    run->ahead_bytes -= body->len;
    stream->request = index;
    stream->exchange.handler = &handler;
    stream->begun_ns = run_time(run);
    stream->intended_ns = run->closed ? stream->begun_ns : run->plan->requests[index].at_ns;
    char *bytes = body->bytes;
    body->bytes = NULL;
    if (!rp_load_client_send(&run->client, &stream->exchange, bytes, body->len)) {
        set_out_of_memory(run);
        record_end(run, stream, RP_LOAD_NOT_SENT, "out of memory");
    }
}

/* --- schedule -------------------------------------------------------------------------------- */

static void on_handle_closed(uv_handle_t *handle) { (void)handle; }

static void finish(struct run *run) {
    if (run->is_finished)
        return;
    run->is_finished = true;
    run->out->connections = run->client.opened;
    rp_load_client_close(&run->client);
    rp_load_timer_close(&run->timer);
    uv_close((uv_handle_t *)&run->maker, on_handle_closed);
}

static bool may_send(const struct run *run) {
    uint32_t max = run->options->max_concurrency;
    return !run->is_over && run->sent < run->due && (max == 0 || run->in_flight < max);
}

/* The time of the next event, for the timer. */
static uint64_t next_ns(const struct run *run, bool at_once) {
    if (at_once)
        return 0;
    if (run->due < run->plan->count && !run->is_over)
        return RP_MIN(run->tick_ns, run->plan->requests[run->due].at_ns);
    return run->tick_ns;
}

/* Marks requests that are due, sends those that may be sent, and sets the timer. */
static void pump(struct run *run) {
    uint32_t burst = 0;
    while (!run->is_finished && burst < BURST) {
        uint64_t now_ns = run_time(run);
        bool is_due = !run->is_over && run->due < run->plan->count &&
                      run->plan->requests[run->due].at_ns <= now_ns;
        if (run->closed)
            run->due = run->plan->count;
        else if (is_due)
            add_lag(run, now_ns - run->plan->requests[run->due++].at_ns);
        if (may_send(run)) {
            send_next(run);
            burst++;
        } else if (run->closed || !is_due)
            break;
    }
    if (run->is_finished)
        return;
    if (run->in_flight == 0 && (run->is_over || run->sent == run->plan->count)) {
        finish(run);
        return;
    }
    rp_load_timer_set(&run->timer, run->base_ns + next_ns(run, burst == BURST));
    if (may_make(run) && !uv_is_active((uv_handle_t *)&run->maker))
        uv_idle_start(&run->maker, on_idle);
}

static void stop(struct run *run) {
    run->is_over = true;
    while (run->first) {
        struct rp_load_stream *stream = run->first;
        rp_load_client_cancel(&stream->exchange);
        record_end(run, stream, RP_LOAD_NOT_SENT, "the run was stopped");
    }
}

static void end_timed_out(struct run *run, uint64_t now_ns) {
    uint64_t timeout_ns = (uint64_t)(run->options->timeout_s * 1e9);
    while (timeout_ns && run->first && now_ns - run->first->begun_ns > timeout_ns) {
        struct rp_load_stream *stream = run->first;
        const char *why = stream->exchange.sent_ns == 0 ? "no connection in time"
                          : stream->chunk_count         ? "the answer stopped coming"
                                                        : "no answer";
        rp_load_client_cancel(&stream->exchange);
        record_end(run, stream, RP_LOAD_TIMEOUT, why);
    }
}

static void show_progress(struct run *run, uint64_t now_ns) {
    struct rp_load_progress progress = {.sent = run->sent,
                                        .done = run->done,
                                        .failed = run->failed,
                                        .in_flight = run->in_flight,
                                        .planned = run->plan->count,
                                        .elapsed_ns = now_ns,
                                        .output_tokens = run->output_tokens};
    if (run->options->progress)
        run->options->progress(run->options->context, &progress);
}

static bool gives_up(struct run *run, uint64_t now_ns) {
    if (!run->options->give_up)
        return false;
    for (struct rp_load_stream *stream = run->first; stream; stream = stream->next)
        if (stream->chunk_count)
            run->out->records[stream->request].first_ns = stream->chunk_ns[0] - run->base_ns;
    return run->options->give_up(run->options->give_up_context, run->out, now_ns);
}

static void on_timer(void *context) {
    struct run *run = context;
    uint64_t now_ns = run_time(run);
    bool ticked = run->tick_ns <= now_ns;
    if (run->is_finished)
        return;
    /* Every tick missed during a stall is one lag sample. */
    for (; run->tick_ns <= now_ns; run->tick_ns += TICK_NS)
        add_lag(run, now_ns - run->tick_ns);
    if (ticked) {
        end_timed_out(run, now_ns);
        if (run->options->max_seconds > 0 && (double)now_ns > run->options->max_seconds * 1e9)
            run->is_over = true;
        if ((run->options->stop && *run->options->stop) || run->status != RP_OK)
            stop(run);
    }
    if (run->progress_ns <= now_ns) {
        show_progress(run, now_ns);
        run->progress_ns = now_ns + PROGRESS_NS;
        if (!run->is_over && gives_up(run, now_ns))
            stop(run);
    }
    pump(run);
}

/* --- the run --------------------------------------------------------------------------------- */

/* An open loop may have all its requests in flight. Its file limit is raised as far as possible;
 * the minimum is the number of requests in its first second, and FILES_AT_LEAST. */
static int check_files(const struct rp_load_run_options *options, const struct rp_load_plan *plan,
                       struct rp_error *err) {
    uint32_t needed = options->max_concurrency, burst = 0;
    if (needed)
        return rp_load_check_files(RP_MIN(needed, plan->count), err);
    while (burst < plan->count &&
           plan->requests[burst].at_ns <= plan->requests[0].at_ns + 1000000000u)
        burst++;
    int status = rp_load_check_files(plan->count, NULL);
    if (status != RP_OK)
        status = rp_load_check_files(RP_MAX(burst, RP_MIN(plan->count, FILES_AT_LEAST)), err);
    return status;
}

static int check(const struct rp_load_run_options *options, const struct rp_load_plan *plan,
                 struct rp_error *err) {
    const struct rp_load_target *target = &options->target;
    if (!target->model || !*target->model)
        return rp_error_set(err, RP_STATUS_INVALID, "no model is given");
    if (options->closed && options->max_concurrency == 0)
        return rp_error_set(err, RP_STATUS_INVALID, "a closed loop needs a maximum concurrency");
    if (plan->count == 0)
        return rp_error_set(err, RP_STATUS_INVALID, "the plan has no request");
    for (uint32_t i = 0; i < plan->count; i++)
        if (target->api == RP_LOAD_CHAT && !plan->requests[i].text) {
            int status = rp_error_set(err, RP_STATUS_INVALID,
                                      "chat messages must be text, but the prompts are token ids");
            rp_error_hint(err, "use a dataset of text, or the completions API");
            return status;
        }
    int status = rp_load_body_check_key(target, err);
    if (status != RP_OK)
        return status;
    return check_files(options, plan, err);
}

static int allocate(struct run *run, struct rp_error *err) {
    struct rp_load_records *out = run->out;
    uint32_t count = run->plan->count;
    uint64_t tokens = 0;
    run->bodies = rp_calloc(count, sizeof *run->bodies);
    out->records = rp_calloc(count, sizeof *out->records);
    if (!run->bodies || !out->records)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory for %u requests", count);
    out->count = count;
    for (uint32_t i = 0; i < count; i++) {
        const struct rp_load_request *request = &run->plan->requests[i];
        tokens += request->output_tokens;
        out->records[i] = (struct rp_load_record){.request = i,
                                                  .outcome = RP_LOAD_NOT_SENT,
                                                  .intended_ns = run->closed ? 0 : request->at_ns,
                                                  .input_tokens = request->input_tokens,
                                                  .cached_tokens = UINT32_MAX};
    }
    /* Allocated in advance, so that large arrays are not copied during the run; unused pages are
     * never touched. */
    if (!grow(&out->chunk_ns, 0, &run->chunk_capacity, RP_MIN(tokens, (uint64_t)1 << 26)) ||
        !grow(&out->lag_ns, 0, &run->lag_capacity, count + (uint64_t)65536))
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory for the records");
    return RP_OK;
}

static void release(struct run *run) {
    for (struct rp_load_stream *stream = run->unused, *next; stream; stream = next) {
        next = stream->next;
        rp_load_stream_deinit(stream);
        rp_free(stream);
    }
    for (uint32_t i = 0; run->bodies && i < run->plan->count; i++)
        rp_free(run->bodies[i].bytes);
    rp_free(run->bodies);
}

static int execute(struct run *run, struct rp_error *err) {
    struct rp_load_url url;
    int status = rp_load_url_parse(run->options->target.base_url, &url, err);
    if (status == RP_OK)
        status = rp_load_client_init(&run->client, &run->loop, &url, err);
    if (status == RP_OK)
        status = allocate(run, err);
    while (status == RP_OK && may_make(run))
        if (!make_next(run))
            status = rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory for the requests");
    if (status == RP_OK)
        status = rp_load_timer_init(&run->timer, &run->loop, on_timer, run, err);
    if (status != RP_OK) {
        rp_load_timer_close(&run->timer);
        uv_run(&run->loop, UV_RUN_DEFAULT);
        rp_load_client_deinit(&run->client);
        return status;
    }
    uv_idle_init(&run->loop, &run->maker);
    run->maker.data = run;
    run->base_ns = run->out->clock_ns = rp_clock_ns();
    run->tick_ns = TICK_NS;
    run->progress_ns = PROGRESS_NS;
    run->out->begin_ns = run->closed ? 0 : run->plan->requests[0].at_ns;
    rp_load_timer_set(&run->timer, run->base_ns);
    uv_run(&run->loop, UV_RUN_DEFAULT);
    show_progress(run, run_time(run));
    rp_load_client_deinit(&run->client);
    run->out->end_ns = RP_MAX(run->out->end_ns, run->out->begin_ns);
    if (run->status != RP_OK)
        return rp_error_set(err, run->status, "out of memory after %u requests", run->sent);
    return RP_OK;
}

int rp_load_run(const struct rp_load_run_options *options, const struct rp_load_plan *plan,
                struct rp_load_records *out, struct rp_error *err) {
    memset(out, 0, sizeof *out);
    int status = check(options, plan, err);
    if (status != RP_OK)
        return status;
    struct run *run = rp_calloc(1, sizeof *run);
    if (!run || uv_loop_init(&run->loop) != 0) {
        rp_free(run);
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory for the run");
    }
    signal(SIGPIPE, SIG_IGN); /* a closed connection is recorded as an outcome */
    run->options = options;
    run->plan = plan;
    run->out = out;
    run->closed = options->closed;
    status = execute(run, err);
    release(run);
    RP_ASSERT_CMP(uv_loop_close(&run->loop), ==, 0);
    rp_free(run);
    if (status != RP_OK)
        rp_load_records_free(out);
    return status;
}
