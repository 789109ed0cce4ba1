/* answer_completions.c - answers of /v1/completions. */
#include "server/api/answer.h"

static bool open_answer(struct rp_answer *answer, json_t *root,
                        const struct rp_completion_params *params) {
    (void)root;
    (void)params;
    return rp_answer_json_head(answer, "text_completion");
}

static void write_choice(struct rp_answer *answer, const struct rp_answer_choice *choice) {
    rp_buffer_printf(&answer->out, "{\"index\":%u,\"text\":", choice->index);
    rp_answer_json_joined(answer, choice->events, RP_ANSWER_TEXT);
    rp_answer_json_choice_tail(&answer->out, choice, choice->finish_reason != NULL);
}

static void write_part(struct rp_answer *answer, const struct rp_answer_choice *choice,
                       const struct rp_answer_usage *usage) {
    rp_answer_json_begin(answer);
    write_choice(answer, choice);
    rp_answer_json_end(answer, usage, NULL);
}

static void write_whole(struct rp_answer *answer, const struct rp_answer_choice *choice) {
    rp_buffer_puts(&answer->out, choice->index ? "," : "");
    write_choice(answer, choice);
}

const struct rp_answer_api rp_answer_completions = {
    .id_prefix = "cmpl-",
    .open = open_answer,
    .part = write_part,
    .end = rp_answer_json_last,
    .error = rp_answer_json_error,
    .whole_begin = rp_answer_json_whole_begin,
    .whole_choice = write_whole,
    .whole_end = rp_answer_json_whole_end,
    .logprobs = rp_token_log_completion,
    .prompt_logprobs_in_choice = true,
};
