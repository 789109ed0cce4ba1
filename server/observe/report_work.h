/* report_work.h - builds slow answers on a worker of the thread pool, so that the loop is not
 * blocked.
 * Thread: loop; `build` runs on a worker and must not access the server. */
#ifndef RP_SERVER_REPORT_WORK_H
#define RP_SERVER_REPORT_WORK_H

#include "base/buffer.h"

struct rp_conn;
struct rp_http_error;

/* Maximum reports built concurrently; further ones are answered 429. */
#define RP_REPORTS_MAX 2

/* Answers 200 with what `build` writes (503 when memory is out), or 429 at once. ctx belongs to the
 * job until `release` is called: on the loop thread, exactly once, also when the client has
 * disconnected. content_type: static text. */
void rp_report_start(struct rp_conn *conn, void (*build)(void *ctx, struct rp_buffer *out),
                     void (*release)(void *ctx), void *ctx, const char *content_type);

/* The same for reports that can fail: the error is sent when `build` has set error->status. */
void rp_report_try(struct rp_conn *conn,
                   void (*build)(void *ctx, struct rp_buffer *out, struct rp_http_error *error),
                   void (*release)(void *ctx), void *ctx, const char *content_type);

#endif
