/* cmd_text.h - tokenizes a file, for commands that evaluate a model on a text. */
#ifndef RP_SERVER_CMD_TEXT_H
#define RP_SERVER_CMD_TEXT_H

#include "bench/eval_ppl.h"
#include "text/tokenizer/tokenizer.h"

/* Tokenizes the file `path`, at most 1 GiB, with the tokenizer of the model in `dir`; special
 * tokens in it are encoded as plain text. IO names a file that cannot be read. Call
 * rp_token_ids_deinit(out) also after a failure. */
int rp_command_text(const char *dir, const char *path, struct rp_token_ids *out,
                    struct rp_error *err) RP_MUST_USE;

/* The ids without the BOS that the tokenizer prepended, at most `limit` (0: all), to be cut into
 * windows. The caller sets window and stride. FORMAT: an id outside the vocabulary. out points into
 * ids. */
int rp_command_text_windows(const struct rp_token_ids *ids, const struct rp_model_config *config,
                            uint64_t limit, struct rp_eval_text *out,
                            struct rp_error *err) RP_MUST_USE;

#endif
