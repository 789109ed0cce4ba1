/* limits.h - array sizes that requests, packets and slots share. */
#ifndef RP_BASE_LIMITS_H
#define RP_BASE_LIMITS_H

#define RP_STOP_IDS_MAX    64 /* stop ids of one request, end-of-text ids included */
#define RP_MASK_PARAMS_MAX 16 /* integers of one request's attention mask */

#endif
