#include "engine/memory_plan.h"

#include <stdio.h>

void rp_format_bytes(double bytes, char out[16]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    while (bytes >= 1024.0 && unit + 1 < RP_ARRAY_COUNT(units)) {
        bytes /= 1024.0;
        unit++;
    }
    snprintf(out, 16, unit ? "%.2f %s" : "%.0f %s", bytes, units[unit]);
}

/* Where layers have windows, or different heads: what each kind of them takes of the pool. */
static void layers_text(const struct rp_memory_plan *plan, struct rp_buffer *out) {
    bool windows = false, formats = false;
    for (uint32_t i = 0; i < plan->layers_count; i++) {
        windows |= plan->layers[i].window != 0;
        formats |= plan->layers[i].kv_heads != plan->layers[0].kv_heads ||
                   plan->layers[i].head_dim != plan->layers[0].head_dim;
    }
    for (uint32_t i = 0; i < plan->layers_count && (windows || formats); i++) {
        const struct rp_memory_layers *at = &plan->layers[i];
        rp_buffer_printf(out, "  %-12s %12llu  at most, of one sequence: %u layers",
                         i ? "" : "pages", (unsigned long long)at->pages, at->layers);
        if (at->window)
            rp_buffer_printf(out, " with a window of %u", at->window);
        if (formats)
            rp_buffer_printf(out, ", %u KV heads of %u", at->kv_heads, at->head_dim);
        rp_buffer_puts(out, "\n");
    }
}

void rp_memory_plan_text(const struct rp_memory_plan *plan, struct rp_buffer *out) {
    char bytes[16];
    uint64_t host_bytes = 0;
    if (plan->ranks > 1)
        rp_buffer_printf(out, "  each of %u ranks:\n", plan->ranks);
    for (uint32_t i = 0; i < plan->item_count; i++) {
        if (plan->items[i].on_host) {
            host_bytes += plan->items[i].bytes;
            continue;
        }
        rp_format_bytes((double)plan->items[i].bytes, bytes);
        rp_buffer_printf(out, "  %-12s %12s  %s\n", plan->items[i].name, bytes,
                         plan->items[i].detail);
    }
    rp_format_bytes((double)plan->total_bytes, bytes);
    rp_buffer_printf(out, "  %-12s %12s  %llu tokens of KV, context %u", "total", bytes,
                     (unsigned long long)plan->kv_tokens, plan->max_model_len);
    if (plan->device_bytes) {
        rp_format_bytes((double)plan->device_bytes, bytes);
        rp_buffer_printf(out, ", %.0f %% of %s%s",
                         100.0 * (double)plan->total_bytes / (double)plan->device_bytes, bytes,
                         plan->measured ? "" : " (estimated)");
    }
    rp_buffer_puts(out, "\n");
    layers_text(plan, out);
    if (!plan->device_bytes)
        return;
    rp_format_bytes((double)host_bytes, bytes);
    rp_buffer_printf(out, "  %-12s %12s  ", "on the host", bytes);
    const char *comma = "";
    for (uint32_t i = 0; i < plan->item_count; i++) {
        const struct rp_memory_item *item = &plan->items[i];
        rp_format_bytes((double)item->bytes, bytes);
        if (item->on_host)
            rp_buffer_printf(out, "%s%s %s (%s)", comma, item->name, bytes, item->detail);
        comma = item->on_host ? ", " : comma;
    }
    rp_buffer_puts(out, "\n");
}
