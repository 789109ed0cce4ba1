/* cpu_isa.h - which vector instructions the CPU kernels may use, decided once at start. */
#ifndef RP_DEVICE_CPU_ISA_H
#define RP_DEVICE_CPU_ISA_H

/* Ordered: each includes the ones before it. */
enum rp_cpu_isa { RP_ISA_SCALAR, RP_ISA_AVX2, RP_ISA_AVX512, RP_ISA_AVX512_BF16 };

/* Instruction set of this processor.
 * REPRISE_CPU_ISA=scalar|avx2|avx512|avx512_bf16 can only lower it. */
enum rp_cpu_isa rp_cpu_isa_detect(void);
const char *rp_cpu_isa_name(enum rp_cpu_isa isa);

#endif
