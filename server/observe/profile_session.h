/* profile_session.h - POST /debug/profile: a scheduled session over live steps, one at a time.
 *
 * OPENING, BEGINNING  until the driver traces kernels (only with device/profiler.h) RUNNING until
 * the engine has read the last active step, or the timeout
 *   ENDING              until the driver has stopped
 * AFTER               at most a second: steps after the session, to measure its cost
 * BUILDING            builds tables in the thread pool
 *
 * `detail`: stamps; cupti (an error if not available); auto: cupti if available, else stamps. A
 * client disconnect ends the session, then (CLOSING) any pending driver operation. Thread: loop. */
#ifndef RP_SERVER_PROFILE_SESSION_H
#define RP_SERVER_PROFILE_SESSION_H

#include "base/base.h"

struct rp_conn;
struct rp_server;

/* Parses the schedule in the body and begins, or answers 400, or 409 when a session is active. */
void rp_profile_session_start(struct rp_conn *conn);
/* Advances the session; called ten times a second. */
void rp_profile_session_tick(struct rp_server *server, uint64_t now_ns);
/* Call after rp_engine_stop: frees the session, if any. */
void rp_profile_session_deinit(struct rp_server *server);

#endif
