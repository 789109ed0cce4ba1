"""Routes, methods, keys, listeners, metrics."""
import email.utils
import json
import os
import socket
import tempfile
import time

from fake_server import Server
from free_port import free_port

KEY = "sk-a-key-for-tests"
GETS = ["/v1/models", "/v1/models/fake", "/health", "/health/ready", "/health/live", "/version", "/metrics", "/debug/env",
        "/debug/graphs", "/debug/latency", "/tokenizer_info"]
QUERIES = ["/metrics", "/debug/latency"]
POSTS = ["/v1/completions", "/v1/responses", "/tokenize", "/detokenize"]
OPEN = ["/health", "/health/ready", "/health/live"]


def test_methods():
    with Server() as server, server.connect() as connection:
        for path in GETS:
            connection.send("GET", path)
            whole = connection.response()
            assert whole.status == 200 and whole.body, path
            connection.send("HEAD", path)
            empty = connection.response(head_only=True)
            assert empty.status == 200, path
            if path not in ("/metrics", "/debug/env", "/debug/graphs"):  # numbers change their length
                assert empty.headers["content-length"] == whole.headers["content-length"], path
        for path, allow in [*((path, "GET, HEAD, OPTIONS") for path in GETS), *((path, "POST, OPTIONS") for path in POSTS)]:
            connection.send("OPTIONS", path)
            response = connection.response()
            assert response.status == 204 and response.headers["allow"] == allow, path
            assert not any(name.startswith("access-control") for name in response.headers)
            response = server.request("DELETE", path)
            assert response.status == 405 and response.headers["allow"] == allow
        connection.send("OPTIONS", "*")
        assert connection.response().status == 204
        for path in POSTS:
            assert server.get(path).status == 405
        for path in GETS:
            connection.send("GET", path + "?x=/v1/models")
            # Routes that read a query refuse unknown fields.
            assert connection.response().status == (400 if path in QUERIES else 200), path
        connection.raw(b"GET http://localhost/version HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.response().json()["version"]


def test_models():
    with Server("--max-model-len", "123") as server:
        (model,) = server.get("/v1/models").json()["data"]
        assert model["id"] == "fake" and model["object"] == "model" and model["max_model_len"] == 123
        assert server.get("/v1/models/fake").json() == model
        assert server.get("/v1/models/f%61ke").json() == model
        assert server.get("/v1/models/f%00").status == 404
        error = server.get("/v1/models/other")
        assert error.status == 404 and error.error["code"] == "model_not_found"


def test_keys_on_every_route():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "keys")
        with open(path, "w", encoding="ascii") as file:
            file.write(f"# ours\nanother-key\n\n{KEY}\n")
        os.chmod(path, 0o600)
        with Server("--api-key-file", path) as server:
            check_keys(server)
            env = server.get("/debug/env", headers=[("Authorization", f"Bearer {KEY}")]).body.decode()
            assert KEY not in env and KEY not in server.log()
            flags = json.loads(env)["flags"]  # choices by name
            assert flags["device"] == "auto" and flags["log-level"] in ("error", "warn", "info", "debug"), flags
        os.chmod(path, 0o640)
        assert fails("--api-key-file", path) == 2
    with Server(env={"REPRISE_API_KEY": KEY}) as server:
        check_keys(server)
        assert "visible" not in server.log()
    with Server("--api-key", KEY) as server:
        check_keys(server)
        assert "visible" in server.log() and KEY not in server.log()


def check_keys(server):
    spellings = ["/v1/models?key=" + KEY, "//v1/models", "/v1%2fmodels", "/health/../v1/models", "/nothing", "/health?x",
                 "http://localhost/v1/models", "*"]
    for path in GETS + POSTS + spellings:
        for headers in ([], [("Authorization", "Bearer wrong")], [("Authorization", "Bearer " + KEY + "x")],
                        [("Authorization", "Bearer " + KEY[:-1])], [("Authorization", "Basic " + KEY)],
                        [("Authorization", KEY)], [("Authorization", "Bearer ")],
                        [("Authorization", "Bearer " + KEY), ("Authorization", "Bearer " + KEY)], [("X-Api-Key", KEY)]):
            for method in ("GET", "POST", "OPTIONS"):
                if path.split("?")[0] in OPEN:
                    continue
                response = server.request(method, path, headers=headers)
                assert response.status == 401, (method, path, headers, response.status)
                assert response.headers["www-authenticate"].startswith("Bearer") and KEY not in str(response.error)
    for path in OPEN:
        assert server.get(path).status == 200
    with server.connect() as connection:  # the body is not read first
        connection.raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
        assert connection.response().status == 401
    for scheme in ("Bearer", "bearer"):
        assert server.get("/v1/models", headers=[("Authorization", f"{scheme} {KEY}")]).status == 200
    response = server.post("/v1/completions", {"prompt": "a"}, headers=[("Authorization", "Bearer " + KEY)])
    assert response.status == 200


def fails(*flags):
    """Exit code of a server that must not start."""
    try:
        server = Server(*flags)
    except RuntimeError as error:
        assert "error: " in str(error)
        return int(str(error).split("exit ")[1].split(":")[0])
    server.stop()
    raise AssertionError(f"started with {flags}")


def test_listening_beyond_loopback():
    assert fails("--host", "0.0.0.0") == 2
    assert fails("--host", "not-an-address") == 2
    with Server("--host", "0.0.0.0", "--insecure-no-auth") as server:
        assert server.get("/v1/models").status == 200
        for path in ("/metrics", "/debug/env", "/debug/graphs"):
            assert server.get(path).status == 404
        with server.connect() as connection:  # any client may use its name
            connection.raw(b"GET /version HTTP/1.1\r\nHost: gpu.example.com\r\n\r\n")
            assert connection.response().status == 200
    port = free_port()
    with Server("--host", "0.0.0.0", "--insecure-no-auth", "--admin-port", port) as server:
        assert server.admin_port == port
        assert server.get("/metrics").status == 404 and server.get("/metrics", port=port).status == 200
        graphs = server.get("/debug/graphs", port=port)
        assert graphs.status == 200 and json.loads(graphs.body)["failed"] == 1, graphs.body
        assert server.get("/debug/env", port=port).status == 200 and server.get("/health", port=port).status == 200
        assert server.get("/v1/models", port=port).status == 404


def test_metrics_with_a_key_beyond_loopback():
    assert fails("--host", "0.0.0.0", "--metrics-on-main") == 2
    with Server("--host", "0.0.0.0", "--insecure-no-auth", "--metrics-on-main") as server:
        assert server.get("/metrics").status == 200 and server.get("/debug/env").status == 404
    with Server("--host", "0.0.0.0", "--api-key", KEY, "--metrics-on-main") as server:
        bearer = [("Authorization", f"Bearer {KEY}")]
        assert server.get("/metrics").status == 401
        assert b"reprise_requests_total" in server.get("/metrics", headers=bearer).body
        for path in ("/debug/env", "/debug/ui", "/debug/memory"):
            assert server.get(path, headers=bearer).status == 404, path


def test_names_that_a_proxy_serves():
    with Server("--allowed-hosts", "llm.example.com, other.example.com") as server:
        for host, status in (("llm.example.com", 200), ("LLM.example.com:8443", 200), ("other.example.com", 200),
                             ("localhost", 200), ("example.com", 403), ("llm.example.com.evil.org", 403)):
            with server.connect() as connection:
                connection.raw(f"GET /version HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                answer = connection.response()
                assert answer.status == status, (host, answer.body)
                if status == 403:
                    assert "--allowed-hosts" in answer.error["message"]


def test_every_answer_has_a_date():
    with Server() as server:
        for path in ("/version", "/nothing"):
            date = email.utils.parsedate_to_datetime(server.get(path).headers["date"])
            assert abs(date.timestamp() - time.time()) < 60 and date.tzinfo is not None, date
        with server.connect() as connection:
            connection.send("POST", "/v1/completions", {"prompt": "ab", "max_tokens": 4, "stream": True})
            assert connection.head()[1]["date"].endswith(" GMT")


def test_a_missing_route_is_named():
    with Server() as server:
        assert server.get("/v1/model").error["message"] == "no such route: GET /v1/model"
        assert server.post("/v1/embeddings?x=1", {}).error["message"] == "no such route: POST /v1/embeddings"
        message = server.get("/" + "a" * 300).error["message"]
        assert message == "no such route: GET /" + "a" * 99 + "...", message


def test_a_taken_port_is_said():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert fails("--port", other.getsockname()[1]) == 5


def test_metrics():
    with Server() as server:
        server.complete("abcdef", max_tokens=5)
        server.complete("abc", max_tokens=5, stream=True)
        server.complete("abc", stop="b", max_tokens=5)
        server.get("/nothing")
        values = {'reprise_requests_total{finish_reason="length"}': 2, 'reprise_requests_total{finish_reason="stop"}': 1,
                  "reprise_time_to_first_token_seconds_count": 3, "reprise_inter_token_latency_seconds_count": 9,
                  "reprise_request_duration_seconds_count": 3, "reprise_request_prompt_tokens_sum": 15,
                  "reprise_request_generation_tokens_sum": 12, "reprise_prompt_tokens_total": 15,
                  'reprise_http_requests_total{route="/v1/completions",code="2xx"}': 3,
                  'reprise_http_requests_total{route="other",code="4xx"}': 1, "reprise_requests_running": 0,
                  "reprise_requests_waiting": 0, "reprise_engine_healthy": 1}
        for name, value in values.items():
            server.until(lambda n=name, v=value: server.metric(n) == v, f"{name} is {value}: {server.metric(name)}")


def main():
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok", name, flush=True)


main()
