/* commands.h - the commands of the program: each receives its arguments with its own name as
 * argv[0] and returns the exit code. One file per command, server/cli/cmd_<name>.c. */
#ifndef RP_SERVER_COMMANDS_H
#define RP_SERVER_COMMANDS_H

#include "base/base.h"

struct rp_command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
    const struct rp_command *members; /* `reprise bench serve`: serve is a member of bench */
    uint32_t member_count;
};

int rp_cmd_serve(int argc, char **argv);
int rp_cmd_chat(int argc, char **argv);
int rp_cmd_run(int argc, char **argv);
int rp_cmd_inspect(int argc, char **argv);
int rp_cmd_pull(int argc, char **argv);
int rp_cmd_list(int argc, char **argv);
int rp_cmd_tokenize(int argc, char **argv);
int rp_cmd_template(int argc, char **argv);
int rp_cmd_mask(int argc, char **argv);
int rp_cmd_bench(int argc, char **argv);
int rp_cmd_eval(int argc, char **argv);
int rp_cmd_quantize(int argc, char **argv);
int rp_cmd_trace(int argc, char **argv);
int rp_cmd_trace_diff(int argc, char **argv);
int rp_cmd_trace_path(int argc, char **argv);
int rp_cmd_doctor(int argc, char **argv);
int rp_cmd_top(int argc, char **argv);
int rp_cmd_profile(int argc, char **argv);
/* Members of trace, bench and eval. */
#define RP_TRACE_COMMANDS 3
extern const struct rp_command rp_trace_commands[RP_TRACE_COMMANDS];
#define RP_BENCH_COMMANDS 15
extern const struct rp_command rp_bench_commands[RP_BENCH_COMMANDS];
#define RP_EVAL_COMMANDS 1
extern const struct rp_command rp_eval_commands[RP_EVAL_COMMANDS];
/* Runs the member that argv[1] names, or lists them: --help with exit code 0. */
int rp_cmd_group(const char *name, const struct rp_command *members, uint32_t count, int argc,
                 char **argv);

int rp_cmd_bench_attention(int argc, char **argv);
int rp_cmd_bench_check(int argc, char **argv);
int rp_cmd_bench_compare(int argc, char **argv);
int rp_cmd_bench_decode(int argc, char **argv);
int rp_cmd_bench_kernels(int argc, char **argv);
int rp_cmd_bench_modes(int argc, char **argv);
int rp_cmd_bench_pair(int argc, char **argv);
int rp_cmd_bench_record(int argc, char **argv);
int rp_cmd_bench_step(int argc, char **argv);
int rp_cmd_bench_prefill(int argc, char **argv);
int rp_cmd_bench_serve(int argc, char **argv);
int rp_cmd_bench_sweep(int argc, char **argv);
int rp_cmd_bench_tokenize(int argc, char **argv);

#endif
