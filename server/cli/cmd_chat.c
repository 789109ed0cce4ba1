/* reprise chat [DIR|URL]: a conversation in the terminal, with a running server or with the model in
 * DIR, which is then served for this conversation alone. */
#include "server/cli/cmd_chat.h"
#include "base/memory.h"
#include "server/cli/commands.h"
#include "server/cli/serve_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct chat_options {
    struct rp_engine_options engine;
    const char *api_key, *model, *system, *format, *tools, *chat_template;
    double temperature;
    bool verbose;
};

#define AT(field) offsetof(struct chat_options, field)
enum { OWN_FLAGS = 7 }; /* the first rows; the others are passed to `serve` */
static const struct rp_flag chat_flags[] = {
    {"api-key", RP_FLAG_TEXT, AT(api_key), "KEY", 0, 0, NULL,
     "URL: sent as a bearer token; visible to other users of the machine, prefer REPRISE_API_KEY"},
    {"model", RP_FLAG_TEXT, AT(model), "NAME", 0, 0, NULL,
     "URL: the model; default: the first that the server lists"},
    {"system", RP_FLAG_TEXT, AT(system), "TEXT", 0, 0, NULL, "what the model is told first"},
    {"format", RP_FLAG_TEXT, AT(format), "json|FILE", 0, 0, NULL,
     "answers are JSON, or match the JSON Schema in FILE"},
    {"tools", RP_FLAG_TEXT, AT(tools), "FILE", 0, 0, NULL,
     "functions that the model may call, as JSON; the result of each call is read from standard "
     "input"},
    {"temperature", RP_FLAG_REAL, AT(temperature), "T", -1, 100, "-1",
     "0 is greedy; -1: the model's"},
    {"verbose", RP_FLAG_SWITCH, AT(verbose), NULL, 0, 0, NULL,
     "print times and token counts after each answer, on standard error"},
    {"chat-template", RP_FLAG_TEXT, AT(chat_template), "FILE", 0, 0, NULL,
     "DIR: Jinja template; default: the model's"},
    RP_MASK_FLAGS(offsetof(struct chat_options, engine)),
    RP_ENGINE_FLAGS(offsetof(struct chat_options, engine)),
};

static const struct rp_command_spec chat_spec = {
    .name = "chat",
    .positionals = "[DIR|URL]",
    .positional_min = 0,
    .positional_max = 1,
    .summary = "Talk with the model in DIR, or with a running server (default "
               "http://127.0.0.1:8000). /help lists the words; without a terminal each line of "
               "standard input is a message.",
    .flags = chat_flags,
    .flag_count = RP_ARRAY_COUNT(chat_flags),
};

/* The arguments that are for `serve`, NULL-terminated, to be freed by the caller: all flags that
 * are not ours. */
static char **serve_flags(int argc, char **argv, const char *dir) {
    char **out = rp_calloc((size_t)argc + 1, sizeof *out);
    size_t used = 0;
    for (int i = 1; out && i < argc; i++) {
        const struct rp_flag *own = NULL;
        const char *name = argv[i] + (strncmp(argv[i], "--no-", 5) == 0 ? 5 : 2);
        if (argv[i] == dir || strcmp(argv[i], "--") == 0)
            continue;
        for (uint32_t k = 0; strncmp(argv[i], "--", 2) == 0 && k < OWN_FLAGS; k++) {
            size_t len = strlen(chat_flags[k].name);
            if (strncmp(name, chat_flags[k].name, len) == 0 && (name[len] == '=' || !name[len]))
                own = &chat_flags[k];
        }
        if (!own)
            out[used++] = argv[i];
        else if (own->type != RP_FLAG_SWITCH && !strchr(argv[i], '='))
            i++;
    }
    return out;
}

static void add_message(struct rp_chat *chat, const char *role, const char *text, json_t *call) {
    json_t *message = json_pack("{s:s,s:s}", "role", role, "content", text);
    if (!message) {
        fprintf(stderr, "error: the message is not UTF-8\n");
        return;
    }
    if (call) {
        json_object_set(message, "tool_call_id", json_object_get(call, "id"));
        json_object_set(message, "name",
                        json_object_get(json_object_get(call, "function"), "name"));
    }
    json_array_append_new(chat->messages, message);
}

/* Shows each call of the answer and reads its result. False: the user broke off, and the answer is
 * taken back. */
static bool read_results(struct rp_chat *chat, struct rp_chat_lines *lines) {
    json_t *calls = json_incref(rp_chat_calls(chat)), *call;
    size_t before = json_array_size(chat->messages), i;
    bool ok = true;
    json_array_foreach(calls, i, call) {
        const json_t *function = json_object_get(call, "function");
        const char *parts[] = {json_string_value(json_object_get(function, "name")), "(",
                               json_string_value(json_object_get(function, "arguments")), ")\n"};
        struct rp_chat_held held = {.count = 0};
        const char *text;
        for (size_t k = 0; k < RP_ARRAY_COUNT(parts); k++)
            rp_chat_print(chat, stdout, &held, parts[k] ? parts[k] : "",
                          parts[k] ? strlen(parts[k]) : 0);
        fflush(stdout);
        ok = ok && rp_chat_lines_read(lines, "result> ", &text) == RP_CHAT_LINE_OK;
        if (!ok)
            break;
        add_message(chat, "tool", text, call);
    }
    while (!ok && json_array_size(chat->messages) > before - 1)
        json_array_remove(chat->messages, json_array_size(chat->messages) - 1);
    json_decref(calls);
    return ok;
}

/* Answers the last message, and its calls' results as long as it calls. False: an answer failed. */
static bool answer(struct rp_chat *chat, struct rp_chat_lines *lines) {
    struct rp_error err = {0};
    do {
        if (rp_chat_answer(chat, &err) != RP_OK) {
            struct rp_chat_held held = {.count = 0};
            chat->failed = true;
            fflush(stdout);
            fputs("error: ", stderr);
            rp_chat_print(chat, stderr, &held, err.text, strlen(err.text));
            fprintf(stderr, "\n%s%s%s", err.hint[0] ? "hint: " : "", err.hint,
                    err.hint[0] ? "\n" : "");
            return false;
        }
    } while (rp_chat_calls(chat) && read_results(chat, lines));
    return true;
}

/* Messages and words until the end of the input. */
static void converse(struct rp_chat *chat, struct rp_chat_lines *lines, bool interactive) {
    for (;;) {
        const char *text;
        enum rp_chat_line got = rp_chat_lines_read(lines, ">>> ", &text);
        if (got == RP_CHAT_LINE_END || ferror(stdout))
            break;
        if (got == RP_CHAT_LINE_INTERRUPTED) {
            if (!interactive)
                break;
            puts("\nCtrl-D or /bye leaves.");
            continue;
        }
        if (!text[strspn(text, " \t\n")])
            continue;
        if (text[0] == '/' && !strchr(text, '\n')) {
            enum rp_chat_word word = rp_chat_word(chat, text);
            if (word == RP_CHAT_WORD_BYE)
                break;
            if (word == RP_CHAT_WORD_DONE)
                continue;
        } else
            add_message(chat, "user", text, NULL);
        size_t before = json_array_size(chat->messages);
        bool answered = answer(chat, lines) && json_array_size(chat->messages) > before;
        /* A message without an answer is not sent again with the next one. */
        while (!answered && before && json_array_size(chat->messages) >= before)
            json_array_remove(chat->messages, json_array_size(chat->messages) - 1);
    }
    if (interactive)
        putchar('\n');
}

static int set_up(struct rp_chat *chat, const struct chat_options *options, struct rp_error *err) {
    int status = RP_OK;
    chat->messages = json_array();
    chat->parameters = json_object();
    chat->verbose = options->verbose;
    if (options->system && *options->system && !(chat->system = json_string(options->system)))
        return rp_error_set(err, RP_STATUS_INVALID, "--system: the text is not UTF-8");
    if (options->temperature >= 0)
        json_object_set_new(chat->parameters, "temperature", json_real(options->temperature));
    if (options->format && *options->format)
        status = rp_chat_set_format(chat, options->format, err);
    if (status == RP_OK && options->tools && *options->tools)
        status = rp_chat_set_tools(chat, options->tools, err);
    return status;
}

static void release(struct rp_chat *chat) {
    json_t *all[] = {chat->messages, chat->parameters, chat->system,
                     chat->format,   chat->tools,      chat->template_values};
    for (size_t i = 0; i < RP_ARRAY_COUNT(all); i++)
        json_decref(all[i]);
}

/* An exit code with *err, or -1: the errors have been printed. */
static int talk(struct rp_chat *chat, const struct chat_options *options, struct rp_error *err) {
    bool interactive = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    int status = rp_load_probe(&chat->target, &chat->about, err);
    if (status != RP_OK) {
        if (!err->hint[0])
            rp_error_hint(
                err, "give the URL of a running `reprise serve`, with REPRISE_API_KEY if it has "
                     "keys, or the directory of a model");
        return RP_EXIT_FAILURE;
    }
    if (options->model && *options->model)
        snprintf(chat->about.model, sizeof chat->about.model, "%s", options->model);
    struct rp_chat_lines *lines = rp_chat_lines_open(interactive);
    if (!lines) {
        status = rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
        return RP_EXIT_FAILURE;
    }
    if (interactive)
        printf("%s; /help lists the words.\n", chat->about.model);
    rp_chat_interrupt_hold();
    converse(chat, lines, interactive);
    rp_chat_lines_close(lines);
    return !interactive && chat->failed ? -1 : RP_EXIT_OK;
}

static bool is_directory(const char *path) {
    struct stat info;
    return path && !strstr(path, "://") && stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

int rp_cmd_chat(int argc, char **argv) {
    const char *positionals[RP_POSITIONALS_MAX] = {NULL};
    struct chat_options options = {.api_key = NULL};
    struct rp_chat_server server = {.log = -1};
    struct rp_chat chat = {.is_terminal = isatty(STDOUT_FILENO)};
    struct rp_error err = {0};
    int status = rp_flags_parse(&chat_spec, argc, argv, &options, positionals, &err);
    if (status != RP_OK)
        return status == RP_STATUS_CANCELLED ? RP_EXIT_OK : rp_fail(RP_EXIT_USAGE, &err);
    const char *where = positionals[0] ? positionals[0] : "http://127.0.0.1:8000";
    int code = RP_EXIT_USAGE;
    status = set_up(&chat, &options, &err);
    if (status == RP_OK && !strstr(where, "://") && !is_directory(where)) {
        status = rp_error_set(&err, RP_STATUS_NOT_FOUND, "%.300s is no directory", where);
        rp_error_hint(&err, "a server's URL begins with http://");
    }
    chat.target.base_url = where;
    chat.target.api_key = options.api_key && *options.api_key ? options.api_key : NULL;
    if (status == RP_OK && is_directory(where)) {
        char **flags = serve_flags(argc, argv, where);
        status = flags ? rp_chat_server_start(where, flags, &server, &code, &err)
                       : rp_error_set(&err, RP_STATUS_NO_MEMORY, "out of memory");
        rp_free(flags);
        chat.target.base_url = server.url;
        chat.target.api_key = server.key;
    }
    if (status == RP_OK)
        code = talk(&chat, &options, &err);
    rp_chat_server_close(&server);
    release(&chat);
    if (code == -1)
        return RP_EXIT_FAILURE;
    return code == RP_EXIT_OK || status == RP_STATUS_CANCELLED ? code
                                                               : rp_fail((enum rp_exit)code, &err);
}
