/* server_exports.h - what a running server writes besides its answers: metrics, automatic dumps,
 * spans for a collector, changes of the prefix cache.
 * Thread: loop, while it runs. */
#ifndef RP_SERVER_SERVER_EXPORTS_H
#define RP_SERVER_SERVER_EXPORTS_H

#include "base/status.h"

struct rp_server;

/* Registers all metrics and starts what is configured; server->serving is set. What fails is
 * logged, and nothing is left started. */
int rp_server_exports_start(struct rp_server *server) RP_MUST_USE;
/* Sends what is left, and stops. */
void rp_server_exports_stop(struct rp_server *server);

#endif
