"""Every allocation of a request fails once; bytes of requests change at random. The server answers or closes the
connection, and continues to serve."""
import json
import random
import signal

from fake_server import Connection, Server

STATUSES = {200, 400, 403, 404, 405, 413, 414, 415, 417, 431, 501, 503, 505}
TEMPLATE = "<s>{% for m in messages %}{{ m.role ~ m.content | trim }}{% endfor %}"
ALLOCATIONS = 160  # more than any request here needs


def request_bytes(body):
    return b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def answers(server):
    """The last failure may be pending; it hits this request or the next."""
    try:
        return server.get("/version").status == 200 and server.get("/version").status == 200
    except (EOFError, ConnectionError):
        return False


def test_the_nth_allocation_fails():
    bodies = [("/v1/completions", {"prompt": "hello", "stop": ["x", "y"], "max_tokens": 5, "cache_salt": "s"}),
              ("/v1/completions", {"prompt": ["ab", "cd"], "stream": True, "max_tokens": 5}),
              ("/v1/completions", {"prompt": [[0, 100], [0, 101]], "max_tokens": 3}),
              ("/v1/completions", {"prompt": "hello", "n": 2, "best_of": 3, "logprobs": 2, "echo": True, "prompt_logprobs": 1,
                                   "bad_words": ["he", "x"], "logit_bias": {"5": 1}, "allowed_token_ids": [100], "max_tokens": 3}),
              ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": "ab"}]}],
                                        "logprobs": True, "top_logprobs": 1, "stream": True, "max_tokens": 3}),
              ("/v1/chat/completions", {"messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "b"}],
                                        "add_generation_prompt": False, "continue_final_message": True, "max_tokens": 3}),
              ("/tokenize", {"prompt": "hello " * 5000, "return_token_strs": True}),
              ("/detokenize", {"tokens": [100, 101]})]
    for path, body in bodies:
        statuses = set()
        with Server("--chat-template", TEMPLATE) as server:
            good = server.post(path, body)
            assert good.status == 200, good.body
            for n in range(1, ALLOCATIONS):
                server.signal(signal.SIGUSR1)
                try:
                    response = server.post(path, body)
                except (EOFError, ConnectionError):
                    statuses.add("closed")
                    continue
                statuses.add(response.status)
                # A template cannot distinguish exhausted memory from an exhausted budget.
                assert response.status in (200, 503) or b"more memory than it may" in response.body, (n, response.body)
                # Without memory an answer is complete or an error, never truncated.
                assert response.status != 200 or path.startswith("/v1/") or response.body == good.body, n
            server.until(lambda: answers(server), "it answers again")
            server.until(lambda: server.metric("reprise_completions_open") == 0, "all are freed")
        assert statuses >= {200, 503}, statuses


def test_random_changes_to_requests():
    rng = random.Random(7)
    good = [request_bytes(json.dumps({"prompt": "abc", "max_tokens": 3, "temperature": 0.5, "stop": ["x"]}).encode()),
            request_bytes(b'{"prompt":[0,100,101],"stream":true,"stream_options":{"include_usage":true}}'),
            b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"5\r\n{\"pro\r\nb;x=y\r\nmpt\":\"abc\"}\r\n0\r\n\r\n",
            b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Request-Id: a\r\n\r\n"]
    special = [b"\r", b"\n", b"\0", b":", b" ", b"\xff", b"{", b"]", b'"', b"9" * 20, b"\r\n\r\n", b"chunked", b","]
    with Server(env={"FAKE_TIMEOUT_MS": "50"}) as server:
        for _ in range(1500):
            data = bytearray(rng.choice(good))
            for _ in range(rng.randint(1, 4)):
                at = rng.randrange(len(data))
                data[at:at + rng.randint(0, 2)] = rng.choice(special) if rng.random() < 0.5 else rng.randbytes(1)
            connection = Connection(server.port)
            try:
                for begin in range(0, len(data), step := rng.randint(1, 400)):
                    connection.raw(bytes(data[begin:begin + step]))
                while connection.buffer or connection.more():
                    response = connection.response(head_only=data[:5] == b"HEAD ")
                    assert response.status in STATUSES | {204, 408}, (data, response.status, response.body)
            finally:
                connection.close()
        server.until(lambda: server.metric("reprise_completions_open") == 0, "all are freed")


def main():
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok", name, flush=True)


main()
