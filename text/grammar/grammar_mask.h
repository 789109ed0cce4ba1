/* grammar_mask.h - the tokens that a state allows. Internal to text/grammar. */
#ifndef RP_TEXT_GRAMMAR_MASK_H
#define RP_TEXT_GRAMMAR_MASK_H

#include "text/grammar/grammar_internal.h"
#include "text/grammar/grammar_trie.h"

/* Sets the bits of the allowed tokens (zeroed before) and returns the fuel that it took, which
 * depends on grammar, state and tokens alone; above `fuel` the work ended early. */
uint64_t grammar_mask(struct rp_grammar *g, const struct rp_token_trie *trie, uint32_t state,
                      uint32_t *bits, uint64_t fuel);

#endif
