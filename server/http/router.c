#include "server/http/router.h"

#include <stdio.h>
#include <string.h>

static const struct rp_route routes[] = {
    {"/", RP_METHOD_GET, RP_ACCESS_PAGE, rp_api_chat_page},
    {"/v1/completions", RP_METHOD_POST, RP_ACCESS_KEY, rp_api_completions},
    {"/v1/chat/completions", RP_METHOD_POST, RP_ACCESS_KEY, rp_api_chat},
    {"/v1/responses", RP_METHOD_POST, RP_ACCESS_KEY, rp_api_responses},
    {"/v1/responses/*", RP_METHOD_GET | RP_METHOD_POST | RP_METHOD_DELETE, RP_ACCESS_KEY,
     rp_api_response},
    {"/v1/messages", RP_METHOD_POST, RP_ACCESS_KEY, rp_api_messages},
    {"/v1/messages/count_tokens", RP_METHOD_POST, RP_ACCESS_KEY, rp_api_count_tokens},
    {"/api/chat", RP_METHOD_POST, RP_ACCESS_KEY, rp_api_ollama_chat},
    {"/api/generate", RP_METHOD_POST, RP_ACCESS_KEY, rp_api_ollama_generate},
    {"/api/tags", RP_METHOD_GET, RP_ACCESS_KEY, rp_api_ollama_tags},
    {"/api/show", RP_METHOD_POST, RP_ACCESS_KEY, rp_api_ollama_show},
    {"/api/ps", RP_METHOD_GET, RP_ACCESS_KEY, rp_api_ollama_ps},
    {"/api/version", RP_METHOD_GET, RP_ACCESS_KEY, rp_api_ollama_version},
    {"/v1/requests/*", RP_METHOD_POST, RP_ACCESS_KEY, rp_api_cancel},
    {"/v1/models", RP_METHOD_GET, RP_ACCESS_KEY, rp_api_models},
    {"/v1/models/*", RP_METHOD_GET, RP_ACCESS_KEY, rp_api_model},
    {"/tokenize", RP_METHOD_POST, RP_ACCESS_KEY, rp_api_tokenize},
    {"/detokenize", RP_METHOD_POST, RP_ACCESS_KEY, rp_api_detokenize},
    {"/tokenizer_info", RP_METHOD_GET, RP_ACCESS_KEY, rp_api_tokenizer_info},
    {"/health", RP_METHOD_GET, RP_ACCESS_OPEN, rp_api_ready},
    {"/health/ready", RP_METHOD_GET, RP_ACCESS_OPEN, rp_api_ready},
    {"/health/live", RP_METHOD_GET, RP_ACCESS_OPEN, rp_api_live},
    {"/version", RP_METHOD_GET, RP_ACCESS_KEY, rp_api_version},
    {"/metrics", RP_METHOD_GET, RP_ACCESS_METRICS, rp_api_metrics},
    {"/debug/env", RP_METHOD_GET, RP_ACCESS_ADMIN, rp_api_debug_env},
    {"/debug/latency", RP_METHOD_GET, RP_ACCESS_ADMIN, rp_api_debug_latency},
    {"/debug/profile", RP_METHOD_GET | RP_METHOD_POST, RP_ACCESS_ADMIN, rp_api_debug_profile},
    {"/debug/profile/counters", RP_METHOD_GET, RP_ACCESS_ADMIN, rp_api_debug_counters},
    {"/debug/profile/stacks", RP_METHOD_GET, RP_ACCESS_ADMIN, rp_api_debug_stacks},
    {"/debug/diagnose", RP_METHOD_GET, RP_ACCESS_ADMIN, rp_api_debug_diagnose},
    {"/debug/graphs", RP_METHOD_GET, RP_ACCESS_ADMIN, rp_api_debug_graphs},
    {"/debug/masks", RP_METHOD_GET, RP_ACCESS_ADMIN, rp_api_debug_masks},
    {"/debug/flight", RP_METHOD_GET, RP_ACCESS_ADMIN, rp_api_debug_flight},
    {"/debug/trace", RP_METHOD_GET, RP_ACCESS_ADMIN, rp_api_debug_trace},
    {"/debug/requests", RP_METHOD_GET, RP_ACCESS_ADMIN, rp_api_debug_requests},
    {"/debug/requests/*", RP_METHOD_GET, RP_ACCESS_ADMIN, rp_api_debug_request},
    {"/debug/status", RP_METHOD_GET, RP_ACCESS_ADMIN, rp_api_debug_status},
    {"/debug/steps", RP_METHOD_GET, RP_ACCESS_ADMIN, rp_api_debug_steps},
    {"/debug/history", RP_METHOD_GET, RP_ACCESS_ADMIN, rp_api_debug_history},
    {"/debug/ui", RP_METHOD_GET, RP_ACCESS_ADMIN_PAGE, rp_api_debug_ui},
    {"/debug/memory", RP_METHOD_GET, RP_ACCESS_ADMIN, rp_api_debug_memory},
    {"/debug/memory/history", RP_METHOD_POST, RP_ACCESS_ADMIN, rp_api_debug_memory_history},
    {"/debug/memory/reset_peak", RP_METHOD_POST, RP_ACCESS_ADMIN, rp_api_debug_memory_reset},
};

const struct rp_route *rp_route_find(const char *path, size_t len) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(routes); i++) {
        size_t n = strlen(routes[i].path);
        bool prefix = routes[i].path[n - 1] == '*';
        if (prefix ? len > n - 1 && memcmp(path, routes[i].path, n - 1) == 0
                   : len == n && memcmp(path, routes[i].path, n) == 0)
            return &routes[i];
    }
    return NULL;
}

enum rp_error_form rp_route_errors(const struct rp_route *route) {
    static const struct {
        const char *prefix;
        enum rp_error_form form;
    } forms[] = {{"/v1/responses", RP_ERRORS_RESPONSES},
                 {"/v1/messages", RP_ERRORS_ANTHROPIC},
                 {"/api/", RP_ERRORS_OLLAMA}};
    for (size_t i = 0; route && i < RP_ARRAY_COUNT(forms); i++)
        if (strncmp(route->path, forms[i].prefix, strlen(forms[i].prefix)) == 0)
            return forms[i].form;
    return RP_ERRORS_OPENAI;
}

uint32_t rp_route_index(const struct rp_route *route) {
    return route ? (uint32_t)(route - routes) : rp_route_count();
}

uint32_t rp_route_count(void) { return (uint32_t)RP_ARRAY_COUNT(routes); }

const char *rp_route_label(uint32_t index) {
    return index < RP_ARRAY_COUNT(routes) ? routes[index].path : "other";
}

void rp_route_allow_header(const struct rp_route *route, char *out, size_t size) {
    uint32_t methods = route ? route->methods : RP_METHOD_GET | RP_METHOD_POST;
    snprintf(out, size, "Allow: %s%s%s%s\r\n", methods & RP_METHOD_GET ? "GET, HEAD, " : "",
             methods & RP_METHOD_POST ? "POST, " : "", methods & RP_METHOD_DELETE ? "DELETE, " : "",
             "OPTIONS");
}
