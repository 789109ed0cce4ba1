/* template_value.h - the values of the chat template engine: small structs passed by value. What
 * they point to is never changed after it was made, except namespaces and the place in a generator.
 * Strings carry for each byte whether it is input. Memory: arenas; values are not freed
 * individually. */
#ifndef RP_TEXT_TEMPLATE_VALUE_H
#define RP_TEXT_TEMPLATE_VALUE_H

#include "base/memory.h"
#include "text/template/chat_template.h"

/* An arena that remembers that it failed. */
struct rp_tmem {
    struct rp_arena arena;
    bool failed;
};

void *rp_tmem_alloc(struct rp_tmem *mem, size_t size);
void *rp_tmem_calloc(struct rp_tmem *mem, size_t count, size_t size);
/* Room for `need` items in an array of *capacity, old ones kept; NULL when memory is out. */
void *rp_tmem_grow(struct rp_tmem *mem, void *items, size_t count, size_t *capacity, size_t need,
                   size_t item_bytes);

/* ---- Values --------------------------------------------------------------------------- */

enum rp_value_type {
    RP_VALUE_UNDEFINED,
    RP_VALUE_NONE,
    RP_VALUE_BOOL,
    RP_VALUE_INT,
    RP_VALUE_FLOAT,
    /* from here to DICT_VALUES: u.seq */
    RP_VALUE_STRING,
    RP_VALUE_LIST,
    RP_VALUE_TUPLE,
    RP_VALUE_GENERATOR,
    RP_VALUE_DICT_ITEMS,
    RP_VALUE_DICT_KEYS,
    /* u.seq too: at most 100,000 numbers */
    RP_VALUE_DICT_VALUES,
    RP_VALUE_RANGE,
    /* u.dict */
    RP_VALUE_DICT,
    RP_VALUE_NAMESPACE,
    /* sub: enum rp_tfunction */
    RP_VALUE_MACRO,
    /* sub: enum rp_tmethod; u.self */
    RP_VALUE_FUNCTION,
    RP_VALUE_METHOD,
    /* u.seq */
    RP_VALUE_LOOP,
    /* u.seq: the separator; taken: called before */
    RP_VALUE_CYCLER,
    RP_VALUE_JOINER,
};

struct rp_tseq;
struct rp_tdict;
struct rp_tmacro;
struct rp_tloop;
struct rp_tundefined;

struct rp_value {
    uint8_t type;
    bool input;  /* uniform origin; of a string with marks: meaningless */
    bool markup; /* a string marked safe */
    uint8_t sub;
    uint32_t len; /* bytes of a string */
    union {
        bool b;
        int64_t i;
        double f;
        const char *s;
        struct rp_tseq *seq;
        struct rp_tdict *dict;
        struct rp_tmacro *macro;
        struct rp_tloop *loop;
        const struct rp_value *self;
        const struct rp_tundefined *undefined;
    } u;
    /* of a string: 1 for each byte that is input; NULL: all as `input` says */
    const uint8_t *marks;
};

struct rp_chat_value {
    struct rp_value v;
};

struct rp_chat_values {
    struct rp_tmem mem;
};

struct rp_tseq {
    struct rp_value *items;
    size_t count, capacity;
    size_t taken; /* of a generator: how many were consumed */
};

struct rp_tdict_entry {
    struct rp_value key, value;
    uint32_t hash;
};

/* In order of insertion; the index is built for more than 8 entries. */
struct rp_tdict {
    struct rp_tdict_entry *entries;
    size_t count, capacity;
    uint32_t *index; /* entry + 1, 0 empty; a power of two of them */
    size_t index_size;
};

/* Why a value is undefined: a hint, or the object and name that were looked up. */
struct rp_tundefined {
    const char *hint;
    struct rp_value object, name;
    bool has_object;
    bool security; /* raises SecurityError instead of UndefinedError */
};

/* Methods of str, dict, list and loop, with their names in a template. The last two exist in Python
 * and fail when they are called. */
/* clang-format off */
#define RP_TM_MAP(X)                                                                              \
    X(CAPITALIZE, "capitalize") X(CASEFOLD, "casefold") X(CENTER, "center") X(COUNT, "count")     \
    X(ENDSWITH, "endswith") X(FIND, "find") X(FORMAT, "format") X(INDEX, "index")                 \
    X(ISALNUM, "isalnum") X(ISALPHA, "isalpha") X(ISASCII, "isascii") X(ISDECIMAL, "isdecimal")   \
    X(ISDIGIT, "isdigit") X(ISLOWER, "islower") X(ISNUMERIC, "isnumeric") X(ISSPACE, "isspace")   \
    X(ISTITLE, "istitle") X(ISUPPER, "isupper") X(JOIN, "join") X(LJUST, "ljust")                 \
    X(LOWER, "lower") X(LSTRIP, "lstrip") X(PARTITION, "partition")                               \
    X(REMOVEPREFIX, "removeprefix") X(REMOVESUFFIX, "removesuffix") X(REPLACE, "replace")         \
    X(RFIND, "rfind") X(RINDEX, "rindex") X(RJUST, "rjust") X(RPARTITION, "rpartition")           \
    X(RSPLIT, "rsplit") X(RSTRIP, "rstrip") X(SPLIT, "split") X(SPLITLINES, "splitlines")         \
    X(STARTSWITH, "startswith") X(STRIP, "strip") X(SWAPCASE, "swapcase") X(TITLE, "title")       \
    X(UPPER, "upper") X(ZFILL, "zfill") X(GET, "get") X(ITEMS, "items") X(KEYS, "keys")           \
    X(VALUES, "values") X(COPY, "copy") X(CYCLE, "cycle") X(CHANGED, "changed") X(NEXT, "next")   \
    X(RESET, "reset") X(UNSUPPORTED, "method")
/* clang-format on */

enum rp_tmethod {
    RP_TM_NONE,
#define X(method, name) RP_TM_##method,
    RP_TM_MAP(X)
#undef X
};

struct rp_value rp_value_none(void);
struct rp_value rp_value_bool(bool b);
struct rp_value rp_value_int(int64_t i);
struct rp_value rp_value_float(double f);
/* Not copied. */
struct rp_value rp_value_str(const char *text, size_t len, bool input);
struct rp_value rp_value_cstr(const char *text);
/* Bytes [begin, begin + len) of a string, with their origin. */
struct rp_value rp_value_sub(struct rp_value s, size_t begin, size_t len);
bool rp_value_mark(struct rp_value s, size_t at);
bool rp_value_is(struct rp_value v, const char *text);
static inline bool rp_value_is_seq(struct rp_value v) {
    return v.type >= RP_VALUE_LIST && v.type <= RP_VALUE_RANGE;
}
static inline bool rp_value_is_number(struct rp_value v) {
    return v.type == RP_VALUE_BOOL || v.type == RP_VALUE_INT || v.type == RP_VALUE_FLOAT;
}
static inline bool rp_value_is_integer(struct rp_value v) {
    return v.type == RP_VALUE_BOOL || v.type == RP_VALUE_INT;
}
static inline int64_t rp_value_integer(struct rp_value v) {
    return v.type == RP_VALUE_BOOL ? v.u.b : v.u.i;
}
double rp_value_number(struct rp_value v);
/* Python's name of the type: "str", "dict", "NoneType". */
const char *rp_value_type_name(struct rp_value v);

struct rp_value rp_tseq_make(struct rp_tmem *mem, enum rp_value_type type, size_t capacity);
void rp_tseq_add(struct rp_tmem *mem, struct rp_tseq *seq, struct rp_value item);
struct rp_value rp_tdict_make(struct rp_tmem *mem, enum rp_value_type type);
/* The key must be hashable (rp_value_hash). */
void rp_tdict_put(struct rp_tmem *mem, struct rp_tdict *dict, struct rp_value key,
                  struct rp_value value);
/* NULL when it is not there. */
const struct rp_value *rp_tdict_get(const struct rp_tdict *dict, struct rp_value key);
const struct rp_value *rp_tdict_get_text(const struct rp_tdict *dict, const char *text, size_t len);
/* false: the value cannot be a key. Equal values have equal hashes. */
bool rp_value_hash(struct rp_value v, uint32_t *out);

/* Builds a string with its marks, in an arena. */
struct rp_tbuf {
    struct rp_tmem *mem;
    char *data;
    uint8_t *marks;
    size_t len, capacity, marks_capacity;
    size_t limit; /* 0: none but the arena's */
    bool input;   /* origin of all bytes while marks is NULL */
    bool full;    /* the limit was reached */
};

void rp_tbuf_init(struct rp_tbuf *buf, struct rp_tmem *mem);
void rp_tbuf_bytes(struct rp_tbuf *buf, const char *text, size_t len, bool input);
void rp_tbuf_string(struct rp_tbuf *buf, struct rp_value s);
void rp_tbuf_sub(struct rp_tbuf *buf, struct rp_value s, size_t begin, size_t len);
struct rp_value rp_tbuf_finish(const struct rp_tbuf *buf);

/* Shortest digits that read back equal, as Python's repr of a float. */
size_t rp_tfloat_repr(double value, char out[40]);

#endif
