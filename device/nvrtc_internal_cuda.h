/* nvrtc_internal_cuda.h - compiled code on disk: a line of text, then the bytes.
 *
 *   reprise nvrtc 1, source 0123...ef, 123456 bytes, hash 6a09e667f3bcc908 */
#ifndef RP_DEVICE_NVRTC_INTERNAL_CUDA_H
#define RP_DEVICE_NVRTC_INTERNAL_CUDA_H

#include "base/buffer.h"
#include "base/hash.h"

/* Appends what an undamaged file of this source holds; false, and nothing appended, when there is
 * none. */
bool rp_nvrtc_file_read(const char *path, struct rp_hash128 source, struct rp_buffer *out);
/* Makes the folder. False if it is not writable: programs are then compiled again next time. */
bool rp_nvrtc_file_write(const char *path, struct rp_hash128 source, const void *code,
                         size_t bytes);

#endif
