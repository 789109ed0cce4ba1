"""--otlp-endpoint over TLS: only a collector whose certificate is trusted and names the host gets anything."""
import contextlib
import os
import ssl
import subprocess
import tempfile

from reprise_server import DEMO, Server, skip

try:
    from otlp_collector import Collector, ask, url, wait_until
except ImportError:
    skip("opentelemetry-proto is not installed")


def main():
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        cert, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
                        "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert],
                       check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        cases = []
        for trusted, host, error in ((cert, "localhost", None), (cert, "127.0.0.1", "IP address mismatch"),
                                     ("/nonexistent", "localhost", "self-signed certificate")):
            os.environ["SSL_CERT_FILE"] = trusted
            collector = stack.enter_context(Collector(context=context))
            endpoint = url(collector.port, "https", host)
            server = stack.enter_context(Server(DEMO, "--otlp-endpoint", endpoint, "--otlp-metrics-interval", "0"))
            cases.append((collector, server, error, {trace for trace, _ in ask(server, 2)}))
        for collector, server, error, wanted in cases:
            if error:
                wait_until(lambda: error in server.output().replace("self signed", "self-signed"))
            else:
                collector.wait(lambda c: set(c.requests()) == wanted)
            server.process.terminate()
        for collector, server, error, _ in cases:
            server.process.wait(60)
            assert error is None or not collector.posts
    print("1 collector trusted, 2 refused")


main()
