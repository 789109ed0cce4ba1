/* completion_split.c - the output of a chat model as reasoning, text and tool calls, split by the
 * model's dialect (text/dialect/dialect.h). */
#include "base/hash.h"
#include "server/api/completion_internal.h"

#include <string.h>

/* --- Events of the splitter ------------------------------------------------------------------ */

/* A stop string has ended the answer, or the one call that may be made is complete. */
static bool has_ended(const struct rp_choice *choice) {
    return choice->match.found >= 0 || choice->calls_ended;
}

/* Text that was held back for stop strings comes before what follows it. */
static void release_text(struct rp_completion *c, struct rp_choice *choice) {
    rp_buffer_clear(&c->passed_text);
    rp_stop_match_restart(&choice->match, &c->passed_text);
    rp_answer_add(&choice->events, RP_ANSWER_TEXT, c->passed_text.data, c->passed_text.len);
}

/* Unique in this process, and not to be guessed from other ids. */
static void make_call_id(struct rp_completion *c, const struct rp_split_event *event,
                         char out[RP_CALL_ID_BYTES]) {
    struct rp_server *server = c->server;
    uint64_t random[3];
    if (!rp_random_fill(random, sizeof random))
        for (size_t i = 0; i < RP_ARRAY_COUNT(random); i++)
            random[i] = rp_server_random(server);
    random[0] = rp_dialect_call_number(server->call_key, server->call_count++);
    rp_dialect_call_id(rp_bound_dialect_row(server->serving.dialect), event->name,
                       c->earlier_calls + event->index, random, out);
}

static void begin_call(struct rp_completion *c, struct rp_choice *choice,
                       const struct rp_split_event *event) {
    char made[RP_CALL_ID_BYTES];
    if (!event->id[0])
        make_call_id(c, event, made);
    choice->custom = rp_tools_is_custom(&c->params.tools, event->name);
    memset(&choice->custom_input, 0, sizeof choice->custom_input);
    choice->calls++;
    rp_answer_add_call(&choice->events, event->index, choice->custom,
                       event->id[0] ? event->id : made, event->name, strlen(event->name));
}

static void add_arguments(struct rp_completion *c, struct rp_choice *choice,
                          const struct rp_split_event *event) {
    const char *bytes = event->bytes;
    size_t len = event->len;
    if (choice->custom) {
        rp_buffer_clear(&c->passed_text);
        rp_custom_input_push(&choice->custom_input, bytes, len, &c->passed_text);
        bytes = c->passed_text.data;
        len = c->passed_text.len;
    }
    rp_answer_add_arguments(&choice->events, event->index, choice->custom, bytes, len);
}

static void end_call(struct rp_completion *c, struct rp_choice *choice,
                     const struct rp_split_event *event) {
    rp_answer_add_call_end(&choice->events, event->index, choice->custom);
    rp_counter_add(&c->server->metrics.tool_calls[event->complete ? 0 : 1], 1);
    choice->calls_ended = event->complete && !c->params.parallel_tool_calls;
}

static void on_split(void *user, const struct rp_split_event *event) {
    struct rp_choice *choice = user;
    struct rp_completion *c = choice->completion;
    if (has_ended(choice))
        return;
    if (event->kind == RP_SPLIT_TEXT) {
        rp_choice_add_text(c, choice, event->bytes, event->len);
        return;
    }
    release_text(c, choice);
    choice->passed_bytes = choice->text_bytes;
    if (event->kind == RP_SPLIT_CALL_BEGIN)
        begin_call(c, choice, event);
    else if (event->kind == RP_SPLIT_CALL_ARGUMENTS)
        add_arguments(c, choice, event);
    else if (event->kind == RP_SPLIT_CALL_END)
        end_call(c, choice, event);
    else if (c->params.include_reasoning)
        rp_answer_add(&choice->events, RP_ANSWER_REASONING, event->bytes, event->len);
}

/* --- Tokens ---------------------------------------------------------------------------------- */

bool rp_choice_open_splitter(struct rp_completion *c, struct rp_choice *choice) {
    const struct rp_tools *tools = &c->params.tools;
    if (!c->server->serving.dialect || c->params.api != RP_API_CHAT)
        return true;
    const struct rp_splitter_options options = {.tools = tools->tools,
                                                .tool_count = tools->count,
                                                .start = c->start,
                                                .calls_off = tools->count == 0 ||
                                                             tools->choice == RP_TOOLS_NONE,
                                                .keep_special = !c->params.skip_special_tokens,
                                                .sink = on_split,
                                                .user = choice};
    choice->splitter = rp_splitter_create(c->server->serving.dialect, &options);
    return choice->splitter != NULL;
}

static int push_token(struct rp_completion *c, struct rp_choice *choice, int32_t token) {
    const struct rp_tokenizer *tokenizer = c->server->serving.tokenizer;
    size_t len;
    if (rp_tokenizer_token(tokenizer, token).special) {
        const char *content = rp_tokenizer_content(tokenizer, token, &len);
        return rp_splitter_push_special(choice->splitter, content, len);
    }
    rp_buffer_clear(&c->detok_text);
    int status = rp_detokenizer_push(&choice->detok, token, &c->detok_text);
    choice->text_bytes += c->detok_text.len;
    if (status == RP_OK && c->detok_text.len)
        status = rp_splitter_push(choice->splitter, c->detok_text.data, c->detok_text.len);
    rp_buffer_clear(&c->detok_text);
    return status;
}

int rp_choice_split_token(struct rp_completion *c, struct rp_choice *choice, int32_t token,
                          bool *out_ended) {
    choice->reasoning_tokens += rp_splitter_in_reasoning(choice->splitter);
    int status = push_token(c, choice, token);
    *out_ended = has_ended(choice);
    return status;
}

void rp_choice_split_stop(struct rp_completion *c, struct rp_choice *choice, int32_t token) {
    size_t len;
    const struct rp_tokenizer *tokenizer = c->server->serving.tokenizer;
    const char *content = rp_tokenizer_content(tokenizer, token, &len);
    if (!c->params.skip_special_tokens || !rp_tokenizer_token(tokenizer, token).special)
        return;
    if (rp_splitter_push_special(choice->splitter, content, len) != RP_OK)
        choice->events.bytes.failed = true;
}

void rp_choice_split_end(struct rp_completion *c, struct rp_choice *choice) {
    int status = RP_OK;
    if (!has_ended(choice)) {
        rp_buffer_clear(&c->detok_text);
        status = rp_detokenizer_finish(&choice->detok, &c->detok_text);
        if (status == RP_OK && c->detok_text.len)
            status = rp_splitter_push(choice->splitter, c->detok_text.data, c->detok_text.len);
        rp_buffer_clear(&c->detok_text);
    }
    if (status == RP_OK)
        status = rp_splitter_finish(choice->splitter);
    if (!has_ended(choice))
        release_text(c, choice);
    if (status != RP_OK)
        choice->events.bytes.failed = true;
    rp_counter_add(&c->server->metrics.tool_misses, rp_splitter_misses(choice->splitter));
}
