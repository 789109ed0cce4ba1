/* request.h - what the loop thread hands to the engine, and what comes back.
 *
 * A request lives in a slab of the loop thread. From rp_engine_submit until the loop has drained
 * its CLOSED event the engine borrows it: the loop changes nothing in it but `cancelled`. Every
 * submitted request gets exactly one CLOSED event, whatever happens; TOKEN events come before it,
 * in order.
 *
 * All ids and ranges were checked by the server: the engine asserts, it does not parse. */
#ifndef RP_ENGINE_REQUEST_H
#define RP_ENGINE_REQUEST_H

#include "base/base.h"
#include "base/limits.h"
#include "engine/observe/request_stats.h"

#include <stdatomic.h>

struct rp_sampling {
    float temperature; /* 0 = greedy */
    float top_p;       /* (0, 1], 1 = off */
    float min_p;       /* [0, 1], 0 = off */
    uint32_t top_k;    /* 0 = off */
    uint64_t seed;     /* always set: the server draws one when the client gave none */
    /* On the logits, before the temperature. Repetition counts ids of prompt and answer (logit > 0:
     * divided, else multiplied), the others those of the answer alone: logit - frequency * count -
     * presence * (count > 0). */
    float repetition_penalty; /* above 0; 1 = off, and so is 0 */
    float presence_penalty;   /* 0 = off */
    float frequency_penalty;  /* 0 = off */
};

/* Added to the logit of `token`, after the penalties. */
struct rp_logit_bias {
    int32_t token;
    float value; /* finite */
};

/* log-softmax of the unmodified logits: at most 0, may be -infinity, never NaN. */
struct rp_logprob {
    int32_t token;
    float logprob;
};

enum rp_finish_reason {
    RP_FINISH_NONE,
    RP_FINISH_STOP,          /* a stop id; its token was delivered, flagged `is_stop` */
    RP_FINISH_LENGTH,        /* max_tokens, or the context is full */
    RP_FINISH_CANCELLED,     /* `cancelled` was seen */
    RP_FINISH_NUMERIC,       /* NaN in this request's logits */
    RP_FINISH_ERROR,         /* the device failed, or the engine is shutting down */
    RP_FINISH_MASK_DEADLINE, /* its hold was not released before the deadline */
    RP_FINISH_TIMEOUT,       /* its deadline_ns has passed */
    RP_FINISH_QUEUE_TIMEOUT, /* its queue_deadline_ns has passed before it was admitted */
    RP_FINISH_COUNT
};

/* As records, traces and metrics name it. */
static inline const char *rp_finish_name(enum rp_finish_reason reason) {
    static const char *const names[] = {
        [RP_FINISH_NONE] = "none",
        [RP_FINISH_STOP] = "stop",
        [RP_FINISH_LENGTH] = "length",
        [RP_FINISH_CANCELLED] = "cancelled",
        [RP_FINISH_NUMERIC] = "numeric",
        [RP_FINISH_ERROR] = "error",
        [RP_FINISH_MASK_DEADLINE] = "mask_deadline",
        [RP_FINISH_TIMEOUT] = "timeout",
        [RP_FINISH_QUEUE_TIMEOUT] = "queue_timeout",
    };
    RP_ASSERT_CMP(reason, <, RP_ARRAY_COUNT(names));
    return names[reason];
}

/* What the host must prepare for each token of a request before it is sampled, such as a grammar's
 * mask. Forward of the step runs meanwhile; only its sample launch waits, for all of the step's
 * rows. A hold that is not released within rp_engine_config.mask_deadline_ns after forward has
 * ended ends its request with RP_FINISH_MASK_DEADLINE. Belongs to its owner, borrowed until
 * CLOSED. */
struct rp_sample_hold {
    /* Tokens of the answer that may be sampled: token i waits until released > i. Written by one
     * thread at a time, with release order; rp_engine_notify afterwards. */
    _Atomic uint32_t released;
    /* NULL, or the ids that token released - 1 may be, as rp_request.allowed: constant pointer, the
     * bits written before `released`, and not changed until that token's event was drained. Then
     * `released` may only be one more than the tokens drained. */
    const uint32_t *allowed;
    /* Equal keys have equal bits, for the whole server, so that a mask that is on the device
     * already is not copied again; 0: no key. Written with the bits. */
    uint64_t key;
};

struct rp_request {
    /* Set before submit, constant until CLOSED. */
    uint64_t id;
    const int32_t *prompt; /* borrowed until CLOSED */
    uint32_t prompt_count; /* at least 1 */
    /* Which of the answers to one prompt (n) it is. Those from 1 on have the address of their
     * prompt from number 0, were submitted behind it, and wait for its first token: then they share
     * the prompt's full pages, if there is a prefix cache, and compute what is in the last one
     * themselves, each in a page of its own. */
    uint32_t choice;
    uint32_t max_tokens; /* at least 1; prompt_count + max_tokens <= max_model_len */
    /* Only the prompt's log-probabilities are wanted: max_tokens is 1, that token is not used, and
     * the prompt may be as long as the model's context. */
    bool prompt_only;
    /* The tenant that it is charged to (scheduler_tenants.c); 0: none, without limits. */
    uint64_t tenant;
    int32_t priority; /* lower is earlier among the waiting requests of its tenant */
    /* When it ends with RP_FINISH_TIMEOUT, and while it waits with RP_FINISH_QUEUE_TIMEOUT; by
     * rp_tick_ns; 0: never. */
    uint64_t deadline_ns, queue_deadline_ns;
    uint32_t min_tokens; /* stop ids may not be chosen before; <= max_tokens */
    struct rp_sampling sampling;
    uint32_t stop_count; /* eos ids included, unless ignore_eos */
    int32_t stop_ids[RP_STOP_IDS_MAX];
    const struct rp_logit_bias *biases; /* (bias_count), each id once; borrowed until CLOSED */
    uint32_t bias_count;                /* at most RP_LOGIT_BIAS_MAX */
    /* A bit for each id, bit id % 32 of word id / 32: only these may be chosen; NULL: all. Borrowed
     * until CLOSED. */
    const uint32_t *allowed;
    struct rp_sample_hold *hold; /* NULL: sampling waits for nothing */
    /* Words one after the other, each its count of tokens and then its tokens: never the end of the
     * answer. A word of two or more tokens forbids its last one where the others have just been
     * chosen. Borrowed until CLOSED. */
    const int32_t *bad_words;
    /* at most 2 * RP_BAD_TOKENS_MAX; a word: at most RP_BAD_WORD_MAX tokens */
    uint32_t bad_word_ints;
    bool logprobs; /* TOKEN events have rank and, of the likeliest tokens, the first top_logprobs */
    bool prompt_logprobs; /* the same as PROMPT events; takes nothing from the prefix cache */
    uint8_t top_logprobs, top_prompt_logprobs;
    /* Parameters of the model's mask program, in their order and ranges: all of them, or none for
     * the defaults. */
    uint32_t mask_param_count;
    int32_t mask_params[RP_MASK_PARAMS_MAX];
    bool profile;        /* its steps are stamped (step_profile.h) */
    uint64_t cache_salt; /* prefix pages are shared only between equal salts */
    void *owner;         /* the server's */
    uint64_t submit_ns;

    /* The loop sets it at any time; the engine reads it at each plan. */
    _Atomic bool cancelled;

    uint32_t tenant_slot; /* the scheduler's own */
    /* Written by the engine before CLOSED, read by the loop after. */
    uint32_t cached_tokens; /* prompt tokens taken from the prefix cache */
    uint32_t swap_count;    /* times it was swapped out */
    uint64_t scheduled_ns;  /* first planned into a step; 0 = never */
    uint64_t first_token_ns;
    uint64_t closed_ns;
    struct rp_request_stats stats; /* complete at CLOSED */
};

/* PROMPT: one for each position of the prompt from the second on, in order, before the first TOKEN;
 * only where prompt_logprobs asks for them. */
enum rp_event_kind { RP_EVENT_TOKEN, RP_EVENT_CLOSED, RP_EVENT_PROMPT };

struct rp_event {
    struct rp_request *request;
    uint8_t kind;          /* rp_event_kind */
    uint8_t finish_reason; /* CLOSED: rp_finish_reason */
    uint8_t is_stop;   /* TOKEN: it is one of the stop ids, its text is not part of the answer */
    uint8_t top_count; /* of top */
    int32_t token;     /* TOKEN; PROMPT: the prompt's token at `index` */
    float logprob;     /* with logprobs: of token, under the unmodified logits; else 0 */
    uint32_t rank;     /* with logprobs: how many tokens are likelier, plus one; else 0 */
    uint32_t index;    /* TOKEN: which of the answer's, from 0; CLOSED: how many there were */
    uint64_t time_ns;  /* rp_clock_ns when the engine read the result */
    struct rp_logprob top[RP_LOGPROBS_MAX]; /* the likeliest, falling; equal ones by rising id */
};

#endif
