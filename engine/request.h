/* request.h - what the loop thread hands to the engine, and what comes back.
 *
 * A request lives in a slab of the loop thread. From rp_engine_submit until the loop has drained its
 * CLOSED event the engine borrows it: the loop changes nothing in it but `cancelled`. Every submitted
 * request gets exactly one CLOSED event, whatever happens; TOKEN events come before it, in order.
 *
 * All ids and ranges were checked by the server: the engine asserts, it does not parse. */
#ifndef RP_ENGINE_REQUEST_H
#define RP_ENGINE_REQUEST_H

#include "base/base.h"
#include "base/limits.h"

#include <stdatomic.h>

struct rp_sampling {
    float temperature; /* 0 = greedy */
    float top_p;       /* (0, 1], 1 = off */
    float min_p;       /* [0, 1], 0 = off */
    uint32_t top_k;    /* 0 = off */
    uint64_t seed;     /* always set: the server draws one when the client gave none */
};

enum rp_finish_reason {
    RP_FINISH_NONE,
    RP_FINISH_STOP,      /* a stop id; its token was delivered, flagged `is_stop` */
    RP_FINISH_LENGTH,    /* max_tokens, or the context is full */
    RP_FINISH_CANCELLED, /* `cancelled` was seen */
    RP_FINISH_NUMERIC,   /* NaN in this request's logits */
    RP_FINISH_ERROR      /* the device failed, or the engine is shutting down */
};

struct rp_request {
    /* Set before submit, constant until CLOSED. */
    uint64_t id;
    const int32_t *prompt; /* borrowed until CLOSED */
    uint32_t prompt_count; /* at least 1 */
    uint32_t max_tokens;   /* at least 1; prompt_count + max_tokens <= max_model_len */
    uint32_t min_tokens;   /* stop ids may not be chosen before; <= max_tokens */
    struct rp_sampling sampling;
    uint32_t stop_count; /* eos ids included, unless ignore_eos */
    int32_t stop_ids[RP_STOP_IDS_MAX];
    uint64_t cache_salt; /* prefix pages are shared only between equal salts */
    void *owner;         /* the server's */
    uint64_t submit_ns;

    /* The loop sets it at any time; the engine reads it at each plan. */
    _Atomic bool cancelled;

    /* Written by the engine before CLOSED, read by the loop after. */
    uint32_t cached_tokens; /* prompt tokens taken from the prefix cache */
    uint32_t swap_count;    /* times it was swapped out */
    uint64_t scheduled_ns;  /* first planned into a step; 0 = never */
    uint64_t first_token_ns;
    uint64_t closed_ns;
};

enum rp_event_kind { RP_EVENT_TOKEN, RP_EVENT_CLOSED };

struct rp_event {
    struct rp_request *request;
    uint8_t kind;          /* rp_event_kind */
    uint8_t finish_reason; /* CLOSED: rp_finish_reason */
    uint8_t is_stop;  /* TOKEN: it is one of the stop ids, its text is not part of the answer */
    int32_t token;    /* TOKEN */
    float logprob;    /* TOKEN: under the unmodified logits */
    uint64_t time_ns; /* rp_clock_ns when the engine read the result */
};

#endif
