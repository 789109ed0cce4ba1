/* server_workers.h - starts libuv's thread pool before the server is ready.
 *
 * libuv creates its pool at the first job and aborts the process when a thread cannot be created.
 * Thread: main thread, before the loop runs. */
#ifndef RP_SERVER_SERVER_WORKERS_H
#define RP_SERVER_SERVER_WORKERS_H

#include "base/status.h"

#include <uv.h>

/* Fills *err and returns NO_MEMORY when the process may not create as many threads. */
int rp_server_workers_start(uv_loop_t *loop, struct rp_error *err) RP_MUST_USE;

#endif
