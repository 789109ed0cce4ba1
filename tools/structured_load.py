#!/usr/bin/env python3
"""What structured output costs: sends requests at once, none, one or all of them with a JSON Schema, in turns, and prints the time
per token.

    tools/structured_load.py http://127.0.0.1:8000 [--requests 128] [--tokens 256] [--rounds 3]

Each request is a completion with ignore_eos and temperature 1, so all have the same length and random text. A schema is an array
longer than any answer: no answer ends early. The time per token is the mean over requests of what the server reports
(include_timing). Standard library only."""
import argparse
import json
import statistics
import sys
import threading
import time
import urllib.request

ITEMS = 4096
ITEM = {"type": "object", "additionalProperties": False}
SCHEMAS = [
    {"type": "array", "minItems": ITEMS, "items": {**ITEM, "required": ["name", "age"], "properties": {
        "name": {"type": "string", "maxLength": 40}, "age": {"type": "integer", "minimum": 0, "maximum": 150}}}},
    {"type": "array", "minItems": ITEMS, "items": {**ITEM, "required": ["kind", "on"], "properties": {
        "kind": {"enum": ["lamp", "door", "window", "heating"]}, "on": {"type": "boolean"}}}},
    {"type": "array", "minItems": ITEMS, "items": {**ITEM, "required": ["tags"], "properties": {
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{3,12}$"}},
        "note": {"type": "string"}}}},
    {"type": "array", "minItems": ITEMS,
     "items": {"anyOf": [{"type": "number"}, {"type": "string", "maxLength": 20}, {"type": "null"}]}},
]


def post(url, body):
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def run(options, with_schema, offset):
    answers = [None] * options.requests

    def one(i):
        body = {"prompt": f"request {offset + i}: ", "max_tokens": options.tokens, "temperature": 1, "seed": offset + i,
                "ignore_eos": True, "include_timing": True}
        if i < with_schema:
            body["structured_outputs"] = {"json": SCHEMAS[i % len(SCHEMAS)]}
        answers[i] = post(options.url, body)
    threads = [threading.Thread(target=one, args=(i,)) for i in range(options.requests)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - began
    counts = [answer["usage"]["completion_tokens"] for answer in answers]
    tokens = sum(counts)
    if min(counts) != options.tokens:
        sys.exit(f"an answer ended after {min(counts)} of {options.tokens} tokens")
    each = [1000 * answer["timing"]["time_per_output_token_seconds"] for answer in answers]
    return statistics.mean(each), tokens / seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("url")
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    cases = {"no schema": 0, "one schema": 1, "all schemas": options.requests}
    seen = {name: [] for name in cases}
    for name, count in cases.items():  # compiles the grammars
        run(options, count, 1 << 20)
    for turn in range(options.rounds):
        for name, count in cases.items():
            seen[name].append(run(options, count, turn * options.requests))
    for name, results in seen.items():
        print(f"{name:12} ms per token {', '.join(f'{ms:.3f}' for ms, _ in results)}; tokens/s "
              f"{', '.join(f'{rate:,.0f}' for _, rate in results)}")


main()
