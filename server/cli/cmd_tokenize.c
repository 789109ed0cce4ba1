/* reprise tokenize - prints the token ids of the text on standard input, or with --decode the text
 * of ids. */
#include "base/buffer.h"
#include "base/json_writer.h"
#include "base/memory.h"
#include "model/model.h"
#include "server/cli/commands.h"
#include "server/cli/hub_cache.h"
#include "text/tokenizer/detokenizer.h"
#include "text/tokenizer/tokenizer.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_OK = 0, EXIT_INPUT = 1, EXIT_USAGE = 2, EXIT_MODEL = 3 };

static const char usage[] =
    "usage: reprise tokenize PATH [options] < TEXT\n"
    "Prints the token ids of the text on standard input, on one line.\n"
    "PATH is a model directory, ORG/NAME from the cache, a tokenizer.json or a tokenizer.model.\n"
    "  --no-special  do not add special tokens such as BOS; with --decode, omit them\n"
    "  --plain       treat special tokens in the text as plain text\n"
    "  --lines       each input line is a JSON string; print one line of ids for each\n"
    "  --decode      the input is ids, the output their text (with --lines: JSON strings)\n"
    "  --json        ids, tokens and their count as JSON\n";

struct options {
    const char *path;
    bool no_special, plain, lines, decode, json;
};

struct work {
    struct options options;
    struct rp_tokenizer *tok;
    struct rp_tokenizer_scratch *scratch;
    struct rp_token_ids ids;
    struct rp_buffer in, out, text;
};

static int complain(const char *what, const char *hint) {
    fprintf(stderr, "error: %s\n", what);
    if (hint && *hint)
        fprintf(stderr, "hint: %s\n", hint);
    return EXIT_INPUT;
}

/* Returns 0 to continue, else the exit code + 1, so that --help can exit with success. */
static int parse_options(int argc, char **argv, struct options *o) {
    const struct {
        const char *name;
        bool *to;
    } flags[] = {{"--no-special", &o->no_special},
                 {"--plain", &o->plain},
                 {"--lines", &o->lines},
                 {"--decode", &o->decode},
                 {"--json", &o->json}};
    bool only_paths = false;
    for (int i = 1; i < argc; i++) {
        size_t f = 0;
        if (only_paths || argv[i][0] != '-') {
            if (o->path) {
                fprintf(stderr, "error: more than one PATH: %s\nhint: reprise tokenize --help\n",
                        argv[i]);
                return EXIT_USAGE + 1;
            }
            o->path = argv[i];
            continue;
        }
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(usage, stdout);
            return EXIT_OK + 1;
        }
        only_paths = strcmp(argv[i], "--") == 0;
        while (f < RP_ARRAY_COUNT(flags) && strcmp(argv[i], flags[f].name) != 0)
            f++;
        if (f < RP_ARRAY_COUNT(flags)) {
            *flags[f].to = true;
        } else if (!only_paths) {
            fprintf(stderr, "error: unknown option %s\nhint: reprise tokenize --help\n", argv[i]);
            return EXIT_USAGE + 1;
        }
    }
    if (o->path)
        return 0;
    fputs("error: PATH is missing\nhint: reprise tokenize models/demo < file.txt\n", stderr);
    return EXIT_USAGE + 1;
}

static int read_input(struct rp_buffer *in) {
    for (;;) {
        if (!rp_buffer_reserve(in, 65536))
            return complain("out of memory while reading standard input", NULL);
        ssize_t n = read(STDIN_FILENO, in->data + in->len, in->capacity - in->len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return complain(strerror(errno), "standard input cannot be read");
        if (n == 0)
            return 0;
        in->len += (size_t)n;
    }
}

static void write_ids(struct work *w) {
    struct rp_json json;
    if (!w->options.json) {
        for (size_t i = 0; i < w->ids.count; i++)
            rp_buffer_printf(&w->out, i ? " %" PRId32 : "%" PRId32, w->ids.ids[i]);
        rp_buffer_puts(&w->out, "\n");
        return;
    }
    rp_json_init(&json, &w->out);
    rp_json_object_begin(&json, NULL);
    rp_json_uint(&json, "count", w->ids.count);
    rp_json_array_begin(&json, "ids");
    for (size_t i = 0; i < w->ids.count; i++)
        rp_json_int(&json, NULL, w->ids.ids[i]);
    rp_json_array_end(&json);
    rp_json_array_begin(&json, "tokens");
    for (size_t i = 0; i < w->ids.count; i++) {
        size_t len;
        const char *content = rp_tokenizer_content(w->tok, w->ids.ids[i], &len);
        rp_json_string_len(&json, NULL, content, len);
    }
    rp_json_array_end(&json);
    rp_json_object_end(&json);
    rp_buffer_puts(&w->out, "\n");
}

static int encode(struct work *w, const char *text, size_t len) {
    struct rp_text_span span = {text, len, !w->options.plain};
    w->ids.count = 0;
    int status =
        rp_tokenizer_encode(w->tok, &span, 1, w->options.no_special ? 0 : RP_ENCODE_ADD_SPECIAL, 0,
                            w->scratch, &w->ids);
    if (status != RP_OK)
        return complain(rp_status_text(status), "the text cannot be tokenized");
    write_ids(w);
    return 0;
}

static int decode(struct work *w, const char *text, size_t len) {
    struct rp_detokenizer detok;
    rp_detokenizer_init(&detok, w->tok, w->options.no_special);
    rp_buffer_clear(&w->text);
    for (size_t i = 0; i < len;) {
        int64_t id = 0;
        size_t begin = i;
        for (; i < len && isdigit((unsigned char)text[i]); i++)
            id = RP_MIN(id * 10 + (text[i] - '0'), (int64_t)RP_TOKEN_ID_LIMIT);
        if (i > begin && id >= (int64_t)rp_tokenizer_vocab_size(w->tok)) {
            return complain("the input contains an id that is not in the vocabulary", NULL);
        } else if (i > begin) {
            if (rp_detokenizer_push(&detok, (int32_t)id, &w->text) != RP_OK)
                return complain("out of memory", NULL);
        } else if (isspace((unsigned char)text[i]) || text[i] == ',') {
            i++;
        } else {
            return complain("the input is not a list of ids",
                            "ids are numbers separated by spaces");
        }
    }
    if (rp_detokenizer_finish(&detok, &w->text) != RP_OK)
        return complain("out of memory", NULL);
    if (w->options.lines) {
        rp_json_escape(&w->out, w->text.data ? w->text.data : "", w->text.len);
        rp_buffer_puts(&w->out, "\n");
    } else {
        rp_buffer_append(&w->out, w->text.data, w->text.len);
    }
    return 0;
}

static int one_line(struct work *w, const char *line, size_t len, size_t number) {
    json_error_t error;
    char what[256];
    if (w->options.decode)
        return decode(w, line, len);
    json_t *json = json_loadb(line, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (!json_is_string(json)) {
        snprintf(what, sizeof what, "line %zu is not a JSON string: %.160s", number,
                 json ? "another value" : error.text);
        json_decref(json);
        return complain(what, "with --lines every line is a quoted JSON string");
    }
    int rc = encode(w, json_string_value(json), json_string_length(json));
    json_decref(json);
    return rc;
}

static int flush_output(struct rp_buffer *out) {
    if (out->failed)
        return complain("out of memory", NULL);
    if (fwrite(out->data, 1, out->len, stdout) != out->len || fflush(stdout) != 0)
        return complain(strerror(errno), "standard output cannot be written");
    rp_buffer_clear(out);
    return 0;
}

static int work_through(struct work *w) {
    int rc = read_input(&w->in);
    const char *at = w->in.data, *end = w->in.data + w->in.len;
    if (rc == 0 && !w->options.lines) {
        rc = w->options.decode ? decode(w, at, w->in.len) : encode(w, at, w->in.len);
        return rc ? rc : flush_output(&w->out);
    }
    for (size_t number = 1; rc == 0 && at < end; number++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        const char *stop = newline ? newline : end;
        rc = one_line(w, at, (size_t)(stop - at), number);
        if (rc == 0 && w->out.len > 1 << 20)
            rc = flush_output(&w->out);
        at = stop + 1;
    }
    return rc ? rc : flush_output(&w->out);
}

int rp_cmd_tokenize(int argc, char **argv) {
    struct work w = {.tok = NULL};
    struct rp_error err = {.status = RP_OK};
    int rc = parse_options(argc, argv, &w.options);
    if (rc)
        return rc - 1;
    int status = rp_model_locate(&w.options.path, &err);
    if (status == RP_OK)
        status = rp_model_dir_check(w.options.path, &err);
    /* INVALID: a file, which may be a tokenizer.json. */
    if ((status != RP_OK && status != RP_STATUS_INVALID) ||
        rp_tokenizer_open(w.options.path, &w.tok, &err) != RP_OK) {
        (void)complain(err.text, err.hint);
        return EXIT_MODEL;
    }
    w.scratch = rp_tokenizer_scratch_create(w.tok);
    rc = w.scratch ? work_through(&w) : complain("out of memory", NULL);
    rp_tokenizer_scratch_destroy(w.scratch);
    rp_tokenizer_close(w.tok);
    rp_token_ids_deinit(&w.ids);
    rp_buffer_deinit(&w.in);
    rp_buffer_deinit(&w.out);
    rp_buffer_deinit(&w.text);
    return rc;
}
