/* cmd_text.h - a file as tokens, for the commands that measure a model on a text. */
#ifndef RP_SERVER_CMD_TEXT_H
#define RP_SERVER_CMD_TEXT_H

#include "bench/eval_ppl.h"
#include "text/tokenizer/tokenizer.h"

/* The text of the file `path`, at most 1 GiB, by the tokenizer of the model in `dir`; what looks
 * like a special token in it is text. IO names the file that cannot be read.
 * rp_token_ids_deinit(out) also after a failure. */
int rp_command_text(const char *dir, const char *path, struct rp_token_ids *out,
                    struct rp_error *err) RP_MUST_USE;

/* What windows are cut from: ids without the BOS that the tokenizer put ahead, at most `limit` (0:
 * all). The window and the stride are the caller's to say. FORMAT: an id past the vocabulary. out
 * points into ids. */
int rp_command_text_windows(const struct rp_token_ids *ids, const struct rp_model_config *config,
                            uint64_t limit, struct rp_eval_text *out,
                            struct rp_error *err) RP_MUST_USE;

#endif
