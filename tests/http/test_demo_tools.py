"""The demo model calls tools and writes JSON: it calls a tool of the request and answers from the result, answers by itself when no
tool fits, and fills in a JSON Schema with the right values. The prompts are those of its training."""
import json
import os
import subprocess
import sys

from reprise_server import BIN, DEMO, SOURCE, Server

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(SOURCE, "tools"))

import demo_chats

CHAT = "/v1/chat/completions"


def function(name, description, **properties):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": {k: {"type": v} for k, v in properties.items()}, "required": list(properties)}}}


WEATHER = function("get_weather", "The weather in a city.", city="string")
CALCULATOR = function("calculator", "Evaluates an expression.", expression="string")
ADD = function("add", "Adds two numbers.", a="number", b="number")


def user(text):
    return {"role": "user", "content": text}


def chat(server, messages, tools=(), **fields):
    body = {"messages": messages, "temperature": 0, "max_tokens": 150, **fields}
    if tools:
        body["tools"] = list(tools)
    status, answer = server.post(CHAT, body)
    assert status == 200, answer
    return answer["choices"][0]


def calls(choice):
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in choice["message"].get("tool_calls") or []]


def test_the_template_writes_the_prompts_of_the_training(_):
    with open(os.path.join(DEMO, "chat_template.jinja"), encoding="utf-8") as file:
        template = file.read()
    lines, cases = [], demo_chats.evaluation_tools()
    for case in cases:
        messages = demo_chats.template_messages(case["messages"])
        lines.append(json.dumps({"template": template, "variables": {
            "messages": messages, "tools": case["tools"], "add_generation_prompt": True}}))
    done = subprocess.run([BIN, "template", "--lines"], input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    for case, line in zip(cases, done.stdout.splitlines(), strict=True):
        assert json.loads(line)["text"] == demo_chats.prompt_text(case), (line, case)


def test_it_calls_the_tool_that_fits_and_answers_from_the_result(server):
    tools = [WEATHER, CALCULATOR, ADD]
    for question, call, result, answer in [
            ("What is the weather in Paris?", ("get_weather", {"city": "Paris"}), "sunny, 21 degrees",
             "The weather in Paris is sunny, 21 degrees."),
            ("What is 12 * 34?", ("calculator", {"expression": "12 * 34"}), "408", "12 * 34 = 408.")]:
        messages = [user(question)]
        choice = chat(server, messages, tools)
        assert choice["finish_reason"] == "tool_calls" and calls(choice) == [call], choice
        messages += [choice["message"], {"role": "tool", "tool_call_id": choice["message"]["tool_calls"][0]["id"], "content": result}]
        choice = chat(server, messages, tools)
        assert choice["finish_reason"] == "stop" and choice["message"]["content"] == answer and not calls(choice), choice


def test_it_reads_the_names_of_the_request(server):
    choice = chat(server, [user("Add 25 and 17.")], [function("plus", "Adds two numbers.", x="integer", y="integer")])
    assert calls(choice) == [("plus", {"x": 25, "y": 17})], choice
    choice = chat(server, [user("What is the price of the lamp?")], [function("find_price", "The price of an item.", item="string")])
    assert calls(choice) == [("find_price", {"item": "lamp"})], choice


def test_it_answers_by_itself_when_no_tool_fits(server):
    for question, answer in [("Reverse the word: planet", "tenalp"), ("What is 123 - 456?", "-333")]:
        choice = chat(server, [user(question)], [WEATHER])
        assert choice["message"]["content"] == answer and not calls(choice), choice
    choice = chat(server, [user("What is 12 + 34?")])
    assert choice["message"]["content"] == "46", choice
    choice = chat(server, [user("What is the weather in Paris?")], [WEATHER], tool_choice="none")
    assert choice["finish_reason"] == "stop" and not calls(choice), choice


def test_a_stream_has_the_same_call(server):
    body = {"messages": [user("What is the weather in Paris?")], "tools": [WEATHER], "temperature": 0, "max_tokens": 150}
    deltas = [c["choices"][0]["delta"] for c in server.stream(body, CHAT)[:-1] if c["choices"]]
    pieces = [call["function"] for delta in deltas for call in delta.get("tool_calls") or []]
    assert pieces[0]["name"] == "get_weather" and json.loads("".join(p["arguments"] for p in pieces)) == {"city": "Paris"}, pieces


def test_it_answers_in_json_when_asked_in_words(server):
    choice = chat(server, [user("What is 12 + 34? Answer in JSON with the key sum.")])
    assert json.loads(choice["message"]["content"]) == {"sum": 46}, choice


def test_it_fills_in_a_schema_that_it_does_not_see(server):
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
              "required": ["name", "age", "city"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": schema}}
    choice = chat(server, [user("Anna is 34 years old and lives in Paris.")], response_format=form)
    assert choice["message"]["content"] == '{"name": "Anna", "age": 34, "city": "Paris"}', choice


def test_reasoning_is_separated_only_if_the_template_shows_any(server):
    """Otherwise a model could begin its reasoning where a schema is to hold the whole answer."""
    assert "tool calls: hermes, reasoning: none" in server.output()
    with open(os.path.join(DEMO, "chat_template.jinja"), encoding="utf-8") as file:
        template = file.read() + "{# <think> #}"
    for flags, reasoning in [(("--chat-template", template), "yes"), (("--tool-call-parser", "hermes"), "yes"),
                             (("--reasoning-parser", "qwen3"), "yes"), (("--chat-template", template, "--reasoning-parser", "none"), "none")]:
        with Server(DEMO, "--max-num-seqs", "1", *flags) as other:
            assert f"tool calls: hermes, reasoning: {reasoning}" in other.output(), (flags, other.output())


def test_a_template_that_shows_no_tools_refuses_them(_):
    with Server(DEMO, "--max-num-seqs", "1", "--chat-template", "{% for m in messages %}{{ m.content }}{% endfor %}") as server:
        for fields in ({"tools": [WEATHER]}, {"functions": [WEATHER["function"]]}):
            for stream in (False, True):
                status, answer = server.post(CHAT, {"messages": [user("Hi")], "stream": stream, **fields})
                error = answer["error"]
                assert (status, error["param"], error["code"]) == (400, *fields, "unsupported_parameter"), answer


def main():
    with Server(DEMO, "--max-num-seqs", "4") as server:
        for name, test in list(globals().items()):
            if name.startswith("test_"):
                test(server)
                print("ok", name)


main()
