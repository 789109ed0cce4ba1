#include "server/serve_options.h"

#define AT(field) offsetof(struct rp_serve_options, field)

static const struct rp_flag serve_flags[] = {
    {"host", RP_FLAG_TEXT, AT(host), "ADDRESS", 0, 0, "127.0.0.1", "numeric address to listen on"},
    {"port", RP_FLAG_UINT, AT(port), "PORT", 0, 65535, "8000", "port; 0: any free one"},
    {"served-model-name", RP_FLAG_TEXT, AT(served_model_name), "NAME", 0, 0, NULL,
     "name in /v1/models and in requests; else the directory's name"},
    RP_ENGINE_FLAGS(offsetof(struct rp_serve_options, engine)),
    {"seed", RP_FLAG_SIZE, AT(seed), "N", 0, 9007199254740991.0, "0",
     "seeds requests that bring none; 0: from the system"},
    {"api-key-file", RP_FLAG_TEXT, AT(api_key_file), "FILE", 0, 0, NULL,
     "keys, one per line; every route but /health* then needs one"},
    {"api-key", RP_FLAG_TEXT, AT(api_key), "KEY", 0, 0, NULL,
     "one key; visible to other users of the machine, prefer the file or REPRISE_API_KEY"},
    {"insecure-no-auth", RP_FLAG_SWITCH, AT(insecure_no_auth), NULL, 0, 0, NULL,
     "listen beyond loopback without a key"},
    {"admin-host", RP_FLAG_TEXT, AT(admin_host), "ADDRESS", 0, 0, "127.0.0.1",
     "where /metrics and /debug are when --host is not loopback"},
    {"admin-port", RP_FLAG_UINT, AT(admin_port), "PORT", 0, 65535, "0",
     "its port; 0: no admin listener"},
    {"max-connections", RP_FLAG_UINT, AT(max_connections), "N", 1, 1000000, "4096",
     "open connections"},
    {"shutdown-timeout", RP_FLAG_REAL, AT(shutdown_timeout_s), "SECONDS", 0, 86400, "30",
     "how long SIGTERM waits for requests in flight"},
    {"timeout-keep-alive", RP_FLAG_REAL, AT(timeout_keep_alive_s), "SECONDS", 1, 86400, "75",
     "idle connections are closed after this"},
    {"log-level", RP_FLAG_CHOICE, AT(log_level), "error|warn|info|debug", 0, 0, "info",
     "what goes to standard error"},
};

const struct rp_command_spec rp_serve_spec = {
    .name = "serve",
    .positionals = "DIR",
    .positional_min = 1,
    .positional_max = 1,
    .summary = "Serves the model in DIR (Hugging Face layout) with an OpenAI-compatible HTTP API.",
    .flags = serve_flags,
    .flag_count = RP_ARRAY_COUNT(serve_flags),
};
