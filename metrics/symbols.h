/* symbols.h - names of functions by address: of this program from its own symbol table, of its
 * libraries from what they export (dladdr).
 *
 * A program whose symbol table was stripped, and functions that a library does not export, get the
 * file and the offset in it, "reprise+0x1f3a0", which addr2line translates.
 * Thread: any, one at a time per struct. Memory: two words for each function, and a mapping of the
 * program's file. */
#ifndef RP_METRICS_SYMBOLS_H
#define RP_METRICS_SYMBOLS_H

#include "base/base.h"

struct rp_symbol {
    uint64_t begin, end;
    const char *name;
};

struct rp_symbols {
    struct rp_symbol *functions; /* sorted by begin; NULL: none known */
    uint32_t count;
    uint64_t base; /* added to the addresses of the file when it was loaded */
    void *file;
    size_t bytes;
};

/* Never fails: without a symbol table, or memory, only dladdr is used. */
void rp_symbols_open(struct rp_symbols *symbols);
void rp_symbols_close(struct rp_symbols *symbols);
/* Writes a name without ';' and ' '. Suffixes of the compiler (.part.0) are cut off. */
void rp_symbols_name(const struct rp_symbols *symbols, const void *address, char *out, size_t size);

/* Functions in a 64-bit ELF file in memory, sorted; NULL when there are none, when it is no such
 * file, or memory is out. The names point into the file. For tests. */
struct rp_symbol *rp_symbols_read_elf(const void *file, size_t bytes, uint32_t *out_count);

#endif
