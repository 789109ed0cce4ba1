/* completion_profile.h - "profile": true: the answer carries a table of where its own steps spent
 * their time.
 * Thread: loop; the table is made in the thread pool. */
#ifndef RP_SERVER_COMPLETION_PROFILE_H
#define RP_SERVER_COMPLETION_PROFILE_H

#include "base/base.h"

struct rp_completion;

/* All requests of c have closed. True: the table is being made; `finish` is called once c->more
 * holds it, unless the client has left. False: none was asked for, or it is there. */
bool rp_completion_profile_start(struct rp_completion *c, void (*finish)(struct rp_completion *c));

#endif
