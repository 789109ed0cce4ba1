/* dump_logits.h - writes the logits of a model directory for comparison with references in other
 * languages (tests/oracle, tests/gpu). */
#ifndef RP_TESTS_SUPPORT_DUMP_LOGITS_H
#define RP_TESTS_SUPPORT_DUMP_LOGITS_H

#include "device/device.h"

/* PROGRAM --logits DIR OUT DTYPE CHUNK ID...: feeds the ids in prompt rows of CHUNK tokens (0: one
 * by one, as decode rows) and writes the logits after every row, (rows, vocab) f32. backend NULL:
 * the CPU's. Returns the exit code. */
int rp_dump_logits(const struct rp_backend *backend, int argc, char **argv);

#endif
