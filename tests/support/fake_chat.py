"""A server that answers chats by a script, in OpenAI's streamed format: reasoning, calls of tools, log-probabilities, timing.
It serves the chat page as the program serves it (page, headers), so that the page is tested against answers of any kind."""
import http.server
import json
import threading

MODEL = {"id": "scripted", "object": "model", "created": 0, "owned_by": "reprise", "max_model_len": 4096}
TIMING = {"request_id": "req-1", "receive_seconds": 0.0001, "parse_seconds": 0.0002, "tokenize_seconds": 0.0004, "queue_seconds": 0.012, "prefill_seconds": 0.085,
          "decode_seconds": 0.41, "time_to_first_token_seconds": 0.0977, "total_seconds": 0.508, "device_seconds": 0.44, "energy_joules": 12.5, "cost": None,
          "prompts": [{"index": 0, "steps": 24, "cached_tokens": 64, "inter_token": {"worst": {"seconds": 0.031, "token": 7, "cause": "other_prefill"}}}]}


def logprobs(token, others=((" other", -2.5), ("\n", -4.0)), allowed=None):
    entry = {"token": token, "logprob": -0.2, "bytes": list(token.encode())}
    entry["top_logprobs"] = [dict(entry)] + [{"token": text, "logprob": value, "bytes": list(text.encode())} for text, value in others]
    if allowed is not None:
        entry["allowed"] = allowed
    return {"content": [entry]}


class FakeChat:
    """with FakeChat(page, headers) as server. answer(body) returns a list of deltas: dicts of `delta`, optionally with "logprobs" and
    "finish_reason" beside it; None in it: wait for `release`. bodies: all requests."""

    def __init__(self, page, headers, answer):
        self.page, self.headers, self.answer = page, headers, answer
        self.bodies, self.release, self.aborted = [], threading.Event(), threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def reply(self, status, kind, body, headers=()):
                self.send_response(status)
                for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), *headers):
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                if self.path == "/":
                    kept = [(name, value) for name, value in outer.headers.items() if name in ("Content-Security-Policy", "Referrer-Policy")]
                    self.reply(200, "text/html; charset=utf-8", outer.page, kept)
                elif self.path == "/v1/models":
                    self.reply(200, "application/json", json.dumps({"object": "list", "data": [MODEL]}).encode())
                else:
                    self.reply(404, "application/json", b'{"error":{"message":"no such route"}}')

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.bodies.append(body)
                answer = outer.answer(body)
                if isinstance(answer, tuple):
                    self.reply(answer[0], "application/json", json.dumps({"error": {"message": answer[1], "param": None}}).encode())
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("X-Request-Id", "req-1")
                self.send_header("Connection", "close")
                self.end_headers()
                try:
                    self.stream(answer)
                except OSError:
                    outer.aborted.set()
                self.close_connection = True

            def event(self, data):
                self.wfile.write(("data: " + json.dumps(data) + "\n\n").encode())
                self.wfile.flush()

            def stream(self, answer):
                finish = "stop"
                head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": "scripted"}
                for part in answer:
                    if part is None:
                        while not outer.release.wait(0.02):
                            self.wfile.write(b": waiting\n\n")
                        continue
                    if "error" in part:
                        self.wfile.write(("event: error\ndata: " + json.dumps(part) + "\n\n").encode())
                        return
                    finish = part.pop("finish_reason", finish)
                    entry = part.pop("logprobs", None)
                    self.event({**head, "choices": [{"index": 0, "delta": part, "logprobs": entry, "finish_reason": None}]})
                self.event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
                usage = {"prompt_tokens": 80, "completion_tokens": len(answer), "total_tokens": 80 + len(answer), "prompt_tokens_details": {"cached_tokens": 64}}
                self.event({**head, "choices": [], "usage": usage, "timing": TIMING})
                self.wfile.write(b"data: [DONE]\n\n")

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]

    def __enter__(self):
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.release.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
