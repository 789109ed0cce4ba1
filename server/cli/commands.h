/* commands.h - the commands of the program: each receives its arguments with its own name as
 * argv[0] and returns the exit code. One file per command, server/cli/cmd_<name>.c. */
#ifndef RP_SERVER_COMMANDS_H
#define RP_SERVER_COMMANDS_H

int rp_cmd_serve(int argc, char **argv);
int rp_cmd_run(int argc, char **argv);
int rp_cmd_inspect(int argc, char **argv);
int rp_cmd_tokenize(int argc, char **argv);
int rp_cmd_template(int argc, char **argv);
int rp_cmd_mask(int argc, char **argv);
int rp_cmd_bench(int argc, char **argv);
int rp_cmd_eval(int argc, char **argv);
int rp_cmd_quantize(int argc, char **argv);
int rp_cmd_trace(int argc, char **argv);
int rp_cmd_doctor(int argc, char **argv);
int rp_cmd_top(int argc, char **argv);
/* Called by bench. */
int rp_cmd_bench_attention(int argc, char **argv);
int rp_cmd_bench_check(int argc, char **argv);
int rp_cmd_bench_compare(int argc, char **argv);
int rp_cmd_bench_decode(int argc, char **argv);
int rp_cmd_bench_kernels(int argc, char **argv);
int rp_cmd_bench_pair(int argc, char **argv);
int rp_cmd_bench_record(int argc, char **argv);
int rp_cmd_bench_step(int argc, char **argv);
int rp_cmd_bench_prefill(int argc, char **argv);
int rp_cmd_bench_serve(int argc, char **argv);
int rp_cmd_bench_sweep(int argc, char **argv);
int rp_cmd_bench_tokenize(int argc, char **argv);

#endif
