/* http_server.h - the HTTP server: sockets, routes, and the life of each completion.
 *
 * Call order: create (binds the port, so that a conflict is found before a model is loaded), create
 * the engine with rp_server_wake as its wake callback, run, stop the engine, destroy.
 *
 * Thread: the loop thread only, except rp_server_wake (any thread).
 * Memory: bounded by the limits below and by --max-connections.
 * Errors: rp_server_create fills rp_error; while running, client errors become HTTP error
 * responses. */
#ifndef RP_SERVER_HTTP_SERVER_H
#define RP_SERVER_HTTP_SERVER_H

#include "base/status.h"
#include "metrics/recorder.h"
#include "server/observe/flight.h"
#include "server/observe/goodput.h"
#include "server/observe/kv_config.h"
#include "server/observe/otlp_export.h"
#include "server/observe/server_metrics.h"
#include "server/sandbox.h"
#include "text/tokenizer/tokenizer.h"

struct rp_server;
struct rp_auth;
struct rp_engine;
struct rp_kv_events;
struct rp_mask;
struct rp_power;
struct rp_json;
struct rp_chat_templates;

/* Timeouts are absolute per phase: bytes that trickle in do not extend them. */
struct rp_http_limits {
    uint32_t header_ms, body_ms, idle_ms, write_stall_ms, linger_ms;
    uint32_t header_bytes, header_count, target_bytes;
    uint32_t body_bytes;
    uint64_t bodies_bytes;    /* bodies being received, summed over all connections */
    uint64_t json_bytes;      /* memory limit of one parsed body */
    uint64_t json_live_bytes; /* memory limit of all parsed bodies together */
    uint32_t json_depth;
    uint32_t stream_bytes; /* buffered output allowed for a slow reader */
    uint32_t pipeline_bytes;
    /* a stream has output at least this often, if its API has something to send */
    uint32_t keep_alive_ms;
    /* /health/ready fails when requests are open and no step completed for this long */
    uint32_t stuck_ms;
};

/* Sets the defaults listed in README.md. */
void rp_http_limits_init(struct rp_http_limits *limits);

struct rp_server_config {
    const char *uds;  /* Unix socket path, instead of host and port; NULL: none */
    const char *host; /* numeric address or localhost */
    uint32_t port;    /* 0: any free port */
    const char *admin_host;
    int32_t admin_port;             /* -1: no admin listener */
    const char *tls_cert, *tls_key; /* PEM files; NULL: no TLS */
    uint32_t max_connections;
    uint32_t shutdown_timeout_ms;
    uint32_t drain_delay_ms; /* after SIGTERM requests are still served, not ready, for so long */
    uint64_t request_timeout_ns, queue_timeout_ns; /* of every request; 0: none */
    /* the engine has failed when it makes no progress for this long with requests open; 0: off */
    uint32_t watchdog_ms;
    bool metrics_on_main;           /* /metrics also on a main listener that is not loopback */
    double price_per_hour;          /* of the machine, in any currency; 0: costs are not shown */
    bool ollama;                    /* the routes of Ollama's API are served */
    uint64_t responses_store_bytes; /* limit of stored responses; 0: none are stored */
    bool vllm_metrics;              /* /metrics also exposes vLLM's metric names */
    enum rp_sandbox_mode sandbox;
    struct rp_http_limits limits;
    struct rp_slo slo;
    struct rp_auth *auth;        /* borrowed; owned by the loop thread while it runs */
    const char *allowed_origins; /* cors.h; NULL: none */
    const char *allowed_hosts;   /* names in Host that a loopback listener serves; NULL: none */
    /* SIGHUP: reads the keys again into *out; NULL: no keys to read again. */
    int (*reload_keys)(void *ctx, struct rp_auth *out, struct rp_error *err);
    void *reload_ctx;
    struct rp_recorder_config recorder;
    struct rp_flight_config flight;
    struct rp_otlp_config otlp;
    struct rp_kv_config kv_events;
};

/* The model and engine being served; set once the model is loaded. All pointers are borrowed until
 * destroy. */
struct rp_serving {
    struct rp_engine *engine;
    bool has_driver;                /* the engine runs on a GPU */
    struct rp_kv_events *kv_events; /* rp_engine_kv_events */
    struct rp_power *power;         /* GPU power readings; NULL: not available */
    const struct rp_tokenizer *tokenizer;
    const struct rp_chat_templates *templates; /* NULL: no chat */
    /* how the model writes tool calls and reasoning; NULL: unknown, all of its output is text */
    const struct rp_bound_dialect *dialect;
    bool free_calls;     /* tool calls follow no grammar: what the model writes is only parsed */
    bool text_arguments; /* templates take a call's arguments as JSON text, not as an object */
    const char *model_name;
    const char *model_aliases; /* other names for it in requests; NULL: none */
    const char *model_root;    /* shown by /v1/models */
    uint32_t vocab_size;       /* rows of the embedding; prompt token ids must be below it */
    int32_t stop_ids[16];      /* the model's end-of-sequence tokens */
    uint32_t stop_id_count;
    /* Defaults for fields absent from a request (generation_config.json). */
    double default_temperature, default_top_p;
    uint32_t default_top_k;
    /* attention mask program; NULL: the model's own mask */
    const struct rp_mask *mask;
    struct rp_startup startup[RP_STARTUP_STAGES];
    uint64_t seed; /* seed source for requests without a seed; 0: from the kernel's random source */
    /* Writes the members of "flags" in /debug/env; may be NULL. Must not write secrets. */
    void (*write_flags)(void *ctx, struct rp_json *json);
    void *write_flags_ctx;
};

/* Binds and creates the event loop. IN_USE when the port is taken, INVALID for a malformed address,
 * IO otherwise. */
int rp_server_create(const struct rp_server_config *config, struct rp_server **out,
                     struct rp_error *err) RP_MUST_USE;
/* The bound ports; 0 when there is no such listener. */
uint32_t rp_server_port(const struct rp_server *server);
uint32_t rp_server_admin_port(const struct rp_server *server);
/* The recorder of this process; owned by the server. Each writer registers a ring (rp_recorder_add)
 * before rp_server_run. */
struct rp_recorder *rp_server_recorder(struct rp_server *server);
/* The engine's wake callback; ctx is the server. */
void rp_server_wake(void *ctx);

/* Serves until drained after SIGTERM or SIGINT, or until the device fails: open requests are then
 * answered within two seconds. ready (may be NULL) is called once, when clients can connect.
 * Returns the exit code: 0, 4 (no memory), 5 (cannot listen) or 70 (fatal device error). */
int rp_server_run(struct rp_server *server, const struct rp_serving *serving,
                  void (*ready)(void *ctx), void *ctx) RP_MUST_USE;

/* Call after rp_engine_stop: frees the completions whose requests the engine had borrowed. NULL is
 * allowed. */
void rp_server_destroy(struct rp_server *server);

#endif
