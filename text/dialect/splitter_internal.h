/* splitter_internal.h - the state of the machine, and what its parts share.
 * The machine reads one symbol at a time, so the way that the output was cut cannot matter. What it
 * has read and not decided is `pending`; a step looks at its beginning and either takes some of it,
 * changes the mode, or waits for more. What belongs to a call that may still turn out to be text is
 * in `held`. */
#ifndef RP_TEXT_SPLITTER_INTERNAL_H
#define RP_TEXT_SPLITTER_INTERNAL_H

#include "text/dialect/dialect_internal.h"

enum split_mode {
    MODE_BLOCK,     /* text or reasoning */
    MODE_SECTION,   /* before, between and after calls */
    MODE_NAME,      /* the name of a call */
    MODE_ID,        /* an id between name and arguments */
    MODE_ARGUMENTS, /* before the value of RP_CALL_NAMED, then in it */
    MODE_JSON,      /* inside {"name": .., "arguments": ..} */
    MODE_PARAMETERS,
    MODE_KEY,
    MODE_VALUE,
    MODE_LITERAL,
    MODE_HEADER, /* harmony: before <|message|> */
    MODE_BODY,
    MODE_BETWEEN
};

enum match { MATCH_NO, MATCH_PARTIAL, MATCH_FULL };

/* Where a JSON value ends; strings and depth are all it knows. */
struct json_scan {
    uint32_t depth;
    bool in_string, escape, started;
};
enum scan_result { SCAN_MORE, SCAN_LAST, SCAN_BEFORE };

/* Escapes of JSON's and Python's strings, to UTF-8. */
struct unescape {
    uint8_t digits_left;
    bool escape;
    uint32_t code, high; /* high: a surrogate that waits for its other half */
};

enum json_place {
    AT_OPEN,
    AT_KEY,
    IN_KEY,
    AT_COLON,
    AT_VALUE,
    IN_NAME,
    IN_ID,
    IN_ARGUMENTS,
    IN_SKIPPED,
    AT_COMMA
};

enum literal_place { LIT_VALUE, LIT_KEY, LIT_COLON, LIT_AFTER, LIT_STRING, LIT_WORD };
enum { LITERAL_DEPTH = 64 };

struct literal {
    enum literal_place place;
    uint32_t depth;
    char kind[LITERAL_DEPTH]; /* '{' or '[' */
    bool has_item[LITERAL_DEPTH];
    rp_symbol quote; /* ' or "; 0: the dialect's quote marker */
    bool escape;
    bool is_key;
    struct unescape unescape;
};

enum value_kind { VALUE_START, VALUE_STRING, VALUE_RAW, VALUE_HELD };

struct rp_splitter {
    const struct rp_bound_dialect *bound;
    struct rp_splitter_options options;
    enum split_mode mode;
    bool reasoning; /* the block is reasoning */
    bool fresh;     /* nothing of the block has come yet */
    bool drop_space;
    bool ending; /* no more symbols come */
    bool failed; /* no memory */

    uint32_t pending_count;
    rp_symbol pending[PENDING_MAX];
    uint32_t space_count;
    char space[SPACE_MAX];
    struct rp_buffer held;  /* text of what is a call or nothing */
    struct rp_buffer early; /* arguments that came before the name */

    enum rp_split_kind out_kind;
    uint32_t out_len;
    char out[OUT_BYTES];

    uint32_t calls, misses;
    bool in_section, after_call, closed, separated, between;
    bool known_only; /* a call must name a known tool, because its marker is common text */
    bool plain;      /* the same, and being text is no miss */
    bool begun;      /* CALL_BEGIN is out */
    bool arguments_done;
    bool name_spaced;
    const struct rp_dialect_tool *tool;
    uint32_t name_len, id_len, key_len;
    char name[NAME_MAX_BYTES + 1];
    char id[NAME_MAX_BYTES + 1];
    char key[KEY_MAX_BYTES];

    enum json_place place;
    uint32_t nest;
    bool decode; /* the arguments are a JSON string that holds JSON */
    bool has_arguments;
    struct json_scan scan;
    struct unescape unescape;

    enum value_kind value;
    unsigned types;
    bool skip_newline, has_parameter;
    struct literal literal;
};

/* ---- Reading ---- */
static inline bool symbol_is_space(rp_symbol c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}
/* The byte, or -1 for a special token. */
static inline int symbol_byte(rp_symbol c) { return c < 256 ? c : c & SYM_OPAQUE ? c & 255 : -1; }
/* PARTIAL: what is there fits. *end: after the marker. */
enum match rp_split_match(const struct rp_splitter *s, enum marker_kind kind, uint32_t at,
                          uint32_t *end);
/* One of the markers; with PARTIAL in *partial when one of them might come. */
bool rp_split_sees(const struct rp_splitter *s, enum marker_kind kind, uint32_t *end,
                   bool *partial);
void rp_split_take(struct rp_splitter *s, uint32_t count);
/* Takes symbols, and keeps their text. */
void rp_split_hold(struct rp_splitter *s, uint32_t count);

/* ---- Writing ---- */
void rp_split_put(struct rp_splitter *s, enum rp_split_kind kind, char byte);
void rp_split_put_text(struct rp_splitter *s, enum rp_split_kind kind, const char *text,
                       size_t len);
/* A byte of the arguments; kept while the name is not known. */
void rp_split_argument(struct rp_splitter *s, char byte);
void rp_split_arguments(struct rp_splitter *s, const char *text);
/* A byte of a JSON string in the arguments. */
void rp_split_escaped(struct rp_splitter *s, unsigned char byte);
void rp_split_escaped_text(struct rp_splitter *s, const char *text, size_t len);
void rp_split_flush(struct rp_splitter *s);

/* ---- Calls ---- */
/* Looks at the name, which is complete. False: it cannot be one. */
bool rp_split_name_done(struct rp_splitter *s);
void rp_split_begin(struct rp_splitter *s);
void rp_split_end(struct rp_splitter *s, bool complete);
/* What is held is text. */
void rp_split_broken(struct rp_splitter *s);
void rp_split_block(struct rp_splitter *s, bool reasoning);
/* The call ends here although it is not complete, when a marker says so: the pending symbols are
 * one that closes calls. */
bool rp_split_cut(struct rp_splitter *s, bool *partial);

enum scan_result rp_json_scan(struct json_scan *scan, unsigned char c);
/* Feeds one byte of a string without its quotes. Returns the number of bytes written to out. */
int rp_unescape(struct unescape *u, unsigned char c, char out[8]);

/* ---- Steps: false when they wait ---- */
bool rp_split_step_json(struct rp_splitter *s);
bool rp_split_step_arguments(struct rp_splitter *s);
bool rp_split_step_parameters(struct rp_splitter *s);
bool rp_split_step_key(struct rp_splitter *s);
bool rp_split_step_value(struct rp_splitter *s);
bool rp_split_step_literal(struct rp_splitter *s);
bool rp_split_step_header(struct rp_splitter *s);
bool rp_split_step_body(struct rp_splitter *s);
bool rp_split_step_between(struct rp_splitter *s);

void rp_split_start_json(struct rp_splitter *s);
void rp_split_start_arguments(struct rp_splitter *s);
void rp_split_start_literal(struct rp_splitter *s);
void rp_split_start_parameters(struct rp_splitter *s);

/* ---- Ends of the output inside ---- */
void rp_split_finish_value(struct rp_splitter *s);
void rp_split_finish_literal(struct rp_splitter *s);
void rp_split_finish_header(struct rp_splitter *s);

#endif
