/* trace_path.h - the critical path through a request and through a step: which part of the time
 * passed waiting for what. Every nanosecond goes to exactly one part.
 *
 *   a request   from its first byte to its end. In the batch: its own steps on the device (prompt
 *               chunks, decode), steps that it had no row in, copies of pages, and what the engine
 *               thread did while the device was idle, by cause; after its last step, reading.
 *   a step      from the end of the step before it (or its own planning, when the device had no
 *               work) to its result on the host. A stamped step is split into forward and sample.
 *               The result of a step that was launched ahead is read while the next one runs.
 *
 * Requests and steps that the window cuts off are left out. Thread: one owner. Times: ns. */
#ifndef RP_METRICS_TRACE_PATH_H
#define RP_METRICS_TRACE_PATH_H

#include "base/buffer.h"
#include "metrics/event.h"
#include "metrics/trace_spans.h"

/* clang-format off */
#define RP_REQUEST_PARTS(X)                                                                        \
    X(RECEIVE, "receive")           /* read and parsed, and handed to the engine */                \
    X(TOKENIZE, "tokenize")                                                                        \
    X(QUEUE, "queue")                                                                              \
    X(CHUNKS, "prefill chunks")     /* its own steps with prompt tokens */                         \
    X(DECODE, "decode steps")       /* its other own steps */                                      \
    X(OTHERS, "steps of others")                                                                   \
    X(COPIES, "page copies")                                                                       \
    X(SWAPPED, "swapped out")                                                                      \
    X(HOST, "host gaps")            /* the device was idle: see the causes */                      \
    X(RESULT, "read result")        /* after its last step, until the engine thread had it */      \
    X(WRITE, "write")               /* the client had not taken what was generated */
/* clang-format on */
enum rp_request_part {
#define X(part, text) RP_PART_##part,
    RP_REQUEST_PARTS(X)
#undef X
        RP_PART_COUNT
};
extern const char *const rp_request_parts[RP_PART_COUNT];

struct rp_request_path {
    uint64_t request;
    uint64_t begin_ns, end_ns;
    uint64_t parts[RP_PART_COUNT];      /* they add up to end - begin */
    uint32_t pieces[RP_PART_COUNT];     /* stretches of each */
    uint64_t gaps[RP_IDLE_CAUSE_COUNT]; /* of HOST; they add up to it */
    uint32_t own_steps, tokens;
};

/* False: the trace has no whole request of this number. */
bool rp_trace_request_path(const struct rp_trace_spans *spans, uint64_t request,
                           struct rp_request_path *out);

/* clang-format off */
#define RP_STEP_PARTS(X)                                                                           \
    X(PLAN, "host plan")            /* the device was idle while ... */                            \
    X(UPLOAD, "upload, launch")     /* ... the packet was written, copies and graphs launched */   \
    X(RESULT, "commit before")      /* ... the step before was waited for and committed */         \
    X(EMIT, "emit")                                                                                \
    X(OTHER, "other idle")          /* by causes outside a step: admission, client, unknown */     \
    X(COPIES, "page copies")                                                                       \
    X(START, "start")               /* launched, and not yet begun */                              \
    X(DEVICE, "device")             /* on the device, where the step was not stamped */            \
    X(FORWARD, "forward")                                                                          \
    X(SAMPLE, "sample")                                                                            \
    X(READ, "read")                 /* from its end on the device to its result on the host */
/* clang-format on */
enum rp_step_part {
#define X(part, text) RP_STEP_PART_##part,
    RP_STEP_PARTS(X)
#undef X
        RP_STEP_PART_COUNT
};
extern const char *const rp_step_parts[RP_STEP_PART_COUNT];

/* All steps of a captured size. */
struct rp_step_path {
    const char *name; /* of the size */
    uint32_t steps, stamped;
    uint64_t parts[RP_STEP_PART_COUNT];
    uint64_t hidden_ns; /* planning and launching while the device was busy: not on the path */
};

/* Fills up to `capacity` sizes, by name; returns how many there are. */
uint32_t rp_trace_step_paths(const struct rp_trace_spans *spans, struct rp_step_path *out,
                             uint32_t capacity);

/* The report: of one request (NULL: of all, and the slowest ones), and of the steps. False: there
 * is no such request. */
bool rp_trace_path_write(const struct rp_trace_spans *spans, const uint64_t *request,
                         struct rp_buffer *out);

#endif
