"""Anthropic's API: how a request becomes a chat, the blocks and events of answers, errors, keys, and the `anthropic`
package unmodified."""
import json
import os
import sys
import tempfile

import reprise_server
from said import END, rendered, rendered_server, said_server

try:
    import anthropic
except ImportError:
    anthropic = None

TOOL = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def ask(server, messages, **fields):
    status, body = server.send("/v1/messages", {"max_tokens": 9000, "stop_sequences": [END], "messages": messages, **fields})
    assert status == 200, body
    return rendered(body["content"][0]["text"])


def user(text):
    return {"role": "user", "content": text}


def test_blocks_become_messages(server):
    messages = [user([{"type": "text", "text": "one", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "two"}]),
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "so", "signature": "x"}, {"type": "redacted_thinking", "data": "y"},
                    {"type": "thinking", "thinking": "then"}, {"type": "text", "text": ""}, {"type": "text", "text": "I add."},
                    {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                    {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}]},
                user([{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "2"}]},
                      {"type": "tool_result", "tool_use_id": "t2"}, {"type": "text", "text": "Right?"}])]
    got = ask(server, messages, tools=[TOOL, {"type": "web_search_20250305", "name": "web_search"}], tool_choice={"type": "none"})
    first, second, result, empty, last = got["messages"]
    assert first == {"role": "user", "content": "one\ntwo"}, first
    assert second["content"] == "I add." and second["reasoning_content"] == "so\nthen", second
    (call,) = second["tool_calls"]
    assert (call["id"], call["function"]) == ("t1", {"name": "add", "arguments": {"a": 1}}), call
    assert result["role"] == "tool" and result["tool_call_id"] == "t1" and result["content"] == "2", result
    assert empty["content"] == "" and last == {"role": "user", "content": "Right?"}


def test_neighboring_turns_are_one(server):
    got = ask(server, [user("a"), user("b"), {"role": "assistant", "content": "c"},
                       {"role": "assistant", "content": [{"type": "text", "text": "d"}]}, user("e")])
    assert [(m["role"], m["content"]) for m in got["messages"]] == [("user", "a\nb"), ("assistant", "c\nd"), ("user", "e")], got


def test_tools_that_a_server_runs_are_skipped(server):
    many = [{"type": "bash_20250124", "name": "bash"}, *({**TOOL, "name": f"tool_{i}"} for i in range(30))]
    got = ask(server, [user("a")], tools=many)
    assert [tool["function"]["name"] for tool in got["tools"]] == [f"tool_{i}" for i in range(30)]
    assert got["tools"][0]["function"]["parameters"] == TOOL["input_schema"]


def test_the_billing_line_is_dropped(server):
    """It is different in each request of Claude Code."""
    for system in ([{"type": "text", "text": "x-anthropic-billing-header: cc=1; id=7;"}, {"type": "text", "text": "You help."}],
                   "x-anthropic-billing-header: cc=1; id=8;\nYou help."):
        got = ask(server, [user("a")], system=system)
        assert got["messages"][0] == {"role": "system", "content": "You help."}, got


def test_system_messages_stay_in_place(server):
    got = ask(server, [user("a"), {"role": "system", "content": "note"}, {"role": "assistant", "content": "b"}, user("c"),
                       {"role": "system", "content": [{"type": "text", "text": "last"}]}], system="first")
    assert [m["role"] for m in got["messages"]] == ["system", "user", "system", "assistant", "user", "system"], got
    # A template that takes no late system messages: they become text of the user's turn, in the same place.
    template = ('{%- for m in messages[1:] -%}{%- if m.role == "system" -%}{{ raise_exception("late") }}{%- endif -%}{%- endfor -%}'
                '<s>{"messages": {{ messages | tojson }}}' + END)
    with rendered_server(template=template) as strict:
        got = ask(strict, [user("a"), {"role": "system", "content": "note"}, {"role": "assistant", "content": "b"},
                           {"role": "system", "content": "early"}, user("c")], system="first")
        assert [(m["role"], m["content"]) for m in got["messages"]] == [
            ("system", "first"), ("user", "a\nnote"), ("assistant", "b"), ("user", "early\nc")], got


def test_references_to_tools_are_skipped(server):
    reference = {"type": "tool_reference", "tool_name": "add"}
    got = ask(server, [user([reference, {"type": "text", "text": "a"}]), {"role": "assistant", "content": [
        {"type": "tool_use", "id": "t1", "name": "add", "input": {}}]}, user([
            {"type": "tool_result", "tool_use_id": "t1", "content": [reference, {"type": "text", "text": "b"}]}])], tools=[TOOL])
    assert [message["content"] for message in got["messages"]] == ["a", "", "b"], got


def test_thinking_switch(server):
    assert ask(server, [user("a")])["thinking"] is False
    assert ask(server, [user("a")], thinking={"type": "enabled"})["thinking"] is True
    assert ask(server, [user("a")], thinking={"type": "adaptive"})["thinking"] is True
    assert ask(server, [user("a")], thinking={"type": "disabled"})["thinking"] is False


ERRORS = [  # fields, status, type, start of the message
    ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens is required"),
    ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens must be"),
    ({"messages": []}, 400, "invalid_request_error", "messages must be"),
    ({"messages": [{"role": "king", "content": "a"}]}, 400, "invalid_request_error", "messages[0].role must"),
    ({"messages": [user([{"type": "image", "source": {}}])]}, 400, "invalid_request_error", "messages[0].content[0] is of a type"),
    ({"messages": [user([{"type": "tool_use", "id": "a", "name": "b", "input": {}}])]}, 400, "invalid_request_error",
     "messages[0].content[0] is of a type"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}]}, 400, "invalid_request_error",
     "messages[0].content[0] must have"),
    ({"messages": [user("a " * 20000)]}, 400, "invalid_request_error", "prompt is too long: this model's maximum context length"),
    ({"system": 7}, 400, "invalid_request_error", "system must be"),
    ({"tools": [{"name": "a"}]}, 400, "invalid_request_error", "tools[0].input_schema must"),
    ({"stop_sequences": [1]}, 400, "invalid_request_error", "stop_sequences"),
    ({"thinking": {"type": "much"}}, 400, "invalid_request_error", "thinking.type must"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, 400, "invalid_request_error", "tool_choice.type must"),
    ({"output_config": {"format": {"type": "xml"}}}, 400, "invalid_request_error", "output_config.format must"),
    ({"model": "claude"}, 404, "not_found_error", "this server serves fake")]


def test_errors(server):
    for fields, status, kind, message in ERRORS:
        for stream in (False, True):
            response = server.post("/v1/messages", {"max_tokens": 5, "messages": [user("a")], "stream": stream, **fields})
            body = response.json()
            assert response.status == status and body["type"] == "error" and body["error"]["type"] == kind, (fields, body)
            assert body["error"]["message"].startswith(message), (fields, body)
            assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    for body in ("{", "[]"):
        response = server.post("/v1/messages", body)
        assert response.status == 400 and response.json()["type"] == "error"
    with server.connect() as connection:
        connection.raw(b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n\r\n")
        response = connection.response()
        assert response.status == 413 and response.json()["error"]["type"] == "request_too_large"
    assert server.get("/v1/messages").json()["type"] == "error"


def test_answers_end_with_the_context(server):
    """Clients ask for more tokens than a small context has."""
    status, body = server.send("/v1/messages", {"max_tokens": 1000000, "messages": [user("a" * 16000)]})
    assert status == 200 and body["stop_reason"] == "max_tokens", body
    assert body["usage"]["input_tokens"] + body["usage"]["output_tokens"] == 16384, body["usage"]


def test_counts_are_those_of_the_call(server):
    request = {"messages": [user("one"), {"role": "assistant", "content": "two"}, user("three")], "system": "four", "tools": [TOOL]}
    status, count = server.send("/v1/messages/count_tokens", request)
    assert status == 200
    body = server.send("/v1/messages", {**request, "max_tokens": 1})[1]
    assert body["usage"]["input_tokens"] + body["usage"]["cache_read_input_tokens"] == count["input_tokens"] > 100
    assert server.send("/v1/messages/count_tokens", {"messages": 1})[1]["error"]["message"].startswith("messages must")


def events(server, text, **fields):
    response = server.post("/v1/messages", {"max_tokens": 900, "stream": True, "messages": [user(text)], **fields})
    found = []
    for event in response.body.decode().split("\n\n")[:-1]:
        name, data = event.split("\n")
        value = json.loads(data[6:])
        assert name == "event: " + value["type"], event
        found.append(value)
    return found


def test_stream_of_blocks(server):
    text = f"<think>hm mm</think>ok {CALL}\n<tool_call>\n{{\"name\": \"add\", \"arguments\": {{}}}}\n</tool_call>"
    found = events(server, text, tools=[TOOL], thinking={"type": "enabled"})
    assert found[0]["type"] == "message_start" and found[0]["message"]["content"] == [], found[0]
    assert [e["type"] for e in found[-2:]] == ["message_delta", "message_stop"]
    assert found[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    open_index, blocks = None, []
    for event in found[1:-2]:  # blocks never overlap
        if event["type"] == "content_block_start":
            assert open_index is None and event["index"] == len(blocks)
            open_index = event["index"]
            blocks.append([event["content_block"], []])
        elif event["type"] == "content_block_delta":
            assert event["index"] == open_index
            blocks[-1][1].append(event["delta"])
        else:
            assert event == {"type": "content_block_stop", "index": open_index}
            open_index = None
    thinking, words, call, empty = blocks
    assert thinking[0] == {"type": "thinking", "thinking": "", "signature": ""}
    assert "".join(delta.get("thinking", "") for delta in thinking[1]) == "hm mm"
    assert thinking[1][-1]["type"] == "signature_delta" and thinking[1][-1]["signature"]
    assert words[0] == {"type": "text", "text": ""} and "".join(d["text"] for d in words[1]).strip() == "ok"
    assert call[0]["name"] == "add" and call[0]["input"] == {} and call[0]["id"]
    assert json.loads("".join(delta["partial_json"] for delta in call[1])) == {"a": 1}
    assert json.loads("".join(delta["partial_json"] for delta in empty[1])) == {} and empty[1], "a call without arguments"


def test_answers_with_nul_go_back(server):
    call = CALL.replace("1}", '1, "b": "\\u0000"}')
    message = server.send("/v1/messages", {"max_tokens": 900, "messages": [user(f"a\0b {call}")], "tools": [TOOL]})[1]
    assert message["content"][0]["text"].strip() == "a\0b" and message["content"][1]["input"] == {"a": 1, "b": "\0"}, message
    history = [user("?"), {"role": "assistant", "content": message["content"]},
               user([{"type": "tool_result", "tool_use_id": message["content"][1]["id"], "content": "c\0"}])]
    status, body = server.send("/v1/messages", {"max_tokens": 900, "messages": history, "tools": [TOOL], "system": "s\0"})
    assert status == 200 and body["content"] == [{"type": "text", "text": "c\0"}], body


def test_stop_reasons(server):
    for text, fields, reason, sequence in [("a b", {}, "end_turn", None), ("a b", {"max_tokens": 1}, "max_tokens", None),
                                           ("a b", {"stop_sequences": ["b"]}, "stop_sequence", "b"),
                                           (CALL, {"tools": [TOOL]}, "tool_use", None)]:
        status, body = server.send("/v1/messages", {"max_tokens": 900, "messages": [user(text)], **fields})
        assert status == 200 and (body["stop_reason"], body["stop_sequence"]) == (reason, sequence), body
        last = events(server, text, **fields)[-2]
        assert last["delta"] == {"stop_reason": reason, "stop_sequence": sequence}, last
    # Arguments that were cut off are not thrown away.
    status, body = server.send("/v1/messages", {"max_tokens": 45, "messages": [user(CALL)], "tools": [TOOL]})
    assert body["stop_reason"] == "max_tokens" and body["content"][0]["input"]["partial_json"].startswith('{"a'), body


def test_pings(_):
    """A stream has output while the prompt waits or is computed."""
    env = {"FAKE_KEEP_ALIVE_MS": "1", "FAKE_STEP_US": "300000"}
    with said_server("--max-num-seqs", 1, env=env) as server, server.connect() as other:
        other.send("POST", "/v1/messages", {"max_tokens": 9, "messages": [user("b c")], "stream": True})
        other.head()
        assert b"message_start" in other.chunk()  # it runs, and the next one waits
        found = [event["type"] for event in events(server, "a")]
        assert found[:2] == ["message_start", "ping"] and found[-2:] == ["message_delta", "message_stop"], found


def test_a_full_queue(_):
    with said_server("--max-num-seqs", 1, "--max-num-queued-reqs", 1, env={"FAKE_STEP_US": "100000"}) as server, \
            server.connect() as running, server.connect() as waiting:
        request = {"max_tokens": 900, "messages": [user("b c " * 200)], "stream": True}
        running.send("POST", "/v1/messages", request)
        running.head()
        waiting.send("POST", "/v1/messages", request)
        server.until(lambda: server.metric("reprise_requests_waiting") == 1, "the queue is full")
        refused = server.post("/v1/messages?beta=true", request, headers=[("anthropic-beta", "x"), ("anthropic-version", "2023-06-01")])
        assert refused.status == 429 and refused.json()["error"]["type"] == "rate_limit_error" and refused.headers["retry-after"]


def test_errors_in_streams(server):
    """Clients act on the event's name; nothing follows it."""
    found = events(server, "b c d e f", seed=9001)  # the third step computes a NaN
    assert [event["type"] for event in found[:2]] == ["message_start", "content_block_start"], found
    assert found[-1]["type"] == "error" and found[-1]["error"]["type"] == "api_error", found
    if anthropic:
        client = anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key="none", max_retries=0)
        try:
            with client.messages.stream(model="fake", max_tokens=9, messages=[user("b c d e f")], extra_body={"seed": 9001}) as stream:
                stream.get_final_message()
            raise AssertionError("the error was not seen")
        except anthropic.APIStatusError as error:
            assert error.body["error"]["type"] == "api_error", error.body


def test_keys(_):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "keys")
        with open(path, "w", encoding="ascii") as file:
            file.write("sk-one\n")
        os.chmod(path, 0o600)
        with said_server("--api-key-file", path) as server:
            request = {"max_tokens": 5, "messages": [user("a")]}
            for headers, status in [([], 401), ([("X-Api-Key", "sk-one")], 200), ([("X-Api-Key", "sk-on")], 401),
                                    ([("Authorization", "Bearer sk-one")], 200),
                                    ([("Authorization", "Bearer no"), ("X-Api-Key", "sk-one")], 401),
                                    ([("X-Api-Key", "sk-one"), ("X-Api-Key", "sk-one")], 401)]:
                response = server.post("/v1/messages?beta=true", request, headers=[*headers, ("anthropic-version", "2023-06-01")])
                assert response.status == status, (headers, response.json())
                if status == 401:
                    assert response.json()["error"]["type"] == "authentication_error"
            assert server.post("/v1/completions", {"prompt": "a"}, headers=[("X-Api-Key", "sk-one")]).status == 401


def test_other_names_of_the_model(server):
    """Claude Code asks for a small model in the background."""
    assert server.send("/v1/messages", {"model": "claude-small", "max_tokens": 1, "messages": [user("a")]})[0] == 404
    for aliases, name, status in [("*", "claude-small", 200), ("x, claude-small", "claude-small", 200), ("x,y", "x,y", 404),
                                  ("x", "fake", 200)]:
        with said_server("--model-alias", aliases) as other:
            got, body = other.send("/v1/messages", {"model": name, "max_tokens": 1, "messages": [user("a")]})
            assert got == status and (status == 404 or body["model"] == "fake"), (aliases, name, body)


def test_the_package(server):
    if not anthropic:
        print("the package anthropic is not installed: not tried")
        return
    client = anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key="none", max_retries=0)
    text = f"<think>hm</think>I add. {CALL}"
    ask = {"model": "fake", "max_tokens": 900, "tools": [TOOL], "messages": [user(text)]}
    message = client.messages.create(**ask)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"] and message.stop_reason == "tool_use"
    with client.messages.stream(**ask) as stream:
        names = [event.type for event in stream]
        final = stream.get_final_message()
    assert "thinking" in names and "text" in names and "input_json" in names, names
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
    assert final.content[2].input == {"a": 1} and final.content[0].signature and final.usage == message.usage
    assert client.messages.count_tokens(model="fake", messages=[user("a")]).input_tokens > 0
    # What the model said goes back, with the result of the call.
    answer = client.messages.create(model="fake", max_tokens=900, tools=[TOOL], messages=[
        user(text), final.to_param(), user([{"type": "tool_result", "tool_use_id": final.content[2].id, "content": "2"},
                                            {"type": "text", "text": "fine"}])])
    assert answer.content[0].text == "fine" and answer.stop_reason == "end_turn"
    try:
        client.messages.create(model="other", max_tokens=1, messages=[user("a")])
        raise AssertionError("another model was served")
    except anthropic.NotFoundError as error:
        assert error.body["error"]["type"] == "not_found_error" and error.request_id


def test_the_helpers_of_the_package(server):
    """parse(), also of a stream, and the loop that runs tools."""
    if not anthropic:
        return
    import pydantic

    class Sum(pydantic.BaseModel):
        a: int

    @anthropic.beta_tool
    def add(a: int) -> str:
        """Adds.

        Args:
            a: a number
        """
        return f"{a} and one is {a + 1}"

    client = anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key="none", max_retries=0)
    ask = {"model": "fake", "max_tokens": 900, "messages": [user('{"a": 1}')], "output_format": Sum}
    assert client.messages.parse(**ask).parsed_output == Sum(a=1)
    with client.messages.stream(**ask) as stream:
        assert "".join(stream.text_stream) == '{"a": 1}' and stream.get_final_message().parsed_output == Sum(a=1)
    runner = client.beta.messages.tool_runner(model="fake", max_tokens=900, tools=[add], messages=[user(CALL)])
    first, last = list(runner)
    assert first.content[0].input == {"a": 1} and last.content[0].text == "1 and one is 2", (first, last)


def test_a_real_model():
    with reprise_server.Server() as server:
        ask = {"max_tokens": 20, "temperature": 0, "messages": [user("What is 12 + 34?")]}
        assert server.post("/v1/messages", ask)[1]["content"] == [{"type": "text", "text": "46"}]
        ask["messages"].append({"role": "assistant", "content": "4"})  # the answer is continued
        assert server.post("/v1/messages", ask)[1]["content"] == [{"type": "text", "text": "6"}]
        ask = {"max_tokens": 30, "temperature": 0, "messages": [user("Hi")], "output_config": {"format": {
            "type": "json_schema", "schema": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
                                              "additionalProperties": False}}}}
        assert isinstance(json.loads(server.post("/v1/messages", ask)[1]["content"][0]["text"])["a"], bool)


def main():
    said = ("test_stream_of_blocks", "test_stop_reasons", "test_answers_with_nul_go_back", "test_the_package",
            "test_the_helpers_of_the_package", "test_pings", "test_a_full_queue", "test_errors_in_streams", "test_keys")
    with rendered_server() as rendering, said_server() as saying:
        for name, test in list(globals().items()):
            if name.startswith("test_") and name != "test_a_real_model":
                test(saying if name in said else rendering)
                print("ok", name)
    test_a_real_model()


if __name__ == "__main__":
    sys.exit(main())
