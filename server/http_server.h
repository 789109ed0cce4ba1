/* http_server.h - the HTTP server: sockets, routes, and the life of each completion.
 *
 * Order of use: create (binds, so that a taken port is found before a model is loaded), then make
 * the engine with rp_server_wake as its wake call, then run, then stop the engine, then destroy.
 *
 * Thread: all of it on one thread, the loop thread, except rp_server_wake (any thread).
 * Memory: bounded by the limits below and by --max-connections.
 * Errors: rp_server_create fills rp_error; run answers what clients do wrong with HTTP errors. */
#ifndef RP_SERVER_HTTP_SERVER_H
#define RP_SERVER_HTTP_SERVER_H

#include "base/status.h"
#include "metrics/recorder.h"
#include "server/observe/flight.h"
#include "server/observe/goodput.h"
#include "server/observe/server_metrics.h"
#include "text/tokenizer/tokenizer.h"

struct rp_server;
struct rp_auth;
struct rp_engine;
struct rp_mask;
struct rp_power;
struct rp_json;
struct rp_chat_templates;

/* Milliseconds are absolute for their phase: no byte that trickles in makes one longer. */
struct rp_http_limits {
    uint32_t header_ms, body_ms, idle_ms, write_stall_ms, linger_ms;
    uint32_t header_bytes, header_count, target_bytes;
    uint32_t body_bytes;
    uint64_t bodies_bytes;    /* bodies being received, all connections together */
    uint64_t json_bytes;      /* memory of one parsed body */
    uint64_t json_live_bytes; /* of all parsed bodies together */
    uint32_t json_depth;
    uint32_t stream_bytes; /* output that a slow reader may leave unread */
    uint32_t pipeline_bytes;
    uint32_t stuck_ms; /* requests are open and the device does nothing for this long: not ready */
};

/* The defaults that README.md lists. */
void rp_http_limits_init(struct rp_http_limits *limits);

struct rp_server_config {
    const char *uds;  /* path of a unix socket, in place of host and port; NULL: none */
    const char *host; /* numeric address or localhost */
    uint32_t port;    /* 0: any free one */
    const char *admin_host;
    int32_t admin_port; /* -1: no admin listener */
    uint32_t max_connections;
    uint32_t shutdown_timeout_ms;
    /* the engine does nothing for so long with requests open: it failed; 0: off */
    uint32_t watchdog_ms;
    bool vllm_metrics; /* /metrics shows vLLM's names too */
    struct rp_http_limits limits;
    struct rp_slo slo;
    struct rp_auth *auth;        /* borrowed; the loop thread's while it runs */
    const char *allowed_origins; /* cors.h; NULL: none */
    /* SIGHUP: reads the keys again into *out; NULL: the signal is left alone. */
    int (*reload_keys)(void *ctx, struct rp_auth *out, struct rp_error *err);
    void *reload_ctx;
    struct rp_recorder_config recorder;
    struct rp_flight_config flight;
};

/* What is served; known when the model is loaded. Everything is borrowed until destroy. */
struct rp_serving {
    struct rp_engine *engine;
    struct rp_power *power; /* of the card; NULL: nothing is known of it */
    const struct rp_tokenizer *tokenizer;
    const struct rp_chat_templates *templates; /* NULL: no chat */
    const char *model_name;
    const char *model_root; /* shown by /v1/models */
    uint32_t vocab_size;    /* rows of the embedding: prompt ids are below it */
    int32_t stop_ids[16];   /* the model's end tokens */
    uint32_t stop_id_count;
    /* Defaults of a request that leaves them out (generation_config.json). */
    double default_temperature, default_top_p;
    uint32_t default_top_k;
    /* the program that says what tokens see; NULL: the model's own rules */
    const struct rp_mask *mask;
    struct rp_startup startup[RP_STARTUP_STAGES];
    uint64_t seed; /* of requests without one; 0: drawn from the kernel */
    /* Writes the members of "flags" in /debug/env; may be NULL. No secret belongs there. */
    void (*write_flags)(void *ctx, struct rp_json *json);
    void *write_flags_ctx;
};

/* Binds and makes the loop. IN_USE when the port is taken, INVALID for an address that is not one,
 * IO otherwise. */
int rp_server_create(const struct rp_server_config *config, struct rp_server **out,
                     struct rp_error *err) RP_MUST_USE;
/* The ports in force; 0 when there is no such listener. */
uint32_t rp_server_port(const struct rp_server *server);
uint32_t rp_server_admin_port(const struct rp_server *server);
/* What is recorded of this process; made and freed by the server. Whoever writes into it takes a
 * ring (rp_recorder_add) before rp_server_run. */
struct rp_recorder *rp_server_recorder(struct rp_server *server);
/* The engine's wake call; ctx is the server. */
void rp_server_wake(void *ctx);

/* Serves until SIGTERM or SIGINT has drained it, or the device fails: then everybody is answered,
 * within two seconds. ready (may be NULL) is called once, when clients can connect. Gives the exit
 * code: 0, 4 (no memory), 5 (cannot listen) or 70 (fatal device error). */
int rp_server_run(struct rp_server *server, const struct rp_serving *serving,
                  void (*ready)(void *ctx), void *ctx) RP_MUST_USE;

/* After rp_engine_stop: frees the completions that the engine had borrowed. NULL is allowed. */
void rp_server_destroy(struct rp_server *server);

#endif
