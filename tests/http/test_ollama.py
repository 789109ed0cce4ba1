"""Ollama's API, with --ollama: lines of a stream, whole answers, tools, options, formats, names of models, errors."""
import json
import sys

import reprise_server
from reprise_server import DEMO
from said import END, rendered, rendered_server, said_server

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def user(text):
    return {"role": "user", "content": text}


def lines(server, path, body):
    response = server.post(path, body)
    assert response.status == 200 and response.headers["content-type"] == "application/x-ndjson", response.body
    found = [json.loads(line) for line in response.body.decode().splitlines()]
    assert all(not line["done"] for line in found[:-1]) and found[-1]["done"]
    assert all(line["model"] == "fake" and line["created_at"].endswith("Z") for line in found)
    return found


def test_off_by_default():
    with rendered_server() as server:
        for method, path in [("POST", "/api/chat"), ("GET", "/api/tags"), ("GET", "/api/version")]:
            assert server.request(method, path).status == 404


def test_messages_and_options():
    with rendered_server("--ollama") as server:
        messages = [{"role": "system", "content": "first"}, user("one"),
                    {"role": "assistant", "content": "", "thinking": "so", "tool_calls": [
                        {"function": {"name": "add", "arguments": {"a": 1}}}]},
                    {"role": "tool", "tool_name": "add", "content": "2"}, user("two")]
        status, body = server.send("/api/chat", {"messages": messages, "tools": TOOLS, "stream": False, "think": True,
                                                 "options": {"stop": [END], "num_ctx": 4096, "temperature": 0.5, "seed": 3}})
        assert status == 200 and body["done_reason"] == "stop", body
        got = rendered(body["message"]["content"])
        assert [m["role"] for m in got["messages"]] == ["system", "user", "assistant", "tool", "user"] and got["thinking"] is True
        assert got["messages"][2]["reasoning_content"] == "so"
        assert got["messages"][2]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}
        body = server.send("/api/generate", {"prompt": "hi", "system": "s", "stream": False, "options": {"stop": END}})[1]
        assert [m["content"] for m in rendered(body["response"])["messages"]] == ["s", "hi"]
        for path, fields, message in [
                ("/api/chat", {"messages": [{"role": "king", "content": ""}]}, "messages[0].role must"),
                ("/api/chat", {"messages": [{**user("a"), "images": ["x"]}]}, "messages[0].images is not"),
                ("/api/chat", {"messages": [user("a")], "options": {"top_k": "a"}}, "options.top_k must"),
                ("/api/chat", {"messages": [user("a")], "options": {"repeat_penalty": 0}}, "options.repeat_penalty must"),
                ("/api/chat", {"messages": [user("a")], "format": "xml"}, "format must"),
                ("/api/chat", {"messages": [user("a")], "think": 3}, "think must"),
                ("/api/chat", {"messages": [user("a")], "model": "llama"}, "this server serves fake"),
                ("/api/generate", {"prompt": 1}, "prompt must"), ("/api/generate", {"prompt": "a", "suffix": "b"}, "suffix is not")]:
            status, body = server.send(path, fields)
            assert status in (400, 404) and body["error"].startswith(message), (fields, body)


def test_streams():
    with said_server("--ollama") as server:
        found = lines(server, "/api/chat", {"model": "fake:latest", "messages": [user(f"<think>hm</think>ok {CALL}")], "tools": TOOLS})
        texts = ["".join(line["message"].get(key, "") for line in found) for key in ("thinking", "content")]
        assert texts[0] == "hm" and texts[1].strip() == "ok", found
        (calls,) = [line["message"]["tool_calls"] for line in found if "tool_calls" in line["message"]]
        assert calls[0]["function"] == {"name": "add", "arguments": {"a": 1}}
        last = found[-1]
        assert last["done_reason"] == "stop" and last["prompt_eval_count"] > last["eval_count"] > 10, last
        assert last["total_duration"] >= last["eval_duration"] > 0
        found = lines(server, "/api/generate", {"prompt": "a b c", "options": {"num_predict": 3}})
        assert "".join(line["response"] for line in found) == "a b" and found[-1]["done_reason"] == "length"
        assert found[-1]["eval_count"] == 3
        whole = server.send("/api/chat", {"messages": [user(CALL)], "tools": TOOLS, "stream": False})[1]
        assert whole["message"]["tool_calls"][0]["function"]["name"] == "add" and whole["done"]
        for path, body in [("/api/chat", {"messages": []}), ("/api/generate", {})]:  # clients load a model so
            assert server.send(path, {"model": "fake", **body})[1]["done_reason"] == "load"


def test_a_real_model():
    with reprise_server.Server(DEMO, "--ollama") as server:
        zero = {"temperature": 0, "num_predict": 40}
        body = server.post("/api/chat", {"messages": [user("What is 12 + 34?")], "stream": False, "options": zero})[1]
        assert body["message"]["content"] == "46" and body["eval_count"] == 3
        body = server.post("/api/generate", {"prompt": "12 + 34 =", "raw": True, "stream": False,
                                             "options": {"temperature": 0, "num_predict": 3}})[1]
        assert body["response"] == " 46"
        for form in ("json", {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
                              "additionalProperties": False}):
            body = server.post("/api/chat", {"messages": [user("Hi")], "stream": False, "format": form,
                                             "options": {**zero, "num_predict": 60}})[1]
            if body["done_reason"] == "stop":
                assert isinstance(json.loads(body["message"]["content"]), dict)
            else:
                assert body["message"]["content"].lstrip().startswith("{")
        (model,) = json.loads(server.get("/api/tags")[1])["models"]
        assert model["name"] == "demo" and model["size"] > 1000000
        assert json.loads(server.get("/api/ps")[1])["models"][0]["context_length"] == 1024
        shown = server.post("/api/show", {"name": "demo"})[1]
        assert shown["model_info"]["reprise.context_length"] == 1024 and "completion" in shown["capabilities"]
        assert "im_start" in shown["template"] and server.post("/api/show", {"model": "other"})[0] == 404
        assert json.loads(server.get("/api/version")[1])["version"]


def main():
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok", name)


if __name__ == "__main__":
    sys.exit(main())
