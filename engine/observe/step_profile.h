/* step_profile.h - where steps spend their time, node by node: which steps are stamped, and what
 * they gave.
 *
 * A step whose packet carries RP_PACKET_STAMP stores when each of its launches began and ended
 * (device/step.h). Stamped are one step in `every` of each bucket, every step that a request with
 * `profile` has rows in, and the steps of a session: a schedule in units of steps, as
 * torch.profiler has it, one at a time:
 *
 *     (wait steps, then `warmup` stamped and forgotten, then `active` stamped and kept) x repeat
 *
 * When a stamped step was read it becomes one record in a ring of words; the newest are kept,
 * readers copy the ring and make tables of the copy (profile_report.h).
 *
 *     record:  step | begin | end | read | graph, nodes, rows | tokens, logit rows | session, repeat |
 *              a word for each node | two for each row | its length in words
 *
 * Threads: launch, read, open and close are the engine thread's; the session's calls are the loop
 * thread's; copies may be made by any thread at any time. Memory: all at create. No lock, no
 * allocation after. */
#ifndef RP_ENGINE_STEP_PROFILE_H
#define RP_ENGINE_STEP_PROFILE_H

#include "engine/observe/profile_nodes.h"
#include "engine/scheduler.h"
#include "metrics/trace_ring.h"

/* Which steps a session or a table looks at. */
enum rp_profile_phase {
    RP_PROFILE_ANY,
    RP_PROFILE_PREFILL, /* prompt tokens are among the step's */
    RP_PROFILE_DECODE   /* every row decodes */
};

struct rp_profile_schedule {
    uint32_t wait, warmup, active, repeat; /* active, repeat: at least 1 */
    enum rp_profile_phase phase;
};

enum rp_profile_state { RP_PROFILE_IDLE, RP_PROFILE_ASKED, RP_PROFILE_RUNNING, RP_PROFILE_DONE };

struct rp_profile_mark {
    uint64_t device_step;
    uint32_t stands_for;      /* steps of its bucket since the last stamped one, itself included */
    uint32_t session, repeat; /* 0: of no session; repeat counts from 1 */
};

struct rp_step_profile {
    uint32_t every; /* one step in so many of each bucket; 0: none */
    uint32_t row_capacity;
    struct rp_profile_nodes nodes;

    /* Engine thread. */
    uint32_t *since_stamped; /* (bucket) steps since the last stamped one */
    uint32_t open_requests;  /* with `profile` */
    struct rp_profile_mark marks[RP_STEP_RING_ENTRIES];
    uint64_t *row_ids; /* (RP_STEP_RING_ENTRIES, row_capacity) request ids of stamped steps */
    struct rp_profile_schedule schedule;
    uint64_t session_seen, session_read; /* steps of its phase; active ones that were read */

    /* The ring: any thread reads. */
    _Atomic uint64_t *words;
    uint64_t mask, record_max; /* words of the ring, less one; of the longest record */
    _Atomic uint64_t head;     /* words ever written, whole records only */
    _Atomic uint64_t stamped;  /* steps */
    struct rp_counter op_ns[RP_OP_KIND_COUNT]; /* rp_step_profile_op */

    /* The session: number << 2 | rp_profile_state. The request is written before ASKED. */
    _Atomic uint64_t session;
    _Atomic uint32_t asked[5];
    _Atomic uint64_t session_done; /* active steps read so far, of the session in progress */
};

/* RP_STATUS_NO_MEMORY with *out NULL. */
int rp_step_profile_create(const struct rp_backend *backend, const struct rp_program *program,
                           struct rp_graph_set *graphs, enum rp_dtype kv_dtype,
                           uint32_t row_capacity, uint32_t every,
                           struct rp_step_profile **out) RP_MUST_USE;
void rp_step_profile_destroy(struct rp_step_profile *profile); /* NULL is allowed */

/* ---- engine thread ---- */

/* A request with `profile` was taken, and closed. */
static inline void rp_step_profile_open(struct rp_step_profile *profile,
                                        const struct rp_request *request) {
    profile->open_requests += request->profile;
}
static inline void rp_step_profile_close(struct rp_step_profile *profile,
                                         const struct rp_request *request) {
    profile->open_requests -= request->profile;
}

/* Before the packet is written: whether this step is stamped. graph: its bucket's index. */
bool rp_step_profile_launch(struct rp_step_profile *profile, const struct rp_sched_step *plan,
                            uint32_t graph, uint64_t device_step);

/* A stamped step was read, and its plan is still there. Times of stamps, begin and end are the
 * device's; + to_host_ns gives rp_clock_ns. */
struct rp_profile_read {
    uint64_t device_step, begin_ns, end_ns, read_ns;
    uint32_t graph;
    const struct rp_sched_step *plan;
    const struct rp_node_stamp *stamps;
    struct rp_trace_ring *trace; /* gets a NODE event for each node */
    int64_t to_host_ns;
};
void rp_step_profile_read(struct rp_step_profile *profile, const struct rp_profile_read *read);

/* ---- loop thread ---- */

/* Active steps that one session may have: half of what the ring is sure to keep. */
uint64_t rp_step_profile_session_max(const struct rp_step_profile *profile);
/* The session's number; 0: there is one. It begins with the next step. */
uint32_t rp_step_profile_start(struct rp_step_profile *profile,
                               const struct rp_profile_schedule *schedule);
/* *out_done (may be NULL): active steps that were read. */
enum rp_profile_state rp_step_profile_state(const struct rp_step_profile *profile,
                                            uint64_t *out_done);
/* Ends the session, whatever it does. */
void rp_step_profile_stop(struct rp_step_profile *profile);

/* ---- any thread ---- */

struct rp_profile_row {
    uint64_t request;
    uint32_t count, start; /* tokens, and the position of the first */
    bool decode, samples;
};

/* Device time of the nodes of one kind of operator, ns, estimated: a stamped step's times count
 * once for each step of its bucket since the one that was stamped before. A node of several
 * operators counts as attention, else as its GEMM, else as its first operator. False: no such
 * index. */
bool rp_step_profile_op(const struct rp_step_profile *profile, uint32_t index,
                        const char **out_name, uint64_t *out_ns);
/* Sessions that were started. */
uint32_t rp_step_profile_sessions(const struct rp_step_profile *profile);

/* A record, read. Nodes and rows are words of the copy. */
struct rp_profile_step {
    uint64_t step, begin_ns, end_ns, read_ns;
    uint32_t graph, node_count, row_count, tokens, logit_rows, session, repeat, shift;
    bool decode_only;
    const uint64_t *nodes, *rows;
};

struct rp_profile_copy {
    uint64_t *words;
    struct rp_profile_step *steps; /* oldest first */
    uint32_t count;
    bool whole; /* false: older steps of the requested time have been overwritten */
};

/* What was read at or after since_ns. Allocates; false when memory is out. */
bool rp_step_profile_copy(const struct rp_step_profile *profile, uint64_t since_ns,
                          struct rp_profile_copy *out);
void rp_profile_copy_deinit(struct rp_profile_copy *copy); /* legal on a zeroed struct */

/* Times of node i in ns after the step's begin; false when it has none. */
bool rp_profile_step_node(const struct rp_profile_step *step, uint32_t i, uint64_t *out_begin,
                          uint64_t *out_end);
/* Puts other times in place of the nodes': the step is then from the first begin to the last end.
 * False: there is no time among them, and nothing was changed. The copy's own words are written. */
bool rp_profile_step_replace(struct rp_profile_step *step, const struct rp_node_stamp *stamps);
struct rp_profile_row rp_profile_step_row(const struct rp_profile_step *step, uint32_t i);

#endif
