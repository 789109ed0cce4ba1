/* completion_start.c - a completion's first half: prompts to token ids to requests of the engine. */
#include "base/clock.h"
#include "base/hash.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "server/completion_internal.h"
#include "server/sse.h"

#include <string.h>
#include <time.h>

/* --- Submitting -------------------------------------------------------------------------------- */

static uint64_t draw_seed(struct rp_server *server) {
    uint64_t seed;
    if (server->serving.seed == 0 && rp_random_fill(&seed, sizeof seed))
        return seed;
    uint64_t counter = ++server->seed_counter;
    return rp_hash64(&counter, sizeof counter, server->serving.seed);
}

static bool check_length(struct rp_completion *c, uint64_t count, struct rp_http_error *error) {
    const struct rp_engine *engine = c->server->serving.engine;
    uint32_t longest = rp_engine_max_model_len(engine);
    uint64_t max_tokens = (uint64_t)c->params.max_tokens;
    if (count == 0)
        return rp_http_error_set(error, 400, "prompt", "invalid_value", "the prompt has no tokens");
    if (count + max_tokens > longest)
        return rp_http_error_set(error, 400, count >= longest ? "prompt" : "max_tokens",
                                 "context_length_exceeded",
                                 "this model's context is %u tokens, the request asks for %llu "
                                 "(%llu in the prompt, %llu "
                                 "for the completion): shorten the prompt or lower max_tokens",
                                 longest, (unsigned long long)(count + max_tokens),
                                 (unsigned long long)count, (unsigned long long)max_tokens);
    if (!rp_engine_fits(engine, (uint32_t)count, (uint32_t)max_tokens))
        return rp_http_error_set(
            error, 400, "max_tokens", "context_length_exceeded",
            "a sequence of %llu tokens does not fit this server's KV cache: shorten the prompt or "
            "lower max_tokens",
            (unsigned long long)(count + max_tokens));
    return true;
}

static bool check_item(struct rp_completion *c, const struct rp_text_item *item,
                       struct rp_http_error *error) {
    const struct rp_serving *serving = &c->server->serving;
    if (item->status == RP_STATUS_RANGE)
        return rp_http_error_set(error, 400, "prompt", "context_length_exceeded",
                                 "this model's context is %u tokens, the prompt alone has more",
                                 rp_engine_max_model_len(serving->engine));
    if (item->status == RP_STATUS_NO_MEMORY)
        return rp_http_error_set(error, 503, NULL, "overloaded", "out of memory");
    if (item->status != RP_OK)
        return rp_http_error_set(error, 400, "prompt", "invalid_value",
                                 "the prompt cannot be tokenised");
    for (size_t i = 0; i < item->ids.count; i++)
        if (item->ids.ids[i] < 0 || (uint32_t)item->ids.ids[i] >= serving->vocab_size)
            return rp_http_error_set(error, 400, "prompt", "invalid_value",
                                     "the prompt has a token that the model does not know");
    return true;
}

static void fill_request(struct rp_completion *c, uint32_t index) {
    struct rp_choice *choice = &c->choices[index];
    const struct rp_completion_params *params = &c->params;
    struct rp_request *request = &choice->request;
    if (c->items) {
        request->prompt = c->items[index].ids.ids;
        request->prompt_count = (uint32_t)c->items[index].ids.count;
    }
    request->id = ++c->server->next_id;
    request->max_tokens = (uint32_t)params->max_tokens;
    request->min_tokens = (uint32_t)params->min_tokens;
    request->sampling.temperature = (float)params->temperature;
    request->sampling.top_p = (float)params->top_p;
    request->sampling.min_p = (float)params->min_p;
    request->sampling.top_k = (uint32_t)params->top_k;
    /* A top_p so small that f32 makes it 0 keeps the best token only. */
    if (request->sampling.top_p <= 0)
        request->sampling.top_p = 1e-30f;
    request->sampling.seed = params->has_seed ? (uint64_t)params->seed : draw_seed(c->server);
    request->stop_count = params->stop_id_count;
    memcpy(request->stop_ids, params->stop_ids, params->stop_id_count * sizeof(int32_t));
    request->cache_salt = c->salt;
    request->owner = choice;
    request->submit_ns = rp_clock_ns();
    rp_detokenizer_init(&choice->detok, c->server->serving.tokenizer, params->skip_special_tokens);
    rp_stop_match_init(&choice->match, &params->stop);
}

static void submit(struct rp_completion *c) {
    struct rp_server *server = c->server;
    int status = RP_OK;
    for (uint32_t i = 0; i < c->choice_count && status == RP_OK; i++) {
        fill_request(c, i);
        status = rp_engine_submit(server->serving.engine, &c->choices[i].request);
        if (status == RP_OK) {
            c->choices[i].submitted = true;
            c->open_count++;
        }
    }
    if (status == RP_STATUS_FULL) {
        rp_counter_add(&server->metrics.rejected[RP_REJECTED_QUEUE_FULL], 1);
        rp_completion_fail_text(c, 429, "queue_full",
                                "too many requests are waiting, try again later");
    } else if (status != RP_OK) {
        rp_counter_add(&server->metrics.rejected[RP_REJECTED_UNHEALTHY], 1);
        rp_completion_fail_text(c, 503, "engine_failed", "the device has failed");
    }
}

/* The prompts are ids now. */
static void start_requests(struct rp_completion *c) {
    struct rp_http_error error = {.status = 0};
    for (uint32_t i = 0; i < c->choice_count && !error.status; i++) {
        if (c->items && !check_item(c, &c->items[i], &error))
            break;
        check_length(c, c->items ? c->items[i].ids.count : c->choices[i].request.prompt_count,
                     &error);
    }
    json_decref(c->root);
    c->root = NULL;
    c->params.prompt = NULL;
    c->params.cache_salt = NULL;
    if (!c->conn) /* left meanwhile */
        return;
    if (error.status)
        rp_completion_fail(c, &error);
    else if (c->server->phase >= RP_SERVER_STOPPING)
        rp_completion_fail_text(c, 503, "shutting_down", "the server is shutting down");
    else
        submit(c);
}

static void on_tokenised(struct rp_text_job *job) {
    struct rp_completion *c = job->ctx;
    c->working = false;
    c->holds++;
    start_requests(c);
    c->holds--;
    rp_completion_try_free(c);
}

/* --- Prompts ----------------------------------------------------------------------------------- */

static bool read_ids(struct rp_completion *c, uint32_t index, json_t *list,
                     struct rp_http_error *error) {
    struct rp_choice *choice = &c->choices[index];
    size_t i, count = json_array_size(list);
    json_t *item;
    if (count > rp_engine_max_model_len(c->server->serving.engine))
        return check_length(c, count, error);
    choice->ids = rp_calloc(count, sizeof *choice->ids);
    if (!choice->ids)
        return rp_http_error_set(error, 503, NULL, "overloaded", "out of memory");
    json_array_foreach(list, i,
                       item) if (!rp_params_token_id(item, c->server->serving.vocab_size, "prompt",
                                                     &choice->ids[i], error)) return false;
    choice->request.prompt = choice->ids;
    choice->request.prompt_count = (uint32_t)count;
    return true;
}

/* A string, a list of ids, or a list of either: how many prompts that is, 0 with *error. */
static uint32_t count_prompts(json_t *prompt, uint32_t queue_capacity,
                              struct rp_http_error *error) {
    /* More than may wait would be 429 also when nothing runs, however often it is tried. */
    uint32_t most = RP_MIN((uint32_t)RP_PROMPTS_MAX, queue_capacity);
    json_t *first = json_array_get(prompt, 0);
    if (json_is_string(prompt) || json_is_integer(first))
        return 1;
    if (!json_is_string(first) && !json_is_array(first)) {
        rp_http_error_set(error, 400, "prompt", "invalid_type",
                          "prompt must be a string, a list of strings, a list of token ids or a "
                          "list of such lists, and not empty");
        return 0;
    }
    if (json_array_size(prompt) > most) {
        rp_http_error_set(error, 400, "prompt", "out_of_range", "prompt takes up to %u prompts",
                          most);
        return 0;
    }
    return (uint32_t)json_array_size(prompt);
}

static bool read_prompts(struct rp_completion *c, struct rp_http_error *error) {
    json_t *prompt = c->params.prompt, *first = json_array_get(prompt, 0);
    if (json_is_integer(first))
        return read_ids(c, 0, prompt, error);
    bool texts = json_is_string(prompt) || json_is_string(first);
    if (texts && !(c->items = rp_calloc(c->choice_count, sizeof *c->items)))
        return rp_http_error_set(error, 503, NULL, "overloaded", "out of memory");
    for (uint32_t i = 0; i < c->choice_count; i++) {
        json_t *item = json_is_string(prompt) ? prompt : json_array_get(prompt, i);
        if (texts ? !json_is_string(item) : !json_is_array(item))
            return rp_http_error_set(error, 400, "prompt", "invalid_type",
                                     "the prompts of a list must all be of one kind");
        if (!texts && !read_ids(c, i, item, error))
            return false;
        if (texts)
            c->items[i] = (struct rp_text_item){.text = json_string_value(item),
                                                .len = json_string_length(item)};
    }
    return true;
}

/* Prefix pages are shared between requests of one key and one salt. */
static uint64_t make_salt(const struct rp_conn *conn, const struct rp_completion_params *params) {
    int32_t key = conn->key_index;
    uint64_t salt = key < 0 ? 0 : rp_hash64(&key, sizeof key, conn->server->id_secret);
    if (params->cache_salt)
        salt = rp_hash64(params->cache_salt, strlen(params->cache_salt), salt ^ 1);
    return salt;
}

static struct rp_completion *create(struct rp_conn *conn, json_t *root, uint32_t count,
                                    struct rp_completion_params *params) {
    struct rp_server *server = conn->server;
    struct rp_completion *c = rp_calloc(1, sizeof *c + count * sizeof c->choices[0]);
    char id[17], full_id[32] = "cmpl-";
    if (!c)
        return NULL;
    c->server = server;
    c->conn = conn;
    c->root = root;
    c->params = *params;
    c->salt = make_salt(conn, params);
    c->first_byte_ns = conn->first_byte_ns;
    c->choice_count = count;
    for (uint32_t i = 0; i < count; i++) {
        c->choices[i].completion = c;
        c->choices[i].stop_token = -1;
    }
    rp_server_new_id(server, id);
    memcpy(full_id + 5, id, sizeof id);
    rp_sse_head(&c->head, full_id, (int64_t)time(NULL), server->serving.model_name);
    if (c->head.failed) {
        rp_buffer_deinit(&c->head);
        rp_free(c);
        return NULL;
    }
    c->next = server->completions;
    if (server->completions)
        server->completions->prev = c;
    server->completions = c;
    server->completion_count++;
    rp_gauge_set(&server->metrics.completions, server->completion_count);
    conn->gone = rp_completion_gone;
    conn->gone_ctx = c;
    return c;
}

void rp_completion_start(struct rp_conn *conn, json_t *root, struct rp_completion_params *params) {
    struct rp_http_error error = {.status = 0};
    uint32_t count = count_prompts(params->prompt,
                                   rp_engine_queue_capacity(conn->server->serving.engine), &error);
    struct rp_completion *c = count ? create(conn, root, count, params) : NULL;
    if (!c) {
        if (count)
            rp_http_error_set(&error, 503, NULL, "overloaded", "out of memory");
        json_decref(root);
        rp_params_deinit(params);
        rp_conn_reply_error(conn, &error);
        return;
    }
    if (!read_prompts(c, &error)) {
        rp_completion_fail(c, &error); /* before any stream: only replies */
        rp_completion_try_free(c);
        return;
    }
    c->working = true;
    if (!c->items) {
        on_tokenised(&(struct rp_text_job){.ctx = c});
        return;
    }
    c->job.items = c->items;
    c->job.item_count = count;
    c->job.flags = c->params.add_special_tokens ? RP_ENCODE_ADD_SPECIAL : 0;
    c->job.limit = rp_engine_max_model_len(conn->server->serving.engine);
    c->job.done = on_tokenised;
    c->job.ctx = c;
    rp_text_work_start(conn->server, &c->job);
}
