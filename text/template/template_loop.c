/* for loops and what `loop` knows. Items are taken one at a time, so that a filter of the loop sees
 * what its body has changed. */
#include "text/template/template_internal.h"

#include <string.h>

/* The next item that passes the test; false at the end. */
static bool pull(struct rp_trender *r, struct rp_tloop *loop, struct rp_value *out) {
    const struct rp_template_node *node = loop->node;
    while (!r->failed && loop->next < loop->items->count) {
        *out = loop->items->items[loop->next++];
        if (!node->c || loop->filtered)
            return true;
        struct rp_tframe *inner = r->frame, *frame = rp_render_frame(r, loop->outer);
        if (!frame)
            return false;
        int line = r->line;
        r->line = node->line;
        struct rp_value test = rp_value_none();
        if (rp_render_assign(r, frame, node->a, *out)) {
            r->frame = frame;
            r->line = node->c->line;
            test = rp_render_eval(r, node->c);
        }
        r->frame = inner;
        if (r->failed)
            return false;
        r->line = line;
        if (rp_value_truth(test))
            return true;
    }
    return false;
}

static bool peek(struct rp_trender *r, struct rp_tloop *loop) {
    if (!loop->has_after)
        loop->has_after = pull(r, loop, &loop->after);
    return loop->has_after;
}

static bool advance(struct rp_trender *r, struct rp_tloop *loop) {
    struct rp_value item = rp_value_none();
    if (loop->has_after)
        item = loop->after;
    else if (!pull(r, loop, &item))
        return false;
    loop->has_after = false;
    loop->index0++;
    loop->before = loop->current;
    loop->current = item;
    return true;
}

/* With a test the rest must be evaluated. */
static int64_t length(struct rp_trender *r, struct rp_tloop *loop) {
    if (!loop->node->c)
        return (int64_t)loop->items->count;
    struct rp_value rest = rp_tseq_make(&r->mem, RP_VALUE_LIST, 0), item;
    if (rest.type != RP_VALUE_LIST)
        return 0;
    if (!loop->filtered) {
        while (pull(r, loop, &item))
            rp_tseq_add(&r->mem, rest.u.seq, item);
        loop->items = rest.u.seq;
        loop->next = 0;
        loop->filtered = true;
        loop->length = (int64_t)rest.u.seq->count + loop->index0 + 1 + loop->has_after;
    }
    return loop->length;
}

static struct rp_value method(struct rp_trender *r, struct rp_tloop *loop, int which) {
    struct rp_value *self = rp_tmem_alloc(&r->mem, sizeof *self);
    if (!self)
        return rp_value_none();
    *self = (struct rp_value){.type = RP_VALUE_LOOP, .u.loop = loop};
    return (struct rp_value){.type = RP_VALUE_METHOD, .sub = (uint8_t)which, .u.self = self};
}

struct rp_value rp_render_loop_attribute(struct rp_trender *r, struct rp_tloop *loop,
                                         struct rp_value name, bool *found) {
    *found = true;
    if (rp_value_is(name, "index0"))
        return rp_value_int(loop->index0);
    if (rp_value_is(name, "index"))
        return rp_value_int(loop->index0 + 1);
    if (rp_value_is(name, "first"))
        return rp_value_bool(loop->index0 == 0);
    if (rp_value_is(name, "last"))
        return rp_value_bool(!peek(r, loop));
    if (rp_value_is(name, "length"))
        return rp_value_int(length(r, loop));
    if (rp_value_is(name, "revindex"))
        return rp_value_int(length(r, loop) - loop->index0);
    if (rp_value_is(name, "revindex0"))
        return rp_value_int(length(r, loop) - loop->index0 - 1);
    if (rp_value_is(name, "depth"))
        return rp_value_int(loop->depth0 + 1);
    if (rp_value_is(name, "depth0"))
        return rp_value_int(loop->depth0);
    if (rp_value_is(name, "previtem"))
        return loop->index0 == 0 ? rp_value_undefined(r, "there is no previous item")
                                 : loop->before;
    if (rp_value_is(name, "nextitem"))
        return peek(r, loop) ? loop->after : rp_value_undefined(r, "there is no next item");
    if (rp_value_is(name, "cycle"))
        return method(r, loop, RP_TM_CYCLE);
    if (rp_value_is(name, "changed"))
        return method(r, loop, RP_TM_CHANGED);
    *found = false;
    return rp_value_none();
}

/* A frame is used again for the next item unless a macro holds on to it. */
static struct rp_tframe *next_frame(struct rp_trender *r, struct rp_tframe *frame,
                                    struct rp_tframe *outer) {
    if (!frame || frame->captured)
        return rp_render_frame(r, outer);
    frame->count = 0;
    return frame;
}

static enum rp_tsignal run(struct rp_trender *r, struct rp_tloop *loop, bool *any) {
    const struct rp_template_node *node = loop->node;
    struct rp_tframe *frame = NULL, *inner = r->frame;
    enum rp_tsignal signal = RP_TS_NEXT;
    while (signal != RP_TS_BREAK) {
        r->line = node->line;
        if (!advance(r, loop) || !rp_render_charge(r, 1))
            break;
        frame = next_frame(r, frame, loop->outer);
        if (!frame || !rp_render_assign(r, frame, node->a, loop->current))
            break;
        rp_render_set(r, frame, r->tmpl->sym_loop,
                      (struct rp_value){.type = RP_VALUE_LOOP, .u.loop = loop});
        r->frame = frame;
        signal = rp_render_body(r, &node->list);
        r->frame = inner;
        *any = *any || signal == RP_TS_NEXT;
        if (r->failed)
            break;
    }
    r->frame = inner;
    return RP_TS_NEXT;
}

static void loop_over(struct rp_trender *r, const struct rp_template_node *node,
                      struct rp_tframe *outer, struct rp_value iterable, int64_t depth0) {
    struct rp_tloop *loop = rp_tmem_alloc(&r->mem, sizeof *loop);
    bool any = false;
    if (!loop)
        return;
    *loop = (struct rp_tloop){.node = node, .outer = outer, .index0 = -1, .depth0 = depth0};
    loop->items = rp_value_iterate(r, iterable);
    if (!loop->items)
        return;
    (void)run(r, loop, &any);
    if (any || r->failed || node->other.count == 0)
        return;
    struct rp_tframe *inner = r->frame;
    if (!(r->frame = rp_render_frame(r, outer))) {
        r->frame = inner;
        return;
    }
    (void)rp_render_body(r, &node->other);
    r->frame = inner;
}

enum rp_tsignal rp_render_for(struct rp_trender *r, const struct rp_template_node *node) {
    r->line = node->line;
    struct rp_value iterable = rp_render_eval(r, node->b);
    if (!r->failed)
        loop_over(r, node, r->frame, iterable, 0);
    return RP_TS_NEXT;
}

struct rp_value rp_render_recurse(struct rp_trender *r, struct rp_tloop *loop,
                                  struct rp_value iterable) {
    struct rp_tbuf buf, *outer_out = r->out;
    int line = r->line;
    if (!loop->node->recursive)
        return rp_render_fail(
            r, "TypeError", "The loop must have the 'recursive' marker to be called recursively.");
    if (!rp_render_enter(r))
        return rp_value_none();
    rp_tbuf_init(&buf, &r->mem);
    r->out = &buf;
    loop_over(r, loop->node, loop->outer, iterable, loop->depth0 + 1);
    r->out = outer_out;
    if (!r->failed)
        r->line = line;
    rp_render_leave(r);
    return r->failed ? rp_value_none() : rp_tbuf_finish(&buf);
}
