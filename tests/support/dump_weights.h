/* dump_weights.h - writes the weights of a model directory for comparison with references in other
 * languages (tests/oracle), and measures how long making or loading them takes. */
#ifndef RP_TESTS_SUPPORT_DUMP_WEIGHTS_H
#define RP_TESTS_SUPPORT_DUMP_WEIGHTS_H

/* PROGRAM --dump DIR OUT DTYPE writes the loaded weights: per matrix or vector a line
 * "name rows cols", each followed by its values as f32. Returns the exit code. */
int rp_dump_weights(const char *dir, const char *out_path, const char *dtype);

/* PROGRAM --time SHAPE or DIR: time to make random weights, or to load a checkpoint. Returns the
 * exit code. */
int rp_time_weights(const char *source);

#endif
