/* grammar.h - what an answer may look like, and which tokens may come next.
 *
 * A grammar is compiled from a JSON Schema, a regular expression, a list of choices, a structural
 * tag, GBNF or Lark. It works on bytes; a special token is four bytes that no text contains. A
 * state is an integer of its grammar: equal sets of possible continuations are the same integer, so
 * that going back, branching and comparing cost nothing. A matcher joins a grammar with the tokens
 * of one model and turns a state into a bitset of the tokens that are allowed next.
 * Every allowed token is the prefix of some accepted text: there are no dead ends.
 *
 * Thread: compiling and masks run on worker threads, never on the step or loop thread. A trie is
 * immutable and shared. A grammar belongs to one matcher, a matcher may be shared: its calls lock
 * it, because states are made when they are first reached (a mask that is cached is a copy under
 * the lock). Sequences hold state numbers only.
 * Errors: RP_STATUS_FULL is "too complex": the fuel or the memory of the limits was used up. Fuel
 * counts work, not time: the same request always ends the same way. UNSUPPORTED and FORMAT texts
 * name the keyword and its JSON pointer, or the offset in a pattern. */
#ifndef RP_TEXT_GRAMMAR_H
#define RP_TEXT_GRAMMAR_H

#include "base/base.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct rp_grammar;
struct rp_token_trie;
struct rp_matcher;

/* Zero: the default. */
struct rp_grammar_limits {
    size_t source_bytes; /* 1 MiB; patterns and grammars 64 KiB; structural tags 2 MiB */
    size_t memory_bytes; /* 32 MiB, states made while matching included */
    uint64_t fuel;       /* of compiling: 2,000,000 (nodes and derivatives), below 250 ms */
    /* Where structural tags, GBNF and Lark look up special tokens by their text, and tokens by id;
     * NULL: there are none. The grammar must then be matched with this trie. */
    const struct rp_token_trie *trie;
};

/* JSON Schema 2020-12. What cannot be enforced is UNSUPPORTED, never ignored. Keys come in the
 * order of "properties", then other required keys, then additional ones. A gap has at most 8 bytes
 * of whitespace. The schemas true and {} are any JSON value. */
/* A keyword of ours for strings, which no client writes by accident: a Lark grammar of the text. */
#define RP_SCHEMA_LARK "\1lark"
int rp_grammar_compile_json_schema(const char *schema, size_t len,
                                   const struct rp_grammar_limits *limits, struct rp_grammar **out,
                                   struct rp_error *err) RP_MUST_USE;
/* Any JSON object. */
int rp_grammar_compile_json_object(const struct rp_grammar_limits *limits, struct rp_grammar **out,
                                   struct rp_error *err) RP_MUST_USE;
/* The whole text is in the language of the pattern (ECMAScript's syntax with flag u). Look-around,
 * back-references and \b are refused by name. */
int rp_grammar_compile_regex(const char *pattern, size_t len,
                             const struct rp_grammar_limits *limits, struct rp_grammar **out,
                             struct rp_error *err) RP_MUST_USE;
/* The whole text is one of the choices. */
int rp_grammar_compile_choice(const char *const *choices, size_t count,
                              const struct rp_grammar_limits *limits, struct rp_grammar **out,
                              struct rp_error *err) RP_MUST_USE;
/* A structural tag in XGrammar's JSON form: {"type": "structural_tag", "format": {..}}, a format
 * alone, or the older {"structures": [{"begin", "schema", "end"}], "triggers": [..]}. The text of a
 * special token in begin, end, triggers, const_string and token is that token, never its bytes.
 * Special tokens that the format does not name are never allowed. */
int rp_grammar_compile_structural_tag(const char *json, size_t len,
                                      const struct rp_grammar_limits *limits,
                                      struct rp_grammar **out, struct rp_error *err) RP_MUST_USE;
/* llama.cpp's grammars: rules `name ::= ...`, of which `root` is the start. */
int rp_grammar_compile_gbnf(const char *text, size_t len, const struct rp_grammar_limits *limits,
                            struct rp_grammar **out, struct rp_error *err) RP_MUST_USE;
/* A subset of Lark: rules, terminals, strings, regular expressions, %ignore, %json, %regex. */
int rp_grammar_compile_lark(const char *text, size_t len, const struct rp_grammar_limits *limits,
                            struct rp_grammar **out, struct rp_error *err) RP_MUST_USE;
void rp_grammar_free(struct rp_grammar *grammar);
size_t rp_grammar_memory(const struct rp_grammar *grammar);

/* ---- The tokens of a model ---------------------------------------------------------------- */

/* Bytes of token i; len 0: never allowed (unused ids). A special token is never its bytes: it is
 * allowed only where a grammar names it by this text or by its id. */
struct rp_trie_token {
    const char *bytes;
    uint32_t len;
    bool special;
};

/* `end_ids` are allowed where the text may end. A mask has `width` bits (at least `count`, the
 * logits' number); the others are 0. */
int rp_token_trie_make(const struct rp_trie_token *tokens, uint32_t count, uint32_t width,
                       const uint32_t *end_ids, uint32_t end_count, struct rp_token_trie **out,
                       struct rp_error *err) RP_MUST_USE;
/* Must outlive its matchers. */
void rp_token_trie_free(struct rp_token_trie *trie);
size_t rp_token_trie_memory(const struct rp_token_trie *trie);

/* ---- Matching ------------------------------------------------------------------------------ */

/* No text can follow, and none can end here. Never the result of an allowed token. */
#define RP_GRAMMAR_DEAD 0u
/* Fuel of one mask: a unit is a node of the trie or of an expression that is looked at, about 5 ns,
 * so a mask takes at most about 5 ms of one core. */
#define RP_MASK_FUEL 1000000u

/* Takes the grammar over (frees it with the matcher, and on an error). `cache_bytes` bounds its
 * cached masks; 0: 4 MiB. */
int rp_matcher_make(struct rp_grammar *grammar, const struct rp_token_trie *trie,
                    size_t cache_bytes, struct rp_matcher **out) RP_MUST_USE;
void rp_matcher_free(struct rp_matcher *matcher);
/* Bytes of its grammar and its cached masks. */
size_t rp_matcher_memory(struct rp_matcher *matcher);

uint32_t rp_matcher_start(const struct rp_matcher *matcher);
/* Bit i of bits[i / 32] says whether token i may come next; ceil(width / 32) words. RP_OK, FULL
 * or NO_MEMORY; after an error the bits mean nothing. */
int rp_matcher_mask(struct rp_matcher *matcher, uint32_t state, uint32_t *bits,
                    uint64_t fuel) RP_MUST_USE;
/* RP_OK with *out_state, INVALID when the token is not allowed (an end id never changes the state
 * and is allowed where the text may end), FULL or NO_MEMORY. */
int rp_matcher_advance(struct rp_matcher *matcher, uint32_t state, uint32_t token,
                       uint32_t *out_state) RP_MUST_USE;
int rp_matcher_advance_bytes(struct rp_matcher *matcher, uint32_t state, const char *bytes,
                             size_t len, uint32_t *out_state) RP_MUST_USE;
bool rp_matcher_is_accepting(struct rp_matcher *matcher, uint32_t state);
/* The bytes that must come next, as long as there is no choice; their number. They end before a
 * special token. */
size_t rp_matcher_forced(struct rp_matcher *matcher, uint32_t state, char *out, size_t max);

#ifdef __cplusplus
}
#endif
#endif
