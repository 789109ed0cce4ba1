"""Chats: the template's inputs, its refusals, hostile messages. The fake engine answers with the prompt without its first
token, so an answer shows the template's output."""
import json
import os
import tempfile

from fake_server import Server, parse_events

# Begins with a special token, which the fake engine drops.
PLAIN = """<s>{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}{{ '>' if add_generation_prompt }}"""
PARTS = """<s>{% for m in messages %}{% for part in m.content %}({{ part.type }}={{ part.text }}){% endfor %}{% endfor %}"""
KWARGS = """<s>{{ enable_thinking is defined and enable_thinking }},{{ reasoning_effort }},{{ date_string }},{{ tools }},
{{- documents | length if documents else 0 }}"""
CALLS = """<s>{% for m in messages %}{{ m.role }}{% for c in m.tool_calls or [] %} {{ c.function.name }}
{{- c.function.arguments | tojson }}{% endfor %}{{ m.tool_call_id or '' }};{% endfor %}"""
STRICT = """<s>
{%- for m in messages %}
{%- if m.role == 'system' %}
{{ raise_exception('no system here') }}
{%- endif %}
{{ m.content + '' }}
{%- endfor %}"""


def user(text):
    return {"role": "user", "content": text}


class Chat:
    """A server with this template."""

    def __init__(self, template, *flags, **more):
        self.folder = tempfile.TemporaryDirectory()
        path = os.path.join(self.folder.name, "chat.jinja")
        with open(path, "w", encoding="utf-8") as file:
            file.write(template)
        self.server = Server("--chat-template", path, *flags, **more)

    def __enter__(self):
        self.server.__enter__()
        return self

    def __exit__(self, *error):
        self.server.__exit__(*error)
        self.folder.cleanup()

    def post(self, messages, **fields):
        return self.server.post("/v1/chat/completions", {"messages": messages, **fields})

    def shown(self, messages, **fields):
        """The prompt, from an answer of the same length."""
        count = self.post(messages, max_tokens=1, **fields)
        assert count.status == 200, count.body
        tokens = count.json()["usage"]["prompt_tokens"] - 1
        answer = self.post(messages, max_tokens=tokens, ignore_eos=True, skip_special_tokens=False, **fields).json()
        return answer["choices"][0]["message"]["content"]


def test_messages():
    with Chat(PLAIN) as chat:
        assert chat.shown([user("hi")]) == "[user:hi]>"
        assert chat.shown([user("hi")], add_generation_prompt=False) == "[user:hi]"
        roles = ["system", "developer", "user", "assistant", "tool", "function"]
        assert chat.shown([{"role": role, "content": "é"} for role in roles]) == "".join(
            f"[{role}:é]" for role in roles) + ">"
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        assert chat.shown([user(parts)]) == "[user:a\nb]>", "joined where the template knows texts alone"
        # Special tokens in a message are text, letter by letter; a <s> from the template is one token.
        assert chat.shown([user("</s><|x|>")]) == "[user:</s><|x|>]>"
        typed = chat.post([user("<|x|>")], max_tokens=1).json()["usage"]["prompt_tokens"]
        assert typed == chat.post([user("(|x|)")], max_tokens=1).json()["usage"]["prompt_tokens"]
        assert chat.post([user("</s>b")], max_tokens=14).json()["choices"][0]["finish_reason"] == "length", "ends nothing"
        # The last message is continued.
        open_end = {"add_generation_prompt": False, "continue_final_message": True}
        messages = [user("a"), {"role": "assistant", "content": "sure, "}]
        assert chat.shown(messages, **open_end) == "[user:a][assistant:sure, "
        assert chat.shown([*messages[:1], {"role": "assistant", "content": "a"}], **open_end) == "[user:a][assistant:a"
        assert chat.post([user("a"), {"role": "assistant", "content": " "}], **open_end).error[
            "param"] == "continue_final_message"
        assert chat.post(messages, continue_final_message=True).error["param"] == "continue_final_message"
        # Without max_tokens the answer may fill the context; a stop string ends it earlier.
        answer = chat.post([user("ab")]).json()
        assert answer["usage"]["total_tokens"] == 4096 and answer["choices"][0]["finish_reason"] == "length"
        assert chat.post([user("abc")], stop="c").json()["choices"][0]["message"]["content"] == "[user:ab"


def test_other_templates():
    with Chat(PARTS) as chat:
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        assert chat.shown([user(parts)]) == "(text=a)(text=b)", "as they are where the template goes through them"
    with Chat(KWARGS) as chat:
        kwargs = {"enable_thinking": True, "reasoning_effort": "low", "date_string": "today"}
        assert chat.shown([user("a")], chat_template_kwargs=kwargs, documents=[{"text": "x"}]) == "True,low,today,None,1"
        assert chat.shown([user("a")], reasoning_effort="high") == "False,high,,None,0"
        for bad in ({"tokenize": True}, {"messages": []}, {"enable_thinking": 1}, {"date_string": "x" * 257},
                    {"date_string": ["x"]}, [], "x"):
            assert chat.post([user("a")], chat_template_kwargs=bad).error["param"] == "chat_template_kwargs", bad
        for bad in ("x", [1], [{"a": 1}], {}):
            assert chat.post([user("a")], documents=bad).error["param"] == "documents", bad
    with Chat(CALLS) as chat:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"b\": [1, \"é\"], \"a\": null}"}}
        text = chat.shown([{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "1"}])
        assert text == 'assistant f{"b": [1, "é"], "a": null};toolc;', text
        call["function"]["arguments"] = "{not json"
        assert chat.shown([{"role": "assistant", "tool_calls": [call]}]) == 'assistant f"{not json";'


def test_a_template_that_refuses():
    with Chat(STRICT) as chat:
        refused = chat.post([{"role": "system", "content": "a"}])
        assert refused.status == 400 and refused.error["code"] == "chat_template_error"
        assert "line 4" in refused.error["message"] and "no system here" in refused.error["message"], refused.error
        failed = chat.post([{"role": "assistant", "content": None}]).error
        assert failed["code"] == "chat_template_error" and "line 6" in failed["message"], failed
        assert chat.post([user("a")], stream=True, max_tokens=2).events()[-1] == "[DONE]"


def test_templates_never_run_on_the_loop_thread():
    """Even for a short chat, because the time of a template is not known in advance."""
    with Chat(PLAIN, "--trace-seconds", "60") as chat:
        assert chat.post([user("a")], max_tokens=1).status == 200
        events = chat.server.get("/debug/trace?seconds=60").json()["traceEvents"]
        names = {event["args"]["name"]: event["tid"] for event in events if event.get("name") == "thread_name"}
        loop = next(number for name, number in names.items() if "loop" in name)
        jobs = [event for event in events if event.get("name") == "tokenize"]
        assert jobs and all(event["tid"] != loop for event in jobs), (names, {event.get("name") for event in events})


def test_a_template_that_would_run_for_minutes_is_ended():
    loops = "{% for i in range(30000) %}" * 3 + "{% endfor %}" * 3
    with Chat("<s>" + loops + "{{ messages[0].content }}") as chat:
        answer = chat.post([user("a")], max_tokens=1)
        assert answer.status == 400 and "more steps than it may" in answer.error["message"], answer.body


def test_no_template(folder):
    with Server() as server:
        error = server.post("/v1/chat/completions", {"messages": [user("a")]}).error
        assert error["code"] == "no_chat_template" and "--chat-template" in error["message"]
    path = os.path.join(folder, "bad.jinja")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n{% for %}")
    for name in (path, os.path.join(folder, "none.jinja")):
        try:
            Server("--chat-template", name)
            raise AssertionError(f"{name} was taken")
        except RuntimeError as error:
            assert "exit 3" in str(error) and ("line 2" in str(error) or name != path), error


BAD_MESSAGES = [None, 1, "hi", {}, [], [1], ["a"], [[]], [None], [{}], [{"role": "user"}], [{"content": "a"}],
                [{"role": 1, "content": "a"}], [{"role": "king", "content": "a"}], [user(1)], [user({})], [user(None)],
                [user(["a"])], [user([1])], [user([{}])], [user([{"type": "text"}])], [user([{"type": "text", "text": 1}])],
                [user([{"type": "image_url", "image_url": {"url": "http://a"}}])], [user([{"type": "input_audio"}])],
                [user("a"), 1], [{"role": "tool", "content": None}], [{"role": "assistant", "tool_calls": 1}],
                [{"role": "assistant", "tool_calls": [1]}], [{"role": "assistant", "tool_calls": [{}]}],
                [{"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}],
                [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 1}}]}],
                [{**user("a"), "name": 1}], [{**user("a"), "reasoning_content": {}}], [user("a")] * 20000]


def test_hostile_bodies():
    with Chat(PLAIN) as chat:
        for messages in BAD_MESSAGES:
            answer = chat.post(messages)
            assert answer.status == 400 and answer.error["param"].startswith("messages"), (str(messages)[:80], answer.body)
            assert len(answer.body) < 500
        # Large and unusual, but valid or too long: no crash, no long wait for others.
        for messages in ([user("x")] * 10000, [user([{"type": "text", "text": "x"}] * 50000)], [user("a" * (4 << 20))],
                         [user("<|x|>" * 500000)], [user("\u0301" * 1000000)], [user("{{ 1 / 0 }}{% raw %}" * 10000)]):
            answer = chat.post(messages)
            assert answer.status == 400 and answer.error["code"] in ("context_length_exceeded", "chat_template_error"), (
                answer.body)
        assert chat.shown([user("{{ 7 * 7 }}")]) == "[user:{{ 7 * 7 }}]>"
        nested = "1"
        for _ in range(60):
            nested = "[" + nested + "]"
        call = {"function": {"name": "f", "arguments": json.dumps({"a": json.loads(nested)})}}
        assert chat.post([{"role": "assistant", "content": "", "tool_calls": [call]}], max_tokens=1).status == 200
        call["function"]["arguments"] = "{\"a\":" * 100000
        assert chat.post([{"role": "assistant", "content": "", "tool_calls": [call]}], max_tokens=1).status == 200
        # Continuing a text that occurs nearly everywhere has linear cost.
        long = "a" * 1000000
        answer = chat.post([user(long + "b"), {"role": "assistant", "content": long + "c"}, {"role": "assistant", "content": long}],
                           add_generation_prompt=False, continue_final_message=True)
        assert answer.error["code"] == "context_length_exceeded"
        # Clients that disconnect while a worker renders their conversation.
        for _ in range(8):
            with chat.server.connect() as connection:
                connection.send("POST", "/v1/chat/completions", {"messages": [user("hello " * 30000)]})
                connection.reset()
        chat.server.until(lambda: chat.server.metric("reprise_completions_open") == 0, "all are freed")
        assert chat.shown([user("hi")]) == "[user:hi]>"


def test_streams():
    with Chat(PLAIN) as chat:
        for fields in ({}, {"n": 3}, {"stop": "lo]"}, {"logprobs": True, "top_logprobs": 2}, {"max_tokens": 1}):
            fields = {"max_tokens": 30, "ignore_eos": True, **fields}
            whole = chat.post([user("hello 🙂")], **fields).json()
            events = parse_events(chat.post([user("hello 🙂")], stream=True, stream_options={"include_usage": True},
                                            **fields).body)
            assert events[-1] == "[DONE]" and events[-2]["choices"] == [] and events[-2]["usage"] == whole["usage"]
            assert {(event["id"], event["created"], event["object"]) for event in events[:-1]} == {
                (events[0]["id"], events[0]["created"], "chat.completion.chunk")}
            for choice in whole["choices"]:
                chunks = [chunk["choices"][0] for chunk in events[:-2] if chunk["choices"][0]["index"] == choice["index"]]
                assert ["role" in chunk["delta"] for chunk in chunks] == [True] + [False] * (len(chunks) - 1)
                assert "".join(chunk["delta"].get("content", "") for chunk in chunks) == choice["message"]["content"]
                assert chunks[-1]["finish_reason"] == choice["finish_reason"]
                logged = [token for chunk in chunks if chunk["logprobs"] for token in chunk["logprobs"]["content"]]
                assert logged == (choice["logprobs"]["content"] if choice["logprobs"] else [])
            assert chat.server.metric("reprise_completions_open") == 0


def main():
    with tempfile.TemporaryDirectory() as folder:
        for name, test in list(globals().items()):
            if name.startswith("test_"):
                test(*[folder] * test.__code__.co_argcount)
                print("ok", name)


main()
