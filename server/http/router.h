/* router.h - the table of routes: path, methods, access and handler. Paths are compared byte for
 * byte with the target up to '?': nothing is decoded or normalized, so each path has one spelling,
 * and the key check sees the same path as the router. */
#ifndef RP_SERVER_ROUTER_H
#define RP_SERVER_ROUTER_H

#include "server/http/http_error.h"

struct rp_conn;

enum rp_route_access {
    RP_ACCESS_OPEN, /* the health routes */
    RP_ACCESS_KEY,
    RP_ACCESS_PAGE,       /* as KEY without a key: a browser sends none when it opens a page */
    RP_ACCESS_ADMIN,      /* a key; on the admin listener, and on the main one if it is loopback */
    RP_ACCESS_ADMIN_PAGE, /* as ADMIN without a key, for the same reason */
    RP_ACCESS_METRICS     /* as ADMIN; on the main listener also with --metrics-on-main */
};

enum { RP_METHOD_GET = 1, RP_METHOD_POST = 2, RP_METHOD_DELETE = 4 };

struct rp_route {
    const char *path; /* a trailing '*' matches any suffix */
    uint32_t methods;
    enum rp_route_access access;
    void (*handle)(struct rp_conn *conn);
};

static inline bool rp_access_is_admin(enum rp_route_access access) {
    return access >= RP_ACCESS_ADMIN;
}

/* The form of errors on this route; NULL: OpenAI's. Ollama's routes are those with its form. */
enum rp_error_form rp_route_errors(const struct rp_route *route);
/* NULL: no such route. The route's index labels its requests in the metrics. */
const struct rp_route *rp_route_find(const char *path, size_t len);
uint32_t rp_route_index(const struct rp_route *route); /* NULL: one past the last */
uint32_t rp_route_count(void);
const char *rp_route_label(uint32_t index);
void rp_route_allow_header(const struct rp_route *route, char *out, size_t size);

/* api_completions.c, api_tokenize.c, api_misc.c, api_metrics.c */
void rp_api_completions(struct rp_conn *conn);
void rp_api_chat(struct rp_conn *conn);      /* api_completions.c */
void rp_api_cancel(struct rp_conn *conn);    /* api_cancel.c */
void rp_api_chat_page(struct rp_conn *conn); /* api_chat_page.c */
void rp_api_tokenize(struct rp_conn *conn);
void rp_api_detokenize(struct rp_conn *conn);
/* api_responses.c, api_messages.c, api_ollama.c */
void rp_api_responses(struct rp_conn *conn);
void rp_api_response(struct rp_conn *conn);
void rp_api_messages(struct rp_conn *conn);
void rp_api_count_tokens(struct rp_conn *conn);
void rp_api_ollama_chat(struct rp_conn *conn);
void rp_api_ollama_generate(struct rp_conn *conn);
void rp_api_ollama_tags(struct rp_conn *conn);
void rp_api_ollama_show(struct rp_conn *conn);
void rp_api_ollama_ps(struct rp_conn *conn);
void rp_api_ollama_version(struct rp_conn *conn);
void rp_api_tokenizer_info(struct rp_conn *conn);
void rp_api_models(struct rp_conn *conn);
void rp_api_model(struct rp_conn *conn);
void rp_api_live(struct rp_conn *conn);
void rp_api_ready(struct rp_conn *conn);
void rp_api_version(struct rp_conn *conn);
void rp_api_metrics(struct rp_conn *conn);
void rp_api_debug_env(struct rp_conn *conn);
void rp_api_debug_stacks(struct rp_conn *conn);
void rp_api_debug_latency(struct rp_conn *conn);
void rp_api_debug_graphs(struct rp_conn *conn);
void rp_api_debug_trace(struct rp_conn *conn);    /* api_debug_trace.c */
void rp_api_debug_flight(struct rp_conn *conn);   /* api_debug_flight.c */
void rp_api_debug_profile(struct rp_conn *conn);  /* api_debug_profile.c */
void rp_api_debug_counters(struct rp_conn *conn); /* api_debug_counters.c */
void rp_api_debug_diagnose(struct rp_conn *conn); /* api_debug_diagnose.c */
/* api_debug_requests.c */
void rp_api_debug_requests(struct rp_conn *conn);
void rp_api_debug_request(struct rp_conn *conn);
/* api_debug_status.c */
void rp_api_debug_status(struct rp_conn *conn);
void rp_api_debug_steps(struct rp_conn *conn);
void rp_api_debug_history(struct rp_conn *conn);
void rp_api_debug_masks(struct rp_conn *conn); /* api_debug_masks.c */
/* api_ui.c */
void rp_api_debug_ui(struct rp_conn *conn);
/* api_debug_memory.c */
void rp_api_debug_memory(struct rp_conn *conn);
void rp_api_debug_memory_history(struct rp_conn *conn);
void rp_api_debug_memory_reset(struct rp_conn *conn);

#endif
