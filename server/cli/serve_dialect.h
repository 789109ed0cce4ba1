/* serve_dialect.h - how the served model writes tool calls and reasoning: from --tool-call-parser
 * and --reasoning-parser, or from its chat template and special tokens. Thread: main. */
#ifndef RP_SERVER_SERVE_DIALECT_H
#define RP_SERVER_SERVE_DIALECT_H

#include "server/cli/serve_options.h"
#include "text/dialect/dialect.h"
#include "text/template/chat_template.h"

struct rp_serve_dialect {
    struct rp_dialect_file *file;   /* rows of --tool-call-parser FILE.json */
    struct rp_bound_dialect *bound; /* NULL: no row fits */
    bool text_arguments;            /* as in rp_serving */
};

/* templates NULL: no chat, so there is nothing to open. INVALID: a name that is not known; else
 * what reading the file gives. close is legal after a failure. */
int rp_serve_dialect_open(const struct rp_serve_options *options,
                          const struct rp_tokenizer *tokenizer,
                          const struct rp_chat_templates *templates, struct rp_serve_dialect *out,
                          struct rp_error *err) RP_MUST_USE;
void rp_serve_dialect_close(struct rp_serve_dialect *dialect);

#endif
