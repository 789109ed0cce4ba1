"""A chat model that answers as a test says. The template writes the answer first, between <|say|> and <|/say|>, where the
fake engine reads it (tests/http/fake_engine.h): the last message's content is the key of the answer. Special tokens in
answers are tokens, because the template wrote them."""
import os
import tempfile

from fake_server import Server, parse_events

# Each message, its calls and the tools, as the model would see them; `opener` ends the prompt.
BODY = """{%- for m in messages %}[{{ m.role }}:{{ m.content }}
{%- if m.reasoning_content %}|think {{ m.reasoning_content }}{% endif %}
{%- for c in m.tool_calls or [] %}|call {{ c.id }} {{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}
{%- if m.tool_call_id %}|for {{ m.tool_call_id }}{% endif %}]
{%- endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"""


def raw(text):
    return "{% raw %}" + text + "{% endraw %}"


class ScriptedChat:
    def __init__(self, answers, *flags, specials=(), opener="", **more):
        cases = "".join("{%- " + ("elif" if i else "if") + f" messages[-1].content == '{key}' %}}" + raw(text)
                        for i, (key, text) in enumerate(answers.items()))
        self.folder = tempfile.TemporaryDirectory()
        path = os.path.join(self.folder.name, "chat.jinja")
        with open(path, "w", encoding="utf-8") as file:
            file.write("<s><|say|>" + cases + "{%- endif %}<|/say|>" + BODY + raw(opener))
        self.server = Server("--chat-template", path, *flags, specials=["<|say|>", "<|/say|>", *specials], **more)

    def __enter__(self):
        self.server.__enter__()
        return self

    def __exit__(self, *error):
        self.server.__exit__(*error)
        self.folder.cleanup()

    def post(self, messages, **fields):
        messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        return self.server.post("/v1/chat/completions", {"messages": messages, **fields})

    def whole(self, messages, **fields):
        answer = self.post(messages, **fields)
        assert answer.status == 200, answer.body
        return answer.json()

    def chunks(self, messages, **fields):
        answer = self.post(messages, stream=True, **fields)
        assert answer.status == 200, answer.body
        events = parse_events(answer.body)
        assert events[-1] == "[DONE]", events[-1]
        return events[:-1]


def joined(chunks, index=0):
    """The message that a stream's deltas add up to, and its finish_reason. Checks the rules of a stream."""
    message = {"role": None, "content": None}
    reason = None
    for choice in (choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index):
        assert reason is None, "nothing follows the finish_reason"
        delta = dict(choice["delta"])
        if "role" in delta:
            assert message["role"] is None, "the role comes once"
            message["role"] = delta.pop("role")
        for call in delta.pop("tool_calls", []):
            calls = message.setdefault("tool_calls", [])
            inner = "custom" if "custom" in call else "function"
            text = "input" if inner == "custom" else "arguments"
            if "id" in call:
                assert call["index"] == len(calls), "indices have no gaps"
                assert call["id"] and call["type"] == inner and call[inner]["name"] and call[inner][text] == "", call
                calls.append({"id": call["id"], "type": call["type"], inner: dict(call[inner])})
            else:
                assert call["index"] == len(calls) - 1 and set(call) == {"index", inner}, call
                assert set(call[inner]) == {text}, "nothing is repeated"
                calls[-1][inner][text] += call[inner][text]
        for name, text in delta.items():
            if text is not None:
                message[name] = (message.get(name) or "") + text
        reason = choice["finish_reason"]
    assert reason is not None
    return message, reason


def compared(message):
    """A message without ids, which are drawn anew for each answer, and without members that are null."""
    message = {name: value for name, value in message.items() if value is not None}
    if "tool_calls" in message:
        message["tool_calls"] = [{name: value for name, value in call.items() if name != "id"} for call in message["tool_calls"]]
    return message
