/* limits.h - array sizes that requests, packets and slots share. */
#ifndef RP_BASE_LIMITS_H
#define RP_BASE_LIMITS_H

#define RP_STOP_IDS_MAX    64  /* stop ids of one request, end-of-text ids included */
#define RP_MASK_PARAMS_MAX 16  /* integers of one request's attention mask */
#define RP_LOGIT_BIAS_MAX  300 /* biases of one request */
#define RP_LOGPROBS_MAX    20  /* most likely tokens that an answer's token comes with */
#define RP_BAD_TOKENS_MAX  256 /* of all bad words of a request together */
#define RP_BAD_WORD_MAX    16  /* tokens of one bad word */
#define RP_CHOICES_MAX     8   /* n: answers to one prompt */

#endif
