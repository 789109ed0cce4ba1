/* reprise bench WHAT: benchmarks. Each subcommand prints a table or, with --json, JSON. */
#include "bench/bench_matmul.h"
#include "bench/membw.h"
#include "server/cli/commands.h"
#include "server/cli/flags.h"

#include <stdio.h>
#include <string.h>

static int bench_membw(int argc, char **argv) {
    (void)argv;
    if (argc > 1) {
        fprintf(stderr, "usage: reprise bench membw\n");
        return RP_EXIT_USAGE;
    }
    printf("%.1f GB/s read bandwidth (best of 10 passes over 1 GiB, all cores)\n",
           rp_membw_read(0, (size_t)1 << 30, 10) * 1e-9);
    return RP_EXIT_OK;
}

int rp_cmd_bench(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
        const char *summary;
    } benches[] = {
        {"check", rp_cmd_bench_check, "compare this build with its baselines"},
        {"serve", rp_cmd_bench_serve, "load test of a server: latencies, throughput, goodput"},
        {"sweep", rp_cmd_bench_sweep, "highest request rate at which a server meets an objective"},
        {"compare", rp_cmd_bench_compare, "compare two load test results"},
        {"decode", rp_cmd_bench_decode, "time per decode step of a model"},
        {"kernels", rp_cmd_bench_kernels, "time of every operator of a model shape"},
        {"attention", rp_cmd_bench_attention, "time of attention by shape and mask"},
        {"matmul", rp_bench_matmul, "time of one GEMM with weights read from memory"},
        {"pair", rp_cmd_bench_pair, "compare two configurations or servers, interleaved"},
        {"record", rp_cmd_bench_record, "cost of recording in nanoseconds per event"},
        {"step", rp_cmd_bench_step, "time of a decode step without engine and scheduler"},
        {"prefill", rp_cmd_bench_prefill,
         "time of prefill in one step without engine and scheduler"},
        {"tokenize", rp_cmd_bench_tokenize, "speed of a tokenizer in MB/s, one thread"},
        {"membw", bench_membw, "read bandwidth of the host's memory"},
    };
    for (size_t i = 0; argc > 1 && i < RP_ARRAY_COUNT(benches); i++)
        if (strcmp(argv[1], benches[i].name) == 0)
            return benches[i].run(argc - 1, argv + 1);
    bool help = argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
    FILE *out = help ? stdout : stderr;
    fprintf(out, "usage: reprise bench WHAT [flags]\n\n");
    for (size_t i = 0; i < RP_ARRAY_COUNT(benches); i++)
        fprintf(out, "  %-9s %s\n", benches[i].name, benches[i].summary);
    return help ? RP_EXIT_OK : RP_EXIT_USAGE;
}
