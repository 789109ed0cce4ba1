/* load_client.h - HTTP client for one server, with connection reuse.
 *
 * An exchange is one request and its answer: rp_load_client_send passes its bytes, then its handler
 * is called: head once, body for every fragment, end once. A connection carries one exchange at a
 * time; idle ones are reused, most recently used first. When a reused connection is closed before
 * any byte of an answer arrived, the request is sent once more on a new one: servers may close idle
 * connections at any time.
 *
 * Everything a server sends is bounded: header bytes, chunk overhead, the wait for a connection to
 * close. Thread: the loop's; rp_load_client_send never calls a handler itself. */
#ifndef RP_BENCH_LOAD_CLIENT_H
#define RP_BENCH_LOAD_CLIENT_H

#include "base/buffer.h"
#include "bench/load/load.h"
#include "bench/load/load_url.h"

#include <llhttp.h>
#include <uv.h>

#define RP_LOAD_ADDRESSES_MAX 8

struct rp_load_conn;
struct rp_load_exchange;

struct rp_load_handler {
    void (*head)(struct rp_load_exchange *exchange, uint32_t status, bool is_event_stream);
    /* Any result but RP_LOAD_OK ends the exchange with it; the handler has then set
     * exchange->why. */
    enum rp_load_outcome (*body)(struct rp_load_exchange *exchange, const char *bytes, size_t len);
    /* RP_LOAD_OK: the answer is complete; CONNECT, RESET, BAD_ANSWER: `why` has details. The
     * exchange may be sent again or freed. */
    void (*end)(struct rp_load_exchange *exchange, enum rp_load_outcome outcome, const char *why);
};

struct rp_load_exchange {
    /* set by the caller; the members below are the client's */
    const struct rp_load_handler *handler;
    struct rp_load_conn *conn;
    char *bytes; /* the request's bytes, until an answer begins */
    size_t len;
    uint64_t sent_ns; /* time when the kernel had accepted the last byte; 0: not yet */
    uint64_t read_ns; /* time right after the last read */
    uint32_t addresses_tried;
    bool retried;
    char why[96];
};

struct rp_load_client {
    uv_loop_t *loop;
    struct rp_load_url url;
    struct sockaddr_storage addresses[RP_LOAD_ADDRESSES_MAX];
    uint32_t address_count, address; /* address: index of the one that last accepted */
    struct rp_load_conn *all, *idle;
    uint32_t opened; /* connections that a server has accepted */
    llhttp_settings_t settings;
    char *read_buffer;
    bool closing;
};

/* Resolves the URL's host, which may block on DNS. */
int rp_load_client_init(struct rp_load_client *client, uv_loop_t *loop,
                        const struct rp_load_url *url, struct rp_error *err) RP_MUST_USE;
/* Takes ownership of `bytes` (from rp_alloc) in any case. False: out of memory, and end will not be
 * called. */
bool rp_load_client_send(struct rp_load_client *client, struct rp_load_exchange *exchange,
                         char *bytes, size_t len);
/* Drops the exchange without calling its end, and closes its connection. */
void rp_load_client_cancel(struct rp_load_exchange *exchange);
/* Closes all connections and drops exchanges in flight. The loop must run to its end before
 * deinit. */
void rp_load_client_close(struct rp_load_client *client);
void rp_load_client_deinit(struct rp_load_client *client);

#endif
