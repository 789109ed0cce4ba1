/* cmd_stack.h - opens what `serve` and `run` need: the tokenizer, the model, the engine.
 * Thread: one. Memory: rp_stack_close frees in the right order; legal on a zeroed or failed
 * stack. */
#ifndef RP_SERVER_CMD_STACK_H
#define RP_SERVER_CMD_STACK_H

#include "backend/module.h"
#include "engine/engine.h"
#include "model/model.h"
#include "server/cli/flags.h"
#include "server/cli/serve_options.h"
#include "text/tokenizer/tokenizer.h"

struct rp_stack {
    struct rp_backend_selection selection; /* .device: owned here until the engine takes it over */
    struct rp_tokenizer *tokenizer;
    struct rp_model model;
    struct rp_engine *engine;                          /* created, not started */
    double device_s, tokenizer_s, weights_s, engine_s; /* seconds to open each */
};

/* Engine configuration from the flags, for the selected device (which it takes over). kv_dtype auto
 * follows matrix_dtype. */
struct rp_engine_config rp_stack_engine_config(const struct rp_engine_options *options,
                                               const struct rp_backend_selection *selection,
                                               enum rp_dtype matrix_dtype);
/* Opens the device selected by the flags. */
int rp_stack_select(const struct rp_engine_options *options, struct rp_backend_selection *out,
                    struct rp_error *err) RP_MUST_USE;
/* Directory for cached search results (rp_device_config.cache_dir): $REPRISE_CACHE_DIR, else
 * $XDG_CACHE_HOME/reprise, else $HOME/.cache/reprise; NULL: none of them is set, or the first is
 * empty. Creates nothing. The text is valid until the next call. */
const char *rp_stack_cache_dir(void);
/* RP_MODEL_DTYPE_AUTO, F32 or BF16. */
struct rp_model_quantization rp_stack_quantization(const struct rp_engine_options *options);
enum rp_dtype rp_stack_dtype(uint32_t choice);

/* cmd_stack_mask.c: the mask program of the flags, checked for the model in `dir`, of which only
 * the configuration is read; NULL: none. A non-causal program requires --allow-noncausal. On
 * failure *out_code is the exit code. The caller frees it. */
int rp_stack_open_mask(const char *dir, const struct rp_engine_options *options,
                       struct rp_mask **out, enum rp_exit *out_code,
                       struct rp_error *err) RP_MUST_USE;

/* Opens everything. wake, wake_ctx and ring (NULL: no recording) are passed to the engine.
 * show_progress: on standard error, one rewritten line on a terminal, otherwise a line per stage.
 * On failure *out_code is the exit code. */
int rp_stack_open(struct rp_stack *stack, const char *dir, const struct rp_engine_options *options,
                  void (*wake)(void *ctx), void *wake_ctx, struct rp_trace_ring *ring,
                  bool show_progress, enum rp_exit *out_code, struct rp_error *err) RP_MUST_USE;
void rp_stack_close(struct rp_stack *stack);
/* After a device error: exits the process at once with RP_EXIT_FATAL_DEVICE. Frees nothing and
 * joins no thread, since one may hang in the driver. */
_Noreturn void rp_stack_exit_failed(void);

/* Checks that the flag table cannot express; errors are usage errors. */
int rp_stack_check_options(const struct rp_engine_options *options,
                           struct rp_error *err) RP_MUST_USE;

/* The exit code for an error while loading (model files) or creating the engine (device,
 * memory). */
enum rp_exit rp_stack_exit_code(int status);

#endif
