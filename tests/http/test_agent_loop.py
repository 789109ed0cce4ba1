"""An agent's loop of ten turns with 4,000 tokens of instructions and tools: from the second turn on, the prefix cache holds
all full pages of what a prompt shares with the turn before, over each API."""
import os
import sys
import tempfile

from reprise_server import Server, skip

try:
    from random_models import write_model
except ImportError as missing:
    skip(f"a package is not installed: {missing.name}")

PAGE, TURNS = 16, 10
TEMPLATE = ("{%- for t in tools or [] -%}{{ t | tojson }}{%- endfor -%}{%- for m in messages -%}[{{ m.role }}]"
            "{%- if m.content is string -%}{{ m.content }}{%- else -%}{%- for p in m.content -%}{{ p.text }}{%- endfor -%}{%- endif -%}"
            "{%- endfor -%}{%- if add_generation_prompt -%}[assistant]{%- endif -%}")
SYSTEM = "You are an agent. Use the tools and keep to the rules. " * 50
TOOL = {"name": "read_file", "description": "Reads a file of the project. " * 8, "parameters": {
    "type": "object", "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}}, "required": ["path"]}}
FUNCTIONS = [{**TOOL, "name": f"read_{i}"} for i in range(3)]
# A random model writes bytes that are no characters, which would not come back as the same tokens.
PLAIN = [*range(97, 123), 32]


def common(first, second):
    n = 0
    while n < min(len(first), len(second)) and first[n] == second[n]:
        n += 1
    return n


def check(turn, cached, prompt, before):
    """before: the tokens of the turn before and of its answer."""
    if turn == 0:
        return
    pages = min(common(prompt, before), len(prompt) - 1) // PAGE * PAGE
    assert cached == pages and cached >= 0.95 * len(prompt), (turn, cached, pages, len(prompt))


def test_chat(server):
    tools = [{"type": "function", "function": function} for function in FUNCTIONS]
    messages, before = [{"role": "system", "content": SYSTEM}], []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"Result {turn} of the tool: " + "x" * 30})
        body = {"messages": messages, "tools": tools, "tool_choice": "none"}
        prompt = server.post("/tokenize", body)[1]["tokens"]
        status, answer = server.post("/v1/chat/completions", {**body, "max_tokens": 40, "seed": turn, "return_token_ids": True,
                                                              "allowed_token_ids": PLAIN, "cache_salt": "chat"})
        assert status == 200, answer
        check(turn, answer["usage"]["prompt_tokens_details"]["cached_tokens"], prompt, before)
        before = prompt + answer["choices"][0]["token_ids"][:-1]  # the last one is sampled, not computed
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
    assert len(prompt) > 4000 + 9 * 90, len(prompt)


def test_messages(server):
    """The system prompt begins with the line that Claude Code changes in each request."""
    tools = [{**function, "input_schema": function["parameters"]} for function in FUNCTIONS]
    messages, before = [], None
    for turn in range(TURNS):
        messages.append({"role": "user", "content": [{"type": "text", "text": f"Result {turn} of the tool: " + "x" * 30}]})
        if turn == 4:
            messages.append({"role": "system", "content": "A reminder in between."})
        body = {"messages": messages, "tools": tools, "tool_choice": {"type": "none"}, "system": [
            {"type": "text", "text": f"x-anthropic-billing-header: turn={turn};"}, {"type": "text", "text": SYSTEM}]}
        status, answer = server.post("/v1/messages", {**body, "max_tokens": 20, "seed": turn, "cache_salt": "messages"})
        assert status == 200, answer
        usage = answer["usage"]
        total = usage["input_tokens"] + usage["cache_read_input_tokens"]
        assert turn == 0 or usage["cache_read_input_tokens"] >= max(0.95 * total, before // PAGE * PAGE), (turn, usage, before)
        before = total - len("[assistant]")
        text = "".join(block.get("text", "") for block in answer["content"])
        messages.append({"role": "assistant", "content": [{"type": "text", "text": text}]})


def test_responses(server):
    tools = [{"type": "function", **function} for function in FUNCTIONS]
    previous, before = None, None
    for turn in range(TURNS):
        status, answer = server.post("/v1/responses", {
            "input": f"Result {turn} of the tool: " + "x" * 30, "instructions": SYSTEM, "tools": tools, "tool_choice": "none",
            "previous_response_id": previous, "max_output_tokens": 40, "seed": turn, "allowed_token_ids": PLAIN,
            "cache_salt": "responses"})
        assert status == 200, answer
        usage = answer["usage"]
        cached = usage["input_tokens_details"]["cached_tokens"]
        # All of the last prompt and of its answer, which is the same text in this prompt.
        assert turn == 0 or (cached >= 0.95 * usage["input_tokens"] and cached >= before // PAGE * PAGE), (turn, usage, before)
        before = usage["input_tokens"] + usage["output_tokens"] - 1
        previous = answer["id"]


def main():
    with tempfile.TemporaryDirectory() as folder:
        write_model(folder, "llama", max_position_embeddings=8192)
        template = os.path.join(folder, "template.jinja")
        with open(template, "w", encoding="utf-8") as file:
            file.write(TEMPLATE)
        with Server(folder, "--chat-template", template, "--tool-call-parser", "hermes", "--dtype", "float32",
                    "--served-model-name", "agent") as server:
            for name, test in list(globals().items()):
                if name.startswith("test_"):
                    test(server)
                    print("ok", name)


if __name__ == "__main__":
    sys.exit(main())
