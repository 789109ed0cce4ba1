/* tokenizer_units.h - how each token comes about, and byte-pair encoding without merging.
 *
 * Merging runs from the lowest rank to the highest. What it does inside a stretch that no merge
 * leaves is what it would do with that stretch alone, so a sequence of tokens is the encoding of
 * its text exactly when each two neighbors are the encoding of theirs: were there a first merge
 * across a boundary, it would happen with the two alone as well. A pair is judged by undoing the
 * merges next to the boundary, the latest first, and looking for a merge across that would have
 * come earlier. Each prefix of a text has then one last token, so a search for the longest token
 * that fits, with a step back where none does, visits each position once: the cost is linear.
 *
 * The order in time is the order of ranks where every merge has a higher rank than those that made
 * its parts. Whether each that can happen is like that is found out at load. Published vocabularies
 * are, but for runs of "▁" in some; units that others make are irregular, and a pair with one of
 * them is judged by merging it. A file with more of that than fits the tables merges its texts.
 * Private to model/tokenizer*.c. */
#ifndef RP_TEXT_TOKENIZER_UNITS_H
#define RP_TEXT_TOKENIZER_UNITS_H

#include "base/base.h"

/* A longer token makes the search below useless and its tables large. */
#define RP_TOK_UNIT_LEN_MAX 1024
/* Symbols of a unit in a vocabulary with irregular ones: two of these are merged by a quadratic
 * search. */
#define RP_TOK_IRREGULAR_MAX 64

struct rp_tok_unit {
    int32_t left, right; /* the pair that merging makes it of */
    uint32_t rank;       /* of that merge, from 1; 0: merging begins with it */
    int32_t shorter;     /* the longest unit that it begins with, or -1 */
    uint16_t len;        /* bytes of text; 0: merging never makes it */
    bool extends_right;  /* it is the left side of some merge */
    bool extends_left;
    bool irregular; /* rank, left and right say nothing */
};

/* A double array: the child of node n by byte c is (nodes[n].link >> 9) ^ c, if that node's low 9
 * bits are c. No two nodes with children share a base; free slots have the label 256. Where one
 * unit is left, what it goes on with is not spread over nodes: it lies at tails[nodes[n].link >>
 * 9], its length before it. */
struct rp_tok_node {
    uint32_t link;
    int32_t unit; /* the unit that ends here, or -1; -2 - unit: it ends with the tail */
};
#define RP_TOK_NODE_FREE 256u
#define RP_TOK_NODE_ROOT 256u /* the first 256 stay free: the base of those without children */

struct rp_tok_units {
    struct rp_tok_unit *all; /* by id; NULL: this vocabulary has to be merged */
    struct rp_tok_node *nodes;
    uint8_t *tails;
};

#endif
