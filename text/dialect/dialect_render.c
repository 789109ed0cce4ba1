#include "base/json_writer.h"
#include "text/dialect/dialect_internal.h"

#include <stdio.h>
#include <string.h>

static int append(const char *bytes, size_t len, void *out) {
    rp_buffer_append(out, bytes, len);
    return 0;
}

static void put_json(struct rp_buffer *out, const json_t *value) {
    if (json_dump_callback(value, append, out, JSON_ENCODE_ANY) != 0)
        out->failed = true;
}

static void put_quoted(struct rp_buffer *out, const char *text) {
    rp_json_escape(out, text, strlen(text));
}

/* Python's literals, and Gemma's with `quote` around strings and bare keys. */
static void put_literal(struct rp_buffer *out, const json_t *value, const char *quote) {
    const char *key;
    size_t i;
    json_t *item;
    bool first = true;
    if (json_is_object(value)) {
        rp_buffer_puts(out, "{");
        json_object_foreach((json_t *)value, key, item) {
            rp_buffer_puts(out, first ? "" : quote[0] ? "," : ", ");
            first = false;
            if (!quote[0])
                put_quoted(out, key);
            else if (key[strcspn(key, " ,:{}[]()<>\"\n\t\r")] || !key[0])
                rp_buffer_printf(out, "%s%s%s", quote, key, quote);
            else
                rp_buffer_puts(out, key);
            rp_buffer_puts(out, quote[0] ? ":" : ": ");
            put_literal(out, item, quote);
        }
        rp_buffer_puts(out, "}");
    } else if (json_is_array(value)) {
        rp_buffer_puts(out, "[");
        json_array_foreach((json_t *)value, i, item) {
            rp_buffer_puts(out, i == 0 ? "" : quote[0] ? "," : ", ");
            put_literal(out, item, quote);
        }
        rp_buffer_puts(out, "]");
    } else if (json_is_string(value) && quote[0]) {
        rp_buffer_puts(out, quote);
        rp_buffer_append(out, json_string_value(value), json_string_length(value));
        rp_buffer_puts(out, quote);
    } else if (!quote[0] && (json_is_boolean(value) || json_is_null(value))) {
        rp_buffer_puts(out, json_is_null(value) ? "None" : json_is_true(value) ? "True" : "False");
    } else {
        put_json(out, value);
    }
}

static void put_parameters(struct rp_buffer *out, const struct rp_dialect *row,
                           const struct rp_dialect_call *call) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)call->arguments, key, value) {
        bool is_text = json_is_string(value), typed = row->raw_key_close[0] != '\0';
        rp_buffer_puts(out, row->key_open);
        rp_buffer_puts(out, key);
        rp_buffer_puts(out, typed && !is_text ? row->raw_key_close : row->key_close);
        if (is_text)
            rp_buffer_append(out, json_string_value(value), json_string_length(value));
        else
            put_json(out, value);
        rp_buffer_puts(out, row->value_close);
    }
}

static void put_pythonic(struct rp_buffer *out, const struct rp_dialect_call *call) {
    const char *key;
    json_t *value;
    bool first = true;
    rp_buffer_printf(out, "%s(", call->name);
    json_object_foreach((json_t *)call->arguments, key, value) {
        rp_buffer_printf(out, "%s%s=", first ? "" : ", ", key);
        put_literal(out, value, "");
        first = false;
    }
    rp_buffer_puts(out, ")");
}

static void put_harmony(struct rp_buffer *out, const struct rp_dialect *row,
                        const struct rp_dialect_call *call, bool first) {
    rp_buffer_printf(out, "%s<|channel|>commentary to=%s%s <|constrain|>json<|message|>",
                     first ? "" : "<|start|>assistant", row->name_prefix, call->name);
    put_json(out, call->arguments);
    rp_buffer_puts(out, "<|call|>");
}

static void put_call(struct rp_buffer *out, const struct rp_dialect *row,
                     const struct rp_dialect_call *call) {
    bool has_id = call->id && call->id[0];
    switch (row->shape) {
    case RP_CALL_JSON:
        rp_buffer_puts(out, row->bare ? "" : row->call_open);
        rp_buffer_puts(out, "{\"name\": ");
        put_quoted(out, call->name);
        rp_buffer_printf(out, ", \"%s\": ", row->arguments_key);
        put_json(out, call->arguments);
        if (has_id && row->id_rule == RP_CALL_ID_MISTRAL) {
            rp_buffer_puts(out, ", \"id\": ");
            put_quoted(out, call->id);
        }
        rp_buffer_puts(out, "}");
        break;
    case RP_CALL_NAMED:
        rp_buffer_puts(out, row->call_open);
        if (row->id_rule == RP_CALL_ID_FUNCTIONS && has_id)
            rp_buffer_puts(out, call->id);
        else
            rp_buffer_printf(out, "%s%s", row->name_prefix, call->name);
        if (row->id_open[0] && has_id)
            rp_buffer_printf(out, "%s%s", row->id_open, call->id);
        rp_buffer_puts(out, row->name_close);
        put_json(out, call->arguments);
        break;
    case RP_CALL_TAGGED:
        rp_buffer_printf(out, "%s%s%s", row->call_open, call->name, row->name_close);
        put_parameters(out, row, call);
        break;
    case RP_CALL_LITERAL:
        rp_buffer_printf(out, "%s%s", row->call_open, call->name);
        put_literal(out, call->arguments, row->quote);
        break;
    default:
        put_pythonic(out, call);
        break;
    }
    rp_buffer_puts(out, row->call_close);
}

int rp_dialect_render_calls(const struct rp_dialect *row, const struct rp_dialect_call *calls,
                            size_t count, struct rp_buffer *out) {
    if (row->shape == RP_CALL_NONE)
        return RP_STATUS_UNSUPPORTED;
    for (size_t i = 0; i < count; i++) {
        if (row->shape == RP_CALL_HARMONY) {
            put_harmony(out, row, &calls[i], i == 0);
            continue;
        }
        if (i > 0)
            rp_buffer_puts(out, row->separator);
        if (i == 0 || row->section_per_call)
            rp_buffer_puts(out, row->section_open);
        put_call(out, row, &calls[i]);
        if (i + 1 == count || row->section_per_call)
            rp_buffer_puts(out, row->section_close);
    }
    return out->failed ? RP_STATUS_NO_MEMORY : RP_OK;
}
