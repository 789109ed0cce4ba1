#include "base/nearest_name.h"

#include <string.h>

#define NAME_MAX_LEN 64

static uint32_t edit_distance(const char *a, const char *b) {
    uint32_t row[NAME_MAX_LEN + 1];
    size_t a_len = strlen(a), b_len = strlen(b);
    if (a_len > NAME_MAX_LEN || b_len > NAME_MAX_LEN)
        return UINT32_MAX;
    for (uint32_t j = 0; j <= b_len; j++)
        row[j] = j;
    for (size_t i = 1; i <= a_len; i++) {
        uint32_t diagonal = row[0];
        row[0] = (uint32_t)i;
        for (size_t j = 1; j <= b_len; j++) {
            uint32_t replace = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = RP_MIN(replace, RP_MIN(row[j], row[j - 1]) + 1);
        }
    }
    return row[b_len];
}

const char *rp_nearest_name(const char *name, const char *const *names, uint32_t count) {
    const char *best = NULL;
    uint32_t best_distance = (uint32_t)RP_MIN(4, strlen(name) / 2 + 1);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t distance = edit_distance(name, names[i]);
        if (distance < best_distance) {
            best_distance = distance;
            best = names[i];
        }
    }
    return best;
}
