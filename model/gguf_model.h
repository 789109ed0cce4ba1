/* gguf_model.h - a GGUF file as a model: its metadata as a configuration, its tensors by the names
 * that the families know (text/gguf.h has the container).
 *
 * Architectures are those of gguf_arch.h. Others are refused by name, and so are keys of the
 * architecture that change the output and are not implemented. */
#ifndef RP_MODEL_GGUF_MODEL_H
#define RP_MODEL_GGUF_MODEL_H

#include "model/model.h"
#include "model/safetensors.h"

/* What metadata and tensor types say. */
int rp_gguf_model_config(const char *path, struct rp_model_config *out_config,
                         struct rp_error *err) RP_MUST_USE;

/* Opens the files as a table of tensors. Shapes are in the order of safetensors. */
int rp_gguf_model_files(struct rp_safetensors *files, const char *path,
                        struct rp_error *err) RP_MUST_USE;

#endif
