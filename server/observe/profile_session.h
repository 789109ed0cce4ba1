/* profile_session.h - POST /debug/profile: a scheduled session over live steps, one at a time.
 *
 *   OPENING, BEGINNING  where the device's driver traces kernels (device/profiler.h): until it does
 *   RUNNING             until the engine has read the last active step, or the time-out
 *   ENDING              until the driver has stopped
 *   AFTER               a second at most: steps behind the session, to say what it left behind
 *   BUILDING            tables, in the thread pool
 *
 * `detail`: stamps; cupti, by name, or an error; auto: cupti where it can be had. The client's
 * leaving ends it, and then (CLOSING) whatever the driver still does for it. Thread: loop. */
#ifndef RP_SERVER_PROFILE_SESSION_H
#define RP_SERVER_PROFILE_SESSION_H

#include "base/base.h"

struct rp_conn;
struct rp_server;

/* Reads the body's schedule and begins, or answers: 400, or 409 when there is a session. */
void rp_profile_session_start(struct rp_conn *conn);
/* Looks after the session; ten times a second. */
void rp_profile_session_tick(struct rp_server *server, uint64_t now_ns);
/* After rp_engine_stop: frees what is left of it. */
void rp_profile_session_deinit(struct rp_server *server);

#endif
