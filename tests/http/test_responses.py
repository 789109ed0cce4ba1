"""The Responses API: how a request becomes a chat, items and events of answers, stored responses, and the `openai`
package unmodified. Every object and every event is validated against OpenAI's description of its API."""
import json
import os
import sys
import tempfile

import reprise_server
from reprise_server import skip
from said import END, rendered, rendered_server, said_server

try:
    import jsonschema  # noqa: F401 (openapi_check needs it)
    import openai
except ImportError as missing:
    skip(f"a package is not installed: {missing.name}")

from openapi_check import Judge

JUDGE = Judge()
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "name": "add", "description": "Adds.", "parameters": PARAMETERS}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": {"type": "text"}}


def call(name="add", arguments='{"a": 1}'):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def create(server, given, **fields):
    status, body = server.send("/v1/responses", {"input": given, **fields})
    assert status == 200, body
    JUDGE.check("Response", body)
    return body


def ask(server, given, **fields):
    return rendered(create(server, given, stop=[END], **fields)["output"][0]["content"][0]["text"])


def test_items_become_messages(server):
    items = [{"role": "user", "content": "one"},
             {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "so"}]},
             {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I add."}]},
             {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
             {"type": "web_search_call", "id": "w", "status": "completed"},
             {"type": "function_call_output", "call_id": "c1", "output": "2"},
             {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": "*** Begin"},
             {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "ok"}]},
             {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "note"}]},
             {"role": "user", "content": [{"type": "input_text", "text": "two"}, {"type": "input_text", "text": "three"}]}]
    got = ask(server, items, instructions="first", tools=[TOOL, PATCH], tool_choice="none")["messages"]
    assert [m["role"] for m in got] == ["system", "user", "assistant", "tool", "assistant", "tool", "system", "user"], got
    assert got[2]["content"] == "I add." and got[2]["reasoning_content"] == "so" and got[2]["tool_calls"][0]["id"] == "c1"
    assert got[2]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}
    assert "*** Begin" in json.dumps(got[4]["tool_calls"]) and got[5]["content"] == "ok"
    assert got[6]["content"] == "note" and got[7]["content"] == "two\nthree"


def test_tools_of_codex(server):
    """Unknown types are skipped, namespaces are flattened."""
    tools = [TOOL, PATCH, {"type": "web_search"}, {"type": "local_shell"}, {"type": "image_generation"}, {"type": "brand_new"},
             {"type": "namespace", "name": "mcp__files__", "description": "d", "tools": [{**TOOL, "name": "read"}]},
             {"type": "namespace", "name": "n" * 50, "description": "d", "tools": [{**TOOL, "name": "t" * 50}]}]
    got = ask(server, "a", tools=tools, tool_choice="auto", parallel_tool_calls=True, store=False, include=[],
              reasoning={"effort": "low", "summary": "auto"}, prompt_cache_key="k", text={"verbosity": "low"})
    names = [tool["function"]["name"] for tool in got["tools"]]
    assert names[:3] == ["add", "apply_patch", "mcp__files__read"] and len(names[3]) == 64, names
    only = ask(server, "a", tools=[{"type": "web_search"}], tool_choice="auto")
    assert only["tools"] is None


ERRORS = [  # fields, param, code
    ({"input": None}, "input", "missing"), ({"input": 7}, "input", "invalid_type"),
    ({"input": [7]}, "input[0]", "invalid_value"), ({"input": []}, "input", "invalid_type"),
    ({"input": [{"role": "king", "content": "a"}]}, "input[0].role", "invalid_value"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content", "invalid_value"),
    ({"input": [{"type": "odd"}]}, "input[0].type", "invalid_value"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]", "item_not_found"),
    ({"input": [{"type": "item_reference"}]}, "input[0]", "item_not_found"),
    ({"input": [{"role": "user", "content": "a"}, {"type": "item_reference", "id": "msg_0123456789abcdef0000"}]}, "input[1]",
     "item_not_found"),
    ({"input": "a " * 20000}, "input", "context_length_exceeded"),
    ({"max_output_tokens": 0}, "max_output_tokens", "out_of_range"),
    ({"max_output_tokens": 90000}, "max_output_tokens", "context_length_exceeded"),
    ({"temperature": -1}, "temperature", "out_of_range"), ({"instructions": 1}, "instructions", "invalid_type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name", "invalid_value"),
    ({"tools": [TOOL], "tool_choice": {"type": "file_search"}}, "tool_choice", "unsupported_parameter"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type", "unsupported_parameter"),
    ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"uniqueItems": True}}}}, None, "invalid_grammar"),
    ({"metadata": "a"}, "metadata", "invalid_type"),
    ({"background": True}, "background", "unsupported_parameter"),
    ({"truncation": "auto"}, "truncation", "unsupported_parameter"),
    ({"previous_response_id": "resp_0"}, "previous_response_id", "previous_response_not_found"),
    ({"model": "gpt-4"}, "model", "model_not_found")]


def test_errors(server):
    for fields, param, code in ERRORS:
        for stream in (False, True):
            status, body = server.send("/v1/responses", {"input": "a", "stream": stream, **fields})
            assert status in (400, 404) and body["error"]["code"] == code, (fields, body)
            assert param is None or body["error"]["param"] == param, (fields, body)
            JUDGE.error(body)
    assert "maximum context length is 16384 tokens" in server.send("/v1/responses", {"input": "a " * 20000})[1]["error"]["message"]


def stream_of(server, given, **fields):
    return events_of(server.post("/v1/responses", {"input": given, "stream": True, **fields}))


def events_of(response, first=0):
    found = []
    for event in response.body.decode().split("\n\n")[:-1]:
        name, data = event.split("\n")
        value = json.loads(data[6:])
        assert name == "event: " + value["type"], event
        JUDGE.check("ResponseStreamEvent", value)
        found.append(value)
    assert [event["sequence_number"] for event in found] == list(range(first, first + len(found)))
    return found


def kinds(found):
    """Names without repeats of neighboring deltas."""
    names = [event["type"].removeprefix("response.") for event in found]
    return [name for i, name in enumerate(names) if i == 0 or name != names[i - 1] or not name.endswith("delta")]


def message_events():
    return ["output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done",
            "output_item.done"]


def test_stream_of_items(server):
    text = f"<think>hm mm</think>ok {call()}\n{call(arguments='{}')}"
    found = stream_of(server, text, tools=[TOOL], include=["reasoning.encrypted_content"])
    reasoning = ["output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done",
                 "output_item.done"]
    calls = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert kinds(found) == ["created", "in_progress", *reasoning, *message_events(), *calls, *calls, "completed"], kinds(found)
    final = found[-1]["response"]
    assert found[0]["response"]["output"] == [] and found[0]["response"]["status"] == "in_progress"
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert final["output"] == done and final["status"] == "completed" and final["id"] == found[0]["response"]["id"]
    assert [item["type"] for item in done] == ["reasoning", "message", "function_call", "function_call"]
    assert done[0]["content"] == [{"type": "reasoning_text", "text": "hm mm"}] and done[0]["summary"] == []
    assert json.loads(done[2]["arguments"]) == {"a": 1} and done[2]["call_id"] != done[3]["call_id"]
    indices = [event["output_index"] for event in found if "output_index" in event]
    assert indices == sorted(indices) and len({item["id"] for item in done}) == 4
    deltas = "".join(e["delta"] for e in found if e["type"] == "response.function_call_arguments.delta" and e["output_index"] == 2)
    assert deltas == done[2]["arguments"]
    whole = create(server, text, tools=[TOOL], include=["reasoning.encrypted_content"])
    assert [item["type"] for item in whole["output"]] == [item["type"] for item in done]
    assert whole["output"][0]["encrypted_content"] == done[0]["encrypted_content"]
    # Only this server reads it back; the text of another is not lost.
    echo = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": done[0]["encrypted_content"]}
    with rendered_server() as other:
        got = ask(other, [{"role": "user", "content": "a"}, echo, {"role": "assistant", "content": "b"}])
        assert got["messages"][1]["reasoning_content"] == "hm mm", got


def test_reasoning_summary(server):
    found = stream_of(server, "<think>hm</think>ok", reasoning={"effort": "low", "summary": "auto"})
    assert kinds(found)[2:8] == ["output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta",
                                 "reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done"]
    assert found[-1]["response"]["output"][0]["summary"] == [{"type": "summary_text", "text": "hm"}]


def test_custom_tools_and_namespaces(server):
    space = {"type": "namespace", "name": "mcp__files__", "description": "d", "tools": [{**TOOL, "name": "read"}]}
    text = call("apply_patch", json.dumps({"input": "*** Begin\n"})) + "\n" + call("mcp__files__read")
    found = stream_of(server, text, tools=[PATCH, space])
    custom, function = found[-1]["response"]["output"]
    assert custom["type"] == "custom_tool_call" and custom["input"] == "*** Begin\n" and custom["name"] == "apply_patch", custom
    assert (function["namespace"], function["name"]) == ("mcp__files__", "read"), function
    assert "custom_tool_call_input.done" in kinds(found)
    assert next(e["name"] for e in found if e["type"].endswith("arguments.done")) == "read"


def test_incomplete(server):
    found = stream_of(server, "a b c d", max_output_tokens=2)
    final = found[-1]
    assert final["type"] == "response.incomplete" and final["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert final["response"]["output"][0]["status"] == "incomplete"
    assert create(server, "a b c d", max_output_tokens=2)["status"] == "incomplete"


def test_large_requests_are_echoed(server):
    """Events that repeat the request are larger than what a slow reader may leave unread."""
    with said_server("--max-model-len", 2000000, env={"FAKE_STREAM_BYTES": "65536"}) as small:
        found = stream_of(small, "ok", metadata={"k": "v" * 300000})
        assert found[-1]["type"] == "response.completed" and len(found[-1]["response"]["metadata"]["k"]) == 300000
        replayed = events_of(small.get(f"/v1/responses/{found[0]['response']['id']}?stream=true"))
        assert kinds(replayed) == kinds(found) and replayed[0]["response"] == found[0]["response"]


def test_stored_responses(server):
    first = create(server, "a b")
    items = [{"type": "message", "role": "user", "content": "c"}]
    second = create(server, items, previous_response_id=first["id"], instructions="not carried over")
    assert second["previous_response_id"] == first["id"] and second["output"][0]["content"][0]["text"] == "c"
    assert second["usage"]["input_tokens"] > 0
    got = server.get(f"/v1/responses/{second['id']}").json()
    assert got == second
    page = server.get(f"/v1/responses/{second['id']}/input_items?order=asc").json()
    JUDGE.check("ResponseItemList", page)
    assert [item["role"] for item in page["data"]] == ["user", "assistant", "user"] and not page["has_more"], page
    page = server.get(f"/v1/responses/{second['id']}/input_items?limit=2").json()
    assert [item["role"] for item in page["data"]] == ["user", "assistant"] and page["has_more"]
    page = server.get(f"/v1/responses/{second['id']}/input_items?after={page['last_id']}").json()
    assert [item["content"][0]["text"] for item in page["data"]] == ["a b"]
    deleted = server.request("DELETE", f"/v1/responses/{first['id']}")
    assert deleted.status == 200 and deleted.json() == {"id": first["id"], "object": "response", "deleted": True}
    for method in ("GET", "DELETE"):
        assert server.request(method, f"/v1/responses/{first['id']}").status == 404
    assert create(server, "d", previous_response_id=second["id"])["status"] == "completed", "it has the whole conversation"
    unstored = create(server, "a", store=False)
    assert unstored["store"] is False and server.get(f"/v1/responses/{unstored['id']}").status == 404
    streamed = stream_of(server, "e")[-1]["response"]
    assert server.get(f"/v1/responses/{streamed['id']}").json() == streamed
    assert server.get("/v1/responses/a/b").status == 404 and server.post("/v1/responses/x", {}).status == 404
    assert server.get(f"/v1/responses/{streamed['id']}?stream=perhaps").status == 400
    assert server.post(f"/v1/responses/{streamed['id']}/cancel", {}).status == 400
    count = server.send("/v1/responses/input_tokens", {"input": "a"})[1]
    JUDGE.check("TokenCountsResource", count)
    assert count["input_tokens"] == create(server, "a")["usage"]["input_tokens"]


def test_the_stream_of_a_stored_response(server):
    """The same events, with each text in one delta."""
    space = {"type": "namespace", "name": "mcp__files__", "description": "d", "tools": [{**TOOL, "name": "read"}]}
    reasoned = f"<think>hm mm</think>ok \0 {call()}\n{call(arguments='{}')}"
    for given, fields in [(reasoned, {"tools": [TOOL], "include": ["reasoning.encrypted_content"]}),
                          ("<think>hm</think>ok", {"reasoning": {"summary": "auto"}}), ("a b c", {"max_output_tokens": 2}),
                          ("a b", {"top_logprobs": 2, "include": ["message.output_text.logprobs"]}),
                          (call("apply_patch", '{"input": "x"}') + "\n" + call("mcp__files__read"), {"tools": [PATCH, space]})]:
        live = stream_of(server, given, **fields)
        at = f"/v1/responses/{live[-1]['response']['id']}"
        response = server.get(at + "?stream=true&include_obfuscation=false")
        assert response.headers["content-type"] == "text/event-stream"
        replayed = events_of(response)
        assert kinds(replayed) == kinds(live) and replayed[-1] == {**live[-1], "sequence_number": len(replayed) - 1}
        # All but the number is the same, once neighboring deltas are one.
        joined = []
        for event in live:
            if event["type"].endswith(".delta") and joined[-1]["type"] == event["type"]:
                joined[-1]["delta"] += event["delta"]
                if "logprobs" in event:
                    joined[-1]["logprobs"] += event["logprobs"]
            else:
                joined.append(json.loads(json.dumps(event)))
        for made, replay in zip(joined, replayed, strict=True):
            made["sequence_number"] = replay["sequence_number"]
            assert made == replay, (made, replay)
        assert events_of(server.get(at + "?stream=true&starting_after=3"), 4) == replayed[4:]
        assert server.get(at + "?stream=true&starting_after=100000").body == b""
        assert server.get(at + "?stream=false").json() == live[-1]["response"]
    assert server.get("/v1/responses/resp_0?stream=true").status == 404


def test_references_to_items(server):
    """Some clients send the ids of what the server stored in place of the items."""
    first = create(server, f"<think>hm</think>I add. {call()}", tools=[TOOL])
    reasoning, message, function = (item["id"] for item in first["output"])
    history = [{"role": "user", "content": "?"}, *({"type": "item_reference", "id": name} for name in (reasoning, message)),
               {"id": function}, {"type": "function_call_output", "call_id": first["output"][2]["call_id"], "output": "2"},
               {"role": "user", "content": "fine"}]
    second = create(server, history, tools=[TOOL])
    assert second["output"][0]["content"][0]["text"] == "fine"
    page = server.get(f"/v1/responses/{second['id']}/input_items?order=asc").json()
    JUDGE.check("ResponseItemList", page)
    assert page["data"][1:4] == first["output"], page["data"]
    whole = [history[0], *first["output"], *history[4:]]
    assert second["usage"]["input_tokens"] == create(server, whole, tools=[TOOL])["usage"]["input_tokens"]
    for wrong in (message[:-1] + "7", message + "0", "rs" + message[3:], first["id"], message.replace("_", ""), "_", ""):
        refused = server.post("/v1/responses", {"input": [{"type": "item_reference", "id": wrong}]})
        assert refused.status == 400 and refused.error["code"] == "item_not_found", (wrong, refused.body)
    twice = server.post("/v1/responses", {"input": [{"type": "item_reference", "id": message}] * 2})
    assert twice.status == 400 and twice.error["param"] == "input[1]", twice.body
    server.request("DELETE", f"/v1/responses/{first['id']}")
    assert server.post("/v1/responses", {"input": history}).error["code"] == "item_not_found"


def test_the_list_that_codex_reads(server):
    """It parses the list of models into an object that must have `models`."""
    listed = server.get("/v1/models").json()
    JUDGE.check("ListModelsResponse", listed)
    assert listed["models"] == [] and [model["id"] for model in listed["data"]] == ["fake"]


def test_answers_with_nul_go_back(server):
    text = f"<think>a\0b</think>c\0d {call(arguments=json.dumps({'a': 1, 'b': chr(0)}))}"
    first = create(server, text, tools=[TOOL], include=["reasoning.encrypted_content"])
    assert [item["type"] for item in first["output"]] == ["reasoning", "message", "function_call"]
    items = [{"role": "user", "content": text}, *first["output"],
             {"type": "function_call_output", "call_id": first["output"][2]["call_id"], "output": "e\0f"},
             {"role": "user", "content": "ok \0"}]
    assert create(server, items)["output"][0]["content"][0]["text"] == "ok \0"
    again = create(server, "ok", previous_response_id=first["id"])
    assert again["output"][0]["content"][0]["text"] == "ok", "it was stored"
    with rendered_server() as other:
        got = ask(other, items[1:], tools=[TOOL])["messages"]
    assert got[0]["content"].strip() == "c\0d" and got[0]["reasoning_content"] == "a\0b", got
    assert got[0]["tool_calls"][0]["function"]["arguments"] == {"a": 1, "b": "\0"}
    assert got[1]["content"] == "e\0f" and got[2]["content"] == "ok \0"


def test_the_store_is_bounded(_):
    with said_server("--responses-store", "16K") as server:
        ids = [create(server, f"text {i}")["id"] for i in range(20)]
        status = [server.get(f"/v1/responses/{name}").status for name in ids]
        kept = status.count(200)
        assert 2 < kept < 10 and status == [404] * (20 - kept) + [200] * kept, status
        large = create(server, "a", metadata={"k": "v" * 20000})
        assert server.get(f"/v1/responses/{large['id']}").status == 404
        assert server.get(f"/v1/responses/{ids[-1]}").status == 200, "one that is too large drops no other"
    with said_server("--responses-store", 0) as server:
        answer = create(server, "a")
        assert answer["store"] is False and server.get(f"/v1/responses/{answer['id']}").status == 404
        for fields in ({"store": True}, {"previous_response_id": "resp_1"}):
            status, body = server.send("/v1/responses", {"input": "a", **fields})
            assert status == 400 and "--responses-store" in body["error"]["message"], body
            assert body["error"]["param"] == list(fields)[0]


def test_keys_do_not_share_responses(_):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "keys")
        with open(path, "w", encoding="ascii") as file:
            file.write("one\ntwo\n")
        os.chmod(path, 0o600)
        with said_server("--api-key-file", path) as server:
            one, two = ([("Authorization", "Bearer " + key)] for key in ("one", "two"))
            body = server.post("/v1/responses", {"input": "a"}, headers=one).json()
            at = f"/v1/responses/{body['id']}"
            assert server.get(at, headers=one).status == 200 and server.get(at, headers=two).status == 404
            assert server.request("DELETE", at, headers=two).status == 404 and server.get(at).status == 401
            assert server.get(at + "?stream=true", headers=two).status == 404
            reference = {"input": [{"type": "item_reference", "id": body["output"][0]["id"]}, {"role": "user", "content": "b"}]}
            assert [server.post("/v1/responses", reference, headers=key).status for key in (one, two)] == [200, 400]
            assert server.post("/v1/responses", {"input": "a", "previous_response_id": body["id"]}, headers=two).status == 400


def test_cancel(_):
    with said_server(env={"FAKE_STEP_US": "20000"}) as server, server.connect() as connection:
        connection.send("POST", "/v1/responses", {"input": "a b c " * 100, "stream": True})
        connection.head()
        name = json.loads(connection.chunk().decode().split("data: ")[1].split("\n")[0])["response"]["id"]
        stopped = server.post(f"/v1/responses/{name}/cancel", {})
        assert stopped.status == 200 and stopped.json()["status"] == "cancelled", stopped.json()
        JUDGE.check("Response", stopped.json())
        rest = b""
        while True:
            piece = connection.chunk()
            if not piece:
                break
            rest += piece
        last = json.loads(rest.decode().split("data: ")[-1])
        assert last["type"] == "response.failed" and last["response"]["status"] == "failed", last
        JUDGE.check("ResponseStreamEvent", last)


def test_the_package(server):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)
    text = f"<think>hm</think>I add. {call()}"
    with client.responses.stream(model="fake", input=text, tools=[{**TOOL, "strict": False}]) as stream:
        names = {event.type for event in stream}
        final = stream.get_final_response()
    assert "response.function_call_arguments.delta" in names and final.output_text.strip() == "I add.", (names, final)
    function = final.output[2]
    again = client.responses.create(model="fake", previous_response_id=final.id, input=[
        {"type": "function_call_output", "call_id": function.call_id, "output": "2"}, {"role": "user", "content": "fine"}])
    assert again.output_text == "fine"
    assert [item.type for item in client.responses.input_items.list(again.id, order="asc")] == [
        "message", "reasoning", "message", "function_call", "function_call_output", "message"]
    client.responses.delete(again.id)
    try:
        client.responses.retrieve(again.id)
        raise AssertionError("a deleted response was found")
    except openai.NotFoundError:
        pass


def test_streams_without_output_have_comments(_):
    """Codex gives up on a stream without bytes."""
    env = {"FAKE_KEEP_ALIVE_MS": "1", "FAKE_STEP_US": "300000"}
    with said_server("--max-num-seqs", 1, env=env) as server, server.connect() as other:
        other.send("POST", "/v1/responses", {"input": "b c", "stream": True})
        other.head()
        assert b"response.created" in other.chunk()  # it runs, and the next one waits
        body = server.post("/v1/responses", {"input": "a", "stream": True}).body.decode()
        assert ": waiting\n\n" in body.split("event: response.output_item.added")[0] and "response.completed" in body, body


def test_late_instructions_are_seen(_):
    """Messages of a developer after those of the user, with a template that has no such messages: they stay in place."""
    template = ('{%- for m in messages[1:] -%}{%- if m.role == "system" -%}{{ raise_exception("late") }}{%- endif -%}{%- endfor -%}'
                '<s>{"messages": {{ messages | tojson }}}' + END)
    items = [{"role": "user", "content": "a"}, {"role": "developer", "content": "note"}, {"role": "assistant", "content": "b"},
             {"role": "developer", "content": "early"}, {"role": "user", "content": "c"}]
    with rendered_server(template=template) as strict:
        got = ask(strict, items, instructions="first")["messages"]
    assert [(m["role"], m["content"]) for m in got] == [
        ("system", "first"), ("user", "a\nnote"), ("assistant", "b"), ("user", "early\nc")], got


def test_a_real_model():
    import pydantic

    class Sure(pydantic.BaseModel):
        sure: bool

    with reprise_server.Server() as server:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)
        first = client.responses.create(model="demo", input="What is 12 + 34?", temperature=0)
        assert first.output_text == "46" and first.usage.output_tokens == 3
        parsed = client.responses.parse(model="demo", input="Hi", temperature=0, text_format=Sure)
        assert isinstance(parsed.output_parsed.sure, bool)
        body = {"input": "What is 12 + 34?", "temperature": 0, "top_logprobs": 2, "include": ["message.output_text.logprobs"]}
        whole = server.post("/v1/responses", body)[1]
        JUDGE.check("Response", whole)
        entries = whole["output"][0]["content"][0]["logprobs"]
        assert [entry["token"] for entry in entries] == ["4", "6"] and len(entries[0]["top_logprobs"]) == 2
        streamed = server.request("POST", "/v1/responses", {**body, "stream": True})[2].decode()
        events = [json.loads(event.split("data: ")[1]) for event in streamed.split("\n\n")[:-1]]
        found = [entry for event in events if event["type"].endswith("text.delta") for entry in event["logprobs"]]
        assert found == entries


def main():
    rendering_tests = ("test_items_become_messages", "test_tools_of_codex", "test_errors")
    with rendered_server() as rendering, said_server() as saying:
        for name, test in list(globals().items()):
            if name.startswith("test_") and name != "test_a_real_model":
                test(rendering if name in rendering_tests else saying)
                print("ok", name)
    test_a_real_model()
    assert JUDGE.schemas is None or JUDGE.count > 150, JUDGE.count
    print(f"{JUDGE.count} bodies judged" if JUDGE.schemas else "OpenAI's description is not there: shapes were not judged")


if __name__ == "__main__":
    sys.exit(main())
