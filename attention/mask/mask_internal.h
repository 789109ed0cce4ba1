/* mask_internal.h - the tree of a mask program, and the passes that build it from text: shared by
 * the files mask*.c.
 *
 *   text -> rp_mask_read (syntax, types) -> rp_mask_prove -> rp_mask_fold -> rp_mask_build (canonical text, one allocation)
 *
 * Nodes of a root lie in one run, children before their parent: a loop over the run with a stack
 * evaluates it. */
#ifndef RP_ATTENTION_MASK_INTERNAL_H
#define RP_ATTENTION_MASK_INTERNAL_H

#include "attention/mask/mask.h"

#define RP_MASK_RULES_MAX 16
#define RP_MASK_NONE      UINT16_MAX
/* Most values on the stack: up to two per level of the tree. */
#define RP_MASK_STACK_MAX (2 * RP_MASK_DEPTH_MAX + 2)
/* Kernels may request whole tiles: what is proved holds up to the next multiple of it. */
#define RP_MASK_LENGTH_STEP 1024
#define RP_MASK_LENGTH_MAX  (1u << 24)
/* Integers are symmetric, so that negation cannot overflow. */
#define RP_MASK_INT_MAX       2147483647
#define RP_MASK_SLOPE_HEADS   1024 /* heads in the table of slope() */
#define RP_MASK_KEYS_MAX      64
#define RP_MASK_PARAM_DEFAULT (1 << 24) /* largest value of a parameter without a range */

/* Operation, number of children, spelling, precedence. */
#define RP_MASK_OP_MAP(X)                                                                          \
    X(INT, 0, "int", 9)                                                                            \
    X(FLOAT, 0, "number", 9)                                                                       \
    X(BOOL, 0, "condition", 9)                                                                     \
    X(Q, 0, "q", 9)                                                                                \
    X(KV, 0, "kv", 9)                                                                              \
    X(H, 0, "h", 9)                                                                                \
    X(LAYER, 0, "layer", 9)                                                                        \
    X(PARAM, 0, "param", 9)                                                                        \
    X(SCORE, 0, "score", 9)                                                                        \
    X(TO_FLOAT, 1, "to number", 9)                                                                 \
    X(NEG, 1, "-", 8)                                                                              \
    X(NOT, 1, "!", 8)                                                                              \
    X(ABS, 1, "abs", 9)                                                                            \
    X(TANH, 1, "tanh", 9)                                                                          \
    X(EXP, 1, "exp", 9)                                                                            \
    X(SLOPE, 1, "slope", 9)                                                                        \
    X(MIN, 2, "min", 9)                                                                            \
    X(MAX, 2, "max", 9)                                                                            \
    X(MUL, 2, "*", 7)                                                                              \
    X(DIV, 2, "/", 7)                                                                              \
    X(MOD, 2, "%", 7)                                                                              \
    X(ADD, 2, "+", 6)                                                                              \
    X(SUB, 2, "-", 6)                                                                              \
    X(LT, 2, "<", 5)                                                                               \
    X(LE, 2, "<=", 5)                                                                              \
    X(GT, 2, ">", 5)                                                                               \
    X(GE, 2, ">=", 5)                                                                              \
    X(EQ, 2, "==", 4)                                                                              \
    X(NE, 2, "!=", 4)                                                                              \
    X(AND, 2, "&&", 3)                                                                             \
    X(OR, 2, "||", 2)                                                                              \
    X(SELECT, 3, "?:", 1)

enum rp_mask_op {
#define X(name, arity, text, precedence) RP_MASK_OP_##name,
    RP_MASK_OP_MAP(X)
#undef X
        RP_MASK_OP_COUNT
};

enum rp_mask_type { RP_MASK_BOOL, RP_MASK_INT, RP_MASK_FLOAT };

struct rp_mask_op_info {
    const char *text;
    uint8_t arity, precedence;
};
extern const struct rp_mask_op_info rp_mask_ops[RP_MASK_OP_COUNT];

struct rp_mask_node {
    uint8_t op;   /* enum rp_mask_op */
    uint8_t type; /* of its value */
    uint16_t column;
    uint16_t child[3]; /* unused ones are 0 */
    union {
        int32_t i; /* INT, BOOL; PARAM: its index */
        float f;   /* FLOAT */
    } value;
};

/* A program under construction: nodes, children before parents, with gaps where nodes are no longer
 * used. */
struct rp_mask_draft {
    struct rp_mask_limits limits;
    struct rp_mask_param params[RP_MASK_PARAMS_MAX];
    uint32_t param_count, rule_count, node_count;
    uint16_t condition; /* roots */
    uint16_t rules[RP_MASK_RULES_MAX];
    struct rp_mask_node nodes[RP_MASK_NODES_MAX];
};

struct rp_mask {
    struct rp_mask_limits limits;
    uint32_t extent; /* bound on the positions that are proved */
    struct rp_mask_param params[RP_MASK_PARAMS_MAX];
    uint32_t param_count, rule_count, node_count;
    /* Last nodes of the condition and of each rule; the runs lie back to back. */
    uint16_t roots[1 + RP_MASK_RULES_MAX];
    bool causal, reads_head, reads_layer;
    bool uses_slope;
    const struct rp_mask_node *nodes;
    const float *slopes; /* (heads), when a rule requests one */
    const char *text;
};

/* First node of root i. */
static inline uint32_t rp_mask_root_begin(const struct rp_mask *mask, uint32_t i) {
    return i == 0 ? 0 : mask->roots[i - 1] + 1u;
}

uint32_t rp_mask_extent(const struct rp_mask_limits *limits);

/* --- Steps; false or a status after *err was set --------------------------------------- */

bool rp_mask_read(const char *text, size_t bytes, struct rp_mask_draft *draft,
                  struct rp_error *err);
/* Proves that no int overflows, no divisor is 0, and every slope() has a head. */
bool rp_mask_prove(const struct rp_mask_draft *draft, struct rp_error *err);
/* Constants folded, chains of && and || balanced, equal terms of them once. layer: -1 keeps it. */
int rp_mask_fold(struct rp_mask_draft *draft, int64_t layer, struct rp_error *err) RP_MUST_USE;
int rp_mask_build(const struct rp_mask_draft *draft, struct rp_mask **out,
                  struct rp_error *err) RP_MUST_USE;

/* --- The draft's nodes ----------------------------------------------------------------- */

/* RP_MASK_NONE when there is no room. */
uint16_t rp_mask_add_node(struct rp_mask_draft *draft, enum rp_mask_op op, enum rp_mask_type type,
                          uint32_t column, const uint16_t *child);

/* One argument of a named block; its nodes are copied when it is used a second time. */
struct rp_mask_block_args {
    uint32_t column; /* of the block's name */
    uint32_t count;
    uint16_t node[RP_MASK_PARAMS_MAX];
};
/* A named block and its argument count; NULL when the name is not a block. */
struct rp_mask_block {
    const char *name, *example;
    uint8_t args_min, args_max;
    bool is_rule;
};
extern const struct rp_mask_block rp_mask_blocks[];
extern const uint32_t rp_mask_block_count;
/* Expands the block: a condition, or the new score. RP_MASK_NONE when there is no room. */
uint16_t rp_mask_expand(struct rp_mask_draft *draft, const struct rp_mask_block *block,
                        const struct rp_mask_block_args *args);

/* --- Intervals: conditions are 0..1 ---------------------------------------------------- */

struct rp_mask_range {
    int64_t lo, hi;
};
/* Range of an int or bool node from the ranges of its children; saturating. The caller sets the
 * leaves. */
struct rp_mask_range rp_mask_range_of(const struct rp_mask_node *node,
                                      const struct rp_mask_range *a, const struct rp_mask_range *b,
                                      const struct rp_mask_range *c);

/* --- Linear forms: proofs over all keys after the query ------------------------ */

/* a q + b kv + something in [lo, hi]. */
struct rp_mask_form {
    int64_t a, b, lo, hi;
};
bool rp_mask_prove_causal(const struct rp_mask *mask);
/* The condition as a conjunction of comparisons `form <= 0`; false when it has another shape. */
struct rp_mask_bound {
    int64_t a, b, c; /* a q + b kv + c <= 0 */
};
#define RP_MASK_BOUNDS_MAX 8
bool rp_mask_linear_bounds(const struct rp_mask *mask,
                           struct rp_mask_bound bounds[RP_MASK_BOUNDS_MAX], uint32_t *out_count);

/* --- Text ------------------------------------------------------------------------------ */

void rp_mask_write_text(const struct rp_mask *mask, struct rp_buffer *out);
/* The shortest digits that read back as the same f32; always with a point or an exponent. */
void rp_mask_write_float(struct rp_buffer *out, float value);

/* --- Classification by intervals alone ------------------------------------------------- */

enum rp_mask_class rp_mask_classify_ranges(const struct rp_mask *mask,
                                           const struct rp_mask_tile *tile, const int32_t *params);
/* Tiles of at most this many pairs that intervals cannot decide are searched pair by pair. */
#define RP_MASK_SEARCH_MAX 16384

/* Deliberate bugs that a mutation test enables, to check that it finds them. Only in builds with
 * RP_MASK_MUTATIONS. */
#ifdef RP_MASK_MUTATIONS
enum rp_mask_mutation {
    /* a remainder is taken of both ends, whatever lies between */
    RP_MASK_MUTATION_NONE,
    /* a product lies between two of its four corners */
    RP_MASK_MUTATION_MOD_WITHOUT_WRAP,
    /* |a| lies between those of its ends */
    RP_MASK_MUTATION_TWO_CORNERS,
    /* q - kv < n holds where it is n */
    RP_MASK_MUTATION_ABS_OF_ENDS,
    /* ranges that are equal make equal values */
    RP_MASK_MUTATION_LESS_IS_LESS_EQUAL,
    /* two halves are a whole */
    RP_MASK_MUTATION_EQUAL_ENDS,
    /* and have nothing in common */
    RP_MASK_MUTATION_OR_OF_TWO_PARTIAL,
    /* ?: gives its first result when it is open */
    RP_MASK_MUTATION_AND_OF_TWO_PARTIAL,
    /* a tile ends one key early */
    RP_MASK_MUTATION_FIRST_BRANCH,
    RP_MASK_MUTATION_LAST_KEY_FORGOTTEN,
    RP_MASK_MUTATION_COUNT
};
extern enum rp_mask_mutation rp_mask_mutation;
#define RP_MASK_MUTATED(name) (rp_mask_mutation == RP_MASK_MUTATION_##name)
#else
#define RP_MASK_MUTATED(name) false
#endif

#endif
