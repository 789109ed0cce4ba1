/* kv_publisher.h - publishes changes of the prefix cache, so that a router can send a prompt to the
 * server that has its beginning: --kv-events-config, docs/kv_events.md.
 *
 * A thread takes changes from the engine's ring and sends them in batches on a PUB socket: topic,
 * sequence number (8 bytes, big endian, from 0), batch (kv_batch.h). A sequence number is left out
 * where changes were lost. The last batches are kept; a ROUTER socket sends them again from a
 * number on that a client names, and ends with number -1. The first batch begins with
 * AllBlocksCleared: what subscribers know from an earlier process is void.
 *
 * Thread: create, start, stop and destroy from the loop thread; counters may be read from any.
 * Memory: batches kept for replays up to RP_KV_REPLAY_BYTES, shared with libzmq's queues. */
#ifndef RP_SERVER_KV_PUBLISHER_H
#define RP_SERVER_KV_PUBLISHER_H

#include "engine/observe/kv_events.h"
#include "server/observe/kv_config.h"

#define RP_KV_BATCH_EVENTS 256u
#define RP_KV_REPLAY_BYTES ((uint64_t)64 << 20)
#define RP_KV_POLL_MS      10 /* how long changes wait to be collected in a batch */

struct rp_kv_publisher;

/* Opens the sockets. Not enabled: *out is NULL and the result RP_OK. UNSUPPORTED: no libzmq.
 * IN_USE, INVALID, IO: of an endpoint, named. */
int rp_kv_publisher_create(const struct rp_kv_config *config, struct rp_kv_publisher **out,
                           struct rp_error *err) RP_MUST_USE;
/* Begins to publish. events: borrowed until stop. */
int rp_kv_publisher_start(struct rp_kv_publisher *publisher, struct rp_kv_events *events,
                          struct rp_error *err) RP_MUST_USE;
/* Publishes what is left and ends the thread. NULL, or not started: nothing. */
void rp_kv_publisher_stop(struct rp_kv_publisher *publisher);
void rp_kv_publisher_destroy(struct rp_kv_publisher *publisher); /* NULL is allowed */

/* Whether the endpoint is one that it connects to. NULL: false. */
bool rp_kv_publisher_connects(const struct rp_kv_publisher *publisher);
/* reprise_kv_events_total. NULL: nothing. */
void rp_kv_publisher_register(struct rp_kv_publisher *publisher, struct rp_registry *registry);

#endif
