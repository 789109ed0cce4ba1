/* pickle.h - writes Python's pickle format, protocol 2, as far as plain data needs it: dicts,
 * lists, text, integers, floats, booleans (Lib/pickletools.py of CPython lists the opcodes). Used
 * as json_writer.h is.
 * Thread: one owner. Errors: as the buffer has them; unbalanced calls are assertions. */
#ifndef RP_BASE_PICKLE_H
#define RP_BASE_PICKLE_H

#include "base/buffer.h"

#define RP_PICKLE_DEPTH_MAX 16

struct rp_pickle {
    struct rp_buffer *out;
    uint32_t depth;
    bool in_dict[RP_PICKLE_DEPTH_MAX]; /* else in a list */
};

void rp_pickle_init(struct rp_pickle *pickle, struct rp_buffer *out);
/* After the one value that the document is. */
void rp_pickle_finish(struct rp_pickle *pickle);
/* key NULL: a value inside a list, or the document itself. */
void rp_pickle_dict_begin(struct rp_pickle *pickle, const char *key);
void rp_pickle_dict_end(struct rp_pickle *pickle);
void rp_pickle_list_begin(struct rp_pickle *pickle, const char *key);
void rp_pickle_list_end(struct rp_pickle *pickle);
void rp_pickle_string(struct rp_pickle *pickle, const char *key, const char *utf8);
void rp_pickle_int(struct rp_pickle *pickle, const char *key, int64_t value);
void rp_pickle_double(struct rp_pickle *pickle, const char *key, double value);
void rp_pickle_bool(struct rp_pickle *pickle, const char *key, bool value);

#endif
