"""HTTPS: the same answers as without TLS; old protocols and invalid files are refused; certificates are renewed at run time."""
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile

import fake_server
from fake_server import Connection, Server, skip


def make_certificate(folder, name):
    """A key and a self-signed certificate of 127.0.0.1 with common name `name`."""
    key, cert = os.path.join(folder, name + ".key"), os.path.join(folder, name + ".pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                    "-keyout", key, "-out", cert, "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"],
                   check=True, capture_output=True)
    os.chmod(key, 0o600)
    return cert, key


def context(cert, **limits):
    made = ssl.create_default_context(cafile=cert)
    made.check_hostname = False
    for name, value in limits.items():
        setattr(made, name, value)
    return made


class TlsConnection(Connection):
    def __init__(self, port, made):
        super().__init__(port)
        self.socket = made.wrap_socket(self.socket, server_hostname="127.0.0.1")


class TlsServer(Server):
    def __init__(self, cert, key, *flags, **more):
        super().__init__("--tls-cert", cert, "--tls-key", key, *flags, **more)
        self.context = context(cert)

    def connect(self, port=None):
        return TlsConnection(port or self.port, self.context)


def test_the_answers_are_those_without_tls(folder):
    cert, key = make_certificate(folder, "one")
    bodies = [{"prompt": "abcde", "max_tokens": 50}, {"prompt": "abcde", "max_tokens": 50, "stream": True},
              {"prompt": ["a" * 2000] * 60, "max_tokens": 1500, "n": 2}, {"prompt": 1}]

    def strip(answer):
        text = answer.body.decode()
        return [part for part in text.replace("}", "\n").split("\n") if '"id"' not in part]

    with TlsServer(cert, key) as server, Server() as plain:
        for body in bodies:
            ours, theirs = (s.post("/v1/completions", body) for s in (server, plain))
            assert ours.status == theirs.status and strip(ours) == strip(theirs), body
        with server.connect() as connection:  # pipelined, and a body in many records
            for _ in range(20):
                connection.send("GET", "/version")
            for _ in range(20):
                assert connection.response().status == 200
            data = b'{"prompt":"%s"}' % (b"x " * 100000)
            connection.raw(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data))
            for i in range(0, len(data), 777):
                connection.raw(data[i:i + 777])
            assert connection.response().status == 200
        assert server.metric("reprise_http_connections") >= 1
        with server.connect() as connection:
            assert connection.socket.version() == "TLSv1.3"
            connection.send("GET", "/version", headers=[("Connection", "close")])
            assert connection.response().status == 200
            assert connection.at_end(), "with the closing alert, or this is an error"


def test_protocols(folder):
    cert, key = make_certificate(folder, "one")
    with TlsServer(cert, key) as server:
        old = context(cert, minimum_version=ssl.TLSVersion.TLSv1_2, maximum_version=ssl.TLSVersion.TLSv1_2)
        with TlsConnection(server.port, old) as connection:
            connection.send("GET", "/version")
            assert connection.response().status == 200 and connection.socket.version() == "TLSv1.2"
            assert "ECDHE" in connection.socket.cipher()[0]
        spoken = context(cert)
        spoken.set_alpn_protocols(["h2", "http/1.1"])
        with TlsConnection(server.port, spoken) as connection:
            assert connection.socket.selected_alpn_protocol() == "http/1.1"
        for wrong in (["h2"], ["spdy/3"]):
            spoken.set_alpn_protocols(wrong)
            try:
                TlsConnection(server.port, spoken)
                raise AssertionError(f"{wrong} was accepted")
            except ssl.SSLError as error:
                assert "no application protocol" in str(error), error
        for flag in ("-tls1_1", "-tls1"):
            result = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", flag, "-cipher", "ALL:@SECLEVEL=0"],
                                    input=b"", capture_output=True, timeout=60)
            assert result.returncode != 0 or b"Cipher is (NONE)" in result.stdout, result.stdout[-300:]
        for garbage in (b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"\0" * 100, os.urandom(5000)):
            with Connection(server.port) as connection:
                connection.raw(garbage)
                while connection.more():  # an alert at most
                    pass
                assert len(connection.buffer) < 100 and b"HTTP" not in connection.buffer
        with Connection(server.port) as connection:  # a handshake that stops
            connection.raw(b"\x16\x03\x01")
            assert server.get("/version").status == 200
        if shutil.which("curl"):
            url = f"https://127.0.0.1:{server.port}/v1/models"
            assert subprocess.run(["curl", "-sf", "--cacert", cert, url], capture_output=True, timeout=60).returncode == 0
            assert subprocess.run(["curl", "-sf", url], capture_output=True, timeout=60).returncode == 60  # unknown issuer


def test_a_handshake_has_a_deadline(folder):
    cert, key = make_certificate(folder, "one")
    with TlsServer(cert, key, env={"FAKE_TIMEOUT_MS": "300"}) as server, Connection(server.port) as connection:
        connection.raw(b"\x16\x03\x01\x00")
        assert connection.at_end()


def test_a_certificate_is_renewed(folder):
    first, second = make_certificate(folder, "first"), make_certificate(folder, "second")
    cert, key = os.path.join(folder, "live.pem"), os.path.join(folder, "live.key")

    def install(pair):
        shutil.copy(pair[0], cert)
        shutil.copy(pair[1], key)
        os.chmod(key, 0o600)

    def subject(server):
        with socket.create_connection(("127.0.0.1", server.port), fake_server.TIMEOUT) as plain:
            with anyone.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped:
                return wrapped.getpeercert()["subject"][0][0][1]

    anyone = context(first[0])
    anyone.load_verify_locations(second[0])
    install(first)
    with TlsServer(cert, key) as server, server.connect() as held:
        assert subject(server) == "first"
        install(second)
        server.signal(signal.SIGHUP)
        server.until(lambda: subject(server) == "second", "new connections get the new certificate")
        held.send("GET", "/version")
        assert held.response().status == 200, "an open connection goes on"
        shutil.copy(first[1], key)  # a key of another certificate
        os.chmod(key, 0o600)
        server.signal(signal.SIGHUP)
        server.until(lambda: "certificate not reloaded" in server.log(), "a broken pair is refused")
        assert subject(server) == "second"
        server.context = anyone  # for the tests of the harness
        assert server.get("/version").status == 200


def test_wrong_files_are_refused_at_start(folder):
    cert, key = make_certificate(folder, "one")
    _, other = make_certificate(folder, "two")
    text = os.path.join(folder, "text")
    with open(text, "w", encoding="ascii") as file:
        file.write("no certificate")
    os.chmod(text, 0o600)
    shared = os.path.join(folder, "shared.key")
    shutil.copy(key, shared)
    os.chmod(shared, 0o640)
    for flags, words in ((("--tls-cert", cert), "belong together"), (("--tls-cert", cert, "--tls-key", other), "key"),
                         (("--tls-cert", text, "--tls-key", key), "no certificate"), (("--tls-cert", cert, "--tls-key", text), "no private key"),
                         (("--tls-cert", cert, "--tls-key", "/nonexistent"), "No such file"),
                         (("--tls-cert", cert, "--tls-key", shared), "chmod 600")):
        try:
            Server(*flags)
            raise AssertionError(f"started with {flags}")
        except RuntimeError as error:
            assert "exit 2" in str(error) and words in str(error), error


if __name__ == "__main__":
    if not shutil.which("openssl"):
        skip("openssl is not installed")
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            with tempfile.TemporaryDirectory() as made_folder:
                test(made_folder)
            print("ok", name, flush=True)
