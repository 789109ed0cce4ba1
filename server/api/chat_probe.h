/* chat_probe.h - what a model's chat templates expect, found by rendering a conversation. Any
 * thread; each takes at most two renderings. */
#ifndef RP_SERVER_CHAT_PROBE_H
#define RP_SERVER_CHAT_PROBE_H

#include "text/template/chat_template.h"

/* Whether the templates concatenate the arguments of a tool call as JSON text; all others take an
 * object, whose members they write or iterate. */
bool rp_chat_probe_text_arguments(const struct rp_chat_templates *templates);
/* Whether a system message after other messages is rendered, and after them: some templates refuse
 * it, drop it, or move it to the start. templates NULL: false. */
bool rp_chat_probe_late_system(const struct rp_chat_templates *templates);

#endif
