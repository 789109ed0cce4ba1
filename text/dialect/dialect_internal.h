/* dialect_internal.h - markers as symbols, and what the parts of the splitter share. */
#ifndef RP_TEXT_DIALECT_INTERNAL_H
#define RP_TEXT_DIALECT_INTERNAL_H

#include "text/dialect/dialect.h"

enum {
    NAME_MAX_BYTES = 128, /* names of tools; longer ones are text */
    KEY_MAX_BYTES = 256,  /* names of parameters */
    MARKER_SYMBOLS = 64,  /* a longer marker is refused */
    PENDING_MAX = 512,    /* two markers and the white space between */
    SPACE_MAX = 32,       /* white space held back in text */
    GAP_MAX = 16,         /* white space inside a marker and between two */
    MARKER_GAPS = 4,
    HELD_MAX = 64 << 10, /* the beginning of a call until its name and arguments */
    SPECIALS_MAX = 64,   /* different special tokens in a row's markers */
    OUT_BYTES = 512      /* one event's bytes */
};

/* What the machine reads: bytes 0 to 255, special tokens that are in markers, and bytes that match
 * no marker because they come from other special tokens. */
typedef uint16_t rp_symbol;
#define SYM_SPECIAL 0x100u  /* + its number */
#define SYM_GAP     0x4000u /* in markers: any white space, also none */
#define SYM_OPAQUE  0x8000u /* | byte */

enum marker_kind {
    MK_REASONING_OPEN,
    MK_REASONING_CLOSE,
    MK_SECTION_OPEN,
    MK_SECTION_CLOSE,
    MK_CALL_OPEN,
    MK_CALL_CLOSE,
    MK_SEPARATOR,
    MK_NAME_CLOSE,
    MK_ID_OPEN,
    MK_KEY_OPEN,
    MK_KEY_CLOSE,
    MK_RAW_KEY_CLOSE,
    MK_VALUE_CLOSE,
    MK_QUOTE,
    MK_START, /* from here: harmony */
    MK_CHANNEL,
    MK_CONSTRAIN,
    MK_MESSAGE,
    MK_END,
    MK_CALL,
    MK_RETURN,
    MK_COUNT
};

struct marker {
    uint16_t count;                     /* 0: the row has none */
    bool newline_before, newline_after; /* the row's text begins or ends with a newline */
    rp_symbol symbols[MARKER_SYMBOLS];
};

struct rp_bound_dialect {
    struct rp_dialect row; /* strings in `strings` */
    char *strings;
    const char *specials[SPECIALS_MAX]; /* those in markers */
    uint32_t special_count;
    struct marker markers[MK_COUNT];
};

/* The marker's text in the row (harmony's are fixed). */
const char *rp_dialect_marker_text(const struct rp_dialect *row, enum marker_kind kind);
/* The number of the longest of the bound special tokens that `text` begins with, or -1. */
int rp_dialect_special_at(const struct rp_bound_dialect *bound, const char *text, size_t len);

/* The members of a row that are strings. */
#define RP_DIALECT_STRINGS(X)                                                                      \
    X(name)                                                                                        \
    X(tool_parser)                                                                                 \
    X(reasoning_parser)                                                                            \
    X(clues)                                                                                       \
    X(reasoning_open)                                                                              \
    X(reasoning_close)                                                                             \
    X(section_open)                                                                                \
    X(section_close)                                                                               \
    X(call_open)                                                                                   \
    X(call_close)                                                                                  \
    X(separator)                                                                                   \
    X(name_prefix)                                                                                 \
    X(name_close)                                                                                  \
    X(id_open)                                                                                     \
    X(arguments_key)                                                                               \
    X(key_open)                                                                                    \
    X(key_close)                                                                                   \
    X(value_close)                                                                                 \
    X(raw_key_close)                                                                               \
    X(quote)

/* JSON types that a schema admits. */
enum {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_NUMBER = 4,
    TYPE_ARRAY = 8,
    TYPE_OBJECT = 16,
    TYPE_STRING = 32,
    TYPE_ALL = 63
};
/* The type of a value. */
unsigned rp_dialect_type_of(const json_t *value);
/* Types of a property of a tool's parameters; TYPE_ALL when the schema does not say. */
unsigned rp_dialect_types(const json_t *parameters, const char *key, size_t key_len);
/* Types of a schema inside the parameters. */
unsigned rp_dialect_schema_types(const json_t *parameters, const json_t *schema);
/* The schema after local references. */
const json_t *rp_dialect_follow(const json_t *parameters, const json_t *schema);

#endif
