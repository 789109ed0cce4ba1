/* unicode_tables.c - the data of unicode.c: the file that make_unicode_tables.py writes. */
#include "text/unicode/unicode_tables.h"

#include "text/unicode/unicode_tables.inc"
