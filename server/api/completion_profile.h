/* completion_profile.h - "profile": true: the answer includes a table of where its own steps spent
 * their time.
 * Thread: loop; the table is built in the thread pool. */
#ifndef RP_SERVER_COMPLETION_PROFILE_H
#define RP_SERVER_COMPLETION_PROFILE_H

#include "base/base.h"

struct rp_completion;

/* Call when all requests of c have closed. True: the table is being built; `finish` is called once
 * c->more contains it, unless the client has disconnected. False: none was requested, or it is
 * already there. */
bool rp_completion_profile_start(struct rp_completion *c, void (*finish)(struct rp_completion *c));

#endif
