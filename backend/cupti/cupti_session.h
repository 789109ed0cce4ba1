/* cupti_session.h - kernel records of the driver's own tracing (CUPTI), for a few seconds at a
 * time.
 *
 * Plain C with its own prototypes, so that it is built and tested without CUDA; the CUDA module
 * loads the library (backend/cuda/profile_cuda.c). CUPTI is not used before the first session: the
 * loaded library slows every launch, and if it is initialized early it records nothing of graphs.
 *
 * A session records kernels alone (CONCURRENT_KERNEL): nothing is serialized. Records are read as
 * buffers come back and kept in 32 bytes each. Correlation ids are never read: CUDA 13.0 gives
 * wrong ones from the second session on. Not used: GRAPH_TRACE (a graph made before it crashes at
 * its next launch) and cuptiFinalize from ordinary code (every later call of CUDA fails). So
 * CUPTI's hooks remain when a session ends, and launches stay a little slower for the life of the
 * process: the route that starts a session reports this.
 *
 * Thread: open, read and close: any, one at a time; begin and end: the thread that launches,
 * between two steps. Buffers are requested and returned on any thread. One session in a process.
 * Memory: all at open; the buffers that CUPTI may still hold (32 MiB) stay for the next session. */
#ifndef RP_BACKEND_CUPTI_SESSION_H
#define RP_BACKEND_CUPTI_SESSION_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RP_CUPTI_RECORDS_MAX                                                                       \
    2000000u /* device memory of CUPTI leaks: far below where times become 0 */
#define RP_CUPTI_NS_MAX        ((uint64_t)10 * 1000000000u)
#define RP_CUPTI_VERSION_MIN   27u     /* CUDA 12.9: the first where a buffer may be refused */
#define RP_CUPTI_VERSION_BELOW 140000u /* records may look different after it */

/* Times are rp_clock_ns. */
struct rp_cupti_kernel {
    uint64_t begin_ns, end_ns;
    uint64_t node;  /* of the graph; rises in the order of capture */
    uint32_t graph; /* the executable graph's id */
    uint32_t order; /* as records came */
};

struct rp_cupti_counts {
    uint64_t without_time; /* records whose times were not taken */
    uint64_t outside;      /* of kernels outside graphs */
    uint64_t over;         /* came when records_max was reached */
    uint64_t dropped;      /* as CUPTI says, and buffers that were refused */
};

/* The one user of CUPTI in this process: a session from its open to its close takes it by itself;
 * others (PM sampling, which silences kernel records) take it and give it back. False: taken. Any
 * thread. */
bool rp_cupti_take(void) RP_MUST_USE;
void rp_cupti_give(void);

struct rp_cupti_session;

/* records_max: 0 or more than RP_CUPTI_RECORDS_MAX: that many. UNSUPPORTED: a function is missing,
 * or a version that is not known; NO_MEMORY; IN_USE: a session is open. library: a handle of
 * dlopen, which must stay open for the life of the process. */
int rp_cupti_open(void *library, uint32_t records_max, struct rp_cupti_session **out,
                  struct rp_error *err) RP_MUST_USE;

/* IN_USE: another client has subscribed (err names it where CUPTI does); UNSUPPORTED: anything else
 * that CUPTI refuses. Then nothing is switched on, and the session may only be closed. */
int rp_cupti_begin(struct rp_cupti_session *session, struct rp_error *err) RP_MUST_USE;
/* True when the session has reached a cap and should end. */
bool rp_cupti_is_due(const struct rp_cupti_session *session, uint64_t now_ns);
/* Everything launched must be complete. DEVICE: CUPTI failed on the way; what came is kept. */
int rp_cupti_end(struct rp_cupti_session *session, struct rp_error *err);

/* Behind end: the records in order of their begin, without those that have no time; the
 * session's. */
const struct rp_cupti_kernel *rp_cupti_read(struct rp_cupti_session *session, uint32_t *out_count,
                                            struct rp_cupti_counts *out);
uint32_t rp_cupti_version(const struct rp_cupti_session *session);
/* Ends it when it has begun. NULL is legal. */
void rp_cupti_close(struct rp_cupti_session *session);

#ifdef __cplusplus
}
#endif
#endif
