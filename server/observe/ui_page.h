/* ui_page.h - the page of /debug/ui: server/observe/ui/page.html with page.css and page.js inside,
 * joined at build time (cmake/embed.cmake). Self-contained: it loads nothing else. */
#ifndef RP_SERVER_UI_PAGE_H
#define RP_SERVER_UI_PAGE_H

#include <stddef.h>

extern const unsigned char rp_ui_page[];
extern const size_t rp_ui_page_len;

#endif
