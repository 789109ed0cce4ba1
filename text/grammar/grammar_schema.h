/* grammar_schema.h - JSON Schema to layer 2. Internal to text/grammar.
 *
 * What is compiled is a conjunction: a list of schemas that all apply to one value. $ref and allOf
 * add schemas to the list; anyOf and oneOf make one conjunction for each branch; not, if and the
 * dependent keywords are first written as schemas without them. Each conjunction is one rule, found
 * again by its list, so recursion ends by itself. */
#ifndef RP_TEXT_GRAMMAR_SCHEMA_H
#define RP_TEXT_GRAMMAR_SCHEMA_H

#include "base/memory.h"
#include "text/grammar/grammar_internal.h"

#include <jansson.h>

#define SCHEMA_WHITESPACE 8 /* bytes of a gap */

enum type_bit {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INTEGER = 4,
    TYPE_NUMBER = 8, /* not an integer */
    TYPE_STRING = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64,
    TYPE_ANY = 127,
};

/* Keywords of a schema that are dealt with. */
enum done_bit {
    DONE_ANY_OF = 1,
    DONE_ONE_OF = 2,
    DONE_NOT = 4,
    DONE_IF = 8,
    DONE_DEPENDENT = 16,
    DONE_VALUES = 32, /* enum and const */
};

struct item {
    const json_t *schema; /* an object */
    uint64_t done;
};
struct conj {
    struct item *items;
    size_t count;
    bool nothing; /* false is among them */
};

struct job {
    struct conj conj;
    uint32_t ref;
};
/* Values of enum or const that the rest of their conjunction must accept. */
struct values_job {
    uint32_t ref, rest;
    json_t *values; /* owned */
};
struct rewritten {
    json_t *schema;       /* owned */
    const json_t *origin; /* of the document */
};

struct schema_compiler {
    struct rp_grammar *g;
    struct rp_error *err;
    json_t *root;
    struct rp_arena arena;
    VEC(struct job) jobs;
    VEC(uint32_t) job_table; /* by conjunction: index + 1 */
    VEC(struct values_job) values;
    VEC(struct rewritten) rewritten;
    size_t first_node; /* nodes before it are those of other schemas */
    bool nested_ids;   /* some subschema has an $id of its own */
    uint32_t ws, comma, colon, string_end;
};

/* Appends what a schema means to a conjunction under construction: vec of struct item. */
struct item_list {
    VEC(struct item) list;
    bool nothing;
};

/* ---- grammar_schema.c */
/* Compiles `schema`, which is `root` or in it, into a grammar; *out is NODE_NONE when no value
 * satisfies it. A gap has at most `whitespace` bytes. */
int schema_compile(struct rp_grammar *g, json_t *root, const json_t *schema, uint32_t whitespace,
                   uint32_t *out, struct rp_error *err);
int schema_add(struct schema_compiler *c, struct item_list *items, const json_t *schema, int depth);
/* The rule of a conjunction; *out is NODE_NONE when it accepts nothing. Takes the list over. */
int schema_rule(struct schema_compiler *c, struct item_list *items, uint32_t *out);
/* The rule of items and one more schema (or NULL); with `done` set for item `index`. */
int schema_rule_with(struct schema_compiler *c, const struct conj *conj, size_t index,
                     unsigned done, const json_t *more, uint32_t *out);
/* UNSUPPORTED and FORMAT, with keyword and JSON pointer. */
int schema_refuse(struct schema_compiler *c, int status, const json_t *schema, const char *keyword,
                  const char *what);
/* Keeps a schema that was made while compiling; NULL: out of memory. */
const json_t *schema_keep(struct schema_compiler *c, json_t *made, const json_t *origin);
/* Literal `"text"` with the escapes that JSON needs. */
uint32_t schema_quoted(struct schema_compiler *c, const char *text, size_t len);
/* A key of every schema of a conjunction, or 0: the smallest (or largest) size. */
int schema_sizes(struct schema_compiler *c, const struct conj *conj, const char *min_key,
                 const char *max_key, uint32_t *out_min, uint32_t *out_count);

/* ---- grammar_schema_ref.c */
int schema_resolve(struct schema_compiler *c, const json_t *schema, const char *ref,
                   const json_t **out);
bool schema_has_nested_id(const json_t *root);
/* The JSON pointer of a schema of the document. */
void schema_pointer(const struct schema_compiler *c, const json_t *schema, char *out, size_t size);
/* -1 deeper than limit. */
int schema_depth(const json_t *value, int limit);

/* ---- grammar_schema_check.c */
int schema_check_keywords(struct schema_compiler *c, const json_t *schema);
enum keyword_kind { KEYWORD_UNKNOWN, KEYWORD_NOTE, KEYWORD_APPLIES, KEYWORD_REFUSED };
enum keyword_kind schema_keyword(const char *key);
/* The types that `type` names. */
int schema_type_bits(struct schema_compiler *c, const json_t *schema, unsigned *out);
unsigned schema_value_type(const json_t *value);

/* ---- grammar_schema_value.c */
int schema_number(struct schema_compiler *c, const struct conj *conj, unsigned types,
                  uint32_t *out);
int schema_string(struct schema_compiler *c, const struct conj *conj, uint32_t *out);
/* The expression of the characters between the quotes. out_count[2]: their least and largest
 * number, which the caller counts; NULL: the expression does. */
int schema_string_rx(struct schema_compiler *c, const struct conj *conj, uint32_t *out_rx,
                     uint32_t *out_count);
/* A number as JSON text without exponent if possible; buffer of 64 bytes. */
const char *schema_number_text(const json_t *number, char *out, size_t size);

/* The format of a schema. `every`: at least every text that has it, in every spelling; else only
 * such texts. */
int schema_format_rx(struct schema_compiler *c, const json_t *s, bool every, uint32_t *out);

/* ---- grammar_schema_array.c */
int schema_array(struct schema_compiler *c, const struct conj *conj, uint32_t *out);

/* ---- grammar_schema_names.c */
/* The strings that a schema accepts, between their quotes. `every`: at least all of them, in every
 * spelling; else only such strings. */
int schema_names_rx(struct schema_compiler *c, const json_t *schema, bool every, int depth,
                    uint32_t *out);

/* ---- grammar_schema_object.c */
int schema_object(struct schema_compiler *c, const struct conj *conj, uint32_t *out);

/* ---- grammar_schema_enum.c */
int schema_values(struct schema_compiler *c, const struct conj *conj, uint32_t *out);
/* After everything is compiled: drops values that the other keywords refuse. */
int schema_filter_values(struct schema_compiler *c);
/* Equal as JSON Schema has it: 1 and 1.0 are. */
bool schema_same_value(const json_t *a, const json_t *b);
/* Some member of the list is equal; false as well when the fuel is used up. */
bool schema_has_value(struct schema_compiler *c, const json_t *list, const json_t *value);

/* ---- grammar_schema_rewrite.c */
/* not, if, dependent keywords of item `index`, as a schema without them; NULL in *out: nothing. */
int schema_rewrite(struct schema_compiler *c, const json_t *schema, unsigned done, json_t **out,
                   unsigned *out_done);

/* ---- grammar_schema_one_of.c */
/* For objects: a key is required that another schema forbids. */
bool schema_contradicts(struct schema_compiler *c, const struct conj *conj);
/* It is proved that no value satisfies both. */
bool schema_disjoint(struct schema_compiler *c, const json_t *a, const json_t *b);
/* For values of these types. */
int schema_one_of(struct schema_compiler *c, const json_t *schema, unsigned types,
                  json_t **out_branches);

/* ---- grammar_format.c */
/* The pattern of a format of strings: of such texts only. "": it restricts nothing. */
const char *schema_format_pattern(const char *name);
/* A pattern of at least all such texts; NULL: the format is not known, and says nothing. */
const char *schema_format_outline(const char *name);

#endif
