/* dialect.h - what models write around tool calls and reasoning.
 *
 * A dialect is a row of strings and flags. From one row come the splitter, which turns the model's
 * output into events; the grammar of an answer, as a structural tag; and the text of a call. They
 * agree because they read the same strings.
 *
 * A row is bound to the special tokens of a model once. A marker that is a special token then
 * matches that token alone, so text that spells it is text. Other markers match as bytes, however
 * they were split into tokens.
 *
 * Thread: dialects and bound dialects are immutable; a splitter belongs to one thread at a time.
 * Memory: tables at load; a splitter has one block and two buffers that grow to a fixed limit.
 * Errors: the output of a model never is an error: what is not a call is text. */
#ifndef RP_TEXT_DIALECT_H
#define RP_TEXT_DIALECT_H

#include "base/buffer.h"
#include "base/status.h"
#include "text/tokenizer/tokenizer.h"

#include <jansson.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Rows ------------------------------------------------------------------------------- */

/* How a call names its tool and writes its arguments. Whitespace at the ends of a marker is what
 * the model usually writes there: the splitter accepts any other. */
enum rp_call_shape {
    RP_CALL_NONE,     /* no calls */
    RP_CALL_JSON,     /* call_open {"name": "N", "arguments": {..}} call_close */
    RP_CALL_NAMED,    /* call_open N name_close {..} call_close */
    RP_CALL_TAGGED,   /* call_open N name_close (key_open K key_close V value_close)* call_close */
    RP_CALL_LITERAL,  /* call_open N {k:v,..} call_close, strings between `quote` (Gemma) */
    RP_CALL_PYTHONIC, /* call_open [N(k=v, ..), ..] call_close */
    RP_CALL_HARMONY   /* channels (gpt-oss); the markers are fixed */
};

enum rp_call_id_rule {
    RP_CALL_ID_OPENAI,    /* call_ and 24 alphanumerics */
    RP_CALL_ID_MISTRAL,   /* 9 alphanumerics */
    RP_CALL_ID_FUNCTIONS, /* functions.NAME:INDEX, written in the call (Kimi K2) */
};

/* Strings are never NULL; "" is absent. */
struct rp_dialect {
    const char *name;             /* ours; unique */
    const char *tool_parser;      /* values of --tool-call-parser, separated by spaces */
    const char *reasoning_parser; /* values of --reasoning-parser, likewise */
    const char *clues; /* lines; all parts (between tabs) of one are in the chat template */

    const char *reasoning_open, *reasoning_close;

    enum rp_call_shape shape;
    enum rp_call_id_rule id_rule;
    const char *section_open, *section_close; /* around all calls */
    const char *call_open, *call_close;       /* around each */
    const char *separator;                    /* between calls */
    const char *name_prefix;                  /* before N, dropped: "functions." */
    const char *name_close;                   /* after N */
    const char *id_open;                      /* after N, before an id: [CALL_ID] */
    const char *arguments_key;                /* RP_CALL_JSON: "arguments" or "parameters" */
    const char *key_open, *key_close, *value_close;
    const char *raw_key_close; /* key_close of a value that is JSON; "": key_close (DeepSeek V3.2)*/
    const char *quote;
    bool bare;             /* calls may come without section_open and call_open (Llama) */
    bool section_per_call; /* the section is written around each call */
};

/* By our name, or by a value of --tool-call-parser; NULL: unknown. Several rows may share a value
 * (mistral): the first one. */
const struct rp_dialect *rp_dialect_find(const char *name);
/* By a value of --reasoning-parser. Only its reasoning strings are of interest. */
const struct rp_dialect *rp_dialect_find_reasoning(const char *name);
/* The row that fits a chat template (NULL: none) and the special tokens. `name` (may be NULL)
 * limits it to the rows with that name or --tool-call-parser value. NULL when none fits. */
const struct rp_dialect *rp_dialect_detect(const char *name, const char *template_text,
                                           const char *const *specials, size_t special_count);
/* The reasoning markers of a template whose calls are of another row, or of none: "<think>" in the
 * text is enough. NULL when there are none. */
const struct rp_dialect *rp_dialect_detect_reasoning(const char *template_text);
size_t rp_dialect_count(void);
const struct rp_dialect *rp_dialect_at(size_t index);

/* Rows of a file: {"dialects": [{"name": .., "shape": "json", "call_open": .., ..}]}, keys as the
 * members above. A row may name another as "base" and change some members. FORMAT with the row and
 * the key. */
struct rp_dialect_file;
int rp_dialect_file_load(const char *text, size_t len, struct rp_dialect_file **out,
                         struct rp_error *err) RP_MUST_USE;
void rp_dialect_file_free(struct rp_dialect_file *file); /* NULL is allowed */
/* name NULL: the first row. */
const struct rp_dialect *rp_dialect_file_find(const struct rp_dialect_file *file, const char *name);

/* ---- Tools ------------------------------------------------------------------------------ */

struct rp_dialect_tool {
    const char *name;
    const json_t *parameters; /* a JSON Schema; NULL: any object */
};

/* A row whose markers are resolved against a model's special tokens. `reasoning` (may be NULL)
 * gives the reasoning markers in place of the row's. Strings are copied. */
struct rp_bound_dialect;
int rp_dialect_bind(const struct rp_dialect *row, const struct rp_dialect *reasoning,
                    const char *const *specials, size_t special_count,
                    struct rp_bound_dialect **out, struct rp_error *err) RP_MUST_USE;
void rp_bound_dialect_free(struct rp_bound_dialect *bound); /* NULL is allowed */
const struct rp_dialect *rp_bound_dialect_row(const struct rp_bound_dialect *bound);

/* ---- Splitting the output --------------------------------------------------------------- */

enum rp_split_kind {
    RP_SPLIT_REASONING,      /* bytes */
    RP_SPLIT_TEXT,           /* bytes */
    RP_SPLIT_CALL_BEGIN,     /* index, name, id */
    RP_SPLIT_CALL_ARGUMENTS, /* index, bytes: the pieces of one call are its JSON object */
    RP_SPLIT_CALL_END        /* index, complete */
};

struct rp_split_event {
    enum rp_split_kind kind;
    uint32_t index;    /* of the call, from 0 */
    const char *bytes; /* valid during the call back */
    size_t len;
    const char *name; /* NUL-terminated */
    const char *id;   /* as the model wrote it; "": the caller makes one (rp_dialect_call_id) */
    bool complete;    /* false: the output ended inside the call */
};
typedef void (*rp_split_sink)(void *user, const struct rp_split_event *event);

enum rp_split_start { RP_START_TEXT, RP_START_REASONING, RP_START_HEADER };

/* Where the answer begins, from the prompt: inside a reasoning block when the last thing that the
 * template wrote, before white space and the request's text, opens one. */
enum rp_split_start rp_dialect_start(const struct rp_bound_dialect *bound,
                                     const struct rp_text_span *spans, size_t count);

struct rp_splitter_options {
    const struct rp_dialect_tool *tools; /* must outlive the splitter */
    size_t tool_count;
    enum rp_split_start start;
    bool calls_off;    /* tool_choice none, no tools: markers of calls are text */
    bool keep_special; /* special tokens that are no markers are text (skip_special_tokens off) */
    rp_split_sink sink;
    void *user;
};

struct rp_splitter;
/* NULL: no memory. Must not outlive `bound`. */
struct rp_splitter *rp_splitter_create(const struct rp_bound_dialect *bound,
                                       const struct rp_splitter_options *options) RP_MUST_USE;
void rp_splitter_destroy(struct rp_splitter *splitter); /* NULL is allowed */

/* Bytes of ordinary tokens, in any pieces: however the output is cut, the events put together are
 * the same. RP_OK or NO_MEMORY (then the splitter must not be used any more). */
int rp_splitter_push(struct rp_splitter *splitter, const char *bytes, size_t len) RP_MUST_USE;
/* One special token, by its content. */
int rp_splitter_push_special(struct rp_splitter *splitter, const char *content,
                             size_t len) RP_MUST_USE;
/* The end of the output: what is held back comes out, an open call ends. Call it once. */
int rp_splitter_finish(struct rp_splitter *splitter) RP_MUST_USE;

/* The next byte would be reasoning: a caller counts tokens and applies budgets with it. */
bool rp_splitter_in_reasoning(const struct rp_splitter *splitter);
/* Calls begun so far. */
uint32_t rp_splitter_calls(const struct rp_splitter *splitter);
/* Things that began like a call and became text, and calls that ended early or malformed. */
uint32_t rp_splitter_misses(const struct rp_splitter *splitter);

/* ---- Grammar of an answer --------------------------------------------------------------- */

enum rp_tool_choice { RP_TOOLS_NONE, RP_TOOLS_AUTO, RP_TOOLS_REQUIRED };

struct rp_answer_spec {
    const struct rp_dialect_tool *tools; /* those that may be called: one when named */
    size_t tool_count;
    enum rp_tool_choice choice;
    bool parallel; /* more than one call */
    enum rp_split_start start;
    bool reasoning_off;        /* the answer must not open a reasoning block */
    uint32_t reasoning_tokens; /* budget; 0: none */
    /* The text of an answer without calls, a format of a structural tag such as {"type":
     * "json_schema", "json_schema": {..}}; NULL: free. */
    const json_t *text_format;
};

/* Appends the JSON of {"type": "structural_tag", "format": ..} for
 * rp_grammar_compile_structural_tag. INVALID (a choice of tools that the dialect has no calls for),
 * UNSUPPORTED with the tool's name, NO_MEMORY. */
int rp_dialect_answer_grammar(const struct rp_bound_dialect *bound,
                              const struct rp_answer_spec *spec, struct rp_buffer *out,
                              struct rp_error *err) RP_MUST_USE;

/* ---- Writing calls ---------------------------------------------------------------------- */

struct rp_dialect_call {
    const char *name;
    const char *id;          /* written where the dialect has a place for it */
    const json_t *arguments; /* an object */
};

/* Appends what the model would write. UNSUPPORTED when the dialect cannot say it (RP_CALL_NONE). */
int rp_dialect_render_calls(const struct rp_dialect *row, const struct rp_dialect_call *calls,
                            size_t count, struct rp_buffer *out) RP_MUST_USE;

#define RP_CALL_ID_BYTES 96
/* An id as the dialect's clients and templates expect. `index` counts over the conversation.
 * Different random[0] below 2^52 give different ids, except where the family's templates prescribe
 * the name and the index. The other words should be random. */
void rp_dialect_call_id(const struct rp_dialect *row, const char *name, uint32_t index,
                        const uint64_t random[3], char out[RP_CALL_ID_BYTES]);
/* A number below 2^52 for random[0]: different for different counts, and hard to predict without
 * the key. */
uint64_t rp_dialect_call_number(const uint64_t key[2], uint64_t count);

#ifdef __cplusplus
}
#endif
#endif
