"""Limits of a request: its time, its time in the queue, its key's answers and tokens, and cancelling by id. Also fields
of vLLM's clients: priority, return_token_ids, max_tokens 0."""
import os
import tempfile
import threading

from fake_server import Server

SLOW = {"FAKE_STEP_US": "20000"}


def bearer(key):
    return [("Authorization", f"Bearer {key}")]


def test_a_request_ends_at_its_time_limit():
    with Server(env=SLOW) as server:
        answer = server.complete("abc", max_tokens=2000, timeout=0.2)
        assert answer.status == 504 and answer.error["code"] == "timeout", answer.body
        assert answer.error["type"] == "timeout_error"
        events = server.complete("abc", max_tokens=2000, timeout=0.2, stream=True).events()
        assert len(events) > 2 and events[-1]["error"]["code"] == "timeout", events[-1]
        assert server.complete("abc", max_tokens=2, timeout=60).status == 200
        for bad in (0, -1, 1e6, "1"):
            answer = server.complete("abc", timeout=bad)
            assert answer.status == 400 and answer.error["param"] == "timeout", bad
        server.until(lambda: server.metric('reprise_requests_total{finish_reason="timeout"}') == 2, "they are counted")
        record = server.get("/debug/requests?finish=timeout").json()["requests"][0]
        assert record["finish_reason"] == "timeout" and record["tokens"]["output"] < 2000


def test_the_server_has_a_longest_time_for_all():
    with Server("--request-timeout", "0.2", env=SLOW) as server:
        for fields in ({}, {"timeout": 60}):
            assert server.complete("abc", max_tokens=2000, **fields).status == 504


def test_waiting_has_a_limit():
    with Server("--queue-timeout", "0.2", "--max-num-seqs", "1", env=SLOW) as server, server.connect() as first:
        first.send("POST", "/v1/completions", {"prompt": "abc", "max_tokens": 2000, "stream": True})
        first.head()
        answer = server.complete("abc", max_tokens=2)
        assert answer.status == 503 and answer.error["code"] == "queue_timeout", answer.body
        assert int(answer.headers["retry-after"]) > 0
        assert first.chunk(), "who was admitted goes on"


def test_a_request_is_cancelled_by_its_id():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "keys")
        with open(path, "w", encoding="ascii") as file:
            file.write("one\ntwo\n")
        os.chmod(path, 0o600)
        with Server("--api-key-file", path, env=SLOW) as server, server.connect() as stream:
            stream.send("POST", "/v1/completions", {"prompt": "abc", "max_tokens": 2000, "stream": True}, bearer("one"))
            stream.head()
            number = stream.chunk().split(b'"id":"')[1].split(b'"')[0].decode()

            def cancel(name, key):
                return server.request("POST", f"/v1/requests/{name}/cancel", b"", headers=bearer(key))

            assert cancel(number, "two").status == 404, "another key's request is nobody's business"
            assert cancel(number[:-1], "one").status == cancel("", "one").status == 404
            assert server.request("POST", f"/v1/requests/{number}", b"", headers=bearer("one")).status == 404
            answer = cancel(number, "one")
            assert answer.status == 200 and answer.json() == {"id": number, "cancelled": True}
            rest = b""
            while part := stream.chunk():
                rest += part
            assert b'"code":"cancelled"' in rest and b"[DONE]" not in rest
            assert cancel(number, "one").status == 404, "it is over"
            # One without a stream is named by the client's id.
            result = []
            waiting = threading.Thread(target=lambda: result.append(server.post(
                "/v1/completions", {"prompt": "abc", "max_tokens": 2000}, headers=[*bearer("one"), ("X-Request-Id", "mine")])))
            waiting.start()
            server.until(lambda: cancel("mine", "one").status == 200, "it is found by X-Request-Id")
            waiting.join()
            assert result[0].status == 409 and result[0].error["code"] == "cancelled"


def test_a_key_is_charged_for_answers_and_tokens():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "keys")
        with open(path, "w", encoding="ascii") as file:
            file.write("one limit=4\ntwo tokens=100\nthree\n")
        os.chmod(path, 0o600)
        with Server("--api-key-file", path, env=SLOW) as server, server.connect() as held:
            def complete(key, **fields):
                return server.post("/v1/completions", {"prompt": "abcde", "max_tokens": 2, **fields}, headers=bearer(key))

            assert complete("one", n=4).status == 200 and complete("one", prompt=["a", "b"], n=2).status == 200
            answer = complete("one", n=5)
            assert answer.status == 400 and answer.error["code"] == "key_limit" and "5 answers" in answer.error["message"]
            assert complete("two", n=4, max_tokens=19).status == 200  # with <s> the prompt has 6 tokens
            answer = complete("two", n=4, max_tokens=20)
            assert answer.status == 400 and "104 tokens" in answer.error["message"], answer.body
            held.send("POST", "/v1/completions", {"prompt": "abcde", "max_tokens": 80, "stream": True}, bearer("two"))
            held.head()
            answer = complete("two", max_tokens=20)
            assert answer.status == 429 and answer.error["code"] == "key_limit", answer.body
            assert complete("two", max_tokens=8).status == 200, "what is left can be used"
            assert complete("three", max_tokens=200, n=4).status == 200
            held.reset()
            server.until(lambda: complete("two", max_tokens=20).status == 200, "the tokens come back")


def test_token_ids_are_returned():
    with Server() as server:
        choice = server.complete("abc", max_tokens=4, return_token_ids=True).json()["choices"][0]
        assert choice["prompt_token_ids"] == [0, 100, 101, 102] and choice["token_ids"] == [100, 101, 102, 100], choice
        assert "token_ids" not in server.complete("abc", max_tokens=4).json()["choices"][0]
        events = server.complete("abc", max_tokens=4, return_token_ids=True, stream=True).events()
        choices = [event["choices"][0] for event in events[:-1]]
        assert [number for part in choices for number in part["token_ids"]] == [100, 101, 102, 100]
        assert [part.get("prompt_token_ids") for part in choices] == [[0, 100, 101, 102]] + [None] * (len(choices) - 1)


def test_priority_is_a_number():
    with Server() as server:
        for value in (0, -5, 2 ** 31 - 1):
            assert server.complete("abc", max_tokens=1, priority=value).status == 200
        for value in (1.5, "1", 2 ** 31):
            answer = server.complete("abc", priority=value)
            assert answer.status == 400 and answer.error["param"] == "priority"


def test_a_prompt_as_long_as_the_context_is_scored():
    with Server("--max-model-len", "64") as server:
        prompt = list(range(100, 164))
        answer = server.complete(prompt, max_tokens=0, echo=True, logprobs=1)
        assert answer.status == 200, answer.body
        assert len(answer.json()["choices"][0]["logprobs"]["tokens"]) == 64
        assert answer.json()["usage"]["completion_tokens"] == 0
        assert server.complete(prompt, max_tokens=1).error["code"] == "context_length_exceeded"
        assert server.complete(prompt + [100], max_tokens=0, echo=True).error["code"] == "context_length_exceeded"


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok", name, flush=True)
