/* chat_probe.h - finds out what a chat template does by rendering a short conversation. */
#ifndef RP_SERVER_CHAT_PROBE_H
#define RP_SERVER_CHAT_PROBE_H

#include "text/template/chat_template.h"

/* Whether a system message after other messages is rendered, and after them: some templates refuse
 * it, drop it, or move it to the start. templates NULL: false. */
bool rp_chat_probe_late_system(const struct rp_chat_templates *templates);

#endif
