"""Two servers with the fake engine, for tests of the APIs' requests and answers.

    with rendered_server() as server:   the answer is what the template was given, as JSON: {"messages", "tools", ...}
    with said_server() as server:       the answer is the text of the last message, as if the model had written it
"""
import json
import os
import tempfile

import fake_server

plain_tokenizer = fake_server.tokenizer

END = "<<end>>"
RENDERED = ('<s>{"messages": {{ messages | tojson }}, "tools": {{ tools | tojson }}, "thinking": '
            '{{ enable_thinking | default("unset") | tojson }}}' + END)
# The engine says what is between these tokens.
SPECIALS = ["<|say|>", "<|/say|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]


def tokenizer_with_specials():
    tokenizer = plain_tokenizer()
    first = len(tokenizer["model"]["vocab"])
    for i, text in enumerate(SPECIALS):
        tokenizer["added_tokens"].append({"id": first + i, "content": text, "single_word": False, "lstrip": False,
                                          "rstrip": False, "normalized": False, "special": i < 2})
    return tokenizer


class TemplateServer(fake_server.Server):
    def __init__(self, template, *flags, tokenizer=None, env=None):
        self.template = tempfile.NamedTemporaryFile("w", suffix=".jinja", delete=False)
        self.template.write(template)
        self.template.close()
        original = fake_server.tokenizer
        fake_server.tokenizer = tokenizer or original
        try:
            super().__init__("--chat-template", self.template.name, *flags, env=env)
        finally:
            fake_server.tokenizer = original
            os.unlink(self.template.name)

    def send(self, path, body, **more):
        response = self.post(path, body, **more)
        return response.status, response.json()


def rendered_server(*flags, template=RENDERED, **more):
    return TemplateServer(template, "--max-model-len", 16384, "--tool-call-parser", "hermes", "--no-enforce-tools", *flags, **more)


def rendered(text):
    return json.loads(text.split(END)[0])


def said_server(*flags, **more):
    template = ("<s><|say|>{% if messages[-1].content is string %}{{ messages[-1].content }}{% else %}"
                "{{ messages[-1].content[-1].text }}{% endif %}<|/say|>{% if tools and enable_thinking %}{% endif %}")
    return TemplateServer(template, "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3", "--no-enforce-tools", *flags,
                          tokenizer=tokenizer_with_specials, **more)
