/* reprise bench tokenize FILE: speed of a tokenizer in MB/s; prints a table or JSON. */
#include "base/json_writer.h"
#include "bench/bench_tokenize.h"
#include "server/cli/commands.h"
#include "server/cli/flags.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct tokenize_options {
    const char *tokenizer;
    uint32_t passes, clock;
    double seconds;
    bool json;
};

#define AT(field) offsetof(struct tokenize_options, field)

static const struct rp_flag tokenize_flags[] = {
    {"tokenizer", RP_FLAG_TEXT, AT(tokenizer), "DIR|FILE", 0, 0, "models/demo",
     "a model directory or a tokenizer.json"},
    {"passes", RP_FLAG_UINT, AT(passes), "N", 1, 1000000, "300",
     "maximum number of passes; a reliable result needs 100"},
    {"seconds", RP_FLAG_REAL, AT(seconds), "S", 0, 3600, "20",
     "time limit: no pass starts after this"},
    {"clock", RP_FLAG_CHOICE, AT(clock), "wall|cpu", 0, 0, "wall",
     "cpu: CPU time of the thread, for a shared machine"},
    {"json", RP_FLAG_SWITCH, AT(json), NULL, 0, 0, NULL, "print one JSON object"},
};

static const struct rp_command_spec tokenize_spec = {
    .name = "bench tokenize",
    .positionals = "FILE",
    .positional_min = 1,
    .positional_max = 1,
    .summary =
        "Speed of a tokenizer on the text of a file in MB/s, on one thread: encoding with an\n"
        "empty word cache and with one that has seen the text, and decoding token by token.",
    .flags = tokenize_flags,
    .flag_count = RP_ARRAY_COUNT(tokenize_flags),
};

static int read_text(const char *path, struct rp_buffer *out, struct rp_error *err) {
    FILE *file = fopen(path, "rb");
    if (!file)
        return rp_error_set(err, RP_STATUS_NOT_FOUND, "cannot open %s: %s", path, strerror(errno));
    size_t n = 1;
    bool room = true;
    while (n && (room = rp_buffer_reserve(out, 1 << 20))) {
        n = fread(out->data + out->len, 1, 1 << 20, file);
        out->len += n;
    }
    int status = RP_OK;
    if (!room)
        status = rp_error_set(err, RP_STATUS_RANGE, "%s: 1 GiB or more, or out of memory", path);
    else if (ferror(file))
        status = rp_error_set(err, RP_STATUS_IO, "cannot read %s: %s", path, strerror(errno));
    fclose(file);
    return status;
}

static void json_rate(struct rp_json *json, const char *name, const struct rp_bench_rate *rate) {
    rp_json_object_begin(json, name);
    rp_json_double(json, "mb_per_second_best", rate->best);
    rp_json_double(json, "mb_per_second_p50", rate->median);
    rp_json_double(json, "spread", rate->spread);
    rp_json_object_end(json);
}

static double tokens_per_second(const struct rp_bench_tokenize_result *result,
                                const struct rp_bench_rate *rate, double bytes) {
    return bytes > 0 ? (double)result->tokens * rate->median * 1e6 / bytes : 0;
}

static void print_json(const char *path, const struct rp_bench_tokenize_config *config,
                       const struct rp_bench_tokenize_result *result) {
    struct rp_buffer out;
    struct rp_json json;
    double bytes = (double)config->len;
    rp_buffer_init(&out, 0);
    rp_json_init(&json, &out);
    rp_json_object_begin(&json, NULL);
    rp_json_string(&json, "bench", "tokenize");
    rp_json_string(&json, "file", path);
    rp_json_string(&json, "tokenizer", config->tokenizer);
    rp_json_string(&json, "clock", config->clock == RP_PAIR_CPU ? "cpu" : "wall");
    rp_json_uint(&json, "bytes", config->len);
    rp_json_uint(&json, "tokens", result->tokens);
    rp_json_double(&json, "tokens_per_byte", bytes > 0 ? (double)result->tokens / bytes : 0);
    json_rate(&json, "encode_cold", &result->cold);
    json_rate(&json, "encode_warm", &result->warm);
    json_rate(&json, "decode", &result->decode);
    rp_json_double(&json, "tokens_per_second_cold",
                   tokens_per_second(result, &result->cold, bytes));
    rp_json_double(&json, "tokens_per_second_warm",
                   tokens_per_second(result, &result->warm, bytes));
    rp_json_double(&json, "tokens_per_second_decode",
                   tokens_per_second(result, &result->decode, (double)result->decoded_bytes));
    rp_json_bool(&json, "comes_back", result->round_trips);
    rp_json_uint(&json, "passes", result->passes);
    rp_json_bool(&json, "reliable", result->reliable);
    rp_json_uint(&json, "settled_after", result->settled_after);
    rp_json_double(&json, "load_seconds", result->load_seconds);
    rp_json_uint(&json, "tokenizer_bytes", result->tokenizer_bytes);
    rp_json_uint(&json, "scratch_bytes", result->scratch_bytes);
    rp_json_object_end(&json);
    printf("%.*s\n", (int)out.len, out.data);
    rp_buffer_deinit(&out);
}

static void print_rate(const char *name, const struct rp_bench_tokenize_result *result,
                       const struct rp_bench_rate *rate, double bytes) {
    printf("%-22s %9.1f %9.1f %7.1f%% %12.2f\n", name, rate->best, rate->median, 100 * rate->spread,
           tokens_per_second(result, rate, bytes) * 1e-6);
}

static void print_table(const char *path, const struct rp_bench_tokenize_config *config,
                        const struct rp_bench_tokenize_result *result) {
    double bytes = (double)config->len;
    printf("tokenizer %s: %.1f MiB, loaded in %.0f ms; scratch memory per worker %.1f MiB\n",
           config->tokenizer, (double)result->tokenizer_bytes / 1048576.0,
           result->load_seconds * 1e3, (double)result->scratch_bytes / 1048576.0);
    printf("text %s: %zu bytes, %llu tokens, %.3f tokens per byte; decoding %s\n", path,
           config->len, (unsigned long long)result->tokens,
           bytes > 0 ? (double)result->tokens / bytes : 0,
           result->round_trips ? "restores it" : "gives a different text");
    if (result->reliable)
        printf("%u passes, settled after %u", result->passes, result->settled_after);
    else
        printf("%u passes, unreliable", result->passes);
    printf(", one thread, %s\n\n", config->clock == RP_PAIR_CPU ? "CPU time" : "wall time");
    printf("%-22s %9s %9s %8s %12s\n", "", "MB/s best", "median", "p10-p90", "Mtokens/s");
    print_rate("encode, empty cache", result, &result->cold, bytes);
    print_rate("encode, text seen", result, &result->warm, bytes);
    print_rate("decode, streaming", result, &result->decode, (double)result->decoded_bytes);
}

int rp_cmd_bench_tokenize(int argc, char **argv) {
    const char *positionals[RP_POSITIONALS_MAX];
    struct tokenize_options options = {.json = false};
    struct rp_bench_tokenize_result result;
    struct rp_buffer text;
    struct rp_error err = {0};
    bool loaded = false;
    int status = rp_flags_parse(&tokenize_spec, argc, argv, &options, positionals, &err);
    if (status != RP_OK)
        return status == RP_STATUS_CANCELLED ? RP_EXIT_OK : rp_fail(RP_EXIT_USAGE, &err);
    rp_buffer_init(&text, ((size_t)1 << 30) - 1);
    if (read_text(positionals[0], &text, &err) != RP_OK) {
        rp_buffer_deinit(&text);
        return rp_fail(RP_EXIT_FAILURE, &err);
    }
    const struct rp_bench_tokenize_config config = {.tokenizer = options.tokenizer,
                                                    .text = text.data,
                                                    .len = text.len,
                                                    .passes = options.passes,
                                                    .seconds = options.seconds,
                                                    .clock = (enum rp_pair_clock)options.clock};
    status = rp_bench_tokenize(&config, &result, &loaded, &err);
    if (status == RP_OK)
        (options.json ? print_json : print_table)(positionals[0], &config, &result);
    rp_buffer_deinit(&text);
    if (status == RP_OK)
        return RP_EXIT_OK;
    return rp_fail(loaded ? RP_EXIT_FAILURE : RP_EXIT_MODEL, &err);
}
