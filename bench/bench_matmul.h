/* bench_matmul.h - times one GEMM on the CPU with weights read from memory. */
#ifndef RP_BENCH_BENCH_MATMUL_H
#define RP_BENCH_BENCH_MATMUL_H

/* --m M --n N --k K --dtype bf16|f32 --threads T --isa NAME --reps R --cold-mb MB. Prints one line:
 * median and best time, GB/s of weights and its share of the read bandwidth measured in the same
 * run, GFLOP/s. Returns an exit code. */
int rp_bench_matmul(int argc, char **argv);

#endif
