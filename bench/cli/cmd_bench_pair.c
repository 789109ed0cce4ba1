/* reprise bench pair: compares two configurations of this engine, or two servers, interleaved. */
#include "base/json_writer.h"
#include "base/memory.h"
#include "bench/pair_server.h"
#include "metrics/recorder.h"
#include "metrics/tick.h"
#include "server/cli/cmd_stack.h"
#include "server/cli/commands.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ARGUMENTS_MAX 48

struct pair_options {
    const char *a, *b, *a_url, *b_url, *model, *shape;
    uint32_t dtype, measure, clock, device, blocks, sequences, input, output, shared;
    double margin;
    uint64_t seed;
    bool list, keep, http, json;
};

#define AT(field) offsetof(struct pair_options, field)
#define MEASURES  "step|output|prompt"

static const struct rp_flag pair_flags[] = {
    {"list", RP_FLAG_SWITCH, AT(list), NULL, 0, 0, NULL, "list the named pairs"},
    {"a", RP_FLAG_TEXT, AT(a), "FLAGS", 0, 0, "",
     "flags of `reprise serve` for A, appended to those of the named pair"},
    {"b", RP_FLAG_TEXT, AT(b), "FLAGS", 0, 0, "", "the same for B"},
    {"http", RP_FLAG_SWITCH, AT(http), NULL, 0, 0, NULL,
     "start two `reprise serve` processes instead of engines in this process"},
    {"a-url", RP_FLAG_TEXT, AT(a_url), "URL", 0, 0, "",
     "a running server with an OpenAI-compatible API as A"},
    {"b-url", RP_FLAG_TEXT, AT(b_url), "URL", 0, 0, "", "the same for B"},
    {"model", RP_FLAG_TEXT, AT(model), "DIR", 0, 0, "models/demo", "model directory of both sides"},
    {"shape", RP_FLAG_TEXT, AT(shape), "NAME", 0, 0, "",
     "model shape with random weights, instead of --model"},
    {"device", RP_FLAG_CHOICE, AT(device), "auto|cpu|cuda", 0, 0, "auto", "where to run"},
    {"measure", RP_FLAG_CHOICE, AT(measure), "auto|" MEASURES, 0, 0, "auto",
     "time per decode step, output tokens/s or prompt tokens/s; auto: the pair's, else step"},
    {"sequences", RP_FLAG_UINT, AT(sequences), "N", 0, 4096, "0",
     "concurrent sequences; 0: the pair's, else 1"},
    {"input", RP_FLAG_UINT, AT(input), "N", 0, 1048576, "0",
     "prompt tokens of each sequence; 0: the pair's, else 64"},
    {"output", RP_FLAG_UINT, AT(output), "N", 0, 1048576, "0",
     "output tokens of each sequence; 0: the pair's, else 64"},
    {"clock", RP_FLAG_CHOICE, AT(clock), "wall|cpu", 0, 0, "wall",
     "cpu: CPU time of this process, for a shared machine"},
    {"blocks", RP_FLAG_UINT, AT(blocks), "N", 2, 10000, "24", "number of blocks A B B A"},
    {"keep", RP_FLAG_SWITCH, AT(keep), NULL, 0, 0, NULL,
     "create both engines once, not for every block: for GPUs and models that take long to load; "
     "on "
     "a CPU two equal engines may then differ by 8 %"},
    {"margin", RP_FLAG_REAL, AT(margin), "SHARE", 0, 0.5, "0.02",
     "an interval entirely within 1 +- SHARE is no difference"},
    {"seed", RP_FLAG_SIZE, AT(seed), "N", 0, 4294967295.0, "0", "seed of the prompts"},
    {"json", RP_FLAG_SWITCH, AT(json), NULL, 0, 0, NULL, "print one JSON object"},
};

static const struct rp_command_spec pair_spec = {
    .name = "bench pair",
    .positionals = "[NAME]",
    .positional_max = 1,
    .summary =
        "Measures A and B in blocks A B B A, and reports by how much B differs, with a 95 %\n"
        "interval, or that there is no difference. --list shows the names.",
    .flags = pair_flags,
    .flag_count = RP_ARRAY_COUNT(pair_flags),
};

/* Flags of a side. */
struct side_options {
    struct rp_engine_options engine;
    struct rp_recorder_config recorder;
    bool no_dependent_launch, no_recording;
};

static const struct rp_flag side_flags[] = {
    RP_ENGINE_FLAGS(offsetof(struct side_options, engine)),
    {"no-dependent-launch", RP_FLAG_SWITCH, offsetof(struct side_options, no_dependent_launch),
     NULL, 0, 0, NULL, "CUDA: plain graph edges, no programmatic dependent launch"},
    {"trace-seconds", RP_FLAG_UINT, offsetof(struct side_options, recorder.seconds), "N", 0, 86400,
     "60", "as in serve: seconds kept by the flight recorder"},
    {"trace-mib", RP_FLAG_UINT, offsetof(struct side_options, recorder.mib), "MIB", 0, 65536, "64",
     "as in serve: memory of the flight recorder"},
    {"no-recording", RP_FLAG_SWITCH, offsetof(struct side_options, no_recording), NULL, 0, 0, NULL,
     "disable everything that serve always records"},
};

static const struct rp_command_spec side_spec = {
    .name = "bench pair --a",
    .positionals = "",
    .summary = "Flags of one side.",
    .flags = side_flags,
    .flag_count = RP_ARRAY_COUNT(side_flags),
};

static void print_list(bool json) {
    static const char *const expected[] = {"B is faster", "no difference", "depends"};
    static const char *const needs[] = {"", ", on a CPU", ", on a GPU"};
    for (uint32_t i = 0; i < rp_pair_count && !json; i++) {
        const struct rp_pair *pair = &rp_pairs[i];
        const struct rp_pair_load *load = &pair->load;
        printf("%s\n    %s\n    A: %s\n    B: %s\n    %s, %u sequences, %u prompt and %u output "
               "tokens each: %s%s\n",
               pair->name, pair->what, *pair->a ? pair->a : "(defaults)",
               *pair->b ? pair->b : "(defaults)", rp_pair_measure_name(load->measure),
               load->sequences, load->input, load->output, expected[pair->expected],
               needs[pair->needs]);
    }
    if (!json)
        return;
    struct rp_buffer out;
    struct rp_json writer;
    rp_buffer_init(&out, 0);
    rp_json_init(&writer, &out);
    rp_json_array_begin(&writer, NULL);
    for (uint32_t i = 0; i < rp_pair_count; i++) {
        rp_json_object_begin(&writer, NULL);
        rp_json_string(&writer, "name", rp_pairs[i].name);
        rp_json_string(&writer, "what", rp_pairs[i].what);
        rp_json_string(&writer, "a", rp_pairs[i].a);
        rp_json_string(&writer, "b", rp_pairs[i].b);
        rp_json_string(&writer, "measure", rp_pair_measure_name(rp_pairs[i].load.measure));
        rp_json_string(&writer, "expected", expected[rp_pairs[i].expected]);
        rp_json_object_end(&writer);
    }
    rp_json_array_end(&writer);
    printf("%.*s\n", (int)out.len, out.data);
    rp_buffer_deinit(&out);
}

/* Parses one side's flags. Splits `text` in place into words[1], words[2], ... up to a NULL; it
 * must outlive *out. */
static int parse_side(char *text, char *words[ARGUMENTS_MAX + 1], struct side_options *out,
                      struct rp_error *err) {
    const char *positionals[RP_POSITIONALS_MAX];
    int count = 0;
    words[count++] = (char *)(uintptr_t)side_spec.name;
    for (char *at = text; *(at += strspn(at, " ")) && count < ARGUMENTS_MAX;) {
        words[count++] = at;
        at += strcspn(at, " ");
        if (*at)
            *at++ = '\0';
    }
    words[count] = NULL;
    memset(out, 0, sizeof *out);
    int status = rp_flags_parse(&side_spec, count, words, out, positionals, err);
    return status == RP_OK ? rp_stack_check_options(&out->engine, err) : status;
}

struct side {
    const struct pair_options *command;
    const struct rp_pair *pair; /* NULL: not a named pair */
    const struct rp_pair_load *load;
    bool second;
    char flags[1024], split[1056];  /* split: --device and the flags, split into words */
    char *words[ARGUMENTS_MAX + 1]; /* words[0]: name of the command */
    struct side_options options;
    struct rp_recorder *recorder;
    struct rp_pair_engine engine;
    struct rp_pair_server server;
};

static int prepare_side(struct side *side, const struct pair_options *options, const char *named,
                        const char *own, struct rp_error *err) {
    static const char *const devices[] = {"auto", "cpu", "cuda"};
    int len =
        snprintf(side->flags, sizeof side->flags, "%s%s%s", named, *named && *own ? " " : "", own);
    if (len < 0 || (size_t)len >= sizeof side->flags)
        return rp_error_set(err, RP_STATUS_INVALID, "--a, --b: more than 1023 bytes");
    snprintf(side->split, sizeof side->split, "--device %s %s", devices[options->device],
             side->flags);
    return parse_side(side->split, side->words, &side->options, err);
}

/* Both engines are on one GPU: limits A to half of its memory, unless a flag sets the limit. */
static void share_gpu_memory(struct side *side) {
    if (side->options.engine.gpu_memory_utilization == 0.92 && !side->second)
        side->options.engine.gpu_memory_utilization = 0.45;
}

/* Opens the device of a side. UNSUPPORTED: the named pair needs another kind of device. */
static int select_device(struct side *side, struct rp_backend_selection *out,
                         struct rp_error *err) {
    enum rp_pair_needs needs = side->pair ? side->pair->needs : RP_PAIR_ANY;
    int status = rp_stack_select(&side->options.engine, out, err);
    if (status != RP_OK)
        return status;
    bool on_gpu = out->info.separate_memory;
    if (needs != RP_PAIR_ANY && on_gpu != (needs == RP_PAIR_ONLY_GPU)) {
        out->backend->close(out->device);
        return rp_error_set(err, RP_STATUS_UNSUPPORTED, "the pair %s requires a %s, this is %s",
                            side->pair->name, on_gpu ? "CPU" : "GPU", out->info.name);
    }
    if (!side->options.no_dependent_launch)
        return RP_OK;
    const struct rp_device_config config = {.no_dependent_launch = true,
                                            .cache_dir = rp_stack_cache_dir()};
    out->backend->close(out->device);
    return out->backend->open(&config, &out->device, err);
}

static int open_side(void *ctx, struct rp_error *err) {
    struct side *side = ctx;
    struct rp_backend_selection selection;
    struct rp_model_config shape;
    const char *named = side->command->shape;
    struct rp_engine_run_model model = {.dir = *named ? NULL : side->command->model,
                                        .shape = &shape,
                                        .dtype = rp_stack_dtype(side->options.engine.dtype),
                                        .quantization =
                                            rp_stack_quantization(&side->options.engine)};
    int status = model.dir ? RP_OK : rp_model_shape(named, &shape, err);
    shape.quantization = model.quantization.scheme;
    shape.quantize_head = model.quantization.head;
    if (!model.dir && model.dtype == RP_MODEL_DTYPE_AUTO)
        model.dtype = RP_DTYPE_BF16;
    if (status == RP_OK)
        status = select_device(side, &selection, err);
    if (status != RP_OK)
        return status;
    share_gpu_memory(side);
    struct rp_engine_config config =
        rp_stack_engine_config(&side->options.engine, &selection, RP_MODEL_DTYPE_AUTO);
    /* The engine records events in a ring, as in serve. */
    rp_tick_start();
    if (!side->options.no_recording) {
        status = rp_recorder_create(&side->options.recorder, &side->recorder, err);
        if (status != RP_OK) {
            if (config.opened)
                config.backend->close(config.opened);
            return status;
        }
        config.ring = rp_recorder_add(side->recorder, "engine", RP_RECORDER_ENGINE);
    }
    config.no_recording = side->options.no_recording;
    return rp_pair_engine_open(&model, &config, side->load, &side->engine, err);
}

static int sample_side(void *ctx, const struct rp_pair_load *load, enum rp_pair_clock clock,
                       uint64_t seed, double *out, struct rp_error *err) {
    return rp_pair_engine_sample(&((struct side *)ctx)->engine, load, clock, seed, out, err);
}

static void close_side(void *ctx) {
    struct side *side = ctx;
    rp_pair_engine_close(&side->engine);
    rp_recorder_destroy(side->recorder);
    side->recorder = NULL;
}

static int open_server(void *ctx, struct rp_error *err) {
    struct side *side = ctx;
    char program[1024] = "";
    ssize_t len = readlink("/proc/self/exe", program, sizeof program - 1);
    program[RP_MAX(len, 0)] = '\0';
    return rp_pair_server_start(program, side->command->model, side->words + 1, &side->server, err);
}

static int sample_server(void *ctx, const struct rp_pair_load *load, enum rp_pair_clock clock,
                         uint64_t seed, double *out, struct rp_error *err) {
    (void)clock; /* always wall time: the server is another process */
    return rp_pair_server_sample(&((struct side *)ctx)->server, load, seed, out, err);
}

static void close_server(void *ctx) { rp_pair_server_close(&((struct side *)ctx)->server); }

/* An engine in this process, a server started as a child, or a running server. */
static struct rp_pair_side make_side(struct side *side, const char *url) {
    if (*url) {
        snprintf(side->server.url, sizeof side->server.url, "%s", url);
        snprintf(side->flags, sizeof side->flags, "%s", url);
        return (struct rp_pair_side){NULL, sample_server, NULL, side};
    }
    if (side->command->http)
        return (struct rp_pair_side){open_server, sample_server, close_server, side};
    return (struct rp_pair_side){open_side, sample_side, close_side, side};
}

struct output {
    const struct pair_options *options;
    struct rp_buffer buffer;
    struct rp_json json;
};

static void on_block(void *ctx, uint32_t block, const double values[4]) {
    struct output *output = ctx;
    if (output->options->json) {
        rp_json_array_begin(&output->json, NULL);
        for (int i = 0; i < 4; i++)
            rp_json_double(&output->json, NULL, values[i]);
        rp_json_array_end(&output->json);
        return;
    }
    printf("block %3u  A %10.4g  B %10.4g  B %10.4g  A %10.4g\n", block, values[0], values[1],
           values[2], values[3]);
    fflush(stdout);
}

static void print_result(struct output *output, const struct rp_pair *pair,
                         const struct rp_comparison *result) {
    static const char *const verdicts[] = {"no interval", "no difference", "faster", "slower"};
    char text[256];
    rp_compare_text(result, text, sizeof text);
    if (!output->options->json) {
        printf("%s: A %.5g, B %.5g %s\n%s\n", pair ? pair->name : "A and B", result->a, result->b,
               result->metric, text);
        return;
    }
    struct rp_json *json = &output->json;
    rp_json_array_end(json);
    rp_json_string(json, "measure", result->metric);
    rp_json_string(json, "clock", output->options->clock ? "cpu" : "wall");
    rp_json_double(json, "a", result->a);
    rp_json_double(json, "b", result->b);
    rp_json_double(json, "ratio", result->ratio);
    rp_json_double(json, "ratio_low", result->low);
    rp_json_double(json, "ratio_high", result->high);
    rp_json_double(json, "margin", result->margin);
    rp_json_string(json, "verdict", verdicts[result->verdict]);
    rp_json_string(json, "text", text);
    rp_json_object_end(json);
    printf("%.*s\n", (int)output->buffer.len, output->buffer.data);
}

static void begin_output(struct output *output, const struct rp_pair *pair,
                         const struct rp_pair_load *load, const struct side *sides) {
    const struct pair_options *options = output->options;
    const char *model = *options->shape ? options->shape : options->model;
    if (!options->json) {
        printf("A: %s\nB: %s\n%s of %s, %u sequence%s, %u prompt and %u output tokens each, %s\n",
               *sides[0].flags ? sides[0].flags : "(defaults)",
               *sides[1].flags ? sides[1].flags : "(defaults)", rp_pair_measure_name(load->measure),
               model, load->sequences, load->sequences == 1 ? "" : "s", load->input, load->output,
               options->clock ? "CPU time" : "wall time");
        return;
    }
    rp_buffer_init(&output->buffer, 0);
    rp_json_init(&output->json, &output->buffer);
    rp_json_object_begin(&output->json, NULL);
    rp_json_string(&output->json, "name", pair ? pair->name : "");
    rp_json_string(&output->json, "a_flags", sides[0].flags);
    rp_json_string(&output->json, "b_flags", sides[1].flags);
    rp_json_string(&output->json, "model", model);
    rp_json_array_begin(&output->json, "blocks");
}

/* The pair's load, overridden by the flags. */
static struct rp_pair_load choose_load(const struct pair_options *options,
                                       const struct rp_pair *pair) {
    struct rp_pair_load load =
        pair ? pair->load : (struct rp_pair_load){RP_PAIR_STEP, 1, 64, 64, 0};
    if (options->measure)
        load.measure = (enum rp_pair_measure)(options->measure - 1);
    if (options->sequences)
        load.sequences = options->sequences;
    if (options->input)
        load.input = options->input;
    if (options->output)
        load.output = options->output;
    return load;
}

static int run_pair(const struct pair_options *options, const struct rp_pair *pair,
                    struct side *sides, struct rp_error *err) {
    struct rp_pair_load load = choose_load(options, pair);
    struct output output = {.options = options};
    struct rp_comparison result;
    const struct rp_pair_side a = make_side(&sides[0], options->a_url),
                              b = make_side(&sides[1], options->b_url);
    const struct rp_pair_run_options run = {.load = load,
                                            .clock = (enum rp_pair_clock)options->clock,
                                            .blocks = options->blocks,
                                            .keep = options->keep,
                                            .margin = options->margin,
                                            .seed = options->seed * 1000003u,
                                            .progress = on_block,
                                            .ctx = &output};
    sides[0].load = sides[1].load = &load;
    begin_output(&output, pair, &load, sides);
    int status = rp_pair_run(&a, &b, &run, &result, err);
    if (status == RP_OK)
        print_result(&output, pair, &result);
    rp_buffer_deinit(&output.buffer);
    return status;
}

/* Checks combinations of flags. */
static int check_options(const struct pair_options *options, struct rp_error *err) {
    bool urls = *options->a_url || *options->b_url;
    if (urls && (!*options->a_url || !*options->b_url))
        return rp_error_set(err, RP_STATUS_INVALID, "--a-url and --b-url must be given together");
    if (strlen(options->a_url) > 255 || strlen(options->b_url) > 255)
        return rp_error_set(err, RP_STATUS_INVALID, "--a-url, --b-url: more than 255 bytes");
    if (urls && (*options->a || *options->b))
        return rp_error_set(
            err, RP_STATUS_INVALID,
            "--a, --b: flags cannot be given to the running servers of --a-url and --b-url");
    if ((urls || options->http) && options->clock)
        return rp_error_set(err, RP_STATUS_INVALID,
                            "--clock cpu: a server runs outside this process");
    if (options->http && *options->shape)
        return rp_error_set(err, RP_STATUS_INVALID,
                            "--shape: not available with --http; use --model");
    return RP_OK;
}

int rp_cmd_bench_pair(int argc, char **argv) {
    const char *positionals[RP_POSITIONALS_MAX];
    struct pair_options options = {.list = false};
    struct rp_error err = {0};
    int status = rp_flags_parse(&pair_spec, argc, argv, &options, positionals, &err);
    if (status == RP_STATUS_CANCELLED)
        return RP_EXIT_OK;
    if (status != RP_OK)
        return rp_fail(RP_EXIT_USAGE, &err);
    if (options.list) {
        print_list(options.json);
        return RP_EXIT_OK;
    }
    status = check_options(&options, &err);
    if (status != RP_OK)
        return rp_fail(RP_EXIT_USAGE, &err);
    const struct rp_pair *pair = positionals[0] ? rp_pair_find(positionals[0]) : NULL;
    if (positionals[0] && !pair) {
        (void)rp_error_set(&err, RP_STATUS_INVALID, "no pair is named %s", positionals[0]);
        rp_error_hint(&err, "`reprise bench pair --list` lists them");
        return rp_fail(RP_EXIT_USAGE, &err);
    }
    struct side *sides = rp_calloc(2, sizeof *sides);
    if (!sides)
        return RP_EXIT_FAILURE;
    for (int i = 0; i < 2; i++) {
        sides[i].command = &options;
        sides[i].pair = pair;
        sides[i].second = i == 1;
    }
    status = prepare_side(&sides[0], &options, pair ? pair->a : "", options.a, &err);
    if (status == RP_OK)
        status = prepare_side(&sides[1], &options, pair ? pair->b : "", options.b, &err);
    enum rp_exit code = RP_EXIT_USAGE;
    if (status == RP_OK) {
        status = run_pair(&options, pair, sides, &err);
        code = rp_stack_exit_code(status);
    }
    rp_free(sides);
    return status == RP_OK ? RP_EXIT_OK : rp_fail(code, &err);
}
