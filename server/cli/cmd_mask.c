/* reprise mask - analyzes a mask program: canonical text, tree, proven properties, and a
 * picture. */
#include "attention/mask/mask_picture.h"
#include "server/cli/commands.h"
#include "server/cli/flags.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: reprise mask EXPR [options]\n"
    "Prints a mask program's canonical text and tree, its proven properties, the class of each\n"
    "tile and a picture. docs/masks.md explains the language.\n"
    "  --q N, --q A..B       queries to show (default 64: 0 to 63)\n"
    "  --kv N, --kv A..B     keys to show (default 64)\n"
    "  --tile N              queries per tile (default 16)\n"
    "  --page N              keys per page (default 16)\n"
    "  --layer N             layer to show (default 0)\n"
    "  --head N              query head to show (default 0)\n"
    "  --heads N             query heads of the model (default 32)\n"
    "  --layers N            layers of the model (default 32)\n"
    "  --length N            context length to prove it for (default 131072)\n"
    "  --param NAME=VALUE    a parameter's value, as in a request; may be repeated\n"
    "  --svg FILE            also write the picture as SVG\n";

struct options {
    const char *program, *svg;
    const char *params[RP_MASK_PARAMS_MAX];
    uint32_t param_count;
    int32_t q_begin, q_end, kv_begin, kv_end;
    int32_t tile, page, layer, head, heads, layers, length;
};

struct work {
    struct options options;
    struct rp_mask *mask, *layer;
    int32_t params[RP_MASK_PARAMS_MAX];
    struct rp_buffer out;
    struct rp_error err;
};

/* --- Options
 *
 --------------------------------------------------------------------------------------------- */

static bool read_int(const char *text, const char **end, int32_t *out) {
    char *stop;
    errno = 0;
    long long value = strtoll(text, &stop, 10);
    *end = stop;
    *out = (int32_t)value;
    return stop != text && errno == 0 && value >= INT32_MIN && value <= INT32_MAX;
}

/* A count or position up to 2^24; first: the minimum. */
static bool read_count(const char *text, int32_t first, int32_t *out) {
    const char *end;
    return read_int(text, &end, out) && !*end && *out >= first && *out <= 1 << 24;
}

/* `N` is 0..N. */
static bool read_range(const char *text, int32_t *begin, int32_t *end) {
    const char *rest;
    if (!read_int(text, &rest, end))
        return false;
    *begin = 0;
    if (strncmp(rest, "..", 2) == 0) {
        *begin = *end;
        if (!read_int(rest + 2, &rest, end))
            return false;
    }
    return !*rest && *begin >= 0 && *begin < *end && *end <= 1 << 24;
}

static int bad_usage(const char *what, const char *which) {
    fprintf(stderr, "error: %s%s\nhint: reprise mask --help\n", what, which);
    return RP_EXIT_USAGE;
}

/* Returns false when the option does not exist or its value is invalid. */
static bool set_option(struct options *o, const char *name, const char *value, bool *known) {
    const struct {
        const char *name;
        int32_t *value;
        int32_t first;
    } counts[] = {{"--tile", &o->tile, 1},    {"--page", &o->page, 1},
                  {"--layer", &o->layer, 0},  {"--head", &o->head, 0},
                  {"--heads", &o->heads, 1},  {"--layers", &o->layers, 1},
                  {"--length", &o->length, 1}};
    *known = true;
    for (size_t i = 0; i < RP_ARRAY_COUNT(counts); i++)
        if (strcmp(name, counts[i].name) == 0)
            return read_count(value, counts[i].first, counts[i].value);
    if (strcmp(name, "--q") == 0)
        return read_range(value, &o->q_begin, &o->q_end);
    if (strcmp(name, "--kv") == 0)
        return read_range(value, &o->kv_begin, &o->kv_end);
    if (strcmp(name, "--svg") == 0) {
        o->svg = value;
        return true;
    }
    *known = strcmp(name, "--param") == 0;
    if (!*known || !strchr(value, '=') || o->param_count == RP_MASK_PARAMS_MAX)
        return false;
    o->params[o->param_count++] = value;
    return true;
}

static int parse_options(int argc, char **argv, struct options *o) {
    for (int i = 1; i < argc; i++) {
        bool known;
        if (argv[i][0] != '-' || argv[i][1] != '-') {
            if (o->program)
                return bad_usage("more than one EXPR (quote it): ", argv[i]);
            o->program = argv[i];
            continue;
        }
        if (i + 1 == argc)
            return bad_usage("unknown option, or missing value after: ", argv[i]);
        if (!set_option(o, argv[i], argv[i + 1], &known))
            return bad_usage(known ? "invalid value for this option: " : "unknown option ",
                             known ? argv[i + 1] : argv[i]);
        i++;
    }
    if (!o->program)
        return bad_usage("EXPR is missing", "");
    if (o->head >= o->heads || o->layer >= o->layers)
        return bad_usage("--head and --layer count from 0 and must be below --heads and --layers",
                         "");
    return RP_EXIT_OK;
}

/* Overrides the program's default with NAME=VALUE from the command line. */
static int set_params(struct work *w) {
    uint32_t count = rp_mask_param_count(w->mask);
    for (uint32_t i = 0; i < count; i++)
        w->params[i] = rp_mask_param(w->mask, i)->value;
    for (uint32_t k = 0; k < w->options.param_count; k++) {
        const char *text = w->options.params[k], *end, *sign = strchr(text, '=');
        size_t length = (size_t)(sign - text);
        uint32_t i = 0;
        while (i < count && (strlen(rp_mask_param(w->mask, i)->name) != length ||
                             memcmp(rp_mask_param(w->mask, i)->name, text, length) != 0))
            i++;
        if (i == count)
            return bad_usage("the program has no such parameter: ", text);
        const struct rp_mask_param *param = rp_mask_param(w->mask, i);
        if (!read_int(sign + 1, &end, &w->params[i]) || *end)
            return bad_usage("not a number: ", text);
        if (w->params[i] < param->min || w->params[i] > param->max) {
            fprintf(stderr,
                    "error: %s is not in %" PRId32 "..%" PRId32
                    "\nhint: the program declares `param %s"
                    " = %" PRId32 " in ...`\n",
                    text, param->min, param->max, param->name, param->value);
            return RP_EXIT_USAGE;
        }
    }
    return RP_EXIT_OK;
}

/* --- What is printed ------------------------------------------------------------------------- */

static void print_indented(struct rp_buffer *out, const struct rp_mask *mask) {
    struct rp_buffer tree;
    rp_buffer_init(&tree, 0);
    rp_mask_print_tree(mask, &tree);
    for (size_t at = 0; at < tree.len;) {
        const char *end = memchr(tree.data + at, '\n', tree.len - at);
        size_t length = (size_t)(end - tree.data) + 1 - at;
        rp_buffer_puts(out, "  ");
        rp_buffer_append(out, tree.data + at, length);
        at += length;
    }
    rp_buffer_deinit(&tree);
}

static void print_proof(struct work *w) {
    const struct options *o = &w->options;
    uint32_t window;
    float cap;
    rp_buffer_puts(&w->out, "proof\n");
    rp_buffer_printf(&w->out,
                     "  no integer overflows, no divisor is 0: %d positions, %d heads, %d layers\n",
                     o->length, o->heads, o->layers);
    rp_buffer_puts(&w->out,
                   rp_mask_is_causal(w->mask)
                       ? "  causal: no query attends to a later key\n"
                       : "  not causal, or not proven: serving it requires --allow-noncausal\n");
    if (rp_mask_is_plain(w->layer, &window, &cap)) {
        rp_buffer_puts(&w->out, "  supported by every kernel");
        if (window)
            rp_buffer_printf(&w->out, ": a window of %u", window);
        if (cap > 0.0f)
            rp_buffer_printf(&w->out, "%s scores capped at %g", window ? "," : ":", (double)cap);
        rp_buffer_puts(&w->out, "\n");
    }
}

static void print_program(struct work *w) {
    const struct options *o = &w->options;
    rp_buffer_printf(&w->out, "program\n  %s\n", rp_mask_text(w->mask));
    if (rp_mask_reads_layer(w->mask))
        rp_buffer_printf(&w->out, "layer %d\n  %s\n", o->layer, rp_mask_text(w->layer));
    rp_buffer_puts(&w->out, "tree\n");
    print_indented(&w->out, w->layer);
    print_proof(w);
    for (uint32_t i = 0; i < rp_mask_param_count(w->mask); i++)
        rp_buffer_printf(&w->out, "%s  %s = %" PRId32 "\n", i == 0 ? "parameters\n" : "",
                         rp_mask_param(w->mask, i)->name, w->params[i]);
}

static void print_view(struct work *w, const struct rp_mask_view *view) {
    uint64_t counts[3];
    rp_mask_count_tiles(w->layer, view, counts);
    rp_buffer_printf(&w->out, "shown\n  queries %d to %d, keys %d to %d", view->q_begin,
                     view->q_end - 1, view->kv_begin, view->kv_end - 1);
    if (rp_mask_reads_head(w->mask))
        rp_buffer_printf(&w->out, ", head %d", view->h);
    rp_buffer_printf(&w->out,
                     "; tiles of %d queries x %d keys:\n  %" PRIu64 " full (#), %" PRIu64
                     " partial (+), %" PRIu64 " skip (.)\n",
                     view->tile, view->page, counts[RP_MASK_FULL], counts[RP_MASK_PARTIAL],
                     counts[RP_MASK_SKIP]);
    rp_mask_picture_text(w->layer, view, &w->out);
}

static int write_all(const struct rp_buffer *buffer, FILE *file, const char *name) {
    bool good = !buffer->failed && fwrite(buffer->data, 1, buffer->len, file) == buffer->len &&
                fflush(file) == 0;
    if (!good)
        fprintf(stderr, "error: %s cannot be written: %s\n", name, strerror(errno));
    return good ? RP_EXIT_OK : RP_EXIT_FAILURE;
}

static int write_svg(struct work *w, const struct rp_mask_view *view) {
    struct rp_buffer svg;
    FILE *file = fopen(w->options.svg, "w");
    if (!file) {
        fprintf(stderr, "error: %s: %s\n", w->options.svg, strerror(errno));
        return RP_EXIT_FAILURE;
    }
    rp_buffer_init(&svg, 0);
    rp_mask_picture_svg(w->layer, view, &svg);
    int code = write_all(&svg, file, w->options.svg);
    rp_buffer_deinit(&svg);
    fclose(file);
    return code;
}

static int show(struct work *w) {
    const struct options *o = &w->options;
    const struct rp_mask_limits limits = {
        .length = (uint32_t)o->length, .heads = (uint32_t)o->heads, .layers = (uint32_t)o->layers};
    if (o->q_end > o->length || o->kv_end > o->length)
        return bad_usage("--q and --kv must be below --length", "");
    if (rp_mask_parse(o->program, strlen(o->program), &limits, &w->mask, &w->err) != RP_OK ||
        rp_mask_at_layer(w->mask, (uint32_t)o->layer, &w->layer, &w->err) != RP_OK)
        return rp_fail(RP_EXIT_USAGE, &w->err);
    int code = set_params(w);
    if (code != RP_EXIT_OK)
        return code;
    struct rp_mask_view view = {.q_begin = o->q_begin,
                                .q_end = o->q_end,
                                .kv_begin = o->kv_begin,
                                .kv_end = o->kv_end,
                                .h = o->head,
                                .layer = o->layer,
                                .tile = o->tile,
                                .page = o->page,
                                .params = w->params};
    print_program(w);
    print_view(w, &view);
    /* Writes the picture first: the reader of standard output may stop reading. */
    code = o->svg ? write_svg(w, &view) : RP_EXIT_OK;
    return code == RP_EXIT_OK ? write_all(&w->out, stdout, "standard output") : code;
}

int rp_cmd_mask(int argc, char **argv) {
    struct work w = {.options = {.q_end = 64,
                                 .kv_end = 64,
                                 .tile = 16,
                                 .page = 16,
                                 .heads = 32,
                                 .layers = 32,
                                 .length = 131072}};
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(usage, stdout);
            return RP_EXIT_OK;
        }
    int code = parse_options(argc, argv, &w.options);
    if (code == RP_EXIT_OK)
        code = show(&w);
    rp_mask_free(w.mask);
    rp_mask_free(w.layer);
    rp_buffer_deinit(&w.out);
    return code;
}
