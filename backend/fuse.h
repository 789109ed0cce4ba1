/* fuse.h - which operators of a program become one kernel: a pass without side effects.
 *
 *   (program, [begin, end), bucket, a backend's table of fusions) -> fused operators, in run order
 *
 * A fusion is found by definition and use, never by position: the producer of a view and the
 * operator that reads it first, whatever lies between them. These rules hold for every fusion:
 *
 *   single reader   no other operator reads what the kernel does not store
 *   row domain      producer and consumer work on the same rows (a gather changes them)
 *   order           the fused operator runs at the place of its last member; no operator between its
 *                   members writes what they read or write, or reads what they write
 *   memory          what a member writes shares no bytes with what an earlier member reads: in one
 *                   kernel both happen at once (and the arena reuses bytes of dead tensors)
 *
 * Conditions that depend on the device or the matrix are callbacks of the table. The result says
 * everything that lowering has to know: lowering is one emit function for each row of the table.
 *
 * Two things besides tensors pass between fused operators, both in scratch memory of the backend:
 *   partial sums     a matmul leaves its split-K segments unsummed and the reader adds them up; they
 *                    lie in the matmuls' workspace, so no other matmul may run in between
 *   quantized rows   the producer of a matmul's input stores 8-bit rows and scales, beside its output
 *                    or, where nobody reads that, in place of it; all matmuls that read the same
 *                    rows share them; there is one buffer, so nobody else may fill it in between
 *
 * Memory: rp_fused owns its arrays. Thread: any. */
#ifndef RP_BACKEND_FUSE_H
#define RP_BACKEND_FUSE_H

#include "device/device.h"

#define RP_FUSION_STEPS_MAX 8
#define RP_FUSED_NONE       UINT32_MAX
#define RP_FUSED_WHY_MAX    192

enum rp_fusion_form {
    RP_FUSION_CHAIN, /* step i + 1 reads what step i writes */
    /* Operators of the step's kinds over the same rows that are connected by the tensors they
     * write, two or more, run one after the other on each row. */
    RP_FUSION_ROWS
};

enum rp_fusion_flags {
    RP_FUSION_STORES = 1,       /* the kernel stores what its last step reads: others may read it */
    RP_FUSION_RESIDUAL = 2,     /* the ADD adds an f32 term to an f32 tensor in place */
    RP_FUSION_QUANTIZES = 4,    /* can store quantized rows beside its output or in place of it */
    RP_FUSION_PARTIALS_OUT = 8, /* may leave partial sums to the reader */
    RP_FUSION_PARTIALS_IN = 16, /* can read partial sums in place of operand `sums` of step 0 */
    RP_FUSION_PARTIALS_ONLY = 32, /* exists only with the partial sums that its flags name */
    /* The kernel runs its members one after the other, each on all rows: a later one may write what
     * an earlier one reads. */
    RP_FUSION_SERIAL = 64
};

struct rp_fused_op;
struct rp_fuse_input;

struct rp_fusion {
    const char *name; /* of the fusion or, with one step, of the kernel */
    enum rp_fusion_form form;
    uint32_t flags, step_count, sums;
    struct {
        enum rp_op_kind kind;
        uint32_t operand; /* CHAIN, from step 1 on: the one that is the previous step's output */
    } steps[RP_FUSION_STEPS_MAX];
    /* NULL, or: why this backend has no kernel for these operators; NULL: it has one. */
    const char *(*refuses)(const struct rp_fuse_input *input, const struct rp_fused_op *candidate);
};

/* Rows are tried in order at each operator that is not fused yet; the first match wins. Rows with
 * one step come last: they are the unfused kernels. */
struct rp_fusion_table {
    const struct rp_fusion *fusions;
    uint32_t count;
    /* Whether the matmul of the candidate can store partial sums for its reader. NULL: no. */
    bool (*leaves_partials)(const struct rp_fuse_input *input, const struct rp_fused_op *candidate);
    /* Whether the matmul of the candidate (rp_fused_reader) must be given quantized rows. NULL:
     * no. */
    bool (*needs_quantized)(const struct rp_fuse_input *input, const struct rp_fused_op *candidate);
};

struct rp_fuse_input {
    const struct rp_program *program;
    uint32_t begin, end;
    const struct rp_bucket *bucket;
    const size_t *tensor_offsets; /* bytes into the arena; NULL: no two tensors share memory */
    const struct rp_fusion_table *table;
    bool no_fusion;      /* one-step rows alone */
    const void *backend; /* for the callbacks */
};

struct rp_fused_op {
    uint32_t fusion; /* row of the table */
    uint32_t op_count;
    uint32_t ops[RP_LAUNCH_OPS_MAX]; /* rising */
    bool after_matmul;               /* a matmul runs earlier in [begin, end) */
    /* Indexes of fused operators, or RP_FUSED_NONE. */
    uint32_t partials_to, partials_from;
    /* to: the first that reads the quantized rows which this one stores. from: the one that stored
     * the rows, or the first that reads them, whose launch did. */
    uint32_t quantized_to, quantized_from;
    /* without quantized_from the rows are quantized by a launch of their own */
    bool input_quantized;
    bool quantized_alone; /* with quantized_to: its output is not stored, since nobody reads it */
    char why_not[RP_FUSED_WHY_MAX]; /* why it is not fused, or not more of it; "": nothing to say */
};

struct rp_fused {
    struct rp_fused_op *ops;
    uint32_t count;
};

/* UNSUPPORTED names the operator that no row of the table runs; NO_MEMORY. */
int rp_fuse(const struct rp_fuse_input *input, struct rp_fused *out,
            struct rp_error *err) RP_MUST_USE;
void rp_fused_deinit(struct rp_fused *fused); /* legal on a zeroed struct */

/* The member of this kind; RP_FUSED_NONE: there is none. Index into the program. */
uint32_t rp_fused_find(const struct rp_program *program, const struct rp_fused_op *fused,
                       enum rp_op_kind kind);

/* The member whose first operand may be quantized rows: LINEAR or EXPERT_GATE_UP; RP_FUSED_NONE:
 * there is none. Index into the program. */
uint32_t rp_fused_reader(const struct rp_program *program, const struct rp_fused_op *fused);

/* --- what the pass and the callbacks know of the dataflow */

bool rp_same_view(const struct rp_view *a, const struct rp_view *b);
bool rp_views_overlap(const struct rp_view *a, const struct rp_view *b);
/* The first operator from `from` on that reads or writes a column of the view reads it: its index.
 * RP_FUSED_NONE: it is written first, or not used. */
uint32_t rp_first_reader(const struct rp_program *program, uint32_t from,
                         const struct rp_view *view);
/* True when an operator from `from` on reads a column of the view before all of it is written
 * anew. */
bool rp_is_read(const struct rp_program *program, uint32_t from, const struct rp_view *view);
/* A matmul whose output goes through an activation, fused or not. */
bool rp_feeds_activation(const struct rp_program *program, uint32_t linear);

#endif
