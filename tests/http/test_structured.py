"""Answers that must match a JSON Schema, a regular expression, a list of choices, a structural tag or a grammar: what is sampled always matches,
whatever the sampling, and everything that cannot be enforced is refused by the name of its field."""
import concurrent.futures
import json
import re

from reprise_server import DEMO, Server, skip

try:
    import jsonschema
except ImportError:
    skip("jsonschema is not installed")

PERSON = {"type": "object",
          "properties": {"name": {"type": "string", "maxLength": 12},
                         "age": {"type": "integer", "minimum": 0, "maximum": 150},
                         "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
                         "home": {"anyOf": [{"type": "null"},
                                            {"type": "object", "properties": {"zip": {"type": "string",
                                                                                      "pattern": "^[0-9]{5}$"}},
                                             "required": ["zip"], "additionalProperties": False}]}},
          "required": ["name", "age", "tags", "home"], "additionalProperties": False}
TREE = {"$ref": "#/$defs/node",
        "$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer", "minimum": 0, "maximum": 9},
                                                            "next": {"anyOf": [{"type": "null"},
                                                                               {"$ref": "#/$defs/node"}]}},
                           "required": ["v", "next"], "additionalProperties": False}}}


def schema_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def complete(server, **fields):
    status, answer = server.post("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 200, **fields})
    assert status == 200, answer
    return answer


def check_choice(choice, check):
    """A whole answer matches; one that was cut off by max_tokens says so."""
    assert choice["finish_reason"] in ("stop", "length"), choice
    if choice["finish_reason"] == "stop":
        check(choice["text"])
    return choice["finish_reason"] == "stop"


def check_json(schema):
    return lambda text: jsonschema.validate(json.loads(text), schema)


def check_matching_answers(server):
    whole = 0
    for schema in (PERSON, TREE):
        for seed in range(6):
            answer = complete(server, response_format=schema_format(schema), seed=seed, temperature=1.5, n=2)
            whole += sum(check_choice(choice, check_json(schema)) for choice in answer["choices"])
    assert whole >= 8, whole
    greedy = complete(server, response_format=schema_format(PERSON), temperature=0, logprobs=3)
    assert greedy == {**complete(server, response_format=schema_format(PERSON), temperature=0, logprobs=3),
                      "id": greedy["id"], "created": greedy["created"]}


def check_every_spelling(server):
    pattern, choices = "[a-c]{3}-[0-9]{2,4}", ["yes", "no", "maybe so"]
    matches = lambda text: re.fullmatch(pattern, text) or 1 / 0
    for fields, check in (
            ({"guided_json": PERSON}, check_json(PERSON)), ({"guided_json": json.dumps(PERSON)}, check_json(PERSON)),
            ({"json_schema": json.dumps(PERSON)}, check_json(PERSON)),
            ({"structured_outputs": {"json": PERSON, "regex": None}}, check_json(PERSON)),
            ({"structured_outputs": {"regex": pattern}}, matches), ({"guided_regex": pattern}, matches),
            ({"regex": pattern}, matches), ({"guided_choice": choices}, choices.index),
            ({"structured_outputs": {"choice": choices}}, choices.index),
            ({"response_format": {"type": "json_object"}}, check_json({"type": "object"})),
            ({"structured_outputs": {"json_object": True}}, check_json({"type": "object"}))):
        for seed in range(2):
            answer = complete(server, seed=seed, **fields)
            whole = check_choice(answer["choices"][0], check)
            assert whole or "json_object" in json.dumps(fields), (fields, answer)
    free = complete(server, temperature=0)
    assert complete(server, temperature=0, response_format={"type": "text"})["choices"] == free["choices"]


TAG = {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<call"], "at_least_one": True, "stop_after_first": True,
       "tags": [{"type": "tag", "begin": f"<call={name}>", "end": "</call>",
                 "content": {"type": "json_schema", "json_schema": {"type": "object", "properties": {
                     "n": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["n"], "additionalProperties": False}}}
                for name in ("add", "and", "sub")]}}
OLDER_TAG = {"type": "structural_tag", "triggers": ["<"],
             "structures": [{"begin": "<n>", "schema": {"type": "integer", "minimum": 0, "maximum": 9}, "end": "</n>"}]}
GBNF = 'root ::= item (", " item){1,2}\nitem ::= [a-c]{2} | "(" root ")"\n'
LARK = 'start: WORD ("+" WORD)~1..2\n%import common.INT -> WORD\n%ignore " "\n'


def check_tags_and_grammars(server):
    nested = re.compile(r"[a-c]{2}(, [a-c]{2}){1,2}")

    def check_gbnf(text):
        while "(" in text:
            shorter = re.sub(r"\([a-c]{2}(, [a-c]{2}){1,2}\)", "aa", text)
            assert shorter != text, text
            text = shorter
        assert nested.fullmatch(text), text
    check_call = lambda text: (lambda found: found and json.loads(found.group(2))["n"] in range(100) or 1 / 0)(
        re.fullmatch(r"<call=(add|and|sub)>(.*)</call>", text, re.S))
    check_older = lambda text: "<" not in re.sub("<n>[0-9]</n>", "", text) or 1 / 0
    check_sum = lambda text: re.fullmatch(r" *[0-9]+ *(\+ *[0-9]+ *){1,2}", text) or 1 / 0
    whole = 0
    for fields, check in (
            ({"response_format": TAG}, check_call), ({"structured_outputs": {"structural_tag": json.dumps(TAG)}}, check_call),
            ({"structural_tag": TAG["format"]}, check_call), ({"response_format": OLDER_TAG}, check_older),
            ({"grammar": GBNF}, check_gbnf), ({"ebnf": GBNF}, check_gbnf), ({"guided_grammar": GBNF}, check_gbnf),
            ({"structured_outputs": {"grammar": LARK}}, check_sum)):
        for seed in range(3):
            whole += check_choice(complete(server, seed=seed, temperature=1.2, max_tokens=60, **fields)["choices"][0], check)
    assert whole >= 12, whole


def check_sampling_fields(server):
    """Fields that restrict or end answers work together with a grammar."""
    answer = complete(server, guided_regex="[a-z]*", ignore_eos=True, max_tokens=30)
    assert answer["choices"][0]["finish_reason"] == "length" and answer["usage"]["completion_tokens"] == 30, answer
    answer = complete(server, guided_regex="abc", ignore_eos=True)
    assert answer["choices"][0]["text"] == "abc" and answer["choices"][0]["finish_reason"] == "stop", answer
    answer = complete(server, guided_regex="abc", min_tokens=20)
    assert answer["choices"][0]["text"] == "abc" and answer["choices"][0]["finish_reason"] == "stop", answer
    answer = complete(server, guided_regex="[a-z]{4,9};[0-9]+", stop=";")
    assert re.fullmatch("[a-z]{4,9}", answer["choices"][0]["text"]), answer
    status, answer = server.post("/v1/completions", {"prompt": "x", "guided_regex": "[a-z]+", "allowed_token_ids": [5]})
    assert status == 500 and answer["error"]["code"] == "grammar_dead_end", answer
    for penalty in ({"repetition_penalty": 1.3}, {"frequency_penalty": 2, "presence_penalty": 2}, {"top_k": 1},
                    {"min_p": 0.9}, {"top_p": 0.1}, {"logit_bias": {"17": 100}}):
        answer = complete(server, guided_regex="(aa|bb|cc){5}", **penalty)
        assert re.fullmatch("(aa|bb|cc){5}", answer["choices"][0]["text"]), (penalty, answer)


def check_stream(server):
    body = {"messages": [{"role": "user", "content": "Who are you?"}], "response_format": schema_format(PERSON),
            "stream": True, "temperature": 1, "seed": 3, "max_completion_tokens": 200}
    status, _, raw = server.request("POST", "/v1/chat/completions", body)
    assert status == 200, raw
    frames = [json.loads(line[6:]) for line in raw.decode().splitlines() if line.startswith("data: {")]
    text = "".join(frame["choices"][0]["delta"].get("content") or "" for frame in frames if frame["choices"])
    body["stream"] = False
    status, whole = server.post("/v1/chat/completions", body)
    assert status == 200 and whole["choices"][0]["message"]["content"] == text, (text, whole)
    if whole["choices"][0]["finish_reason"] == "stop":
        check_json(PERSON)(text)


def check_company(server):
    """Rows with and without grammars in the same steps do not affect each other, at more requests than slots."""
    def ask(i):
        kind = i % 4
        fields = ({"guided_regex": "([a-f]{2} ){3,9}"}, {"response_format": schema_format(PERSON)}, {},
                  {"guided_choice": ["alpha", "beta", "alphabet soup"]})[kind]
        return complete(server, seed=i // 4, max_tokens=60, temperature=1, **fields)["choices"]

    alone = [ask(i) for i in range(16)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(16))) == alone


def check_refusals(server):
    for fields, param, words in (
            ({"guided_json": {"type": "string", "contentMediaType": "x", "not": {"type": "string"}}}, "guided_json", "not"),
            ({"response_format": schema_format({"type": "frog"})}, "response_format.json_schema.schema", "type"),
            ({"guided_regex": "(?=a)b"}, "guided_regex", ""), ({"guided_regex": r"(a)\1"}, "guided_regex", ""),
            ({"guided_regex": "(" * 50}, "guided_regex", ""), ({"guided_regex": 7}, "guided_regex", "string"),
            ({"guided_choice": []}, "guided_choice", "list"), ({"guided_choice": [1]}, "guided_choice", "strings"),
            ({"guided_json": "{"}, "guided_json", "JSON Schema"), ({"guided_json": 3}, "guided_json", "JSON Schema"),
            ({"guided_json": {}, "guided_regex": "a"}, "guided_regex", "guided_json"),
            ({"structured_outputs": {"jsn": {}}}, "structured_outputs", "json"),
            ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "schema"),
            ({"response_format": {"type": "xml"}}, "response_format.type", "json_object"),
            ({"response_format": 3}, "response_format", "type"),
            ({"response_format": {"type": "structural_tag"}}, "response_format", "unknown format"),
            ({"structural_tag": {"type": "const_string", "value": "a", "x": 1}}, "structural_tag", '"x"'),
            ({"grammar": "root ::= b"}, "grammar", "line 1: no definition of b"), ({"ebnf": 1}, "ebnf", "GBNF"),
            ({"guided_grammar": "start: /(?=a)/"}, "guided_grammar", "look-ahead"),
            ({"structured_outputs": {"grammar": "start: start"}}, "structured_outputs.grammar", "no text")):
        status, answer = server.post("/v1/completions", {"prompt": "x", **fields})
        assert status == 400, (fields, answer)
        assert answer["error"]["param"] == param and words in answer["error"]["message"], (fields, answer)


def check_masks_are_shared(server):
    """The same answer again needs no mask that the device does not have, also without the end ids of the model."""
    for fields in ({}, {"ignore_eos": True}):
        body = {"prompt": "a", "max_tokens": 20, "temperature": 1, "seed": 3, "structured_outputs": {"json": {"type": "array"}}, **fields}
        placed = []
        for _ in range(2):
            before = server.metrics()["reprise_masks_placed_total"]
            assert server.post("/v1/completions", body)[0] == 200
            placed.append(server.metrics()["reprise_masks_placed_total"] - before)
        assert placed[0] > 0 and placed[1] == 0, (fields, placed)


def check_metrics(server):
    text = server.get("/metrics")[1]
    value = lambda name: float(re.search(rf"^{name} (\S+)$", text, re.M).group(1))
    assert value("reprise_grammar_cache_hits_total") > 10 and value("reprise_grammar_cache_misses_total") > 5
    assert value("reprise_grammar_refused_total") >= 5
    assert value("reprise_grammar_mask_seconds_count") > 500
    assert 'reprise_grammar_failed_answers_total{reason="dead_end"} 1' in text, text


def main():
    with Server(DEMO, "--max-num-seqs", "8", "--mask-deadline-ms", "600000") as server:
        for check in (check_matching_answers, check_every_spelling, check_tags_and_grammars, check_sampling_fields,
                      check_stream, check_company, check_refusals, check_masks_are_shared, check_metrics):
            check(server)
            print("ok", check.__name__[6:], flush=True)


main()
