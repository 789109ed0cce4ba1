/* dialect_grammar.h - formats of structural tags as jansson trees. A maker takes its arguments over
 * and returns NULL when memory is out or an argument is NULL. */
#ifndef RP_TEXT_DIALECT_GRAMMAR_H
#define RP_TEXT_DIALECT_GRAMMAR_H

#include "text/dialect/dialect_internal.h"

json_t *rp_format_text(const char *text); /* const_string */
json_t *rp_format_text_len(const char *text, size_t len);
json_t *rp_format_regex(const char *pattern);
json_t *rp_format_optional(json_t *content);
json_t *rp_format_sequence(void); /* add with rp_format_add; so with rp_format_or */
json_t *rp_format_or(void);
/* False: no memory; `format` is gone in either case. */
bool rp_format_add(json_t *list, json_t *format);
/* Free text up to `end`, which is included. */
json_t *rp_format_until(const char *begin, const char *end);
/* A value of the schema at a member of the parameters (key NULL: the parameters). */
json_t *rp_format_value(const json_t *parameters, const json_t *schema);

struct rp_format_failure {
    const char *keyword; /* NULL: no memory */
};
/* The arguments of a call without what is around them: the object for JSON, tags or literals. */
json_t *rp_format_arguments(const struct rp_dialect *row, const json_t *parameters,
                            struct rp_format_failure *failure);

#endif
