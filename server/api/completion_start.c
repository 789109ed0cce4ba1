/* completion_start.c - start of a completion: prompts to token ids to engine requests. */
#include "base/hash.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "server/api/bad_words.h"
#include "server/api/completion_internal.h"
#include "server/api/server_keys.h"
#include "server/server_trace.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* --- Submitting ------------------------------------------------------------------------------ */

/* Stays in the range a client could send: JSON readers have no integers above 2^63 - 1, and the
 * request record contains the seed. */
static uint64_t draw_seed(struct rp_server *server) {
    uint64_t seed;
    if (server->serving.seed == 0 && rp_random_fill(&seed, sizeof seed))
        return seed & INT64_MAX;
    uint64_t counter = ++server->seed_counter;
    return rp_hash64(&counter, sizeof counter, server->serving.seed) & INT64_MAX;
}

static const char *prompt_field(const struct rp_completion *c) {
    return c->params.api == RP_API_CHAT ? "messages" : "prompt";
}

/* The tokens that the context must have room for; the engine generates at least one. */
static uint64_t tokens_wanted(const struct rp_completion *c) {
    return c->params.limit_to_context ? 1 : (uint64_t)RP_MAX(c->params.max_tokens, 1);
}

/* With a non-causal mask a prompt must fit in one step; with prompt_logprobs its logit rows must,
 * too. */
static bool check_whole(const struct rp_completion *c, uint64_t count,
                        struct rp_http_error *error) {
    const struct rp_engine *engine = c->server->serving.engine;
    bool scored = c->params.prompt_logprobs >= 0 || (c->params.echo && c->params.logprobs >= 0);
    uint32_t most = rp_engine_whole_prompt_max(engine, false);
    if (most && count > most)
        return rp_http_error_set(error, 400, prompt_field(c), "context_length_exceeded",
                                 "this server's attention mask is not causal, so a prompt is "
                                 "computed in one step of up to %u tokens "
                                 "(--max-num-batched-tokens); this one has %llu",
                                 most, (unsigned long long)count);
    most = scored ? rp_engine_whole_prompt_max(engine, true) : 0;
    if (most && count > most)
        return rp_http_error_set(
            error, 400, c->params.prompt_logprobs >= 0 ? "prompt_logprobs" : "echo",
            "context_length_exceeded",
            "this server's attention mask is not causal, so log-probabilities are available for "
            "prompts of up to %u tokens (--max-num-seqs); this one has %llu",
            most, (unsigned long long)count);
    return true;
}

static bool check_length(struct rp_completion *c, uint64_t count, struct rp_http_error *error) {
    const struct rp_engine *engine = c->server->serving.engine;
    uint32_t longest = rp_engine_max_model_len(engine);
    /* With max_tokens 0 the one token that the engine generates is not part of the context. */
    bool prompt_only = c->params.max_tokens == 0;
    uint64_t max_tokens = prompt_only ? 0 : tokens_wanted(c);
    if (count == 0)
        return rp_http_error_set(error, 400, prompt_field(c), "invalid_value",
                                 "the prompt has no tokens");
    if (count + max_tokens > longest)
        return rp_http_error_set(
            error, 400, count >= longest ? prompt_field(c) : "max_tokens",
            "context_length_exceeded",
            "this model's maximum context length is %u tokens, the request asks for %llu "
            "(%llu in the prompt, %llu "
            "for the completion): shorten the prompt or lower max_tokens",
            longest, (unsigned long long)(count + max_tokens), (unsigned long long)count,
            (unsigned long long)max_tokens);
    if (!check_whole(c, count, error))
        return false;
    if (prompt_only ? !rp_engine_prompt_fits(engine, (uint32_t)count)
                    : !rp_engine_fits(engine, (uint32_t)count, (uint32_t)max_tokens))
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
        return rp_http_error_set(
            error, 400, prompt_field(c), "context_length_exceeded",
            "this model's maximum context length is %u tokens, the prompt alone "
            "has more",
            rp_engine_max_model_len(serving->engine));
    if (item->status == RP_STATUS_NO_MEMORY)
        return rp_http_error_set(error, 503, NULL, "overloaded", "out of memory");
    if (item->status != RP_OK)
        return rp_http_error_set(error, 400, prompt_field(c), "invalid_value",
                                 "the prompt cannot be tokenized");
    for (size_t i = 0; i < item->ids.count; i++)
        if (item->ids.ids[i] < 0 || (uint32_t)item->ids.ids[i] >= serving->vocab_size)
            return rp_http_error_set(
                error, 400, prompt_field(c), "invalid_value",
                "the prompt has a token that is not in the model's vocabulary");
    return true;
}

/* max_tokens, or as many as the context has room for after the prompt. */
static uint32_t settle_max_tokens(const struct rp_completion *c, uint32_t prompt_count) {
    uint32_t most = rp_engine_output_max(c->server->serving.engine, prompt_count);
    int64_t asked = c->params.max_tokens;
    if (asked < 0 || (c->params.limit_to_context && asked > (int64_t)most))
        return most;
    return (uint32_t)RP_MAX(asked, 1);
}

/* Each answer to a prompt has its own seed; the first one uses the client's. */
static uint64_t pick_seed(struct rp_completion *c, uint32_t answer) {
    const struct rp_completion_params *params = &c->params;
    if (!params->has_seed)
        return draw_seed(c->server);
    uint64_t seed = (uint64_t)params->seed + answer;
    return params->seed < 0 ? seed : seed & INT64_MAX;
}

static void fill_sampling(struct rp_completion *c, uint32_t answer, struct rp_sampling *out) {
    const struct rp_completion_params *params = &c->params;
    out->temperature = (float)params->temperature;
    out->top_p = (float)params->top_p;
    out->min_p = (float)params->min_p;
    out->top_k = (uint32_t)params->top_k;
    /* A top_p that rounds to 0 in f32 keeps only the most likely token. */
    if (out->top_p <= 0)
        out->top_p = 1e-30f;
    out->seed = pick_seed(c, answer);
    out->repetition_penalty = (float)params->repetition_penalty;
    if (out->repetition_penalty <= 0)
        out->repetition_penalty = 1e-30f;
    out->presence_penalty = (float)params->presence_penalty;
    out->frequency_penalty = (float)params->frequency_penalty;
}

/* Log-probabilities to return with the tokens. The prompt's are the same for all answers, so only
 * one request computes them, except in a stream, where each choice begins with its own. */
static void fill_logprobs(const struct rp_completion *c, uint32_t answer,
                          struct rp_request *request) {
    const struct rp_completion_params *params = &c->params;
    int64_t echoed = params->echo ? params->logprobs : -1;
    int64_t prompt = RP_MAX(echoed, params->prompt_logprobs);
    request->logprobs = params->logprobs >= 0;
    request->top_logprobs = (uint8_t)RP_MAX(params->logprobs, 0);
    request->prompt_logprobs = prompt >= 0 && (params->stream || answer == 0);
    request->top_prompt_logprobs = (uint8_t)RP_MAX(prompt, 0);
}

/* The client's limit and the server's count from the first byte, the queue's from here. */
static void set_deadlines(const struct rp_completion *c, struct rp_request *request) {
    const struct rp_server_config *config = &c->server->config;
    uint64_t limit = (uint64_t)(c->params.timeout * 1e9), most = config->request_timeout_ns;
    limit = limit && most ? RP_MIN(limit, most) : RP_MAX(limit, most);
    request->deadline_ns = limit ? c->first_byte_ns + limit : 0;
    request->queue_deadline_ns =
        config->queue_timeout_ns ? rp_tick_ns() + config->queue_timeout_ns : 0;
}

/* Call when the request's other fields are set. False: no memory. */
static bool open_grammar(struct rp_completion *c, struct rp_choice *choice) {
    if (!c->grammar || choice->request.prompt_only)
        return true;
    choice->grammar = rp_grammar_row_open(c->server->grammars, c->grammar, &choice->request);
    return choice->grammar != NULL;
}

/* False: no memory. */
static bool fill_request(struct rp_completion *c, uint32_t index) {
    struct rp_choice *choice = &c->choices[index];
    const struct rp_completion_params *params = &c->params;
    const struct rp_text_item *item = &c->items[index / c->per_prompt];
    struct rp_request *request = &choice->request;
    uint32_t answer = index % c->per_prompt;
    request->prompt = item->ids.ids;
    request->prompt_count = (uint32_t)item->ids.count;
    request->choice = answer;
    request->id = ++c->server->next_id;
    request->max_tokens = settle_max_tokens(c, request->prompt_count);
    request->min_tokens = RP_MIN((uint32_t)params->min_tokens, request->max_tokens);
    fill_sampling(c, answer, &request->sampling);
    fill_logprobs(c, answer, request);
    request->stop_count = params->stop_id_count;
    memcpy(request->stop_ids, params->stop_ids, params->stop_id_count * sizeof(int32_t));
    request->biases = params->biases;
    request->bias_count = params->bias_count;
    request->allowed = params->allowed;
    request->bad_words = params->bad_tokens;
    request->bad_word_ints = params->bad_token_ints;
    request->mask_param_count = params->mask_param_count;
    memcpy(request->mask_params, params->mask_params, sizeof request->mask_params);
    request->prompt_only = params->max_tokens == 0;
    request->tenant = c->tenant;
    request->priority = (int32_t)params->priority;
    set_deadlines(c, request);
    request->cache_salt = c->salt;
    request->profile = params->profile;
    request->owner = choice;
    request->submit_ns = rp_tick_ns();
    rp_detokenizer_init(&choice->detok, c->server->serving.tokenizer, params->skip_special_tokens);
    rp_stop_match_init(&choice->match, &params->stop);
    /* A completion continues its prompt's text; a chat message is a separate text. */
    if (params->api == RP_API_COMPLETIONS &&
        rp_detokenizer_follow(&choice->detok, request->prompt, request->prompt_count) != RP_OK)
        return false;
    return rp_choice_echo(c, choice) && rp_choice_open_splitter(c, choice) &&
           open_grammar(c, choice);
}

static void submit(struct rp_completion *c) {
    struct rp_server *server = c->server;
    int status = RP_OK;
    for (uint32_t i = 0; i < c->choice_count && status == RP_OK; i++) {
        status = fill_request(c, i) ? RP_OK : RP_STATUS_NO_MEMORY;
        if (status != RP_OK)
            break;
        status = rp_engine_submit(server->serving.engine, &c->choices[i].request);
        if (status == RP_OK) {
            rp_server_trace_queued(c, &c->choices[i]);
            rp_record_queued(&c->choices[i].record, &c->choices[i].request);
            c->choices[i].submitted = true;
            c->open_count++;
        }
    }
    rp_grammar_flush(server->grammars);
    if (status == RP_STATUS_FULL) {
        rp_counter_add(&server->metrics.rejected[RP_REJECTED_QUEUE_FULL], 1);
        rp_completion_fail_text(c, 429, "queue_full",
                                "too many requests are waiting, try again later");
    } else if (status == RP_STATUS_NO_MEMORY) {
        rp_completion_fail_text(c, 503, "overloaded", "out of memory");
    } else if (status != RP_OK) {
        rp_counter_add(&server->metrics.rejected[RP_REJECTED_UNHEALTHY], 1);
        rp_completion_fail_text(c, 503, "engine_failed", "the device has failed");
    }
}

/* Charges the tokens of all answers and their prompts to the key. */
static void take_key_tokens(struct rp_completion *c, struct rp_http_error *error) {
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < c->choice_count; i++) {
        uint32_t prompt = (uint32_t)c->items[i / c->per_prompt].ids.count;
        tokens += prompt + settle_max_tokens(c, prompt);
    }
    if (rp_server_key_take_tokens(c->server, c->key, tokens, error))
        c->key_tokens = tokens;
}

/* Call when the prompts are tokenized. */
static void start_requests(struct rp_completion *c) {
    struct rp_http_error error = c->chat_error.status ? c->chat_error : c->grammar_error;
    rp_completion_record_tokenized(c);
    for (uint32_t i = 0; i < c->prompt_count && !error.status; i++)
        if (check_item(c, &c->items[i], &error))
            check_length(c, c->items[i].ids.count, &error);
    if (!c->conn) /* disconnected in the meantime */
        return;
    if (!error.status)
        take_key_tokens(c, &error);
    if (error.status)
        rp_completion_fail(c, &error);
    else if (c->server->phase >= RP_SERVER_STOPPING)
        rp_completion_fail_text(c, 503, "shutting_down", "the server is shutting down");
    else
        submit(c);
}

/* The JSON tree may be large and is not used any more. */
static void drop_texts(struct rp_completion *c) {
    rp_chat_prompt_deinit(&c->chat);
    memset(&c->chat, 0, sizeof c->chat);
    for (uint32_t i = 0; i < c->prompt_count; i++)
        c->items[i].text = NULL;
    json_decref(c->root);
    c->root = c->params.prompt = c->params.bad_words = NULL;
    c->params.documents = c->params.template_kwargs = NULL;
    c->params.enable_thinking = NULL;
    c->params.cache_salt = c->params.reasoning_effort = NULL;
}

static void on_tokenized(struct rp_text_job *job) {
    struct rp_completion *c = job->ctx;
    c->working = false;
    c->text_end_ns = rp_tick_ns();
    c->holds++;
    start_requests(c);
    drop_texts(c);
    c->holds--;
    rp_completion_try_free(c);
}

/* --- Prompts --------------------------------------------------------------------------------- */

static bool no_memory(struct rp_http_error *error) {
    return rp_http_error_set(error, 503, NULL, "overloaded", "out of memory");
}

static bool read_ids(struct rp_completion *c, uint32_t index, json_t *list,
                     struct rp_http_error *error) {
    struct rp_token_ids *ids = &c->items[index].ids;
    size_t i, count = json_array_size(list);
    json_t *item;
    if (count > rp_engine_max_model_len(c->server->serving.engine))
        return check_length(c, count, error);
    ids->ids = rp_calloc(count, sizeof *ids->ids);
    if (!ids->ids)
        return count == 0 ? check_length(c, 0, error) : no_memory(error);
    ids->capacity = count;
    json_array_foreach(list, i, item) {
        if (!rp_params_token_id(item, c->server->serving.vocab_size, "prompt", &ids->ids[i], error))
            return false;
        ids->count++;
    }
    return true;
}

/* The number of prompts in a string, a list of ids, or a list of either; 0 with *error. */
static uint32_t count_prompts(const struct rp_completion_params *params, uint32_t queue_capacity,
                              struct rp_http_error *error) {
    /* More prompts than the queue holds would get 429 even from an idle server, on every retry. */
    uint32_t most = RP_MIN((uint32_t)RP_PROMPTS_MAX, queue_capacity) / (uint32_t)params->best_of;
    json_t *prompt = params->prompt;
    if (most == 0) {
        rp_http_error_set(error, 400, "n", "out_of_range", "this server takes up to %u answers",
                          queue_capacity);
        return 0;
    }
    if (params->api == RP_API_CHAT)
        return 1;
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
        rp_http_error_set(error, 400, "prompt", "out_of_range", "prompt accepts up to %u prompts%s",
                          most, params->best_of > 1 ? " with so many answers each" : "");
        return 0;
    }
    return (uint32_t)json_array_size(prompt);
}

static bool read_texts(struct rp_completion *c, struct rp_http_error *error) {
    json_t *prompt = c->params.prompt, *first = json_array_get(prompt, 0);
    if (json_is_integer(first))
        return read_ids(c, 0, prompt, error);
    bool texts = json_is_string(prompt) || json_is_string(first);
    for (uint32_t i = 0; i < c->prompt_count; i++) {
        json_t *item = json_is_string(prompt) ? prompt : json_array_get(prompt, i);
        if (texts ? !json_is_string(item) : !json_is_array(item))
            return rp_http_error_set(error, 400, "prompt", "invalid_type",
                                     "the prompts of a list must all be of one kind");
        if (!texts && !read_ids(c, i, item, error))
            return false;
        if (texts) {
            c->items[i].text = json_string_value(item);
            c->items[i].len = json_string_length(item);
        }
    }
    return true;
}

/* Runs on the thread that tokenizes. */
static void compile_grammar(void *ctx) { rp_completion_make_grammar(ctx); }

/* Runs on the thread that tokenizes. */
static int make_chat(struct rp_text_item *item) {
    struct rp_completion *c = item->ctx;
    const struct rp_serving *serving = &c->server->serving;
    int status = rp_chat_prompt_make(&c->params, serving, item->len, &c->chat, &c->chat_error);
    if (status == RP_OK && serving->dialect)
        c->start = rp_dialect_start(serving->dialect, c->chat.spans, c->chat.span_count);
    if (status == RP_OK)
        rp_completion_make_grammar(c);
    item->spans = c->chat.spans;
    item->span_count = c->chat.span_count;
    return status;
}

static bool read_chat(struct rp_completion *c, struct rp_http_error *error) {
    struct rp_text_item *item = &c->items[0];
    json_t *message;
    size_t i;
    item->make = make_chat;
    item->ctx = c;
    if (!rp_chat_prompt_check(&c->params, &c->server->serving, &item->len, error))
        return false;
    json_array_foreach(c->params.prompt, i, message) c->earlier_calls +=
        (uint32_t)json_array_size(json_object_get(message, "tool_calls"));
    return true;
}

static bool read_prompts(struct rp_completion *c, struct rp_http_error *error) {
    c->items = rp_calloc(c->prompt_count, sizeof *c->items);
    if (!c->items)
        return no_memory(error);
    if (c->params.bad_words && !rp_bad_words_read(c->server, &c->params, error))
        return false;
    return c->params.api == RP_API_CHAT ? read_chat(c, error) : read_texts(c, error);
}

/* Prefix pages are shared only between requests with the same key, salt and attention mask
 * parameters: from the second layer on, K and V depend on what their tokens attended to. */
static uint64_t make_salt(const struct rp_conn *conn, const struct rp_completion_params *params) {
    uint64_t salt = rp_server_key_salt(conn->server, conn->key_index);
    if (params->cache_salt)
        salt = rp_hash64(params->cache_salt, strlen(params->cache_salt), salt ^ 1);
    if (params->mask_param_count)
        salt = rp_hash64(params->mask_params, params->mask_param_count * sizeof(int32_t), salt ^ 2);
    return salt;
}

static struct rp_completion *create(struct rp_conn *conn, json_t *root, uint32_t prompts,
                                    struct rp_completion_params *params) {
    struct rp_server *server = conn->server;
    uint32_t per_prompt = (uint32_t)params->best_of, count = prompts * per_prompt;
    struct rp_completion *c = rp_calloc(1, sizeof *c + count * sizeof c->choices[0]);
    char id[17];
    if (!c)
        return NULL;
    c->server = server;
    c->conn = conn;
    c->root = root;
    c->params = *params;
    c->salt = make_salt(conn, params);
    c->key = conn->key_index;
    c->tenant = rp_conn_tenant(conn);
    c->first_byte_ns = conn->first_byte_ns;
    c->body_bytes = conn->body_raw_bytes;
    c->prompt_count = prompts;
    c->per_prompt = per_prompt;
    c->choice_count = count;
    for (uint32_t i = 0; i < count; i++) {
        c->choices[i].completion = c;
        c->choices[i].stop_token = -1;
    }
    rp_server_new_id(server, id);
    snprintf(c->answer.id, sizeof c->answer.id, "%s%s", params->answers->id_prefix, id);
    c->output_ns = rp_tick_ns();
    c->answer.created = (int64_t)time(NULL);
    c->answer.model = server->serving.model_name;
    c->answer.server = server;
    c->answer.owner = rp_server_key_salt(server, conn->key_index);
    if (!rp_answer_open(&c->answer, root, params)) {
        rp_answer_close(&c->answer);
        rp_free(c);
        return NULL;
    }
    rp_completion_record_begin(c, c->answer.id);
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
    uint32_t count =
        count_prompts(params, rp_engine_queue_capacity(conn->server->serving.engine), &error);
    uint32_t answers = count * (uint32_t)params->best_of;
    if (count && !rp_server_key_take(conn->server, conn->key_index, answers, &error))
        count = 0;
    struct rp_completion *c = count ? create(conn, root, count, params) : NULL;
    if (!c) {
        if (count)
            rp_server_key_give(conn->server, conn->key_index, answers, 0);
        if (count)
            rp_http_error_set(&error, 503, NULL, "overloaded", "out of memory");
        json_decref(root);
        rp_params_deinit(params);
        rp_conn_reply_error(conn, &error);
        return;
    }
    if (!read_prompts(c, &error)) {
        rp_completion_fail(c, &error); /* before any stream has begun: only sends a reply */
        rp_completion_try_free(c);
        return;
    }
    c->working = true;
    c->job.items = c->items;
    c->job.item_count = count;
    c->job.flags = c->params.add_special_tokens ? RP_ENCODE_ADD_SPECIAL : 0;
    c->job.limit = rp_engine_max_model_len(conn->server->serving.engine);
    /* A chat's grammar follows from its rendered prompt (make_chat). */
    if (c->params.api == RP_API_COMPLETIONS && c->params.grammar.kind != RP_GRAMMAR_NONE)
        c->job.prepare = compile_grammar;
    c->job.done = on_tokenized;
    c->job.ctx = c;
    c->text_ns = rp_tick_ns();
    rp_text_work_start(conn->server, &c->job);
}
