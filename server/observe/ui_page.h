/* ui_page.h - the page of /debug/ui: server/observe/ui/page.html with page.css and page.js inside,
 * joined when the program is built (cmake/embed.cmake). It needs nothing from elsewhere. */
#ifndef RP_SERVER_UI_PAGE_H
#define RP_SERVER_UI_PAGE_H

#include <stddef.h>

extern const unsigned char rp_ui_page[];
extern const size_t rp_ui_page_len;

#endif
