"""API keys as tenants (names, shares, separate caches, SIGHUP), web pages of other origins, and Unix sockets."""
import os
import signal
import socket
import stat
import tempfile

from fake_server import Connection, Server


def bearer(key):
    return [("Authorization", f"Bearer {key}")]


def write_keys(path, text):
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
    os.chmod(path, 0o600)


def complete(server, key, prompt="abc", headers=(), **fields):
    return server.post("/v1/completions", {"prompt": prompt, "max_tokens": 2, **fields},
                       headers=[*bearer(key), *headers])


def records(server, key="one"):
    return server.get("/debug/requests?recent=100", headers=bearer(key)).json()["requests"]


def hold(server, key, count, ends):
    """Opens this many streams of the key, which run until their connections in `ends` are closed."""
    for _ in range(count):
        connection = server.connect()
        connection.send("POST", "/v1/completions", {"prompt": "ab", "max_tokens": 4000, "stream": True}, bearer(key))
        connection.head()
        ends.append(connection)


def test_names_and_shares(folder):
    path = os.path.join(folder, "keys")
    write_keys(path, "# tenants\none name=first limit=2\ntwo limit=1 name=second\nthree\n")
    with Server("--api-key-file", path, "--max-requests-per-key", 3, env={"FAKE_STEP_US": "20000"}) as server:
        for key, wanted in (("one", 200), ("two", 200), ("three", 200), ("four", 401), ("on", 401), ("onee", 401)):
            assert complete(server, key).status == wanted, key
        open_streams = []
        hold(server, "one", 2, open_streams)
        full = complete(server, "one")
        assert full.status == 429 and full.error["code"] == "key_limit" and int(full.headers["retry-after"]) > 0
        assert complete(server, "two").status == 200, "another key has a share of its own"
        hold(server, "two", 1, open_streams)
        assert complete(server, "two").error["code"] == "key_limit"
        hold(server, "three", 3, open_streams)  # --max-requests-per-key
        assert complete(server, "three").status == 429
        assert server.get("/v1/models", headers=bearer("one")).status == 200, "only what generates counts"
        # A share is released when its request ends, also when the client disconnects.
        open_streams[0].reset()
        del open_streams[0]
        server.until(lambda: complete(server, "one").status == 200, "the share comes back")
        # A refused body uses no share.
        for _ in range(3):
            assert complete(server, "one", prompt=[10 ** 6]).status == 400
        assert complete(server, "one").status == 200
        metrics = server.get("/metrics", headers=bearer("one")).body.decode()
        line = next(line for line in metrics.splitlines() if 'reason="key_limit"' in line)
        assert float(line.split()[-1]) >= 3, line
        names = {(record["key_index"], record["key"]) for record in records(server)}
        assert {(0, "first"), (1, "second"), (2, None)} <= names, names
        assert '"one"' not in str(records(server)) and "three" not in server.log()
        for connection in open_streams:
            connection.close()


def test_an_upload_ends_when_its_key_is_revoked(folder):
    path = os.path.join(folder, "keys")
    write_keys(path, "one\ntwo\n")
    with Server("--api-key-file", path) as server, server.connect() as gone, server.connect() as stays:
        uploads = {"one": gone, "two": stays}
        for key, connection in uploads.items():
            connection.raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n"
                           b"Content-Length: 14\r\n\r\n{" % key.encode())
        server.until(lambda: server.get("/debug/memory", headers=bearer("two")).status == 200, "both are being read")
        write_keys(path, "two\n")
        server.signal(signal.SIGHUP)
        answer = gone.response()
        assert answer.status == 401 and "revoked" in answer.error["message"] and gone.at_end()
        stays.raw(b'"prompt":"a"}')
        assert stays.response().status == 200


def test_keys_change_while_it_runs(folder):
    path = os.path.join(folder, "keys")
    write_keys(path, "one name=a limit=1\ntwo name=b\n")
    with Server("--api-key-file", path, "--log-level", "info", env={"FAKE_STEP_US": "20000"}) as server:
        streams = []
        hold(server, "one", 1, streams)
        hold(server, "two", 1, streams)
        write_keys(path, "zero name=z limit=5\none name=a limit=1\n")
        server.signal(signal.SIGHUP)
        server.until(lambda: complete(server, "zero").status == 200, "a new key works")
        assert complete(server, "two").status == 401, "an old one does not"
        assert complete(server, "one").error["code"] == "key_limit", "what is in work still counts, at its new place"
        assert streams[1].chunk(), "and goes on"
        streams[0].reset()
        server.until(lambda: complete(server, "one").status == 200, "the share comes back")
        for bad in ("", "three words here\n", "k name=x\nl name=x\n"):
            write_keys(path, bad)
            before = server.log().count("keys not reloaded")
            server.signal(signal.SIGHUP)
            server.until(lambda: server.log().count("keys not reloaded") > before, "the fault is told")
            assert complete(server, "zero").status == 200 and complete(server, "three").status == 401
        os.chmod(path, 0o644)
        server.signal(signal.SIGHUP)
        server.until(lambda: "can read the keys" in server.log(), "the mode is told")
        streams[1].close()


def test_no_grant_without_origins():
    with Server() as server:
        for method in ("GET", "OPTIONS", "POST"):
            answer = server.request(method, "/v1/models", headers=[
                ("Origin", "https://example.com"), ("Access-Control-Request-Method", "POST")])
            assert not any(name.startswith("access-control") for name in answer.headers), answer.headers
            assert "vary" not in answer.headers


def test_origins():
    origins = "https://example.com, http://localhost:3000"
    ask = [("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", "authorization")]
    with Server("--allowed-origins", origins, "--api-key", "secret") as server:
        for origin in ("https://example.com", "http://localhost:3000"):
            page = [("Origin", origin)]
            answer = server.request("OPTIONS", "/v1/chat/completions", headers=page + ask)
            assert answer.status == 204 and answer.headers["access-control-allow-origin"] == origin
            assert "POST" in answer.headers["access-control-allow-methods"]
            assert "Authorization" in answer.headers["access-control-allow-headers"]
            assert answer.headers["vary"] == "Origin"
            answer = complete(server, "secret", headers=page)
            assert answer.status == 200 and answer.headers["access-control-allow-origin"] == origin
            answer = complete(server, "secret", headers=page, stream=True)
            assert answer.headers["access-control-allow-origin"] == origin and answer.events()[-1] == "[DONE]"
            answer = complete(server, "wrong", headers=page)  # a page may read the reason
            assert answer.status == 401 and answer.headers["access-control-allow-origin"] == origin
        for origin in ("https://example.com.evil.org", "http://example.com", "https://example.com:444", "null", "*", ""):
            answer = server.request("OPTIONS", "/v1/chat/completions", headers=[("Origin", origin)] + ask)
            assert answer.status == 401 and "access-control-allow-origin" not in answer.headers, origin
            answer = complete(server, "secret", headers=[("Origin", origin)])
            assert answer.status == 403 and answer.error["code"] == "origin_not_allowed", origin
            assert "access-control-allow-origin" not in answer.headers and answer.headers["vary"] == "Origin"
        answer = server.request("OPTIONS", "/v1/chat/completions", headers=[("Origin", "https://example.com"), ask[0], (
            "Access-Control-Request-Headers", "content-type, x-stainless-os, X-Stainless-New-One, x-evil, x-stainless-")])
        allowed = answer.headers["access-control-allow-headers"].split(", ")
        assert {"x-stainless-os", "X-Stainless-New-One"} <= set(allowed), allowed
        assert not {"x-evil", "x-stainless-"} & set(allowed), allowed
        for path in ("/metrics", "/debug/requests", "/nothing"):  # operator routes allow no other origin
            answer = server.request("OPTIONS", path, headers=[("Origin", "https://example.com")] + ask)
            assert answer.status == 401 and "access-control-allow-origin" not in answer.headers
        # The server's own page is an origin, too.
        own = [*bearer("secret"), ("Origin", f"http://127.0.0.1:{server.port}"), ("Content-Length", "0")]
        with server.connect() as connection:
            connection.raw(b"POST /debug/memory/reset_peak HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % server.port + "".join(
                f"{name}: {value}\r\n" for name, value in own).encode() + b"\r\n")
            assert connection.response().status != 403
    with Server("--allowed-origins", "*") as server:
        assert "access-control-allow-origin" not in server.complete("abc").headers, "no page asks"
        answer = server.get("/v1/models", headers=[("Origin", "null")])
        assert answer.headers["access-control-allow-origin"] == "*" and "vary" not in answer.headers
    for bad in ("example.com", "https://", "https://a.b/path", "https://a b", "https://a,,", "HTTPS://A"):
        try:
            with Server("--allowed-origins", bad):
                raise AssertionError(f"{bad} was taken")
        except RuntimeError as error:
            assert "exit 2" in str(error), error


class UnixConnection(Connection):
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(path)
        self.buffer = b""

    def reset(self):
        self.socket.close()


def test_unix_socket(folder):
    path = os.path.join(folder, "server.sock")
    left_behind = socket.socket(socket.AF_UNIX)  # of a server that was killed
    left_behind.bind(path)
    left_behind.close()
    with Server("--uds", path, "--host", "0.0.0.0", env={"FAKE_STEP_US": "1000"}) as server:
        assert server.port == 0, "nothing listens on TCP, so it is not exposed and needs no key"
        server.connect = lambda port=None: UnixConnection(path)
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
        assert server.complete("abc", max_tokens=3).text == "abc"
        assert server.complete("abc", max_tokens=3, stream=True).events()[-1] == "[DONE]"
        assert server.get("/metrics").status == 200, "whoever may open the socket is the operator"
        with server.connect() as connection:  # any name in Host: no web page reaches this
            connection.raw(b"GET /health HTTP/1.1\r\nHost: anything\r\n\r\n")
            assert connection.response().status == 200
        with server.connect() as connection:
            connection.send("POST", "/v1/completions", {"prompt": "ab", "max_tokens": 4000, "stream": True})
            connection.head()
            connection.reset()
        server.until(lambda: server.metric("reprise_completions_open") == 0, "a client that left is noticed")
        # A client that keeps sending without reading is detected too, although its connection is not read.
        with server.connect() as connection:
            connection.send("POST", "/v1/completions", {"prompt": "ab", "max_tokens": 4000})
            connection.raw(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n" * 3000)
            connection.reset()
        server.until(lambda: server.metric("reprise_completions_open") == 0, "a client that left is noticed")
        try:
            Server("--uds", path)
            raise AssertionError("two servers on one socket")
        except RuntimeError as error:
            assert "exit 5" in str(error), error
        assert server.get("/health").status == 200
    assert not os.path.exists(path), "the file goes with the server"
    with open(path, "w", encoding="ascii") as file:
        file.write("precious")
    for bad in (path, os.path.join(folder, "no/such/folder"), "/tmp/" + "x" * 120):
        try:
            Server("--uds", bad)
            raise AssertionError(f"{bad} was taken")
        except RuntimeError:
            pass
    with open(path, encoding="ascii") as file:
        assert file.read() == "precious", "what is no socket is not removed"


def main():
    with tempfile.TemporaryDirectory() as folder:
        for name, test in list(globals().items()):
            if name.startswith("test_"):
                test(*[folder] * test.__code__.co_argcount)
                print("ok", name)


main()
