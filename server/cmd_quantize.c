/* reprise quantize DIR OUT: a checkpoint with 8-bit weights (model/quant_write.h), and what each projection lost. */
#include "model/quant_write.h"
#include "server/cmd_stack.h"
#include "server/commands.h"

#include <stdio.h>

struct quantize_options {
    uint32_t scheme;
    bool report;
};

static const struct rp_flag quantize_flags[] = {
    {"scheme", RP_FLAG_CHOICE, offsetof(struct quantize_options, scheme), "fp8|int8", 0, 0, "fp8",
     "weights with one scale per output channel, rows quantised as they arrive"},
    {"report", RP_FLAG_SWITCH, offsetof(struct quantize_options, report), NULL, 0, 0, NULL,
     "a line per projection: signal to noise, and the channel that lost most"},
};

static const struct rp_command_spec quantize_spec = {
    .name = "quantize",
    .positionals = "DIR OUT",
    .positional_min = 2,
    .positional_max = 2,
    .summary =
        "Writes the model in DIR to the new folder OUT with 8-bit weights (compressed-tensors).\n"
        "Embedding, output layer and norms stay as they are.",
    .flags = quantize_flags,
    .flag_count = RP_ARRAY_COUNT(quantize_flags),
};

struct report {
    bool lines;
    uint32_t modules;
    struct rp_quant_loss loss;
    char worst[96];
    double worst_db;
};

static void tell(void *ctx, const struct rp_quant_module *module) {
    struct report *report = ctx;
    if (report->lines)
        printf("%-48s %6u x %-6u %7.2f dB   channel %6u %7.2f dB\n", module->name, module->rows,
               module->cols, module->sqnr_db, module->worst_row, module->worst_db);
    if (report->modules++ == 0 || module->sqnr_db < report->worst_db) {
        report->worst_db = module->sqnr_db;
        snprintf(report->worst, sizeof report->worst, "%s", module->name);
    }
    report->loss.signal += module->loss.signal;
    report->loss.noise += module->loss.noise;
}

int rp_cmd_quantize(int argc, char **argv) {
    const char *positionals[RP_POSITIONALS_MAX];
    struct quantize_options options = {0};
    struct report report = {0};
    struct rp_error err = {0};
    int status = rp_flags_parse(&quantize_spec, argc, argv, &options, positionals, &err);
    if (status != RP_OK)
        return status == RP_STATUS_CANCELLED ? RP_EXIT_OK : rp_fail(RP_EXIT_USAGE, &err);
    report.lines = options.report;
    status =
        rp_quant_write(positionals[0], positionals[1],
                       options.scheme == 0 ? RP_QUANT_FP8 : RP_QUANT_INT8, tell, &report, &err);
    if (status != RP_OK)
        return rp_fail(status == RP_STATUS_IO ? RP_EXIT_FAILURE : rp_stack_exit_code(status), &err);
    printf("%u projections, %.2f dB over all weights, least %.2f dB: %s\n", report.modules,
           rp_quant_sqnr_db(&report.loss), report.worst_db, report.worst);
    printf("written: %s; `reprise eval ppl FILE --model %s --against %s` says what it costs\n",
           positionals[1], positionals[1], positionals[0]);
    return RP_EXIT_OK;
}
