"""What testssl.sh checks of a TLS server, on the wire: protocol versions, cipher suites, renegotiation, compression, tickets, ALPN,
the certificate chain, client hellos of all sizes, early data. Hellos are made here, because a client's library refuses by itself
to offer what must be refused."""
import os
import re
import shutil
import signal
import struct
import subprocess
import tempfile

from fake_server import Connection, Server, skip

TLS10, TLS11, TLS12, TLS13, SSL3 = 0x0301, 0x0302, 0x0303, 0x0304, 0x0300
ALERTS = {40: "handshake_failure", 70: "protocol_version", 86: "inappropriate_fallback", 120: "no_application_protocol"}
GOOD = {0xc02b, 0xc02c, 0xc02f, 0xc030, 0xcca8, 0xcca9}  # ECDHE with AES-GCM or ChaCha20-Poly1305
GOOD13 = {0x1301, 0x1302, 0x1303}
BAD = {"NULL": [0x0000, 0x0001, 0x0002, 0x003b, 0xc006, 0xc010], "export": [0x0003, 0x0006, 0x0008, 0x000b, 0x0014, 0x0062],
       "anonymous": [0x0018, 0x001b, 0x0034, 0x006c, 0x00a6, 0xc018], "RC4": [0x0004, 0x0005, 0xc007, 0xc011],
       "DES": [0x0009, 0x0015, 0x000a, 0x0016, 0xc008, 0xc012], "RSA key exchange": [0x002f, 0x0035, 0x009c, 0x009d, 0xc09c],
       "finite field DH": [0x0033, 0x0039, 0x009e, 0x009f, 0xccaa], "CBC": [0xc009, 0xc00a, 0xc013, 0xc014, 0xc023, 0xc024, 0xc027],
       "CCM and ARIA": [0xc0ac, 0xc0ad, 0xc0ae, 0xc05c, 0xc05d], "PSK": [0x00a8, 0x00a9, 0xc035, 0xccac]}


def vector(data, width):
    return len(data).to_bytes(width, "big") + data


def extension(number, data):
    return struct.pack(">H", number) + vector(data, 2)


def client_hello(version, ciphers, *extra, versions=(), compression=b"\0", pad=0, record=16384):
    """The records of a client hello, each with up to `record` bytes of it."""
    extensions = extension(10, vector(struct.pack(">3H", 29, 23, 24), 2)) + extension(11, b"\1\0")
    extensions += extension(13, vector(struct.pack(">6H", 0x0403, 0x0804, 0x0401, 0x0503, 0x0203, 0x0201), 2))
    if versions:
        extensions += extension(43, vector(struct.pack(f">{len(versions)}H", *versions), 1))
        # A point of curve P-256 (the generator), as a key share of 1.3.
        point = bytes.fromhex("046b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296"
                              "4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5")
        extensions += extension(51, vector(struct.pack(">H", 23) + vector(point, 2), 2))
    extensions += b"".join(extra)
    if pad:
        extensions += extension(21, b"\0" * pad)
    body = struct.pack(">H", min(version, TLS12)) + os.urandom(32) + vector(b"", 1)
    body += vector(struct.pack(f">{len(ciphers)}H", *ciphers), 2) + vector(compression, 1) + vector(extensions, 2)
    message = b"\1" + vector(body, 3)
    parts = [message[at:at + record] for at in range(0, len(message), record)]
    return b"".join(b"\x16" + struct.pack(">H", min(version, TLS10)) + vector(part, 2) for part in parts)


def answer(server, hello, piece=None):
    """("alert", name) or ("hello", version, cipher, compression, {extension: data})"""
    with Connection(server.port) as connection:
        for at in range(0, len(hello), piece or len(hello)):
            connection.raw(hello[at:at + (piece or len(hello))])
        try:
            kind, _, size = struct.unpack(">BHH", connection.exactly(5))
            data = connection.exactly(size)
        except EOFError:
            return "closed", None
    if kind == 21:
        return "alert", ALERTS.get(data[1], data[1])
    assert kind == 22 and data[0] == 2, (kind, data[:8])
    version, at = struct.unpack(">H", data[4:6])[0], 38
    at += 1 + data[at]
    cipher, compression = struct.unpack(">HB", data[at:at + 3])
    found, at = {}, at + 5
    while at < 4 + int.from_bytes(data[1:4], "big"):
        number, length = struct.unpack(">HH", data[at:at + 4])
        found[number] = data[at + 4:at + 4 + length]
        at += 4 + length
    if 43 in found:
        version = struct.unpack(">H", found[43])[0]
    return "hello", version, cipher, compression, found


def accepted(server, ciphers, **more):
    """The cipher suites that the server takes of a list, one by one, in its order of preference."""
    left, found = list(ciphers), []
    while left:
        result = answer(server, client_hello(TLS12, left, **more))
        if result[0] != "hello":
            assert result == ("alert", "handshake_failure"), result
            break
        found.append(result[2])
        left.remove(result[2])
    return found


def check_protocols(server):
    everything = sorted(GOOD) + [suite for suites in BAD.values() for suite in suites]
    for version in (SSL3, TLS10, TLS11):
        result = answer(server, client_hello(version, everything))
        assert result == ("alert", "handshake_failure" if version == SSL3 else "protocol_version"), (hex(version), result)
    assert answer(server, client_hello(TLS12, everything))[1] == TLS12
    newest = answer(server, client_hello(TLS12, sorted(GOOD13 | GOOD), versions=(0x7f99, 0x0a0a, TLS13, TLS12)))
    assert newest[1] == TLS13, "unknown versions are passed over"
    assert answer(server, client_hello(TLS12, everything, versions=(TLS11, TLS10))) == ("alert", "protocol_version")
    # A client that fell back to 1.2 because somebody dropped its hello for 1.3.
    assert answer(server, client_hello(TLS12, [*sorted(GOOD), 0x5600])) == ("alert", "inappropriate_fallback")


def check_ciphers(server):
    for name, suites in BAD.items():
        assert answer(server, client_hello(TLS12, suites)) == ("alert", "handshake_failure"), name
    found = accepted(server, sorted(GOOD) + [suite for suites in BAD.values() for suite in suites])
    assert found and set(found) <= GOOD, [hex(suite) for suite in found]
    assert found == accepted(server, list(reversed(sorted(GOOD)))), "the server chooses, whatever the client's order"
    assert set(accepted(server, sorted(GOOD13) + [0x1304, 0x1305], versions=(TLS13,))) == GOOD13


def check_extensions(server):
    for offered in (b"\0", b"\1\0"):
        assert answer(server, client_hello(TLS12, sorted(GOOD), compression=offered))[3] == 0, "no compression"
    heartbeat = extension(15, b"\1")
    result = answer(server, client_hello(TLS12, sorted(GOOD), heartbeat, extension(0xff01, b"\0"), extension(0x1234, b"x")))
    assert 15 not in result[4] and 0x1234 not in result[4], result[4]
    assert result[4].get(0xff01) == b"\0", "secure renegotiation (RFC 5746)"
    for protocols, expected in (((b"http/1.1",), b"http/1.1"), ((b"h2", b"http/1.1"), b"http/1.1")):
        offer = extension(16, vector(b"".join(vector(name, 1) for name in protocols), 2))
        chosen = answer(server, client_hello(TLS12, sorted(GOOD), offer))[4][16]
        assert chosen == vector(vector(expected, 1), 2), chosen
    for name in (b"h2", b"spdy/3", b"http/1.0"):
        offer = extension(16, vector(vector(name, 1), 2))
        assert answer(server, client_hello(TLS12, sorted(GOOD), offer)) == ("alert", "no_application_protocol"), name


def check_sizes(server):
    """Middle boxes and servers have failed at hellos of 256 to 511 bytes, above one packet, and above one record."""
    for pad in (0, 100, 180, 240, 300, 400, 1500, 5000, 16000, 40000):
        assert answer(server, client_hello(TLS12, sorted(GOOD), pad=pad))[0] == "hello", pad
    assert answer(server, client_hello(TLS12, sorted(GOOD), pad=3000, record=100))[0] == "hello", "many records"
    assert answer(server, client_hello(TLS12, sorted(GOOD)), piece=1)[0] == "hello", "byte by byte"
    many = [0x0a0a] + [0xff00 + i for i in range(200)] + sorted(GOOD)
    assert answer(server, client_hello(TLS12, many))[0] == "hello", "unknown suites are passed over"
    endless = b"\x16\3\1" + vector(b"\1" + (0xffffff).to_bytes(3, "big") + b"\0" * 1000, 2)
    assert answer(server, endless)[0] in ("alert", "closed"), "a hello of 16 MiB is refused at its length"
    assert "HTTP/1.1 200" in s_client(server, "-ign_eof", words=GET)[1]


def s_client(server, *flags, words=b"", ca=None):
    done = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", *flags,
                           *(["-CAfile", ca, "-verify_ip", "127.0.0.1"] if ca else [])],
                          input=words, capture_output=True, timeout=60)
    return done.returncode, (done.stdout + done.stderr).decode(errors="replace")


GET = b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def check_renegotiation(server):
    code, said = s_client(server, "-tls1_2", words=b"R\n")
    assert "no renegotiation" in said and code != 0, said[-600:]
    assert "Secure Renegotiation IS supported" in said and "Compression: NONE" in said, said[-1500:]


def check_chain(server, ca):
    code, said = s_client(server, "-showcerts", ca=ca)
    assert code == 0 and "Verify return code: 0 (ok)" in said and said.count("BEGIN CERTIFICATE") == 2, said
    assert "Verify return code: 0" not in s_client(server)[1], "an issuer that nobody knows"


def check_tickets(server, folder):
    """A ticket saves a handshake for hours, carries no early data, and ends with the certificate's reload."""
    for flag in ("-tls1_3", "-tls1_2"):
        ticket = os.path.join(folder, "ticket" + flag)
        said = s_client(server, flag, "-ign_eof", "-sess_out", ticket, words=GET)[1]
        assert os.path.exists(ticket), said
        lifetime = int(re.search(r"lifetime hint: (\d+)", said).group(1))
        assert 0 < lifetime <= 86400, lifetime
        assert "Max Early Data: 0" in said or flag == "-tls1_2", said
        assert "Reused, " in s_client(server, flag, "-sess_in", ticket)[1]
    early = os.path.join(folder, "early")
    with open(early, "wb") as file:
        file.write(GET)
    said = s_client(server, "-tls1_3", "-sess_in", os.path.join(folder, "ticket-tls1_3"), "-early_data", early)[1]
    assert "Early data was accepted" not in said and "HTTP/1.1" not in said, said
    server.signal(signal.SIGHUP)
    server.until(lambda: "TLS certificate reloaded" in server.log(), "reloaded")
    for flag in ("-tls1_3", "-tls1_2"):
        assert "New, " in s_client(server, flag, "-sess_in", os.path.join(folder, "ticket" + flag))[1], "a new key of tickets"


def make_chain(folder):
    """(certificates of server and issuer in one file, the server's key, the issuer)"""
    def openssl(*words):
        subprocess.run(["openssl", *words], check=True, capture_output=True)

    def path(name):
        return os.path.join(folder, name)

    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl("req", "-x509", *new_key, "-days", "2", "-keyout", path("ca.key"), "-out", path("ca.pem"), "-subj", "/CN=test issuer")
    openssl("req", *new_key, "-keyout", path("key"), "-out", path("request"), "-subj", "/CN=localhost")
    with open(path("names"), "w", encoding="ascii") as file:
        file.write("subjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=CA:FALSE\n")
    openssl("x509", "-req", "-in", path("request"), "-CA", path("ca.pem"), "-CAkey", path("ca.key"), "-CAcreateserial",
            "-days", "2", "-extfile", path("names"), "-out", path("cert.pem"))
    with open(path("chain.pem"), "w", encoding="ascii") as out:
        for name in ("cert.pem", "ca.pem"):
            with open(path(name), encoding="ascii") as file:
                out.write(file.read())
    os.chmod(path("key"), 0o600)
    return path("chain.pem"), path("key"), path("ca.pem")


def main():
    if not shutil.which("openssl"):
        skip("openssl is not installed")
    with tempfile.TemporaryDirectory() as folder:
        chain, key, ca = make_chain(folder)
        with Server("--tls-cert", chain, "--tls-key", key) as server:
            check_protocols(server)
            check_ciphers(server)
            check_extensions(server)
            check_sizes(server)
            check_renegotiation(server)
            check_chain(server, ca)
            check_tickets(server, folder)
    print("ok")


main()
