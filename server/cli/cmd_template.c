/* reprise template - renders a conversation to a prompt with the model's chat template. */
#include "base/buffer.h"
#include "base/json_writer.h"
#include "base/memory.h"
#include "model/model.h"
#include "server/api/chat_values.h"
#include "server/cli/commands.h"
#include "server/cli/hub_cache.h"
#include "text/template/chat_template.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { EXIT_OK = 0, EXIT_INPUT = 1, EXIT_USAGE = 2, EXIT_MODEL = 3 };

static const char usage[] =
    "usage: reprise template DIR [options] < MESSAGES\n"
    "Prints the prompt of a conversation, one line per span, and its token ids.\n"
    "MESSAGES is a JSON list of messages, or an object with messages, tools and other variables.\n"
    "  --messages FILE       read MESSAGES from FILE\n"
    "  --chat-template FILE  use this template instead of the model's\n"
    "  --name NAME           use the template with this name if there are several\n"
    "  --no-generation       omit the prefix of the answer (add_generation_prompt: false)\n"
    "  --text                print only the prompt\n"
    "  --json                text, spans and ids as JSON\n"
    "  --now SECONDS         Unix time for strftime_now (default: now)\n"
    "  --lines               each line of input is {\"template\", \"variables\"}, each line of "
    "output\n"
    "                        its result as JSON; DIR is optional\n";

struct options {
    const char *dir, *messages, *override, *name;
    bool no_generation, text, json, lines;
    int64_t now_s;
};

struct work {
    struct options options;
    struct rp_chat_templates *set;
    struct rp_tokenizer *tok;
    struct rp_tokenizer_scratch *scratch;
    struct rp_token_ids ids;
    struct rp_buffer in, out;
};

static int complain(const char *what, const char *hint) {
    fprintf(stderr, "error: %s\n", what);
    if (hint && *hint)
        fprintf(stderr, "hint: %s\n", hint);
    return EXIT_INPUT;
}

static int bad_usage(const char *what, const char *which) {
    fprintf(stderr, "error: %s%s\nhint: reprise template --help\n", what, which);
    return EXIT_USAGE + 1;
}

static int parse_number(const char *text, int64_t *out) {
    char *end;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return *text && !*end && errno == 0 ? 0 : bad_usage("not a number: ", text);
}

/* Returns 0 to continue, else the exit code + 1, so that --help can exit with success. */
static int parse_options(int argc, char **argv, struct options *o) {
    const char *now = NULL;
    const struct {
        const char *name;
        bool *flag;
        const char **text;
    } all[] = {{"--no-generation", &o->no_generation, NULL},
               {"--text", &o->text, NULL},
               {"--json", &o->json, NULL},
               {"--lines", &o->lines, NULL},
               {"--messages", NULL, &o->messages},
               {"--chat-template", NULL, &o->override},
               {"--name", NULL, &o->name},
               {"--now", NULL, &now}};
    for (int i = 1; i < argc; i++) {
        size_t f = 0;
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(usage, stdout);
            return EXIT_OK + 1;
        }
        while (f < RP_ARRAY_COUNT(all) && strcmp(argv[i], all[f].name) != 0)
            f++;
        if (f == RP_ARRAY_COUNT(all)) {
            if (argv[i][0] == '-' || o->dir)
                return bad_usage(argv[i][0] == '-' ? "unknown option " : "more than one DIR: ",
                                 argv[i]);
            o->dir = argv[i];
        } else if (all[f].flag) {
            *all[f].flag = true;
        } else if (i + 1 == argc) {
            return bad_usage("missing value after ", argv[i]);
        } else {
            *all[f].text = argv[++i];
        }
    }
    if (!o->dir && !o->lines)
        return bad_usage("DIR is missing", "");
    o->now_s = (int64_t)time(NULL);
    return now ? parse_number(now, &o->now_s) : 0;
}

static int read_input(struct work *w) {
    FILE *file = w->options.messages ? fopen(w->options.messages, "rb") : stdin;
    size_t n = 1;
    if (!file)
        return complain(strerror(errno), w->options.messages);
    while (n > 0 && rp_buffer_reserve(&w->in, 65536)) {
        n = fread(w->in.data + w->in.len, 1, w->in.capacity - w->in.len, file);
        w->in.len += n;
    }
    bool failed = ferror(file) || w->in.failed;
    if (file != stdin)
        fclose(file);
    return failed ? complain("the input cannot be read", NULL) : 0;
}

static int encode(struct work *w, const struct rp_chat_prompt *prompt) {
    w->ids.count = 0;
    if (!w->tok)
        return RP_OK;
    return rp_tokenizer_encode(w->tok, prompt->spans, prompt->span_count, 0, 0, w->scratch,
                               &w->ids);
}

static void write_json(struct work *w, const struct rp_chat_prompt *prompt) {
    struct rp_json json;
    rp_json_init(&json, &w->out);
    rp_json_object_begin(&json, NULL);
    rp_json_string_len(&json, "text", prompt->text, prompt->len);
    rp_json_array_begin(&json, "spans");
    for (size_t i = 0; i < prompt->span_count; i++) {
        rp_json_object_begin(&json, NULL);
        rp_json_string(&json, "from", prompt->spans[i].allow_special ? "template" : "input");
        rp_json_string_len(&json, "text", prompt->spans[i].text, prompt->spans[i].len);
        rp_json_object_end(&json);
    }
    rp_json_array_end(&json);
    if (w->tok) {
        rp_json_array_begin(&json, "ids");
        for (size_t i = 0; i < w->ids.count; i++)
            rp_json_int(&json, NULL, w->ids.ids[i]);
        rp_json_array_end(&json);
    }
    rp_json_object_end(&json);
    rp_buffer_puts(&w->out, "\n");
}

static void write_prompt(struct work *w, const struct rp_chat_prompt *prompt) {
    if (w->options.json || w->options.lines) {
        write_json(w, prompt);
    } else if (w->options.text) {
        rp_buffer_append(&w->out, prompt->text, prompt->len);
    } else {
        for (size_t i = 0; i < prompt->span_count; i++) {
            rp_buffer_puts(&w->out, prompt->spans[i].allow_special ? "template  " : "input     ");
            rp_json_escape(&w->out, prompt->spans[i].text, prompt->spans[i].len);
            rp_buffer_puts(&w->out, "\n");
        }
        for (size_t i = 0; w->tok && i < w->ids.count; i++)
            rp_buffer_printf(&w->out, i ? " %" PRId32 : "ids       %" PRId32, w->ids.ids[i]);
        rp_buffer_puts(&w->out, w->tok ? "\n" : "");
    }
}

static void write_fault(struct work *w, const struct rp_chat_fault *fault) {
    struct rp_json json;
    rp_json_init(&json, &w->out);
    rp_json_object_begin(&json, NULL);
    rp_json_string(&json, "error", fault->kind);
    rp_json_int(&json, "line", fault->line);
    rp_json_string(&json, "message", fault->message);
    rp_json_object_end(&json);
    rp_buffer_puts(&w->out, "\n");
}

static int render(struct work *w, const struct rp_chat_template *tmpl, const json_t *variables) {
    struct rp_chat_values *values = rp_chat_values_create(0);
    struct rp_chat_limits limits = {.now_s = w->options.now_s};
    struct rp_chat_prompt prompt = {NULL, 0, NULL, 0};
    struct rp_chat_fault fault;
    struct rp_error err = {.status = RP_OK};
    int rc = 0;
    struct rp_chat_value *root = values ? rp_chat_values_from_json(values, variables) : NULL;
    int status =
        rp_chat_template_render(tmpl, w->set, values, root, &limits, &prompt, &fault, &err);
    if (status == RP_OK && (status = encode(w, &prompt)) != RP_OK)
        snprintf(err.text, sizeof err.text, "the prompt cannot be tokenized: %s",
                 rp_status_text(status));
    if (status == RP_OK)
        write_prompt(w, &prompt);
    else if (w->options.lines)
        write_fault(w, &fault);
    else
        rc = complain(err.text, err.hint);
    rp_chat_prompt_deinit(&prompt);
    rp_chat_values_destroy(values);
    return rc;
}

static int one_conversation(struct work *w) {
    json_error_t error;
    json_t *json = json_loadb(w->in.data ? w->in.data : "", w->in.len, 0, &error);
    json_t *variables =
        json_is_array(json) ? json_pack("{sO}", "messages", json) : json_incref(json);
    json_decref(json);
    if (!json_is_object(variables)) {
        json_decref(variables);
        return complain("the input is not a JSON list of messages, nor an object",
                        json ? "" : error.text);
    }
    if (!json_object_get(variables, "add_generation_prompt"))
        json_object_set_new(variables, "add_generation_prompt",
                            json_boolean(!w->options.no_generation));
    const json_t *tools = json_object_get(variables, "tools");
    const struct rp_chat_template *tmpl =
        w->options.name ? rp_chat_templates_find(w->set, w->options.name)
                        : rp_chat_templates_pick(w->set, tools && !json_is_null(tools));
    int rc = tmpl ? render(w, tmpl, variables) : complain("no template has this name", "");
    json_decref(variables);
    return rc;
}

static int one_line(struct work *w, const char *line, size_t len) {
    json_error_t error;
    struct rp_chat_fault fault;
    struct rp_error err;
    struct rp_chat_template *tmpl = NULL;
    json_t *json = json_loadb(line, len, JSON_ALLOW_NUL, &error);
    const json_t *source = json_object_get(json, "template");
    const json_t *variables = json_object_get(json, "variables");
    int rc = 0;
    if (!json_is_object(variables) || (!json_is_string(source) && !w->set)) {
        rc =
            complain("a line is not an object with template and variables", json ? "" : error.text);
    } else if (json_is_string(source)) {
        if (rp_chat_template_compile(json_string_value(source), json_string_length(source),
                                     "template", &tmpl, &fault, &err) == RP_OK)
            rc = render(w, tmpl, variables);
        else
            write_fault(w, &fault);
    } else {
        rc = render(w, rp_chat_templates_pick(w->set, json_object_get(variables, "tools") != NULL),
                    variables);
    }
    rp_chat_template_destroy(tmpl);
    json_decref(json);
    return rc;
}

static int flush_output(struct rp_buffer *out) {
    if (out->failed)
        return complain("out of memory", NULL);
    if (fwrite(out->data ? out->data : "", 1, out->len, stdout) != out->len || fflush(stdout) != 0)
        return complain(strerror(errno), "standard output cannot be written");
    rp_buffer_clear(out);
    return 0;
}

static int work_through(struct work *w) {
    int rc = read_input(w);
    if (rc == 0 && !w->options.lines)
        rc = one_conversation(w);
    const char *at = w->in.data, *end = at ? at + w->in.len : at;
    while (rc == 0 && w->options.lines && at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        const char *stop = newline ? newline : end;
        rc = one_line(w, at, (size_t)(stop - at));
        if (rc == 0 && w->out.len > 1 << 20)
            rc = flush_output(&w->out);
        at = stop + 1;
    }
    return rc ? rc : flush_output(&w->out);
}

static int open_model(struct work *w) {
    struct rp_error err = {.status = RP_OK};
    if (!w->options.dir)
        return 0;
    if (rp_model_locate(&w->options.dir, &err) != RP_OK ||
        rp_model_dir_check(w->options.dir, &err) != RP_OK ||
        rp_chat_templates_open(w->options.dir, w->options.override, &w->set, &err) != RP_OK) {
        (void)complain(err.text, err.hint);
        return EXIT_MODEL;
    }
    int status = rp_tokenizer_open(w->options.dir, &w->tok, &err);
    if (status == RP_STATUS_NOT_FOUND)
        return 0; /* without a DIR there are no ids */
    if (status != RP_OK) {
        (void)complain(err.text, err.hint);
        return EXIT_MODEL;
    }
    w->scratch = rp_tokenizer_scratch_create(w->tok);
    return w->scratch ? 0 : complain("out of memory", NULL);
}

int rp_cmd_template(int argc, char **argv) {
    struct work w = {.set = NULL};
    int rc = parse_options(argc, argv, &w.options);
    if (rc)
        return rc - 1;
    rc = open_model(&w);
    if (rc == 0)
        rc = work_through(&w);
    rp_chat_templates_close(w.set);
    rp_tokenizer_scratch_destroy(w.scratch);
    rp_tokenizer_close(w.tok);
    rp_token_ids_deinit(&w.ids);
    rp_buffer_deinit(&w.in);
    rp_buffer_deinit(&w.out);
    return rc;
}
