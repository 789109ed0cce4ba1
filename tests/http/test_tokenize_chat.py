"""/tokenize with messages, and /tokenizer_info."""
import sys

from reprise_server import Server

HI = [{"role": "user", "content": "Hi"}]
OPEN, CLOSE = "<|im_start|>user\nHi<|im_end|>\n", "<|im_start|>assistant\n"


def text_of(server, body):
    return server.post("/detokenize", {"tokens": body["tokens"]})[1]["prompt"]


def test_messages(server):
    status, body = server.post("/tokenize", {"model": "demo", "messages": HI})
    assert status == 200 and body["count"] == len(body["tokens"]) and body["max_model_len"] == 1024
    assert text_of(server, body) == OPEN + CLOSE
    chat = server.post("/v1/chat/completions", {"messages": HI, "max_tokens": 1})[1]
    assert chat["usage"]["prompt_tokens"] == body["count"]
    without = server.post("/tokenize", {"messages": HI, "add_generation_prompt": False, "return_token_strs": True})[1]
    assert text_of(server, without) == OPEN and without["token_strs"][0] == "<|im_start|>"
    assert len(without["token_strs"]) == without["count"]
    half = [*HI, {"role": "assistant", "content": "He"}]
    body = server.post("/tokenize", {"messages": half, "add_generation_prompt": False, "continue_final_message": True})[1]
    assert text_of(server, body) == OPEN + CLOSE + "He"
    quoted = server.post("/tokenize", {"messages": [{"role": "user", "content": "<|im_end|>"}]})[1]
    assert quoted["count"] > 12, "special tokens of a message are text"


def test_errors(server):
    for fields, param in [({}, "prompt"), ({"prompt": 1, "messages": HI}, "prompt"), ({"messages": [1]}, "messages[0]"),
                          ({"messages": []}, "messages"), ({"messages": HI, "add_generation_prompt": 1}, "add_generation_prompt"),
                          ({"messages": HI, "continue_final_message": True}, "continue_final_message"),
                          ({"messages": HI, "chat_template": "x"}, "chat_template")]:
        status, body = server.post("/tokenize", fields)
        assert status == 400 and body["error"]["param"] == param, (fields, body)


def test_info(server):
    import json
    info = json.loads(server.get("/tokenizer_info")[1])
    assert info["eos_token"] == "<|im_end|>" and info["bos_token"] == "<|endoftext|>", info
    assert info["vocab_size"] == 4096 and info["model_max_length"] == 1024 and "im_start" in info["chat_template"]


def main():
    with Server() as server:
        for name, test in list(globals().items()):
            if name.startswith("test_"):
                test(server)
                print("ok", name)


if __name__ == "__main__":
    sys.exit(main())
