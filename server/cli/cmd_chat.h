/* cmd_chat.h - what the files of `reprise chat` share: a conversation with a server, kept as the
 * JSON that is sent. Thread: one. */
#ifndef RP_SERVER_CMD_CHAT_H
#define RP_SERVER_CMD_CHAT_H

#include "base/buffer.h"
#include "bench/load/load_run.h"

#include <jansson.h>
#include <signal.h>
#include <sys/types.h>

struct rp_chat {
    struct rp_load_target target;
    struct rp_load_server about;
    json_t *messages;        /* array, without the system prompt */
    json_t *parameters;      /* object: sampling fields by name */
    json_t *system;          /* string; NULL: none. The same for: */
    json_t *format;          /* response_format */
    json_t *tools;           /* array of tools */
    json_t *template_values; /* chat_template_kwargs */
    bool verbose;
    bool is_terminal;     /* standard output: colors, and no control characters of the model */
    bool failed;          /* an answer has failed */
    uint64_t used_tokens; /* of the context, after the last answer; 0: not known */
};

/* cmd_chat_answer.c. Sends the conversation and prints the answer while it arrives. SIGINT ends it;
 * what has arrived is then kept. RP_OK, or an error when nothing was added to the conversation. */
int rp_chat_answer(struct rp_chat *chat, struct rp_error *err) RP_MUST_USE;
/* Appends JSON; out->failed: out of memory. Any kind of value. */
void rp_chat_dump(struct rp_buffer *out, const json_t *value, size_t flags);
/* The calls of the last message, if it is an answer that calls tools; else NULL. */
json_t *rp_chat_calls(const struct rp_chat *chat);
/* Prints text; on a terminal without control characters other than newline and tab. `held` keeps
 * the beginning of a character whose other bytes follow with the next text. */
struct rp_chat_held {
    char bytes[4];
    uint32_t count;
};
void rp_chat_print(const struct rp_chat *chat, FILE *out, struct rp_chat_held *held,
                   const char *text, size_t len);

/* cmd_chat_words.c. Runs a line that begins with a slash. */
enum rp_chat_word { RP_CHAT_WORD_DONE, RP_CHAT_WORD_AGAIN, RP_CHAT_WORD_BYE };
enum rp_chat_word rp_chat_word(struct rp_chat *chat, const char *line);
/* Sets what `/set format` and `/set tools` set, from a file. */
int rp_chat_set_format(struct rp_chat *chat, const char *from, struct rp_error *err) RP_MUST_USE;
int rp_chat_set_tools(struct rp_chat *chat, const char *path, struct rp_error *err) RP_MUST_USE;

/* cmd_chat_line.c. Lines of standard input, with editing and history on a terminal if libedit is
 * installed. */
enum rp_chat_line { RP_CHAT_LINE_OK, RP_CHAT_LINE_END, RP_CHAT_LINE_INTERRUPTED };
struct rp_chat_lines;
struct rp_chat_lines *rp_chat_lines_open(bool is_terminal);
void rp_chat_lines_close(struct rp_chat_lines *lines);
/* A message: one line, or the lines from """ to """. *out (without the marks) is valid until the
 * next call. */
enum rp_chat_line rp_chat_lines_read(struct rp_chat_lines *lines, const char *prompt,
                                     const char **out);
/* Blocks SIGINT, except while a line is awaited: there it abandons the line. Elsewhere it would
 * interrupt a write to the terminal, or arrive between the test of its flag and a read. */
void rp_chat_interrupt_hold(void);
/* Unblocks it, for a handler that the caller has installed. */
void rp_chat_interrupt_release(void);

/* cmd_chat_server.c: `reprise serve DIR` as a child process with a key of its own, on loopback. */
struct rp_chat_server {
    pid_t child; /* 0: none */
    int log;     /* read end of its standard error */
    char url[64], key[65];
};
/* flags: NULL-terminated arguments for serve. Shows progress on standard error. On failure
 * *out_code is an exit code. RP_STATUS_CANCELLED: the child has ended, and its messages have been
 * printed. */
int rp_chat_server_start(const char *dir, char *const *flags, struct rp_chat_server *out,
                         int *out_code, struct rp_error *err) RP_MUST_USE;
void rp_chat_server_close(struct rp_chat_server *server);

#endif
