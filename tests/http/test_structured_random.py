"""Random schemas against two other implementations: what the server samples under a schema satisfies jsonschema, and
llguidance accepts the text where it supports the schema. Schemas and seeds are fixed."""
import json
import random

from reprise_server import DEMO, Server, skip

try:
    import jsonschema
except ImportError:
    skip("jsonschema is not installed")
try:
    from llguidance import LLMatcher, LLTokenizer
except ImportError:
    LLMatcher = None

SCHEMAS, ANSWERS = 60, 2


def number(pick):
    low = pick.randrange(-40, 40)
    return pick.choice([{"type": "integer", "minimum": low, "maximum": low + pick.randrange(1, 300)},
                        {"type": "number", "exclusiveMinimum": low / 4, "maximum": low / 4 + 2},
                        {"type": "integer", "multipleOf": pick.choice([2, 3, 7]), "minimum": 0, "maximum": 999}])


def text(pick):
    return pick.choice([{"type": "string", "maxLength": pick.randrange(1, 9)},
                        {"type": "string", "minLength": 2, "maxLength": 5, "pattern": "^[a-f]+"},
                        {"type": "string", "pattern": "^(ab|cd)?[0-9]{1,3}$"}, {"type": "string", "format": "date"},
                        {"enum": pick.sample(["red", "a\"b", "\u00e9", 1, 2.5, None, True], 3)}])


def schema_of(pick, depth):
    kind = pick.randrange(6 if depth else 3)
    if kind < 2:
        return number(pick) if kind else text(pick)
    if kind == 2:
        return {"type": ["boolean", "null"]} if pick.randrange(2) else {"const": pick.choice([[1, 2], {"k": 0}, "x"])}
    if kind == 3:
        least = pick.randrange(3)
        return {"type": "array", "items": schema_of(pick, depth - 1), "minItems": least, "maxItems": least + 1}
    if kind == 4:
        return {"anyOf": [schema_of(pick, depth - 1), schema_of(pick, depth - 1)]}
    names = pick.sample(["a", "b", "long name", "\u00fc", "q\"", "z"], pick.randrange(1, 4))
    return {"type": "object", "properties": {name: schema_of(pick, depth - 1) for name in names},
            "required": pick.sample(names, pick.randrange(len(names) + 1)), "additionalProperties": False}


def other_accepts(matcher, tokenizer, text_):
    tokens = tokenizer.tokenize_str(text_)
    matcher.reset()
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def main():
    pick, whole, compared = random.Random(5), 0, 0
    tokenizer = LLTokenizer("byte") if LLMatcher else None
    with Server(DEMO, "--max-num-seqs", "8") as server:
        for _ in range(SCHEMAS):
            schema = schema_of(pick, 3)
            status, answer = server.post("/v1/completions", {
                "prompt": "1 + 2", "guided_json": schema, "n": ANSWERS, "seed": pick.randrange(1000), "temperature": 1.5,
                "max_tokens": 120})
            assert status == 200, (schema, answer)
            matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(schema)) if LLMatcher else None
            for choice in answer["choices"]:
                if choice["finish_reason"] != "stop":
                    continue
                jsonschema.validate(json.loads(choice["text"]), schema)
                whole += 1
                if matcher and not matcher.is_error():
                    compared += 1
                    assert other_accepts(matcher, tokenizer, choice["text"]), (schema, choice["text"])
    assert whole >= SCHEMAS, whole
    assert not LLMatcher or compared >= SCHEMAS // 2, compared
    print(f"{whole} answers, {compared} also by llguidance")


main()
