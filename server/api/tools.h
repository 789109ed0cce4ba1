/* tools.h - the tools of a chat request: `tools` and `tool_choice`, or their older form,
 * `functions` and `function_call`.
 *
 * A custom tool (free text in place of JSON arguments) is shown to the model as a function with one
 * string, `input`; the answer gives the string's text back (custom_input.h).
 * Thread: loop; any thread may read it while the tree is not modified. */
#ifndef RP_SERVER_TOOLS_H
#define RP_SERVER_TOOLS_H

#include "server/http/http_error.h"
#include "text/dialect/dialect.h"

#include <jansson.h>

#define RP_TOOLS_MAX             512
#define RP_TOOL_NAME_MAX         128
#define RP_TOOL_SCHEMA_MAX       ((size_t)256 << 10) /* bytes of one tool's parameters */
#define RP_TOOLS_BYTES_MAX       ((size_t)2 << 20)   /* bytes of all tools */
#define RP_TOOL_GRAMMAR_MAX      ((size_t)64 << 10)  /* bytes of a custom tool's grammar */
#define RP_CUSTOM_TOOL_PARAMETER "input"

struct rp_tools {
    json_t *list; /* owned: the tools as the template gets them; NULL: none */
    json_t *own;  /* owned: schemas that only the grammar has, of custom tools */
    /* (count) those that may be called first; names and schemas are in `list` and `own` */
    struct rp_dialect_tool *tools;
    bool *custom; /* (count) */
    uint32_t count, callable;
    size_t bytes; /* of their JSON */
    enum rp_tool_choice choice;
    bool named;  /* tool_choice names the one tool to call */
    bool strict; /* a tool has strict: true */
    bool legacy; /* the fields were functions and function_call: answers have their form, too */
};

/* Reads the fields of the request. False with *error; deinit is legal then. */
bool rp_tools_read(json_t *root, struct rp_tools *out, struct rp_http_error *error);
void rp_tools_deinit(struct rp_tools *tools);
/* Whether the tool of this name is a custom one. */
bool rp_tools_is_custom(const struct rp_tools *tools, const char *name);

#endif
