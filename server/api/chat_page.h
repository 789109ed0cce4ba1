/* chat_page.h - the page at /: server/api/chat_page/page.html with page.css and the scripts inside,
 * joined at build time (cmake/embed.cmake). Self-contained: it loads nothing else. */
#ifndef RP_SERVER_CHAT_PAGE_H
#define RP_SERVER_CHAT_PAGE_H

#include <stddef.h>

extern const unsigned char rp_chat_page[];
extern const size_t rp_chat_page_len;

#endif
