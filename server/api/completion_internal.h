/* completion_internal.h - structures shared by the completion_*.c files. Thread: loop. */
#ifndef RP_SERVER_COMPLETION_INTERNAL_H
#define RP_SERVER_COMPLETION_INTERNAL_H

#include "server/api/answer.h"
#include "server/api/chat_prompt.h"
#include "server/api/completion.h"
#include "server/api/custom_input.h"
#include "server/api/text_work.h"
#include "server/api/token_log.h"
#include "server/observe/request_record.h"
#include "text/tokenizer/detokenizer.h"

/* One answer to a prompt. */
struct rp_choice {
    struct rp_request request;
    struct rp_completion *completion;
    struct rp_detokenizer detok;
    struct rp_stop_match match;
    struct rp_splitter *splitter; /* NULL: all of the output is text */
    struct rp_custom_input custom_input;
    struct rp_request_record record;
    struct rp_token_ids ids;        /* with return_token_ids: tokens not sent yet */
    struct rp_grammar_row *grammar; /* NULL: its tokens are not restricted */
    struct rp_answer_events events; /* not sent yet; without streaming, all of them */
    /* Log-probabilities, if requested; prompt_log and prompt_detok cover echoed prompt tokens. */
    struct rp_token_log log, prompt_log;
    struct rp_detokenizer prompt_detok;
    uint64_t text_bytes,
        text_chars;        /* of the answer's text as far as it is known; chars: and of the echo */
    uint64_t passed_bytes; /* bytes that passed stop string matching */
    uint64_t prompt_chars; /* characters of the prompt tokens seen so far */
    double logprob_sum;
    uint64_t last_token_ns;
    uint64_t taken_ns;         /* when the kernel last took tokens for the socket */
    uint32_t tokens;           /* answer tokens so far */
    uint32_t reasoning_tokens; /* of them, in reasoning */
    uint32_t calls;            /* tool calls begun */
    uint32_t handed;           /* tokens in chunks so far */
    uint32_t waiting[2];       /* tokens in the connection's output buffers, by buffer number */
    int32_t stop_token;
    const char *finish_reason; /* set: the answer has ended */
    bool submitted;            /* submitted to the engine and not closed yet */
    bool begun;                /* at least one chunk was sent */
    bool custom;               /* the last call is of a custom tool */
    bool calls_ended;          /* its call is complete and no other one may follow */
};

struct rp_completion {
    struct rp_server *server;
    struct rp_completion *prev, *next;
    struct rp_conn *conn; /* NULL: answered, or the client has disconnected */
    json_t *root;         /* holds the texts until they are tokenized */
    struct rp_completion_params params;
    struct rp_text_job job;
    struct rp_text_item *items; /* (prompt_count) */
    struct rp_chat_prompt chat; /* rendered chat prompt, until it is tokenized */
    struct rp_http_error chat_error, grammar_error;
    struct rp_grammar_entry *grammar; /* params.grammar, compiled */
    enum rp_split_start start;        /* of the answer of a chat */
    uint32_t earlier_calls;           /* tool calls in the messages */
    struct rp_answer answer;
    struct rp_buffer detok_text, passed_text, logprobs, prompt_logprobs;
    /* additional members of the last chunk or of the whole answer: ,"name":value */
    struct rp_buffer more;
    uint64_t first_byte_ns, salt;
    uint64_t output_ns; /* when something was last sent; before that, when it was created */
    uint64_t tenant;    /* whom its requests are charged to (engine/request.h) */
    uint64_t body_bytes, sent_bytes;
    uint64_t text_ns, text_end_ns;     /* start and end of tokenization */
    uint64_t key_tokens;               /* of all answers and their prompts, once they are known */
    int32_t key;                       /* index of the API key that it counts against; -1: none */
    uint32_t prompt_count, per_prompt; /* choice i answers prompt i / per_prompt */
    uint32_t choice_count, open_count;
    /* reference count of callers that use it across a call that may detect a disconnect */
    uint32_t holds;
    bool working;  /* the tokenizing job is in the thread pool */
    bool profiled; /* its profile table was started */
    bool streaming;
    /* For the request records. */
    uint64_t answered_ns, stall_ns;
    uint16_t status; /* 0: no answer was begun */
    bool logged, left;
    char error[RP_RECORD_ERROR_MAX];
    struct rp_choice choices[];
};

/* completion_text.c. With echo: puts the prompt's text before the answer's. */
bool rp_choice_echo(struct rp_completion *c, struct rp_choice *choice);
/* Handles a PROMPT event. */
void rp_choice_prompt_token(struct rp_completion *c, struct rp_choice *choice,
                            const struct rp_event *event);
/* Converts a token of the answer to text. RP_OK or NO_MEMORY; *out_ended: a stop string has ended
 * the text. */
int rp_choice_take_token(struct rp_completion *c, struct rp_choice *choice,
                         const struct rp_event *event, bool *out_ended);
/* Adds detokenized text to the answer, as far as no stop string can begin in it; match.found says
 * whether one has ended the text. */
void rp_choice_add_text(struct rp_completion *c, struct rp_choice *choice, const char *text,
                        size_t len);
/* A token has ended the text and is no part of it. */
void rp_choice_log_stop(struct rp_completion *c, struct rp_choice *choice,
                        const struct rp_event *event);
/* No token follows: releases the text that was held back. */
void rp_choice_end_text(struct rp_completion *c, struct rp_choice *choice);

/* completion_split.c: chats of a model whose dialect is known. False: no memory. */
bool rp_choice_open_splitter(struct rp_completion *c, struct rp_choice *choice);
/* As rp_choice_take_token, which calls it. */
int rp_choice_split_token(struct rp_completion *c, struct rp_choice *choice, int32_t token,
                          bool *out_ended);
/* The token that ended the answer; it may be the end of a tool call. */
void rp_choice_split_stop(struct rp_completion *c, struct rp_choice *choice, int32_t token);
void rp_choice_split_end(struct rp_completion *c, struct rp_choice *choice);

/* completion_grammar.c: sets c->grammar, or c->grammar_error. On the thread that tokenizes. */
void rp_completion_make_grammar(struct rp_completion *c);

/* completion_answer.c. Sends the choice's unsent text as one chunk. False: the client is gone. */
bool rp_completion_send_chunk(struct rp_completion *c, struct rp_choice *choice);
/* Sends something if nothing was sent for a while and a stream is open or will be; c may be freed
 * if nobody holds it. */
void rp_completion_keep_alive(struct rp_completion *c);
/* Call when all requests are closed and none failed: sends the answer or ends the stream. */
void rp_completion_finish(struct rp_completion *c);
/* Detaches the connection, which continues with the client's next request. */
struct rp_conn *rp_completion_let_go(struct rp_completion *c);
/* Sends c->answer.out as one chunk. False: the client is gone and c may be freed. */
bool rp_completion_send_out(struct rp_completion *c);

/* Frees it when it is unused: no client, no open request, no job, no hold. */
void rp_completion_try_free(struct rp_completion *c);
/* The connection's `gone` callback: the client has disconnected. */
void rp_completion_gone(void *ctx);
/* Answers with an error, or ends the stream with one, and cancels the requests; the caller
 * frees. */
void rp_completion_fail(struct rp_completion *c, const struct rp_http_error *error);
void rp_completion_fail_text(struct rp_completion *c, int status, const char *code,
                             const char *text);

/* completion_record.c. Updates the records: when the prompts are known; when they are tokenized;
 * when it is answered (error: a code or NULL), before the connection is detached; when it has
 * ended: adds them to the log, once. */
void rp_completion_record_begin(struct rp_completion *c, const char *completion_id);
void rp_completion_record_tokenized(struct rp_completion *c);
void rp_completion_answered(struct rp_completion *c, uint16_t status, const char *error);
void rp_completion_log(struct rp_completion *c);
/* include_timing: the member of the answer, and the header line (NULL: none) with the times known
 * so far. */
void rp_completion_timing(struct rp_completion *c, struct rp_buffer *out);
const char *rp_completion_timing_header(struct rp_completion *c, struct rp_buffer *out);

#endif
