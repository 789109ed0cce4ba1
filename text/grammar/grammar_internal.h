/* grammar_internal.h - nodes of both layers of a grammar, hash-consed into one pool.
 *
 * Layer 1, RX_*: regular expressions with intersection and complement, matched by derivatives. The
 * derivative of a node by a byte is another node; a row of 256 caches them, so that a node that is
 * used behaves as a state of a DFA.
 * Layer 2, G_*: what regular expressions cannot say: rules that call each other, counted repeats,
 * long literals. What remains to be matched is a chain of G_CAT nodes: the stack of a pushdown
 * automaton. A G_STATE is a sorted set of such chains, each of which begins with something that
 * takes a byte, or is NODE_EPS: the text may end.
 *
 * Equal nodes are the same number. Nothing is freed before the grammar.
 * Errors: a call that runs out of memory or fuel gives NODE_NONE and sets g->status. */
#ifndef RP_TEXT_GRAMMAR_INTERNAL_H
#define RP_TEXT_GRAMMAR_INTERNAL_H

#include "text/grammar/grammar.h"

#define NODE_NONE 0u /* matches nothing */
#define NODE_EPS  1u /* matches the empty text */
#define NODE_ALL  2u /* layer 1: matches every byte string */
#define REP_INF   UINT32_MAX
#define STEPS_MAX 100000u /* of an expression or a state; more: too complex */

enum node_kind {
    RX_NONE,
    RX_EPS,
    RX_ALL,
    RX_RANGE, /* a byte lo..hi */
    RX_CHARS, /* one character: of set a as it is in UTF-8, or of set b as a JSON escape */
    RX_PART,  /* rest of a UTF-8 sequence: set a; lo: code so far; hi: bytes left | all << 8 */
    RX_ESC,   /* after a backslash; set a */
    RX_HEX,   /* after \u; set a; lo: value so far; hi: digits left */
    RX_LOW,   /* low surrogate; set a; lo: high << 16 | value so far; hi: bytes left */
    RX_MOD,   /* decimal digits of a multiple of a; b: remainder so far */
    RX_CAT,
    RX_OR,
    RX_AND,
    RX_NOT,
    RX_REP,
    G_LIT,   /* text[a .. a + b) */
    G_LEX,   /* the regular expression a; hi > 0: an rx_counted of a, b, lo, hi */
    G_CHARS, /* lo to hi characters of a JSON string */
    G_FREE,  /* free text a at place b; lo, hi: what is left of its bounds (grammar_free.c) */
    G_CAT,
    G_OR,
    G_REF, /* rule a */
    G_REP,
    G_STATE,
};

enum node_flag {
    NODE_NULLABLE = 1,
    NODE_MIXED = 2,      /* has RX_AND or RX_NOT below: may match nothing */
    NODE_LIVE_KNOWN = 4, /* NODE_LIVE is decided */
    NODE_LIVE = 8,
    NODE_DEAD = 16,      /* layer 2: cannot be completed */
    NODE_FINITE = 32,    /* layer 1: matches finitely many texts, by its form */
    NODE_STRING = 64,    /* layer 1: whole characters of a JSON string; not mixed */
    NODE_FOLLOWED = 128, /* layer 1: can match, as `closer` can */
};

/* How many characters of a JSON string the texts of an expression have: between min and max, and
 * every number from..to is among them. REP_INF: no bound. Known only with NODE_STRING. */
struct rx_lengths {
    uint32_t min, max, from, to;
};

/* Lists (RX_OR, RX_AND, G_OR, G_STATE): lists[a .. a + b), sorted. Repeats: a, lo to hi times. */
struct node {
    uint8_t kind, flags;
    uint16_t clean; /* RX: two bits for each kind of characters (mask): 0 unknown, 2 all fit */
    uint32_t a, b, lo, hi;
    uint32_t row;  /* RX: index + 1 of its row */
    uint32_t mark; /* visited in pass `mark` */
    uint32_t charged,
        cost;        /* RX: fuel of its search for a match, and the call that it was put on */
    uint32_t total;  /* RX: with NODE_FOLLOWED, the cost of it and of all on the way */
    uint32_t closer; /* RX: with NODE_FOLLOWED, the derivative that shows it; NODE_NONE without */
    uint32_t passed; /* RX: the call that its steps were put on */
    uint32_t looped; /* RX: the call that its rx_loops() was put on */
    uint32_t steps;  /* nodes that a byte passes */
    struct rx_lengths chars;
};

/* A growing array of T. */
#define VEC(T)                                                                                     \
    struct {                                                                                       \
        T *at;                                                                                     \
        size_t count, capacity;                                                                    \
    }

struct charset_range {
    uint32_t first, last;
};
struct charset {
    uint32_t first, count; /* ranges[first .. first + count), sorted, apart */
};

/* Free text: UTF-8 without the strings of its patterns, each of which ends it. */
struct free_pattern {
    const char *bytes; /* in g->text, `text`, once it is kept */
    uint32_t text, len;
    uint32_t node; /* what follows; NODE_NONE: the text must not contain it */
};
/* A node of the patterns' Aho-Corasick automaton; children are linked by `next`. */
struct free_state {
    uint32_t child, next, fail, depth;
    uint32_t out;      /* 1 + the longest pattern with a node that ends here */
    uint32_t excluded; /* length of the longest other pattern that ends here */
    uint8_t byte;
    bool leads; /* on the way to a pattern with a node */
};
struct free_text {
    uint32_t root, first, count; /* state; patterns */
    bool may_end;
};

struct memo_entry {
    uint64_t key; /* state << 8 | byte, + 1; 0: free */
    uint32_t state;
};

struct rp_grammar {
    int status;
    uint64_t fuel; /* left for what runs now */
    /* Fuel of the searches that the call needs, each counted once, cached or not; charges is how
     * often one was needed. */
    uint64_t spent, spent_limit, charges;
    uint64_t derivatives; /* nodes derived so far: the fuel of a search */
    uint32_t call;
    size_t memory_bytes, memory_limit;
    VEC(struct node) nodes;
    VEC(uint32_t) table; /* hash table of nodes, count is its size: a power of two */
    VEC(uint32_t) lists;
    VEC(char) text;
    VEC(uint32_t *) rows; /* of ROW_SIZE */
    VEC(struct charset_range) ranges;
    VEC(struct charset) sets;
    VEC(uint32_t) rules; /* body of each rule */
    VEC(struct free_text) free_texts;
    VEC(struct free_pattern) free_patterns;
    VEC(struct free_state) free_states;
    bool has_budget;    /* some free text has at most so many tokens */
    VEC(uint32_t) work; /* stacks of closures */
    VEC(uint32_t) found;
    VEC(struct memo_entry) memo; /* count: its size; */
    size_t memo_used;
    uint32_t pass;      /* of marks */
    uint32_t json_char; /* one character of a JSON string, any spelling */
    uint32_t json_any;  /* any number of them */
    uint32_t start;     /* a G_STATE */
};

/* ---- grammar_pool.c -------------------------------------------------------------------------- */

struct rp_grammar *grammar_create(const struct rp_grammar_limits *limits);
/* Makes room for `more` elements; false with g->status set. Through VEC_PUSH and VEC_ROOM. */
bool grammar_grow(struct rp_grammar *g, void *vec, size_t element, size_t more);
#define VEC_ROOM(g, vec, more)                                                                     \
    ((vec)->count + (more) <= (vec)->capacity || grammar_grow(g, vec, sizeof *(vec)->at, more))
#define VEC_PUSH(g, vec, value)                                                                    \
    (VEC_ROOM(g, vec, 1) ? ((vec)->at[(vec)->count++] = (value), true) : false)
/* Uses fuel; false when there is none left. */
bool grammar_burn(struct rp_grammar *g, uint64_t amount);
int grammar_fail(struct rp_grammar *g, int status);
uint32_t grammar_intern(struct rp_grammar *g, struct node node);
/* Sorts and interns a list; the values are copied. */
uint32_t grammar_intern_list(struct rp_grammar *g, enum node_kind kind, uint8_t flags,
                             uint32_t *values, size_t count);
static inline const struct node *node_at(const struct rp_grammar *g, uint32_t id) {
    return &g->nodes.at[id];
}
static inline bool node_nullable(const struct rp_grammar *g, uint32_t id) {
    return g->nodes.at[id].flags & NODE_NULLABLE;
}

/* ---- grammar_charset.c ----------------------------------------------------------------------- */

#define CHARSET_EMPTY 0u
#define CHARSET_ANY   1u /* every scalar value */
/* `ranges` in any order; surrogates are removed. */
uint32_t charset_make(struct rp_grammar *g, struct charset_range *ranges, size_t count);
uint32_t charset_range(struct rp_grammar *g, uint32_t first, uint32_t last);
uint32_t charset_intersect(struct rp_grammar *g, uint32_t a, uint32_t b);
uint32_t charset_negate(struct rp_grammar *g, uint32_t a);
bool charset_has(const struct rp_grammar *g, uint32_t set, uint32_t code);
/* Some of first..last are in the set; *out_all: all of them. */
bool charset_touches(const struct rp_grammar *g, uint32_t set, uint32_t first, uint32_t last,
                     bool *out_all);

/* ---- grammar_rx.c: layer 1 ------------------------------------------------------------------- */

uint32_t rx_range(struct rp_grammar *g, uint32_t low, uint32_t high);
uint32_t rx_cat(struct rp_grammar *g, uint32_t a, uint32_t b);
uint32_t rx_or2(struct rp_grammar *g, uint32_t a, uint32_t b);
uint32_t rx_and2(struct rp_grammar *g, uint32_t a, uint32_t b);
/* values is scratch: it is changed. */
uint32_t rx_or(struct rp_grammar *g, uint32_t *values, size_t count);
uint32_t rx_not(struct rp_grammar *g, uint32_t a);
uint32_t rx_rep(struct rp_grammar *g, uint32_t a, uint32_t low, uint32_t high);
uint32_t rx_bytes(struct rp_grammar *g, const char *bytes, size_t len);
/* Digits, and after a point at most `decimals` more: as many zeros as are left complete them to a
 * multiple of the divisor. place: of RX_MOD's hi. */
uint32_t rx_mod(struct rp_grammar *g, uint32_t divisor, uint32_t remainder, uint32_t decimals,
                uint32_t place);
/* The next node after a byte: NODE_NONE when nothing can match any more. */
uint32_t rx_delta_slow(struct rp_grammar *g, uint32_t id, uint8_t byte);
#define ROW_SIZE    257 /* by byte; then rx_loops() */
#define ROW_UNKNOWN UINT32_MAX
#define ROW_SEARCH  0x80000000u /* with the node: a search decided it, which rx_charge() counts */
uint32_t rx_charge(struct rp_grammar *g, uint32_t id);
static inline uint32_t rx_delta(struct rp_grammar *g, uint32_t id, uint8_t byte) {
    uint32_t row = g->nodes.at[id].row, to = row ? g->rows.at[row - 1][byte] : ROW_UNKNOWN;
    if (to < ROW_SEARCH)
        return to;
    return to == ROW_UNKNOWN ? rx_delta_slow(g, id, byte) : rx_charge(g, to & ~ROW_SEARCH);
}
/* lo to hi - 1 characters of a JSON string, after the rest of one that has begun. */
struct rx_counted {
    uint32_t rx, inner; /* inner: that rest, or NODE_NONE */
    uint32_t lo, hi;    /* hi: REP_INF is no bound */
};
/* False: no text goes on with the byte. */
bool rx_step_counted(struct rp_grammar *g, struct rx_counted *at, uint8_t byte);
/* Something can still match. */
bool rx_live(struct rp_grammar *g, uint32_t id);
bool rx_matches(struct rp_grammar *g, uint32_t id, const char *text, size_t len);

/* ---- grammar_length.c: lengths of texts and work of a byte ----------------------------------- */

/* Sets steps, chars and NODE_STRING of a new node from those below it. */
void grammar_measure(const struct rp_grammar *g, struct node *n);
enum rx_answer { RX_DEAD, RX_LIVE, RX_UNSURE };
/* Whether something can match, as far as form and lengths tell. */
enum rx_answer rx_quick_live(const struct rp_grammar *g, uint32_t id);
/* Whether some text of these lengths has low to high characters. */
enum rx_answer rx_fits(const struct rx_lengths *l, uint32_t low, uint32_t high);

/* The derivative, which may be unable to match. */
uint32_t rx_derive(struct rp_grammar *g, uint32_t id, uint8_t byte, int depth);

/* ---- grammar_rx_search.c --------------------------------------------------------------------- */

/* Whether `id` can match; sets its cost, and perhaps `closer`. */
bool rx_search(struct rp_grammar *g, uint32_t id);
/* Sets starts[b] where the derivative by b may differ from the one by b - 1; depth: 0. */
void rx_mark_starts(struct rp_grammar *g, uint32_t id, bool *starts, int depth);

/* ---- grammar_kind.c: kinds of characters ----------------------------------------------------- */

/* The kinds of which every character, as it is, leaves the expression what it is; none where no
 * letter or digit does, or where it has NODE_MIXED. */
uint32_t rx_loops(struct rp_grammar *g, uint32_t id);

/* ---- grammar_rx_form.c: a normal form of alternatives and conditions ------------------------- */

/* Texts of `id` begin inside a character. */
bool rx_in_char(const struct rp_grammar *g, uint32_t id);
/* found[base .. base + count) are the members; the number of those that remain. */
size_t rx_normal_or(struct rp_grammar *g, size_t base, size_t count);
/* True: *out is the whole conjunction. */
bool rx_normal_and(struct rp_grammar *g, size_t base, size_t *count, uint32_t *out);

/* ---- grammar_rx_char.c: characters of layer 1 ------------------------------------------------ */

enum rx_mode {
    RX_PLAIN,      /* UTF-8 */
    RX_JSON,       /* inside a JSON string; escapes where JSON needs them, or beyond ASCII */
    RX_JSON_EVERY, /* inside a JSON string, every spelling */
};
uint32_t rx_chars(struct rp_grammar *g, uint32_t set, enum rx_mode mode);
/* The characters of UTF-8 text one after another. */
uint32_t rx_text(struct rp_grammar *g, const char *text, size_t len, enum rx_mode mode);
uint32_t rx_char_derivative(struct rp_grammar *g, const struct node *n, uint8_t byte);

/* ---- grammar_regex.c ------------------------------------------------------------------------- */

/* The texts in which the pattern is found (search), or that it matches whole. */
int regex_parse(struct rp_grammar *g, const char *pattern, size_t len, enum rx_mode mode,
                bool search, uint32_t *out_rx, struct rp_error *err);
enum regex_flag {
    REGEX_LINE_DOT = 1, /* the point is all but \n, as in Python */
    REGEX_DOT_ALL = 2,  /* the point is every character */
    REGEX_FOLD = 4,     /* ASCII letters match in both cases */
};
/* Whole texts. */
int regex_parse_flags(struct rp_grammar *g, const char *pattern, size_t len, enum rx_mode mode,
                      unsigned flags, uint32_t *out_rx, struct rp_error *err);

/* ---- grammar_number.c ------------------------------------------------------------------------ */

/* A bound in decimal: digits are those of the absolute value without leading zeros, of which the
 * last `scale` come after the point. */
struct decimal {
    bool negative;
    uint32_t count, scale;
    char digits[800];
};
/* False for what is not a finite number, or needs too many digits. */
bool decimal_read(struct decimal *out, const char *text);
uint32_t rx_integer(struct rp_grammar *g);
uint32_t rx_number(struct rp_grammar *g);
/* Numbers without exponent that are >= (>) or <= (<) the bound. */
uint32_t rx_at_least(struct rp_grammar *g, const struct decimal *bound, bool strict);
uint32_t rx_at_most(struct rp_grammar *g, const struct decimal *bound, bool strict);
/* Numbers without exponent that are multiples of m, with no more decimals than m; NODE_NONE: not
 * supported. */
uint32_t rx_multiple(struct rp_grammar *g, const struct decimal *m);
/* The same with zeros after the decimals. */
uint32_t rx_multiple_padded(struct rp_grammar *g, uint32_t multiples);
/* Numbers without exponent that are no integers. */
uint32_t rx_fraction(struct rp_grammar *g);

/* ---- grammar_node.c: layer 2 ----------------------------------------------------------------- */

uint32_t g_lit(struct rp_grammar *g, const char *bytes, size_t len);
uint32_t g_lex(struct rp_grammar *g, uint32_t rx);
/* Characters of a JSON string that match rx and are so many. They are counted beside the
 * expression where rx has NODE_STRING and is not mixed. */
uint32_t g_lex_counted(struct rp_grammar *g, uint32_t rx, uint32_t low, uint32_t high);
uint32_t g_chars(struct rp_grammar *g, uint32_t low, uint32_t high);
uint32_t g_cat(struct rp_grammar *g, uint32_t a, uint32_t b);
uint32_t g_or2(struct rp_grammar *g, uint32_t a, uint32_t b);
uint32_t g_or(struct rp_grammar *g, uint32_t *values, size_t count);
uint32_t g_rep(struct rp_grammar *g, uint32_t a, uint32_t low, uint32_t high);
/* A new rule without a body, as a G_REF. */
uint32_t g_rule(struct rp_grammar *g);
void g_rule_set(struct rp_grammar *g, uint32_t ref, uint32_t body);
/* Decides which nodes can be completed. After the last g_rule_set and before g_state. Nodes below
 * `first` keep what they have: none of them leads to a rule that has changed. */
void g_settle(struct rp_grammar *g, size_t first);
/* The state in which `node` remains to be matched. */
uint32_t g_state(struct rp_grammar *g, uint32_t node);
uint32_t g_step_slow(struct rp_grammar *g, uint32_t state, uint8_t byte);
/* What remains after one byte of an alternative of a state. */
uint32_t g_alternative_step(struct rp_grammar *g, uint32_t alternative, uint8_t byte);
static inline uint64_t memo_slot(uint64_t key, size_t size) {
    return (key * 0x9E3779B97F4A7C15u >> 32) & (size - 1);
}
static inline uint32_t g_step(struct rp_grammar *g, uint32_t state, uint8_t byte) {
    uint64_t key = ((uint64_t)state << 8 | byte) + 1;
    for (uint64_t i = memo_slot(key, g->memo.count);; i = (i + 1) & (g->memo.count - 1)) {
        if (g->memo.at[i].key == key)
            return g->memo.at[i].state;
        if (g->memo.at[i].key == 0)
            return g_step_slow(g, state, byte);
    }
}
static inline bool g_accepting(const struct rp_grammar *g, uint32_t state) {
    const struct node *n = node_at(g, state);
    return n->kind == G_STATE && n->b > 0 && g->lists.at[n->a] == NODE_EPS;
}

/* ---- grammar_free.c: free text --------------------------------------------------------------- */

#define SPECIAL_MARK 0xFFu /* of the four bytes of a special token: the mark, then its id */
/* lo of a G_FREE: tokens left, REP_INF, or FREE_FORCED | bytes: the text is at its end, and these
 * bytes and all that follow must be a pattern. b: state << 4 | it has taken a byte << 3 | UTF-8. */
#define FREE_FORCED 0x80000000u
static inline uint32_t free_state_of(const struct node *n) { return n->b >> 4; }
static inline uint32_t free_utf8_of(const struct node *n) { return n->b & 7; }
static inline bool free_is_forced(const struct node *n) {
    return n->lo != REP_INF && n->lo & FREE_FORCED;
}
/* At most `tokens` tokens and `chars` characters; REP_INF: any number. Patterns are copied. */
uint32_t g_free(struct rp_grammar *g, const struct free_pattern *patterns, size_t count,
                bool may_end, uint32_t tokens, uint32_t chars);
/* The same text from its first place on. */
uint32_t free_restart(struct rp_grammar *g, struct node n);
uint32_t free_step(struct rp_grammar *g, struct node n, uint8_t byte);
/* Counts a token that ended in `state`; the state after it. */
uint32_t free_token_end(struct rp_grammar *g, uint32_t state);
/* A state with the same mask, whatever is left of its bounds of tokens. */
uint32_t free_mask_state(struct rp_grammar *g, uint32_t state);

/* The next place in UTF-8 (0: between characters), or -1. */
int utf8_step(uint32_t place, uint8_t byte);

/* ---- grammar_compile.c ----------------------------------------------------------------------- */

/* Ends a compile: the grammar of `node` in *out, or an error; then g is freed. */
int grammar_finish(struct rp_grammar *g, uint32_t node, int rc, const char *what,
                   struct rp_grammar **out, struct rp_error *err);

#endif
