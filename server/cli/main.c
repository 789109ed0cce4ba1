/* main.c - dispatches to the command. */
#include "server/cli/commands.h"
#include "server/cli/flags.h"
#include "server/cli/help_pages.h"

#include <stdio.h>
#include <string.h>

static const struct rp_command commands[] = {
    {"serve", rp_cmd_serve, "serve a model over HTTP, OpenAI-compatible", NULL, 0},
    {"chat", rp_cmd_chat, "talk with a model in the terminal", NULL, 0},
    {"run", rp_cmd_run, "complete one prompt in the terminal", NULL, 0},
    {"bench", rp_cmd_bench,
     "measure: serve, sweep, compare, decode, step, prefill, kernels, matmul, membw",
     rp_bench_commands, RP_BENCH_COMMANDS},
    {"eval", rp_cmd_eval, "perplexity of a text, and differences between two models",
     rp_eval_commands, RP_EVAL_COMMANDS},
    {"quantize", rp_cmd_quantize, "write a model with 8-bit weights", NULL, 0},
    {"pull", rp_cmd_pull, "download a model by its name", NULL, 0},
    {"list", rp_cmd_list, "the models that were downloaded, and which can be served", NULL, 0},
    {"inspect", rp_cmd_inspect, "show a model, its memory plan and its program, without loading it",
     NULL, 0},
    {"doctor", rp_cmd_doctor, "what this machine has, and what would be used", NULL, 0},
    {"top", rp_cmd_top, "watch a running server in the terminal", NULL, 0},
    {"profile", rp_cmd_profile, "where a running server spends its time, and what became slower",
     NULL, 0},
    {"trace", rp_cmd_trace, "compare traces, critical paths, convert what a crash left",
     rp_trace_commands, RP_TRACE_COMMANDS},
    {"tokenize", rp_cmd_tokenize, "text from standard input to token ids", NULL, 0},
    {"template", rp_cmd_template, "render a conversation with the chat template", NULL, 0},
    {"mask", rp_cmd_mask, "analyze and draw an attention mask program", NULL, 0},
};

static void print_help(FILE *out) {
    fprintf(out,
            "reprise " RP_VERSION ": serves large language models by replaying captured graphs\n\n"
            "usage: reprise COMMAND ...\n\n");
    for (size_t i = 0; i < RP_ARRAY_COUNT(commands); i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fprintf(out, "\n`reprise help COMMAND` lists the flags of a command.\n");
}

static int unknown_command(const char *name) {
    const char *names[RP_ARRAY_COUNT(commands)];
    struct rp_error err = {0};
    for (size_t i = 0; i < RP_ARRAY_COUNT(commands); i++)
        names[i] = commands[i].name;
    const char *nearest = rp_nearest_name(name, names, RP_ARRAY_COUNT(commands));
    int status = rp_error_set(&err, RP_STATUS_INVALID, "unknown command %s", name);
    (void)status;
    if (nearest)
        rp_error_hint(&err, "did you mean `reprise %s`?", nearest);
    else
        rp_error_hint(&err, "`reprise --help` lists the commands");
    return rp_fail(RP_EXIT_USAGE, &err);
}

/* argv[0] is the command's name. */
static int run_command(int argc, char **argv) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(commands); i++)
        if (strcmp(argv[0], commands[i].name) == 0)
            return commands[i].run(argc, argv);
    return unknown_command(argv[0]);
}

static int print_page(const char *kind) {
    struct rp_error err = {0};
    if (rp_help_page(kind, commands, RP_ARRAY_COUNT(commands), stdout) && fflush(stdout) == 0)
        return RP_EXIT_OK;
    int status = rp_error_set(&err, RP_STATUS_INVALID, "there is no page \"%.40s\"", kind);
    (void)status;
    rp_error_hint(&err, "reprise help --man, or --completion bash or zsh");
    return rp_fail(RP_EXIT_USAGE, &err);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        print_help(stderr);
        return RP_EXIT_USAGE;
    }
    if (strcmp(argv[1], "help") == 0 && argc > 2) {
        if (strcmp(argv[2], "--man") == 0 && argc == 3)
            return print_page("man");
        if (strcmp(argv[2], "--completion") == 0)
            return print_page(argc == 4 ? argv[3] : "");
        char *with_help[] = {argv[2], (char *)"--help"};
        return run_command(2, with_help);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return RP_EXIT_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("reprise " RP_VERSION "\n");
        return RP_EXIT_OK;
    }
    return run_command(argc - 1, argv + 1);
}
