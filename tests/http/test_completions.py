"""Completions: text, chunks, usage, stop strings, lists of prompts, seeds of faults."""
from fake_server import Server, parse_events


def stream(server, prompt, **fields):
    response = server.complete(prompt, stream=True, **fields)
    assert response.status == 200, response.body
    events = response.events()
    assert events[-1] == "[DONE]", events[-1]
    return events[:-1]


def texts(events):
    return [choice["text"] for event in events for choice in event["choices"]]


def test_whole_and_streamed_answers_agree(server):
    for prompt in ("hello", "héllo wörld 🙂", "a", "日本語 hello", "x\ny\t\"\\"):
        for count in range(1, 24):
            whole = server.complete(prompt, max_tokens=count).json()
            events = stream(server, prompt, max_tokens=count)
            assert "".join(texts(events)) == whole["choices"][0]["text"]
            assert len(events) == count == whole["usage"]["completion_tokens"]
            assert events[-1]["choices"][0]["finish_reason"] == "length"
            assert all(event["choices"][0]["finish_reason"] is None for event in events[:-1])
            # The answer ends inside an emoji: U+FFFD, sent only at the end.
            assert "\ufffd" not in "".join(texts(events[:-1]))


def test_shape(server):
    answer = server.complete("abc", max_tokens=3, model="fake", user="u", temperature=0.5, seed=1).json()
    assert answer["object"] == "text_completion" and answer["model"] == "fake"
    assert answer["id"].startswith("cmpl-") and isinstance(answer["created"], int)
    assert answer["choices"] == [{"index": 0, "text": "abc", "logprobs": None, "finish_reason": "length",
                                  "stop_reason": None}]
    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7,
                               "prompt_tokens_details": {"cached_tokens": 0}}


def test_max_tokens_is_16_when_absent(server):
    for fields in ({}, {"max_tokens": None}):
        assert server.complete("a", **fields).json()["usage"]["completion_tokens"] == 16


def test_usage_in_streams(server):
    events = stream(server, "abc", max_tokens=3, stream_options={"include_usage": True})
    assert [event["usage"] for event in events[:-1]] == [None] * 3
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["prompt_tokens"] == 4 and events[-1]["usage"]["completion_tokens"] == 3
    events = stream(server, "abc", max_tokens=3, stream_options={"continuous_usage_stats": True})
    assert [event["usage"]["completion_tokens"] for event in events] == [1, 2, 3]
    assert all("usage" not in event for event in stream(server, "abc", max_tokens=3))


def test_stop_strings(server):
    cases = [  # prompt, stop, text, completion tokens
        ("abcdefgh", "def", "abc", 6),
        ("abcdefgh", ["xyz", "ef", "def"], "abc", 6),      # complete at the same byte: the longest
        ("abcdefgh", ["fg", "cd"], "ab", 4),               # the first to be complete
        ("aabaabaac", "aabaac", "aab", 9),                 # overlaps itself
        ("hello world", "o w", "hell", 3),                 # begins inside a token
        ("schön 🙂🙃", "🙃", "schön 🙂", 15),               # differs in the last byte only
        ("éèé", "è", "é", 4),
        ("a", "aaaa", "", 4),
        ("ab", "b", "a", 2)]
    for prompt, stop, text, tokens in cases:
        for include in (False, True):
            fields = {"stop": stop, "max_tokens": 40, "include_stop_str_in_output": include}
            answer = server.complete(prompt, **fields).json()
            choice = answer["choices"][0]
            wanted = text + choice["stop_reason"] if include else text
            assert (choice["text"], choice["finish_reason"]) == (wanted, "stop"), (prompt, stop, choice)
            assert choice["stop_reason"] in stop
            assert answer["usage"]["completion_tokens"] == tokens, (prompt, stop, answer)
            events = stream(server, prompt, **fields)
            assert "".join(texts(events)) == wanted, (prompt, stop, texts(events))
            assert len(events) == tokens
            assert [event["choices"][0]["finish_reason"] for event in events] == [None] * (tokens - 1) + ["stop"]


def test_text_that_could_be_a_stop_string_is_held_back_and_not_lost(server):
    events = stream(server, "abcabd", stop="abce", max_tokens=12)
    assert texts(events) == ["", "", "", "abc", "", "ab" + "d", "", "", "", "abc", "", "abd"], texts(events)
    assert server.complete("abc", stop="abcx", max_tokens=3).text == "abc"  # held at the end


def test_stop_tokens(server):
    choice = server.complete("abc</s>def", max_tokens=20).json()
    assert choice["choices"][0]["text"] == "abc" and choice["choices"][0]["stop_reason"] is None  # the model's own end
    assert choice["choices"][0]["finish_reason"] == "stop" and choice["usage"]["completion_tokens"] == 4
    assert len(stream(server, "abc</s>def", max_tokens=20)) == 4
    assert server.complete("abc</s>def", max_tokens=7, ignore_eos=True).text == "abcdef"
    assert server.complete("abc</s>def", max_tokens=7, ignore_eos=True,
                           skip_special_tokens=False).text == "abc</s>def"
    choice = server.complete("abcdef", stop_token_ids=[ord("d") + 3]).json()["choices"][0]
    assert choice["text"] == "abc" and choice["stop_reason"] == ord("d") + 3, choice
    # After the token that fills max_tokens, stop is still stop.
    assert server.complete("ab</s>", max_tokens=3).json()["choices"][0]["finish_reason"] == "stop"


def test_min_tokens(server):
    assert server.complete("ab</s>", max_tokens=8, min_tokens=4).text == "abab"
    assert server.complete("abcd", stop="b", max_tokens=20, min_tokens=3).text == "abcda"


def test_lists_of_prompts(server):
    for prompts in (["ab", "cde", "f"], [[0, 100, 101], [0, 102, 103, 104], [0, 105]]):
        answer = server.complete(prompts, max_tokens=3).json()
        assert [(c["index"], c["text"]) for c in answer["choices"]] == [(0, "aba"), (1, "cde"), (2, "fff")]
        assert answer["usage"] == {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18,
                                   "prompt_tokens_details": {"cached_tokens": 0}}
        events = stream(server, prompts, max_tokens=3, stream_options={"include_usage": True})
        for index, text in enumerate(["aba", "cde", "fff"]):
            assert "".join(c["text"] for e in events for c in e["choices"] if c["index"] == index) == text
        assert events[-1]["usage"]["total_tokens"] == 18
    assert server.complete([0, 100, 101], max_tokens=3).text == "aba"


def test_special_tokens(server):
    assert server.complete("ab").json()["usage"]["prompt_tokens"] == 3
    assert server.complete("ab", add_special_tokens=False).json()["usage"]["prompt_tokens"] == 2
    assert server.complete("").json()["usage"]["prompt_tokens"] == 1
    assert server.complete("", add_special_tokens=False).status == 400
    assert server.post("/tokenize", {"prompt": "a<|x|>"}).json() == {"count": 3, "max_model_len": 4096,
                                                                     "tokens": [0, 100, 2]}
    answer = server.post("/tokenize", {"prompt": "é", "add_special_tokens": False, "return_token_strs": True})
    assert answer.json()["token_strs"] == ["Ã", "©"]
    assert server.post("/detokenize", {"tokens": [0, 100, 2]}).json() == {"prompt": "<s>a<|x|>"}
    assert server.post("/detokenize", {"tokens": []}).json() == {"prompt": ""}


def test_long_texts_are_tokenized_beside_the_loop(server):
    text = "hello " * 40000  # also long enough for a worker to parse it
    assert server.post("/tokenize", {"prompt": text}).json()["count"] == 80001
    error = server.complete(text).error
    assert error["code"] == "context_length_exceeded" and error["param"] == "prompt"
    # The client disconnects while a worker parses: nothing leaks.
    with server.connect() as connection:
        connection.send("POST", "/tokenize", {"prompt": text})
        connection.reset()
    with server.connect() as connection:
        connection.send("POST", "/v1/completions", {"prompt": text})
        connection.reset()
    server.until(lambda: server.metric("reprise_completions_open") == 0, "the completion is freed")


def test_nan_fails_its_request_only(server):
    response = server.complete("abcdef", seed=9001, max_tokens=9)
    assert response.status == 500 and response.error["code"] == "numerical_error"
    response = server.complete("abcdef", seed=9001, max_tokens=9, stream=True)
    events = parse_events(response.body)
    assert response.status == 200 and texts(events[:-1]) == ["a", "b"]
    assert events[-1]["error"]["code"] == "numerical_error"
    response = server.complete(["abc", "abcdef"], max_tokens=9)
    assert response.status == 200
    response = server.complete("abcdef", seed=9004, max_tokens=9)
    assert response.status == 500 and response.error["code"] == "mask_deadline"
    response = server.complete("abcdef", seed=9004, max_tokens=9, stream=True)
    events = parse_events(response.body)
    assert response.status == 200 and texts(events[:-1]) == ["a", "b"]
    assert events[-1]["error"]["code"] == "mask_deadline"


def test_keep_alive_and_request_ids(server):
    with server.connect() as connection:
        for i in range(3):
            connection.send("POST", "/v1/completions", {"prompt": "ab", "max_tokens": 2, "stream": i == 1},
                            [("X-Request-Id", f"mine-{i}")])
            response = connection.response()
            assert response.status == 200 and response.headers["x-request-id"] == f"mine-{i}"
            assert response.headers["connection"] == "keep-alive"
        for bad in ("x" * 129, "a b", "é"):
            connection.send("GET", "/version", headers=[("X-Request-Id", bad)])
            assert len(connection.response().headers["x-request-id"]) == 16
    with server.connect() as connection:  # 1.0: no chunks, ends by closing
        connection.raw(b"POST /v1/completions HTTP/1.0\r\nContent-Length: 44\r\n\r\n"
                       b'{"prompt":"ab","max_tokens":2,"stream":true}')
        response = connection.response()
        assert "transfer-encoding" not in response.headers and texts(response.events()[:-1]) == ["a", "b"]


def test_unknown_fields_are_logged_once(server):
    for _ in range(3):
        assert server.complete("a", best_off=1, **{"x\n\u001b[31m": 2}).status == 200
    assert server.log().count("best_off") == 1 and "\x1b" not in server.log() and server.log().count("x??") == 1


def main():
    tests = [(name, value) for name, value in globals().items() if name.startswith("test_")]
    with Server() as server:
        for name, test in tests:
            test(server)
            print("ok", name)


main()
