/* reprise bench WHAT: benchmarks. Each subcommand prints a table or, with --json, JSON. */
#include "bench/bench_matmul.h"
#include "bench/membw.h"
#include "server/cli/commands.h"
#include "server/cli/flags.h"

#include <stdio.h>
#include <string.h>

static int bench_membw(int argc, char **argv) {
    if (argc > 1) {
        bool help = strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0;
        fprintf(help ? stdout : stderr,
                "usage: reprise bench membw\n"
                "Measures the read bandwidth of the host's memory with all cores.\n");
        return help ? RP_EXIT_OK : RP_EXIT_USAGE;
    }
    printf("%.1f GB/s read bandwidth (best of 10 passes over 1 GiB, all cores)\n",
           rp_membw_read(0, (size_t)1 << 30, 10) * 1e-9);
    return RP_EXIT_OK;
}

const struct rp_command rp_bench_commands[RP_BENCH_COMMANDS] = {
    {"check", rp_cmd_bench_check, "compare this build with its baselines", NULL, 0},
    {"serve", rp_cmd_bench_serve, "load test of a server: latencies, throughput, goodput", NULL, 0},
    {"sweep", rp_cmd_bench_sweep, "highest request rate at which a server meets an objective", NULL,
     0},
    {"compare", rp_cmd_bench_compare, "compare two load test results", NULL, 0},
    {"decode", rp_cmd_bench_decode, "time per decode step of a model", NULL, 0},
    {"modes", rp_cmd_bench_modes, "eager, graphs, fast numerics, 8 bits: speed and error", NULL, 0},
    {"kernels", rp_cmd_bench_kernels, "time of every operator of a model shape", NULL, 0},
    {"attention", rp_cmd_bench_attention, "time of attention by shape and mask", NULL, 0},
    {"matmul", rp_bench_matmul, "time of one GEMM with weights read from memory", NULL, 0},
    {"pair", rp_cmd_bench_pair, "compare two configurations or servers, interleaved", NULL, 0},
    {"record", rp_cmd_bench_record, "cost of recording in nanoseconds per event", NULL, 0},
    {"step", rp_cmd_bench_step, "time of a decode step without engine and scheduler", NULL, 0},
    {"prefill", rp_cmd_bench_prefill, "time of prefill in one step without engine and scheduler",
     NULL, 0},
    {"tokenize", rp_cmd_bench_tokenize, "speed of a tokenizer in MB/s, one thread", NULL, 0},
    {"membw", bench_membw, "read bandwidth of the host's memory", NULL, 0},
};

int rp_cmd_bench(int argc, char **argv) {
    return rp_cmd_group("bench", rp_bench_commands, RP_BENCH_COMMANDS, argc, argv);
}
