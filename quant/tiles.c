#include "quant/tiles.h"

#include "base/bf16.h"
#include "base/memory.h"
#include "quant/blocks_decode.h"

#include <math.h>
#include <string.h>

#define GROUPS_MAX 8u /* of a tile */

struct rp_tile_format rp_tile_format_of(uint32_t type) {
    if (rp_block_is_int4(type))
        return (struct rp_tile_format){4, rp_block_int4_group(type),
                                       rp_block_int4_zeros(type) ? RP_TILE_ZERO : RP_TILE_SYM,
                                       rp_block_int4_zeros(type) ? 0 : 8};
    switch (type) {
    case RP_BLOCK_Q4_0:
        return (struct rp_tile_format){4, 32, RP_TILE_SYM, 8};
    case RP_BLOCK_Q4_1:
        return (struct rp_tile_format){4, 32, RP_TILE_MIN, 0};
    case RP_BLOCK_Q5_0:
        return (struct rp_tile_format){5, 32, RP_TILE_SYM, 16};
    case RP_BLOCK_Q5_1:
        return (struct rp_tile_format){5, 32, RP_TILE_MIN, 0};
    case RP_BLOCK_Q8_0:
    case RP_BLOCK_IQ4_NL:
        return (struct rp_tile_format){8, 32, RP_TILE_SYM, 128};
    case RP_BLOCK_Q2_K:
        return (struct rp_tile_format){4, 16, RP_TILE_MIN_2, 0};
    case RP_BLOCK_Q3_K:
        return (struct rp_tile_format){4, 16, RP_TILE_SYM_2, 4};
    case RP_BLOCK_Q4_K:
        return (struct rp_tile_format){4, 32, RP_TILE_MIN_2, 0};
    case RP_BLOCK_Q5_K:
        return (struct rp_tile_format){5, 32, RP_TILE_MIN_2, 0};
    case RP_BLOCK_Q6_K:
        return (struct rp_tile_format){6, 16, RP_TILE_SYM_2, 32};
    case RP_BLOCK_IQ4_XS:
        return (struct rp_tile_format){8, 32, RP_TILE_SYM_2, 128};
    case RP_BLOCK_MXFP4:
        return (struct rp_tile_format){4, 32, RP_TILE_FP4, 0};
    case RP_BLOCK_NVFP4:
        return (struct rp_tile_format){4, 16, RP_TILE_FP4, 0};
    default:
        return (struct rp_tile_format){16, RP_TILE_COLS, RP_TILE_PLAIN, 0};
    }
}

static size_t tiles_of(uint32_t cols) { return RP_CEIL_DIV((size_t)cols, RP_TILE_COLS); }

size_t rp_tiles_part_bytes(const struct rp_matrix_part *part, uint32_t cols) {
    return RP_CEIL_DIV((size_t)part->rows, RP_TILE_ROWS) * tiles_of(cols) *
           rp_tile_bytes(rp_tile_format_of(part->type));
}

/* --- places ----------------------------------------------------------------------------------- */

/* Where the code of (row, col) of a tile is, from its codes on: `count` pieces of so many bits. */
struct place {
    uint32_t byte[2], shift[2], bits[2], count;
};

static struct place place_of(uint32_t bits, uint32_t row, uint32_t col) {
    uint32_t step = col / 16, high = col % 2, q = row / 8 + col % 16 / 8 * 2;
    uint32_t lane = row % 8 * 4 + col % 8 / 2, at;
    struct place place = {.count = 1};
    if (bits == 16) {
        place.byte[0] = step * 512 + lane * 16 + q * 4 + high * 2;
        place.bits[0] = 16;
    } else if (bits == 8) {
        place.byte[0] = step / 2 * 512 + lane * 16 + step % 2 * 8 + q / 2 * 4 + q % 2 + 2 * high;
        place.bits[0] = 8;
    } else {
        at = 4 * q + 16 * high;
        place.byte[0] = step / 4 * 512 + lane * 16 + step % 4 * 4 + at / 8;
        place.shift[0] = at % 8;
        place.bits[0] = 4;
    }
    if (bits == 5) {
        at = q + step % 4 * 4 + 16 * high;
        place.byte[1] = 1024 + lane * 8 + step / 4 * 4 + at / 8;
        place.shift[1] = at % 8;
        place.bits[1] = 1;
        place.count = 2;
    } else if (bits == 6) {
        at = 2 * q + step % 2 * 8 + 16 * high;
        place.byte[1] = 1024 + lane * 16 + step / 2 * 4 + at / 8;
        place.shift[1] = at % 8;
        place.bits[1] = 2;
        place.count = 2;
    }
    return place;
}

/* The same of FP4: the first byte of a lane's two words, and which of their 16 codes. */
static void fp4_place_of(uint32_t row, uint32_t col, uint32_t *byte, uint32_t *slot) {
    uint32_t step = col / 16, lane = row % 8 * 4 + col % 8 / 2;
    *byte = step / 4 * 512 + row / 8 * 256 + lane * 8;
    *slot = 2 * (2 * (step % 4) + col % 16 / 8) + col % 2;
}

/* Which bit of the two words bit `bit` of a code is. */
static uint32_t fp4_bit_of(uint32_t slot, uint32_t bit) {
    uint32_t r = slot / 2, to = (bit == 3 ? 15 : 6 + bit) + slot % 2 * 16;
    uint32_t from = (to - (RP_TILE_FP4_ROTATIONS >> 4 * r & 15)) % 32;
    bool is_first = r % 4 == 3 ? RP_TILE_FP4_FIRST >> from & 1 : r < 4;
    return is_first ? from : 32 + from;
}

static uint32_t get_code(const unsigned char *codes, struct rp_tile_format format, uint32_t row,
                         uint32_t col) {
    struct place place = place_of(format.bits, row, col);
    uint32_t u = 0, at = 0, byte, slot;
    if (format.kind == RP_TILE_FP4) {
        fp4_place_of(row, col, &byte, &slot);
        for (uint32_t bit = 0; bit < 4; bit++) {
            at = fp4_bit_of(slot, bit);
            u |= (codes[byte + at / 8] >> at % 8 & 1u) << bit;
        }
        return u;
    }
    if (format.bits == 16)
        return codes[place.byte[0]] | (uint32_t)codes[place.byte[0] + 1] << 8;
    for (uint32_t i = 0; i < place.count; i++) {
        u |= (codes[place.byte[i]] >> place.shift[i] & ((1u << place.bits[i]) - 1)) << at;
        at += place.bits[i];
    }
    return u;
}

/* --- packing ---------------------------------------------------------------------------------- */

/* A row of a part, decoded. */
struct row {
    uint16_t *codes;        /* (tiles * 128), unsigned */
    float *scale, *minimum; /* a group each: S and M, of two levels those of the file */
    uint16_t *d, *dmin;     /* a tile each, f16 */
    uint8_t *zero;          /* a group each */
};

static uint16_t half_at(const unsigned char *in) { return (uint16_t)(in[0] | in[1] << 8); }

static void half_scales(uint32_t type, const unsigned char *block, uint16_t *d, uint16_t *dmin) {
    uint32_t at = type == RP_BLOCK_Q2_K   ? 80
                  : type == RP_BLOCK_Q3_K ? 108
                  : type == RP_BLOCK_Q6_K ? 208
                                          : 0;
    *d = half_at(block + at);
    *dmin = half_at(block + at + (type == RP_BLOCK_Q3_K || type == RP_BLOCK_Q6_K ? 0 : 2));
}

/* E2M1 of a doubled value. */
static uint16_t fp4_code(int8_t doubled) {
    uint16_t code = 0;
    while (rp_block_fp4_values[code] != (doubled < 0 ? -doubled : doubled))
        code++;
    return (uint16_t)(code | (doubled < 0 ? 8 : 0));
}

static void decode_block(const struct rp_matrix_part *part, struct rp_tile_format format,
                         const unsigned char *block, size_t at, size_t values, struct row *row) {
    int8_t codes[RP_BLOCK_VALUES_MAX];
    float scale[16], minimum[16];
    uint32_t group = rp_blocks_split(part->type, block, codes, scale, minimum);
    uint32_t count = rp_block_info(part->type).values, groups = count / group, zero = 0;
    if (format.kind == RP_TILE_ZERO)
        zero = block[rp_block_int4_scale_bytes(part->type)];
    rp_matrix_part_scale(part, scale, groups);
    for (uint32_t g = 0; g < groups; g++) {
        /* the values of E2M1 are doubled in the codes */
        row->scale[at / group + g] = format.kind == RP_TILE_FP4 ? 2 * scale[g] : scale[g];
        row->minimum[at / group + g] = minimum[g];
        row->zero[at / group + g] = (uint8_t)zero;
    }
    for (uint32_t i = 0; i < count && i < values; i++)
        row->codes[at + i] = format.kind == RP_TILE_FP4
                                 ? fp4_code(codes[i])
                                 : (uint16_t)(codes[i] + (int)(format.offset + zero));
    if (format.kind == RP_TILE_MIN_2 || format.kind == RP_TILE_SYM_2)
        for (size_t i = at / RP_TILE_COLS; i < RP_CEIL_DIV(at + count, RP_TILE_COLS); i++)
            half_scales(part->type, block, &row->d[i], &row->dmin[i]);
}

static void decode_row(const struct rp_matrix *matrix, const struct rp_matrix_part *part,
                       struct rp_tile_format format, const unsigned char *from, struct row *row) {
    struct rp_block_info info = rp_block_info(part->type);
    for (size_t at = 0; at < matrix->cols; at += info.values, from += info.bytes) {
        if (format.kind == RP_TILE_PLAIN) {
            float value;
            rp_blocks_to_f32(part->type, from, 1, &value);
            row->codes[at] = rp_f32_to_bf16(value);
        } else {
            decode_block(part, format, from, at, matrix->cols - at, row);
        }
    }
}

static void put_half(unsigned char *to, uint32_t index, uint16_t half) {
    memcpy(to + index * sizeof half, &half, sizeof half);
}

/* sub-scale of a product of two levels, which is exact in f32 */
static uint8_t level_of(float product, uint16_t d) {
    float unit = rp_f16_to_f32(d);
    return (uint8_t)(int)(unit == 0.0f ? 0.0f : rintf(product / unit));
}

static void put_scales(const struct row *row, struct rp_tile_format format, size_t tile,
                       uint32_t at, unsigned char *to) {
    uint32_t groups = RP_TILE_COLS / format.group;
    bool two_levels = format.kind == RP_TILE_MIN_2 || format.kind == RP_TILE_SYM_2;
    if (two_levels)
        put_half(to, at, row->d[tile]);
    if (format.kind == RP_TILE_MIN_2)
        put_half(to, 16 + at, row->dmin[tile]);
    for (uint32_t g = 0; g < groups && format.kind != RP_TILE_PLAIN; g++) {
        float scale = row->scale[tile * groups + g], minimum = row->minimum[tile * groups + g];
        uint32_t place = format.kind == RP_TILE_FP4 ? at * groups + g : g * RP_TILE_ROWS + at;
        if (two_levels) {
            unsigned char *levels = to + (format.kind == RP_TILE_MIN_2 ? 64 : 32);
            levels[place] = level_of(scale, row->d[tile]);
            if (format.kind == RP_TILE_MIN_2)
                levels[groups * RP_TILE_ROWS + place] = level_of(minimum, row->dmin[tile]);
            continue;
        }
        put_half(to, place, rp_f32_to_bf16(scale));
        if (format.kind == RP_TILE_MIN)
            put_half(to, groups * RP_TILE_ROWS + place, rp_f32_to_bf16(minimum));
        if (format.kind == RP_TILE_ZERO)
            to[groups * RP_TILE_ROWS * 2 + place] = row->zero[tile * groups + g];
    }
}

/* Where the codes of a tile are: byte and shift of up to two pieces of each. FP4: the byte of two
 * words, in place of the shift which of their codes, and what each code is in them. */
struct code_places {
    uint64_t fp4[16][16];
    uint16_t byte[2][RP_TILE_ROWS][RP_TILE_COLS];
    uint8_t shift[2][RP_TILE_ROWS][RP_TILE_COLS];
};

static void make_fp4_places(struct code_places *places) {
    for (uint32_t slot = 0; slot < 16; slot++)
        for (uint32_t i = 0; i < 64; i++)
            places->fp4[slot][i / 4] |= (uint64_t)(i / 4 >> i % 4 & 1) << fp4_bit_of(slot, i % 4);
    for (uint32_t row = 0; row < RP_TILE_ROWS; row++)
        for (uint32_t col = 0; col < RP_TILE_COLS; col++) {
            uint32_t byte, slot;
            fp4_place_of(row, col, &byte, &slot);
            places->byte[0][row][col] = (uint16_t)byte;
            places->shift[0][row][col] = (uint8_t)slot;
        }
}

/* places: of zeros. */
static void make_code_places(struct rp_tile_format format, struct code_places *places) {
    if (format.kind == RP_TILE_FP4) {
        make_fp4_places(places);
        return;
    }
    for (uint32_t row = 0; row < RP_TILE_ROWS; row++)
        for (uint32_t col = 0; col < RP_TILE_COLS; col++) {
            struct place place = place_of(format.bits, row, col);
            for (uint32_t i = 0; i < place.count; i++) {
                places->byte[i][row][col] = (uint16_t)place.byte[i];
                places->shift[i][row][col] = (uint8_t)place.shift[i];
            }
        }
}

/* The codes of a row of a tile, which are zero yet. */
static void put_codes(const struct code_places *places, uint32_t bits, uint32_t row, uint32_t count,
                      const uint16_t *from, unsigned char *to) {
    const uint16_t *byte = places->byte[0][row], *high = places->byte[1][row];
    const uint8_t *shift = places->shift[0][row], *high_shift = places->shift[1][row];
    for (uint32_t k = 0; k < count; k++) {
        uint32_t u = from[k];
        if (bits == 16) {
            to[byte[k]] = (unsigned char)u;
            to[byte[k] + 1] = (unsigned char)(u >> 8);
            continue;
        }
        to[byte[k]] |= (unsigned char)((bits == 8 ? u : u & 15) << shift[k]);
        if (bits == 5 || bits == 6)
            to[high[k]] |= (unsigned char)(u >> 4 << high_shift[k]);
    }
}

static void put_fp4_codes(const struct code_places *places, uint32_t row, uint32_t count,
                          const uint16_t *from, unsigned char *to) {
    for (uint32_t k = 0; k < count; k++) {
        uint32_t words[2], byte = places->byte[0][row][k];
        uint64_t code = places->fp4[places->shift[0][row][k]][from[k] & 15];
        memcpy(words, to + byte, sizeof words);
        words[0] |= (uint32_t)code;
        words[1] |= (uint32_t)(code >> 32);
        memcpy(to + byte, words, sizeof words);
    }
}

static void pack_rows(const struct rp_matrix *matrix, const struct rp_matrix_part *part,
                      size_t begin, size_t end, const unsigned char *from, unsigned char *to,
                      struct row *row, const struct code_places *places) {
    struct rp_tile_format format = rp_tile_format_of(part->type);
    size_t tiles = tiles_of(matrix->cols),
           row_bytes = rp_blocks_row_bytes(part->type, matrix->cols);
    uint32_t bytes = rp_tile_bytes(format);
    uint32_t codes_at = rp_tile_scale_bytes(format.kind, format.group);
    for (size_t r = begin; r < end; r++) {
        decode_row(matrix, part, format, from + r * row_bytes, row);
        uint32_t in = (uint32_t)(r % RP_TILE_ROWS);
        for (size_t tile = 0; tile < tiles; tile++) {
            unsigned char *at = to + (r / RP_TILE_ROWS * tiles + tile) * bytes;
            size_t left = matrix->cols - tile * RP_TILE_COLS;
            uint32_t count = (uint32_t)RP_MIN(left, (size_t)RP_TILE_COLS);
            const uint16_t *codes = row->codes + tile * RP_TILE_COLS;
            put_scales(row, format, tile, in, at);
            if (format.kind == RP_TILE_FP4)
                put_fp4_codes(places, in, count, codes, at + codes_at);
            else
                put_codes(places, format.bits, in, count, codes, at + codes_at);
        }
    }
}

int rp_tiles_pack_panels(const struct rp_matrix *matrix, uint32_t part, uint32_t begin,
                         uint32_t end, unsigned char *to) {
    const struct rp_matrix_part *of = &matrix->parts[part];
    struct rp_tile_format format = rp_tile_format_of(of->type);
    /* Blocks of 256 values reach past the last tile. */
    size_t tiles = tiles_of(matrix->cols) + 2, groups = tiles * GROUPS_MAX;
    size_t bytes = sizeof(struct code_places) + tiles * RP_TILE_COLS * sizeof(uint16_t) +
                   2 * groups * sizeof(float) + 2 * tiles * sizeof(uint16_t) + groups;
    size_t panel = tiles_of(matrix->cols) * rp_tile_bytes(format);
    unsigned char *memory = rp_calloc(1, bytes);
    if (!memory)
        return RP_STATUS_NO_MEMORY;
    struct code_places *places = (void *)memory;
    struct row row;
    row.scale = (float *)(void *)(memory + sizeof *places);
    row.minimum = row.scale + groups;
    row.codes = (uint16_t *)(void *)(row.minimum + groups);
    row.d = row.codes + tiles * RP_TILE_COLS;
    row.dmin = row.d + tiles;
    row.zero = (uint8_t *)(row.dmin + tiles);
    make_code_places(format, places);
    memset(to + begin * panel, 0, (end - begin) * panel);
    pack_rows(matrix, of, (size_t)begin * RP_TILE_ROWS,
              RP_MIN((size_t)end * RP_TILE_ROWS, (size_t)of->rows),
              (const unsigned char *)matrix->data + rp_matrix_part_offset(matrix, part), to, &row,
              places);
    rp_free(memory);
    return RP_OK;
}

int rp_tiles_pack(const struct rp_matrix *matrix, unsigned char *to) {
    int status = RP_OK;
    for (uint32_t i = 0; i < matrix->part_count && status == RP_OK; i++) {
        const struct rp_matrix_part *part = &matrix->parts[i];
        status = rp_tiles_pack_panels(matrix, i, 0, RP_CEIL_DIV(part->rows, RP_TILE_ROWS), to);
        to += rp_tiles_part_bytes(part, matrix->cols);
    }
    return status;
}

/* --- reading back ----------------------------------------------------------------------------- */

static float half_of(const unsigned char *from, uint32_t index, bool is_f16) {
    uint16_t half;
    memcpy(&half, from + index * sizeof half, sizeof half);
    return is_f16 ? rp_f16_to_f32(half) : rp_bf16_to_f32(half);
}

/* S and M of a group. */
static void scales_of(struct rp_tile_format format, const unsigned char *tile, uint32_t row,
                      uint32_t group, float *scale, float *minimum) {
    uint32_t groups = RP_TILE_COLS / format.group, place = group * RP_TILE_ROWS + row;
    *minimum = 0;
    if (format.kind == RP_TILE_MIN_2) {
        const unsigned char *levels = tile + 64;
        *scale = rp_round_bf16(half_of(tile, row, true) * (float)levels[place]);
        *minimum = rp_round_bf16(half_of(tile, 16 + row, true) *
                                 (float)levels[groups * RP_TILE_ROWS + place]);
    } else if (format.kind == RP_TILE_SYM_2) {
        *scale = rp_round_bf16(half_of(tile, row, true) * (float)(int8_t)tile[32 + place]);
    } else {
        if (format.kind == RP_TILE_FP4)
            place = row * groups + group;
        *scale = half_of(tile, place, false);
        if (format.kind == RP_TILE_MIN)
            *minimum = half_of(tile, groups * RP_TILE_ROWS + place, false);
    }
}

float rp_tiles_weight(const struct rp_matrix *matrix, uint32_t row, uint32_t col) {
    const struct rp_matrix_part *part = matrix->parts;
    const unsigned char *tile = matrix->data;
    while (row >= part->row_begin + part->rows)
        tile += rp_tiles_part_bytes(part++, matrix->cols);
    struct rp_tile_format format = rp_tile_format_of(part->type);
    uint32_t in = row - part->row_begin, groups = RP_TILE_COLS / format.group;
    uint32_t codes_at = rp_tile_scale_bytes(format.kind, format.group);
    tile +=
        (in / RP_TILE_ROWS * tiles_of(matrix->cols) + col / RP_TILE_COLS) * rp_tile_bytes(format);
    in %= RP_TILE_ROWS;
    uint32_t k = col % RP_TILE_COLS, group = k / format.group;
    uint32_t code = get_code(tile + codes_at, format, in, k);
    if (format.kind == RP_TILE_PLAIN)
        return rp_bf16_to_f32((uint16_t)code);
    float scale, minimum;
    scales_of(format, tile, in, group, &scale, &minimum);
    if (format.kind == RP_TILE_FP4)
        return rp_round_bf16(scale * 0.5f * (float)rp_block_fp4_values[code]);
    if (format.kind == RP_TILE_MIN || format.kind == RP_TILE_MIN_2)
        return rp_round_bf16(scale * (float)code - minimum);
    uint32_t zero = format.kind == RP_TILE_ZERO
                        ? tile[groups * RP_TILE_ROWS * 2 + group * RP_TILE_ROWS + in]
                        : format.offset;
    return rp_round_bf16(scale * ((float)code - (float)zero));
}
