/* load_client.h - requests to one HTTP server over connections that are kept and reused.
 *
 * An exchange is one request and its answer: rp_load_client_send hands its bytes over, then its
 * handler is called: head once, body for every piece, end once. A connection carries one exchange
 * at a time; free ones wait, the last used is taken first. When a connection that had waited turns
 * out to be closed before any byte of an answer came, the request is sent once more on a new one:
 * servers close idle connections at any time.
 *
 * Everything a server sends is bounded: the header's bytes, what chunks cost beside their content,
 * the wait for a connection to close. Thread: the loop's; no call of a handler comes out of
 * rp_load_client_send. */
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
    /* Anything but RP_LOAD_OK ends the exchange with it; why is then the exchange's. */
    enum rp_load_outcome (*body)(struct rp_load_exchange *exchange, const char *bytes, size_t len);
    /* RP_LOAD_OK: the answer is complete; CONNECT, RESET, BAD_ANSWER: `why` says more. The exchange
     * may be sent again or freed. */
    void (*end)(struct rp_load_exchange *exchange, enum rp_load_outcome outcome, const char *why);
};

struct rp_load_exchange {
    const struct rp_load_handler *handler; /* set by the caller; the rest is the client's */
    struct rp_load_conn *conn;
    char *bytes; /* of the request, until an answer begins */
    size_t len;
    uint64_t sent_ns; /* the clock when the kernel had the last byte; 0: not yet */
    uint64_t read_ns; /* the clock right after the last read */
    uint32_t addresses_tried;
    bool retried;
    char why[96];
};

struct rp_load_client {
    uv_loop_t *loop;
    struct rp_load_url url;
    struct sockaddr_storage addresses[RP_LOAD_ADDRESSES_MAX];
    uint32_t address_count, address; /* the one that accepted last */
    struct rp_load_conn *all, *idle;
    uint32_t opened; /* connections that a server has accepted */
    llhttp_settings_t settings;
    char *read_buffer;
    bool closing;
};

/* Resolves the URL's host, which may take as long as DNS takes. */
int rp_load_client_init(struct rp_load_client *client, uv_loop_t *loop,
                        const struct rp_load_url *url, struct rp_error *err) RP_MUST_USE;
/* Takes `bytes` (of rp_alloc), whatever happens. False: memory is out, and end will not be
 * called. */
bool rp_load_client_send(struct rp_load_client *client, struct rp_load_exchange *exchange,
                         char *bytes, size_t len);
/* Forgets the exchange, whose end is not called, and closes its connection. */
void rp_load_client_cancel(struct rp_load_exchange *exchange);
/* Closes all connections; exchanges in flight are forgotten. The loop must run to its end before
 * deinit. */
void rp_load_client_close(struct rp_load_client *client);
void rp_load_client_deinit(struct rp_load_client *client);

#endif
