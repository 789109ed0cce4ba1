#include "metrics/symbols.h"

#include "base/memory.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- The program's symbol table -------------------------------------------------------------- */

/* A range of the file, or NULL when it is not inside. */
static const void *part(const void *file, size_t bytes, uint64_t offset, uint64_t len) {
    return offset <= bytes && len <= bytes - offset ? (const char *)file + offset : NULL;
}

static int compare_begins(const void *left, const void *right) {
    const struct rp_symbol *a = left, *b = right;
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

static struct rp_symbol *read_table(const char *table, uint64_t entries, const char *texts,
                                    uint64_t text_bytes, uint32_t *out_count) {
    struct rp_symbol *out = rp_calloc(entries, sizeof *out);
    uint32_t count = 0;
    for (uint64_t i = 0; out && i < entries; i++) {
        Elf64_Sym symbol;
        memcpy(&symbol, table + i * sizeof symbol, sizeof symbol);
        if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || !symbol.st_value || !symbol.st_size ||
            symbol.st_name >= text_bytes)
            continue;
        out[count++] = (struct rp_symbol){symbol.st_value, symbol.st_value + symbol.st_size,
                                          texts + symbol.st_name};
    }
    if (out)
        qsort(out, count, sizeof *out, compare_begins);
    *out_count = count;
    return out;
}

struct rp_symbol *rp_symbols_read_elf(const void *file, size_t bytes, uint32_t *out_count) {
    Elf64_Ehdr header;
    Elf64_Shdr section, names;
    *out_count = 0;
    if (bytes < sizeof header)
        return NULL;
    memcpy(&header, file, sizeof header);
    if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
        header.e_shentsize != sizeof section)
        return NULL;
    const char *sections =
        part(file, bytes, header.e_shoff, (uint64_t)header.e_shnum * sizeof section);
    for (uint32_t i = 0; sections && i < header.e_shnum; i++) {
        memcpy(&section, sections + i * sizeof section, sizeof section);
        if (section.sh_type != SHT_SYMTAB || section.sh_link >= header.e_shnum)
            continue;
        memcpy(&names, sections + section.sh_link * sizeof names, sizeof names);
        const char *table = part(file, bytes, section.sh_offset, section.sh_size);
        const char *texts = part(file, bytes, names.sh_offset, names.sh_size);
        uint64_t entries = section.sh_size / sizeof(Elf64_Sym);
        if (!table || !texts || !names.sh_size || texts[names.sh_size - 1] != '\0' || !entries ||
            entries > UINT32_MAX)
            return NULL;
        return read_table(table, entries, texts, names.sh_size, out_count);
    }
    return NULL;
}

/* dl_iterate_phdr begins with the program. */
static int take_base(struct dl_phdr_info *info, size_t size, void *out) {
    (void)size;
    *(uint64_t *)out = info->dlpi_addr;
    return 1;
}

void rp_symbols_open(struct rp_symbols *symbols) {
    struct stat about;
    memset(symbols, 0, sizeof *symbols);
    dl_iterate_phdr(take_base, &symbols->base);
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &about) == 0 && about.st_size > 0) {
        symbols->bytes = (size_t)about.st_size;
        symbols->file = mmap(NULL, symbols->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (symbols->file == MAP_FAILED)
            symbols->file = NULL;
    }
    if (fd >= 0)
        close(fd);
    if (symbols->file)
        symbols->functions = rp_symbols_read_elf(symbols->file, symbols->bytes, &symbols->count);
}

void rp_symbols_close(struct rp_symbols *symbols) {
    if (symbols->file)
        munmap(symbols->file, symbols->bytes);
    rp_free(symbols->functions);
    memset(symbols, 0, sizeof *symbols);
}

/* --- Names ----------------------------------------------------------------------------------- */

static const char *find(const struct rp_symbols *symbols, uint64_t address) {
    uint32_t low = 0, high = symbols->count; /* the first function that begins after it */
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (symbols->functions[middle].begin <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 && address < symbols->functions[low - 1].end ? symbols->functions[low - 1].name
                                                                : NULL;
}

static void put_name(const char *name, char *out, size_t size) {
    snprintf(out, size, "%.*s", (int)strcspn(name, "."), name);
    for (char *at = out; *at; at++)
        if (*at == ';' || *at == ' ')
            *at = '_';
}

void rp_symbols_name(const struct rp_symbols *symbols, const void *address, char *out,
                     size_t size) {
    uint64_t at = (uint64_t)(uintptr_t)address;
    const char *name = find(symbols, at - symbols->base);
    Dl_info info;
    if (!name && dladdr(address, &info) == 0) {
        snprintf(out, size, "0x%llx", (unsigned long long)at);
        return;
    }
    if (!name)
        name = info.dli_sname;
    if (name) {
        put_name(name, out, size);
        return;
    }
    const char *file = strrchr(info.dli_fname, '/');
    snprintf(out, size, "%.40s+0x%llx", file ? file + 1 : info.dli_fname,
             (unsigned long long)(at - (uint64_t)(uintptr_t)info.dli_fbase));
}
