"""Two servers with the fake engine, for tests of the APIs' requests and answers.

    with rendered_server() as server:   the answer is what the template was given, as JSON: {"messages", "tools", ...}
    with said_server() as server:       the answer is the text of the last message, as if the model had written it
"""
import json
import os
import tempfile

import fake_server

END = "<<end>>"
RENDERED = ('<s>{"messages": {{ messages | tojson }}, "tools": {{ tools | tojson }}, "thinking": '
            '{{ enable_thinking | default("unset") | tojson }}}' + END)
# The engine says what is between the two tokens. The last line only shows that the template knows tools and reasoning.
SAID = ("<s><|say|>{% if messages[-1].content is string %}{{ messages[-1].content }}{% else %}"
        "{{ messages[-1].content[-1].text }}{% endif %}<|/say|>{% if tools and enable_thinking %}{% endif %}")


class TemplateServer(fake_server.Server):
    def __init__(self, template, *flags, **more):
        file = tempfile.NamedTemporaryFile("w", suffix=".jinja", delete=False)
        with file:
            file.write(template)
        try:
            super().__init__("--chat-template", file.name, "--tool-call-parser", "hermes", "--no-enforce-tools", *flags, **more)
        finally:
            os.unlink(file.name)

    def send(self, path, body, **more):
        response = self.post(path, body, **more)
        return response.status, response.json()


def rendered_server(*flags, template=RENDERED, **more):
    return TemplateServer(template, "--max-model-len", 16384, *flags, **more)


def rendered(text):
    return json.loads(text.split(END)[0])


def said_server(*flags, **more):
    return TemplateServer(SAID, "--reasoning-parser", "qwen3", *flags, specials=["<|say|>", "<|/say|>"], **more)
