/* completion_text.c - tokens to text: detokenizer, stop strings, and the tokens'
 * log-probabilities. */
#include "server/api/completion_internal.h"

#include <string.h>

static uint64_t count_chars(const char *text, size_t len) {
    uint64_t chars = 0;
    for (size_t i = 0; i < len; i++)
        chars += ((unsigned char)text[i] & 0xc0) != 0x80;
    return chars;
}

/* --- The prompt ------------------------------------------------------------------------------ */

/* Adds a prompt token to the log; its position is where its text begins in the prompt's text. */
static void add_prompt_token(struct rp_completion *c, struct rp_choice *choice, int32_t token,
                             const struct rp_event *event) {
    rp_token_log_add(&choice->prompt_log, token, event, 0, choice->prompt_chars);
    rp_buffer_clear(&c->detok_text);
    if (rp_detokenizer_push(&choice->prompt_detok, token, &c->detok_text) != RP_OK)
        choice->prompt_log.entries.failed = true;
    choice->prompt_chars += count_chars(c->detok_text.data, c->detok_text.len);
    rp_buffer_clear(&c->detok_text);
}

void rp_choice_prompt_token(struct rp_completion *c, struct rp_choice *choice,
                            const struct rp_event *event) {
    if (c->conn && !choice->finish_reason)
        add_prompt_token(c, choice, event->token, event);
}

/* The prompt as the client wrote it, or its detokenized ids. */
static bool append_prompt(struct rp_completion *c, const struct rp_choice *choice,
                          const struct rp_text_item *item, struct rp_buffer *out) {
    struct rp_detokenizer detok;
    int status = RP_OK;
    if (item->text) {
        rp_buffer_append(out, item->text, item->len);
        return !out->failed;
    }
    rp_detokenizer_init(&detok, c->server->serving.tokenizer, c->params.skip_special_tokens);
    for (uint32_t i = 0; i < choice->request.prompt_count && status == RP_OK; i++)
        status = rp_detokenizer_push(&detok, choice->request.prompt[i], out);
    return status == RP_OK && rp_detokenizer_finish(&detok, out) == RP_OK;
}

bool rp_choice_echo(struct rp_completion *c, struct rp_choice *choice) {
    uint32_t index = (uint32_t)(choice - c->choices);
    rp_detokenizer_init(&choice->prompt_detok, c->server->serving.tokenizer,
                        c->params.skip_special_tokens);
    if (choice->request.prompt_logprobs)
        add_prompt_token(c, choice, choice->request.prompt[0], NULL);
    if (!c->params.echo)
        return true;
    rp_buffer_clear(&c->passed_text);
    if (!append_prompt(c, choice, &c->items[index / c->per_prompt], &c->passed_text))
        return false;
    rp_answer_add(&choice->events, RP_ANSWER_TEXT, c->passed_text.data, c->passed_text.len);
    choice->text_chars = count_chars(c->passed_text.data, c->passed_text.len);
    return !rp_answer_events_failed(&choice->events);
}

/* --- The answer ------------------------------------------------------------------------------ */

void rp_choice_add_text(struct rp_completion *c, struct rp_choice *choice, const char *text,
                        size_t len) {
    size_t held = choice->match.held_len;
    bool ended = false;
    rp_buffer_clear(&c->passed_text);
    if (choice->tokens <= c->params.min_tokens)
        rp_buffer_append(&c->passed_text, text, len);
    else
        ended = rp_stop_match_push(&choice->match, text, len, &c->passed_text);
    choice->passed_bytes = choice->text_bytes - (held + len - c->passed_text.len);
    if (ended && c->params.include_stop) {
        const struct rp_stop_string *stop = &c->params.stop.strings[choice->match.found];
        rp_buffer_append(&c->passed_text, stop->bytes, stop->len);
        choice->passed_bytes += stop->len;
    }
    rp_answer_add(&choice->events, RP_ANSWER_TEXT, c->passed_text.data, c->passed_text.len);
}

/* Adds the detokenized text. */
static void take_text(struct rp_completion *c, struct rp_choice *choice) {
    choice->text_bytes += c->detok_text.len;
    choice->text_chars += count_chars(c->detok_text.data, c->detok_text.len);
    rp_choice_add_text(c, choice, c->detok_text.data, c->detok_text.len);
    rp_buffer_clear(&c->detok_text);
}

/* Log-probabilities of text that is certain may be sent. */
static void settle_log(struct rp_choice *choice) {
    if (choice->match.found >= 0)
        rp_token_log_cut(&choice->log, choice->passed_bytes);
    else
        rp_token_log_release(&choice->log, choice->passed_bytes);
}

int rp_choice_take_token(struct rp_completion *c, struct rp_choice *choice,
                         const struct rp_event *event, bool *out_ended) {
    int status;
    if (c->params.logprobs >= 0 && choice->grammar)
        choice->log.allowed = rp_grammar_row_allowed(choice->grammar);
    if (c->params.logprobs >= 0)
        rp_token_log_add(&choice->log, event->token, event, choice->text_bytes, choice->text_chars);
    if (choice->splitter) {
        status = rp_choice_split_token(c, choice, event->token, out_ended);
    } else {
        status = rp_detokenizer_push(&choice->detok, event->token, &c->detok_text);
        if (status == RP_OK)
            take_text(c, choice);
        *out_ended = choice->match.found >= 0;
    }
    settle_log(choice);
    if (status != RP_OK || rp_answer_events_failed(&choice->events) || c->passed_text.failed ||
        choice->log.entries.failed)
        return RP_STATUS_NO_MEMORY;
    return RP_OK;
}

/* Completions show the probability of the token that ended the text, as other servers do: programs
 * that score texts count on one entry for each token that was generated. */
void rp_choice_log_stop(struct rp_completion *c, struct rp_choice *choice,
                        const struct rp_event *event) {
    if (c->params.api == RP_API_COMPLETIONS && c->params.logprobs >= 0)
        rp_token_log_add(&choice->log, event->token, event, choice->text_bytes, choice->text_chars);
}

void rp_choice_end_text(struct rp_completion *c, struct rp_choice *choice) {
    if (choice->splitter) {
        rp_choice_split_end(c, choice);
    } else {
        if (rp_detokenizer_finish(&choice->detok, &c->detok_text) == RP_OK)
            take_text(c, choice);
        rp_buffer_clear(&c->passed_text);
        rp_stop_match_finish(&choice->match, &c->passed_text);
        rp_answer_add(&choice->events, RP_ANSWER_TEXT, c->passed_text.data, c->passed_text.len);
    }
    if (choice->match.found >= 0)
        settle_log(choice);
    else
        rp_token_log_release_all(&choice->log);
}
