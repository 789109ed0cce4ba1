/* load_body.h - serializes HTTP requests. Thread: any. */
#ifndef RP_BENCH_LOAD_BODY_H
#define RP_BENCH_LOAD_BODY_H

#include "bench/load/load_run.h"
#include "bench/load/load_url.h"

/* Writes one request, header and body; the caller frees *out_bytes (rp_free). False: out of
 * memory. */
bool rp_load_body_make(const struct rp_load_target *target, const struct rp_load_url *url,
                       const struct rp_load_request *request, char **out_bytes, size_t *out_len);
/* GET prefix + path; the connection may be kept alive. */
bool rp_load_body_get(const struct rp_load_target *target, const struct rp_load_url *url,
                      const char *path, char **out_bytes, size_t *out_len);
/* Checks that the API key is valid in a header: RP_STATUS_INVALID when not. */
int rp_load_body_check_key(const struct rp_load_target *target, struct rp_error *err) RP_MUST_USE;

#endif
