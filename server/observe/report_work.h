/* report_work.h - an answer that takes a while to build is built by a worker of the thread pool,
 * since the loop has tokens to send.
 * Thread: loop; `build` runs on a worker and must touch nothing of the server. */
#ifndef RP_SERVER_REPORT_WORK_H
#define RP_SERVER_REPORT_WORK_H

#include "base/buffer.h"

struct rp_conn;
struct rp_http_error;

/* Reports that are built at a time: more are answered 429. */
#define RP_REPORTS_MAX 2

/* Answers 200 with what `build` writes (503 when memory is out), or 429 at once. ctx is the job's
 * until `release` is called: on the loop thread, once, whatever happens, the client gone too.
 * content_type: static text. */
void rp_report_start(struct rp_conn *conn, void (*build)(void *ctx, struct rp_buffer *out),
                     void (*release)(void *ctx), void *ctx, const char *content_type);

/* The same where building may end in an error: it is answered when `build` has set
 * error->status. */
void rp_report_try(struct rp_conn *conn,
                   void (*build)(void *ctx, struct rp_buffer *out, struct rp_http_error *error),
                   void (*release)(void *ctx), void *ctx, const char *content_type);

#endif
