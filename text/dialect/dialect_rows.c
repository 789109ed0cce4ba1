#include "base/hash.h"
#include "text/dialect/dialect_internal.h"

#include <string.h>

/* Members that a row does not name are "". */
#define ROW(...)                                                                                   \
    {                                                                                              \
        .tool_parser = "", .reasoning_parser = "", .clues = "", .reasoning_open = "",              \
        .reasoning_close = "", .section_open = "", .section_close = "", .call_open = "",           \
        .call_close = "", .separator = "", .name_prefix = "", .name_close = "", .id_open = "",     \
        .arguments_key = "arguments", .key_open = "", .key_close = "", .value_close = "",          \
        .raw_key_close = "", .quote = "", __VA_ARGS__                                              \
    }
#define THINK .reasoning_open = "<think>\n", .reasoning_close = "\n</think>\n\n"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverride-init"

/* In the order of detection: rows with rare clues come first. In `clues`, one line must be found
 * whole; its parts between tabs are found each. The formats are those of the models' chat templates
 * and of their makers' descriptions. */
static const struct rp_dialect rows[] = {
    ROW(.name = "harmony", .tool_parser = "openai gpt_oss gpt-oss",
        .reasoning_parser = "openai_gptoss gpt_oss gpt-oss", .clues = "<|channel|>\t<|message|>",
        .shape = RP_CALL_HARMONY, .name_prefix = "functions."),
    ROW(.name = "deepseek_v32", .tool_parser = "deepseek_v32", .clues = "｜DSML｜", THINK,
        .shape = RP_CALL_TAGGED, .section_open = "<｜DSML｜function_calls>\n",
        .section_close = "\n</｜DSML｜function_calls>", .call_open = "<｜DSML｜invoke name=\"",
        .name_close = "\">\n", .call_close = "</｜DSML｜invoke>", .separator = "\n",
        .key_open = "<｜DSML｜parameter name=\"", .key_close = "\" string=\"true\">",
        .raw_key_close = "\" string=\"false\">", .value_close = "</｜DSML｜parameter>\n"),
    ROW(.name = "deepseek_v3", .tool_parser = "deepseek_v3", .clues = "<｜tool▁sep｜>\t```json",
        THINK, .shape = RP_CALL_NAMED, .section_open = "<｜tool▁calls▁begin｜>",
        .section_close = "<｜tool▁calls▁end｜>",
        .call_open = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", .name_close = "\n```json\n",
        .call_close = "\n```<｜tool▁call▁end｜>", .separator = "\n"),
    ROW(.name = "deepseek_v31", .tool_parser = "deepseek_v31", .clues = "<｜tool▁sep｜>", THINK,
        .shape = RP_CALL_NAMED, .section_open = "<｜tool▁calls▁begin｜>",
        .section_close = "<｜tool▁calls▁end｜>", .call_open = "<｜tool▁call▁begin｜>",
        .name_close = "<｜tool▁sep｜>", .call_close = "<｜tool▁call▁end｜>"),
    ROW(.name = "kimi_k2", .tool_parser = "kimi_k2", .reasoning_parser = "kimi_k2",
        .clues = "<|tool_calls_section_begin|>", THINK, .shape = RP_CALL_NAMED,
        .id_rule = RP_CALL_ID_FUNCTIONS, .section_open = "<|tool_calls_section_begin|>",
        .section_close = "<|tool_calls_section_end|>", .call_open = "<|tool_call_begin|>",
        .name_prefix = "functions.", .name_close = "<|tool_call_argument_begin|>",
        .call_close = "<|tool_call_end|>"),
    ROW(.name = "minimax_m2", .tool_parser = "minimax_m2",
        .reasoning_parser = "minimax_m2 minimax_m2_append_think", .clues = "<minimax:tool_call>",
        THINK, .shape = RP_CALL_TAGGED, .section_open = "<minimax:tool_call>\n",
        .section_close = "\n</minimax:tool_call>", .call_open = "<invoke name=\"",
        .name_close = "\">\n", .call_close = "</invoke>", .separator = "\n",
        .key_open = "<parameter name=\"", .key_close = "\">", .value_close = "</parameter>\n"),
    ROW(.name = "seed_oss", .tool_parser = "seed_oss", .reasoning_parser = "seed_oss",
        .clues = "<seed:tool_call>", .reasoning_open = "<seed:think>",
        .reasoning_close = "</seed:think>", .shape = RP_CALL_TAGGED,
        .section_open = "<seed:tool_call>\n", .section_close = "\n</seed:tool_call>",
        .call_open = "<function=", .name_close = ">\n", .call_close = "</function>",
        .separator = "\n", .key_open = "<parameter=", .key_close = ">",
        .value_close = "</parameter>\n", .section_per_call = true),
    ROW(.name = "qwen3_coder", .tool_parser = "qwen3_coder qwen3_xml step3p5 nemotron_v3",
        .clues = "<parameter=", THINK, .shape = RP_CALL_TAGGED, .section_open = "<tool_call>\n",
        .section_close = "\n</tool_call>", .call_open = "<function=", .name_close = ">\n",
        .call_close = "</function>", .separator = "\n", .key_open = "<parameter=",
        .key_close = ">\n", .value_close = "\n</parameter>\n", .section_per_call = true),
    ROW(.name = "glm45", .tool_parser = "glm45 glm47", .reasoning_parser = "glm45",
        .clues = "<arg_key>", THINK, .shape = RP_CALL_TAGGED, .call_open = "<tool_call>",
        .call_close = "</tool_call>", .separator = "\n", .name_close = "\n",
        .key_open = "<arg_key>", .key_close = "</arg_key>\n<arg_value>",
        .value_close = "</arg_value>\n"),
    ROW(.name = "gemma4", .tool_parser = "gemma4", .reasoning_parser = "gemma4",
        .clues = "<|tool_call>", .reasoning_open = "<|channel>thought\n",
        .reasoning_close = "<channel|>", .shape = RP_CALL_LITERAL,
        .call_open = "<|tool_call>call:", .call_close = "<tool_call|>", .quote = "<|\"|>"),
    ROW(.name = "functiongemma", .tool_parser = "functiongemma", .clues = "<start_function_call>",
        .shape = RP_CALL_LITERAL, .call_open = "<start_function_call>call:",
        .call_close = "<end_function_call>", .quote = "<escape>"),
    ROW(.name = "lfm2", .tool_parser = "lfm2", .clues = "<|tool_call_start|>", THINK,
        .shape = RP_CALL_PYTHONIC, .section_open = "<|tool_call_start|>[",
        .section_close = "]<|tool_call_end|>", .separator = ", "),
    ROW(.name = "olmo3", .tool_parser = "olmo3", .reasoning_parser = "olmo3",
        .clues = "<function_calls>", THINK, .shape = RP_CALL_PYTHONIC,
        .section_open = "<function_calls>", .section_close = "</function_calls>",
        .separator = "\n"),
    ROW(.name = "llama4_pythonic", .tool_parser = "llama4_pythonic", .clues = "<|python_start|>",
        .shape = RP_CALL_PYTHONIC, .section_open = "<|python_start|>[",
        .section_close = "]<|python_end|>", .separator = ", "),
    ROW(.name = "pythonic", .tool_parser = "pythonic", .clues = "[func_name1(",
        .shape = RP_CALL_PYTHONIC, .section_open = "[", .section_close = "]", .separator = ", ",
        .bare = true),
    ROW(.name = "llama3_json", .tool_parser = "llama3_json llama4_json",
        .clues = "<|python_tag|>\ndictionary of argument name and its value", .shape = RP_CALL_JSON,
        .call_open = "<|python_tag|>", .separator = "; ", .arguments_key = "parameters",
        .bare = true),
    ROW(.name = "mistral_v11", .tool_parser = "mistral", .reasoning_parser = "mistral",
        .clues = "[TOOL_CALLS]\t[CALL_ID]", .reasoning_open = "[THINK]",
        .reasoning_close = "[/THINK]", .shape = RP_CALL_NAMED, .id_rule = RP_CALL_ID_MISTRAL,
        .call_open = "[TOOL_CALLS]", .id_open = "[CALL_ID]", .name_close = "[ARGS]"),
    ROW(.name = "mistral_v13", .tool_parser = "mistral", .clues = "[TOOL_CALLS]\t[ARGS]",
        .reasoning_open = "[THINK]", .reasoning_close = "[/THINK]", .shape = RP_CALL_NAMED,
        .id_rule = RP_CALL_ID_MISTRAL, .call_open = "[TOOL_CALLS]", .name_close = "[ARGS]"),
    ROW(.name = "mistral", .tool_parser = "mistral", .clues = "[TOOL_CALLS]", .shape = RP_CALL_JSON,
        .id_rule = RP_CALL_ID_MISTRAL, .section_open = "[TOOL_CALLS][", .section_close = "]",
        .separator = ", "),
    ROW(.name = "phi4_functools", .tool_parser = "phi4_mini_json", .clues = "functools",
        .shape = RP_CALL_JSON, .section_open = "functools[", .section_close = "]",
        .separator = ", "),
    ROW(.name = "phi4_mini", .tool_parser = "phi4_mini_json", .clues = "<|/tool_call|>",
        .shape = RP_CALL_JSON, .section_open = "<|tool_call|>[", .section_close = "]<|/tool_call|>",
        .separator = ", "),
    ROW(.name = "granite", .tool_parser = "granite", .reasoning_parser = "granite",
        .clues = "<|tool_call|>", .reasoning_open = "Here is my thought process:",
        .reasoning_close = "Here is my response:", .shape = RP_CALL_JSON,
        .section_open = "<|tool_call|>[", .section_close = "]", .separator = ", "),
    ROW(.name = "apertus", .clues = "<|tools_prefix|>", .shape = RP_CALL_NAMED,
        .section_open = "<|tools_prefix|>[", .section_close = "]<|tools_suffix|>",
        .call_open = "{\"", .name_close = "\": ", .call_close = "}", .separator = ", "),
    ROW(.name = "internlm", .tool_parser = "internlm", .clues = "<|action_start|>",
        .shape = RP_CALL_JSON, .call_open = "<|action_start|><|plugin|>\n",
        .call_close = "<|action_end|>", .arguments_key = "parameters"),
    ROW(.name = "hunyuan", .tool_parser = "hunyuan_a13b jamba", .reasoning_parser = "hunyuan_a13b",
        .clues = "<tool_calls>[", THINK, .shape = RP_CALL_JSON, .section_open = "<tool_calls>[",
        .section_close = "]</tool_calls>", .separator = ", "),
    ROW(.name = "minimax", .tool_parser = "minimax", .clues = "<tool_calls>", THINK,
        .shape = RP_CALL_JSON, .section_open = "<tool_calls>\n", .section_close = "\n</tool_calls>",
        .separator = "\n"),
    ROW(.name = "longcat", .tool_parser = "longcat", .clues = "<longcat_tool_call>",
        .reasoning_open = "<longcat_think>\n", .reasoning_close = "\n</longcat_think>\n",
        .shape = RP_CALL_JSON, .call_open = "<longcat_tool_call>",
        .call_close = "</longcat_tool_call>", .separator = "\n"),
    ROW(.name = "hermes", .tool_parser = "hermes granite4 ernie45 qwen25 qwen",
        .reasoning_parser = "qwen3", .clues = "<tool_call>", THINK, .shape = RP_CALL_JSON,
        .call_open = "<tool_call>\n", .call_close = "\n</tool_call>", .separator = "\n"),
    ROW(.name = "xlam", .tool_parser = "xlam", .shape = RP_CALL_JSON, .section_open = "[",
        .section_close = "]", .separator = ", ", .bare = true),
    /* No calls of their own. */
    ROW(.name = "think",
        .reasoning_parser = "deepseek_r1 deepseek_v3 nemotron_v3 holo2 step3 step3p5 ernie45",
        THINK),
    ROW(.name = "cohere", .reasoning_parser = "cohere_command3 cohere",
        .reasoning_open = "<|START_THINKING|>", .reasoning_close = "<|END_THINKING|>"),
};
#pragma GCC diagnostic pop

size_t rp_dialect_count(void) { return RP_ARRAY_COUNT(rows); }
const struct rp_dialect *rp_dialect_at(size_t index) { return &rows[index]; }

/* Whether a list separated by spaces has the word. */
static bool has_word(const char *list, const char *word) {
    size_t len = strlen(word);
    for (const char *at = list; len && (at = strstr(at, word)); at += len)
        if ((at == list || at[-1] == ' ') && (at[len] == ' ' || at[len] == '\0'))
            return true;
    return false;
}

const struct rp_dialect *rp_dialect_find(const char *name) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(rows); i++)
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    for (size_t i = 0; i < RP_ARRAY_COUNT(rows); i++)
        if (has_word(rows[i].tool_parser, name))
            return &rows[i];
    return NULL;
}

const struct rp_dialect *rp_dialect_find_reasoning(const char *name) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(rows); i++)
        if (has_word(rows[i].reasoning_parser, name))
            return &rows[i];
    for (size_t i = 0; i < RP_ARRAY_COUNT(rows); i++)
        if (strcmp(rows[i].name, name) == 0 && rows[i].reasoning_open[0])
            return &rows[i];
    return NULL;
}

static bool found_in(const char *text, size_t len, const char *part, size_t part_len) {
    for (size_t at = 0; part_len && at + part_len <= len; at++)
        if (memcmp(text + at, part, part_len) == 0)
            return true;
    return false;
}

/* The parts of a line, in the template or being special tokens. */
static bool line_fits(const char *line, size_t len, const char *text, const char *const *specials,
                      size_t special_count) {
    while (len > 0) {
        const char *tab = memchr(line, '\t', len);
        size_t part = tab ? (size_t)(tab - line) : len;
        bool found = text && found_in(text, strlen(text), line, part);
        for (size_t i = 0; !text && !found && i < special_count; i++)
            found = found_in(specials[i], strlen(specials[i]), line, part);
        if (!found)
            return false;
        line += part + (tab != NULL);
        len -= part + (tab != NULL);
    }
    return true;
}

static bool row_fits(const struct rp_dialect *row, const char *text, const char *const *specials,
                     size_t special_count) {
    for (const char *line = row->clues; *line;) {
        size_t len = strcspn(line, "\n");
        if (line_fits(line, len, text, specials, special_count))
            return true;
        line += len + (line[len] == '\n');
    }
    return false;
}

const struct rp_dialect *rp_dialect_detect(const char *name, const char *template_text,
                                           const char *const *specials, size_t special_count) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(rows); i++)
        if ((!name || strcmp(rows[i].name, name) == 0 || has_word(rows[i].tool_parser, name)) &&
            row_fits(&rows[i], template_text, specials, special_count))
            return &rows[i];
    return name ? rp_dialect_find(name) : NULL;
}

const struct rp_dialect *rp_dialect_detect_reasoning(const char *template_text) {
    static const char *const names[] = {"harmony", "seed_oss",    "longcat", "cohere",
                                        "gemma4",  "mistral_v11", "think"};
    for (size_t i = 0; i < RP_ARRAY_COUNT(names); i++) {
        const struct rp_dialect *row = rp_dialect_find(names[i]);
        bool harmony = row->shape == RP_CALL_HARMONY;
        size_t len = strcspn(row->reasoning_open, "\n");
        if (harmony ? row_fits(row, template_text, NULL, 0)
                    : found_in(template_text, strlen(template_text), row->reasoning_open, len))
            return row;
    }
    return NULL;
}

void rp_dialect_call_id(const struct rp_dialect *row, const char *name, uint32_t index,
                        const uint64_t random[3], char out[RP_CALL_ID_BYTES]) {
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    if (row->id_rule == RP_CALL_ID_FUNCTIONS) {
        size_t len = RP_MIN(strlen(name), (size_t)64);
        memcpy(out, "functions.", 10);
        memcpy(out + 10, name, len);
        char digits[12];
        int at = sizeof digits;
        digits[--at] = '\0';
        do
            digits[--at] = (char)('0' + index % 10);
        while ((index /= 10) > 0);
        out[10 + len] = ':';
        memcpy(out + 11 + len, digits + at, sizeof digits - (size_t)at);
        return;
    }
    size_t prefix = row->id_rule == RP_CALL_ID_OPENAI ? 5 : 0;
    size_t count = row->id_rule == RP_CALL_ID_OPENAI ? 24 : 9;
    uint64_t bits[3] = {random[0], random[1], random[2]};
    memcpy(out, "call_", prefix);
    for (size_t i = 0; i < count; i++) { /* a letter has 5.95 bits: 9, 10 and 5 from the words */
        uint64_t *word = &bits[i < 9 ? 0 : i < 19 ? 1 : 2];
        out[prefix + i] = letters[*word % 62];
        *word /= 62;
    }
    out[prefix + count] = '\0';
}

uint64_t rp_dialect_call_number(const uint64_t key[2], uint64_t count) {
    const uint64_t half = (1u << 26) - 1;
    uint64_t left = count >> 26 & half, right = count & half;
    for (uint64_t round = 0; round < 6; round++) { /* Feistel: a permutation of 52 bits */
        const uint64_t words[3] = {key[1], round, right};
        uint64_t mixed = left ^ (rp_hash64(words, sizeof words, key[0]) & half);
        left = right;
        right = mixed;
    }
    return left << 26 | right;
}
