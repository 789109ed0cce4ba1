/* bench_grammar_order.h - values whose keys are in another order than the grammar's. */
#ifndef RP_BENCH_GRAMMAR_ORDER_H
#define RP_BENCH_GRAMMAR_ORDER_H

#include "text/grammar/grammar.h"

/* Whether some order of the keys of each object makes the text accepted; false also where the
 * search ends early. `text` is JSON with ", " and ": " between its parts, as Python writes it. */
bool bench_order(const struct rp_token_trie *trie, const char *schema, size_t schema_len,
                 const char *text, size_t len);

#endif
