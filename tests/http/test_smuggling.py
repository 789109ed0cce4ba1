"""Requests whose end two parsers could place differently, after the classes of Http11Probe and of published attacks: each gets
one answer, 400 or 501, the connection closes, and the request hidden in it is never served. Each goes out as it stands, and in
pieces of three bytes, because a parser may decide at the end of a packet."""
import concurrent.futures

from fake_server import Server

HIDDEN = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 14\r\n\r\n" + b'{"prompt":"a"}'
GOOD = b'{"prompt":"ab"}'
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(GOOD), GOOD)
EMPTY = b"0\r\n\r\n"


def post(*fields, body=b"", version=b"HTTP/1.1"):
    return b"POST /v1/completions " + version + b"\r\nHost: localhost\r\n" + b"".join(field + b"\r\n" for field in fields) + b"\r\n" + body


def codings():
    """Fields that one parser reads as `Transfer-Encoding: chunked` and another does not."""
    name = b"Transfer-Encoding"
    values = [b"xchunked", b"chunkedx", b"chunked, identity", b"chunked, chunked", b"chunked, gzip", b"gzip", b"identity", b"", b",",
              b"chunked,", b",chunked", b", chunked", b"chunked;q=1", b"chunked; a=b", b'"chunked"', b"'chunked'", b"chunked\x0b",
              b"chunked\x0c", b"\x0bchunked", b"\x0cchunked", b"chunked\0", b"\0chunked", b"chunked\xa0", b"\xa0chunked", b"chunked\x85",
              b"chunked\x7f", b"chun\0ked", b"chun ked", b"chunk", b"chunked chunked", b"ch\xc3\xbcnked", b"chunked\r", b"\rchunked",
              b"\n chunked", b"x\n chunked", b"\r\n chunked", b"x\r\n chunked", b"x\r\n\tchunked", b"\xef\xbb\xbfchunked", b"chunke\xe4"]
    fields = [name + b": " + value for value in values]
    fields += [start + b": chunked" for start in (
        name + b" ", name + b"\t", name + b"\x0b", name + b"\0", b" " + name, b"\t" + name, b"X: y\r" + name, b"\0" + name,
        b"\xef\xbb\xbf" + name, b"Transfer-Encoding\xa0", b"Transfer Encoding", b"Transfer-Encoding\r", b"X: y\n" + name)]
    return fields + [name + b":\r\n chunked", name + b"\r\n: chunked", name + b"=chunked", name]


def lengths(size):
    """Values of Content-Length that are no number, and two of them."""
    digits = b"%d" % size
    values = [b"", b"+" + digits, b"-" + digits, b"-0", b"0x" + b"%x" % size, digits + b"." + b"0", digits + b"e0", b"1_" + digits,
              digits + b" " + digits, digits + b"," + digits, digits + b", 0", b"0, " + digits, digits + b";", b'"' + digits + b'"',
              digits + b"\x0b", b"\x0c" + digits, digits + b"\0", b"\0" + digits, digits + b"\xa0", b"\xd9\xa5", b"18446744073709551631",
              b"9" * 30, b"4294967311.", digits + b"\r", digits + b"\r\n 0", b"\r\n " + digits, b"NaN", b"%31%35"]
    fields = [(b"Content-Length: " + value,) for value in values]
    fields += [(b"Content-Length: " + digits, b"Content-Length: " + other) for other in (b"0", digits, b"%d" % (size + 1), b"")]
    fields += [(b"Content-Length: 0", b"content-length: " + digits), (b"Content-Length : " + digits,), (b" Content-Length: " + digits,),
               (b"Content-Length\x0b: " + digits,), (b"Content-Length\0: " + digits,), (b"X: y\n" + b"Content-Length: " + digits,),
               (b"X: y\r" + b"Content-Length: " + digits,), (b"Content-Length\r\n: " + digits,)]
    return fields


def chunks():
    """Chunked bodies that are not exactly of the grammar."""
    size, data = b"%x" % len(GOOD), GOOD
    lines = [b"", b" ", b"+" + size, b"-" + size, b"0x" + size, b"x" + size, size + b" ", size + b"\t", b" " + size, b"\t" + size,
             size + b".0", size + b",", size + b"\0", b"\0" + size, size + b"\x0b", b"g", size + b"g", size + b"_", b"_" + size, b"-1",
             b"ffffffffffffffff" + size, b"1" + b"0" * 16 + size, size + b";a\n", size + b";a\rb", size + b";\0", size + b" ;a", size + b";\x7f",
             size + b";a=\"\n\""]
    bodies = [(line, line + b"\r\n" + data + b"\r\n" + EMPTY) for line in lines]
    return bodies + [
        ("line ended by LF", size + b"\n" + data + b"\r\n" + EMPTY), ("line ended by CR", size + b"\r" + data + b"\r\n" + EMPTY),
        ("data ended by LF", size + b"\r\n" + data + b"\n" + EMPTY), ("data ended by nothing", size + b"\r\n" + data + EMPTY),
        ("data longer than its size", b"%x" % (len(data) - 1) + b"\r\n" + data + b"\r\n" + EMPTY),
        ("data ended by other bytes", size + b"\r\n" + data + b"xx" + EMPTY), ("data ended by CR", size + b"\r\n" + data + b"\r" + EMPTY),
        ("last chunk ended by LF", size + b"\r\n" + data + b"\r\n0\n\r\n"), ("body ended by LF", size + b"\r\n" + data + b"\r\n0\r\n\n"),
        ("last chunk in hexadecimal", size + b"\r\n" + data + b"\r\n0x0\r\n\r\n"),
        ("last chunk with a sign", size + b"\r\n" + data + b"\r\n-0\r\n\r\n"),
        ("trailer with a space", size + b"\r\n" + data + b"\r\n0\r\nX : y\r\n\r\n"),
        ("trailer folded", size + b"\r\n" + data + b"\r\n0\r\nX: y\r\n z\r\n\r\n"),
        ("trailer ended by LF", size + b"\r\n" + data + b"\r\n0\r\nX: y\n\r\n"),
        ("trailer with NUL", size + b"\r\n" + data + b"\r\n0\r\nX: \0\r\n\r\n")]


def cases():
    both = b"Transfer-Encoding: chunked"
    # What CL ends, TE goes on with, and the other way round: the hidden request starts where one of them ends.
    yield "CL.TE", post(b"Content-Length: %d" % len(CHUNKED + HIDDEN), both, body=CHUNKED)
    yield "TE.CL", post(both, b"Content-Length: 3", body=CHUNKED)
    yield "CL.TE, no body by TE", post(b"Content-Length: %d" % len(EMPTY + HIDDEN), both, body=EMPTY)
    yield "CL 0 and TE", post(b"Content-Length: 0", both, body=CHUNKED)
    yield "TE twice", post(both, both, body=CHUNKED)
    yield "TE twice, one of them identity", post(both, b"Transfer-Encoding: identity", body=CHUNKED)
    yield "TE in HTTP/1.0", post(both, body=CHUNKED, version=b"HTTP/1.0")
    for field in codings():
        yield repr(field), post(field, body=CHUNKED)
        yield repr(field) + " beside a length", post(field, b"Content-Length: %d" % len(CHUNKED), body=CHUNKED)
        yield repr(field) + " after a length", post(b"Content-Length: %d" % len(EMPTY), field, body=EMPTY)
    for fields in lengths(len(GOOD)):
        yield repr(fields), post(*fields, body=GOOD)
    for name, body in chunks():
        yield f"chunk {name!r}", post(both, body=body)
    for first in (b"GET /health HTTP/1.1\n", b"GET /health HTTP/1.1\r", b" GET /health HTTP/1.1\r\n", b"GET /health\tHTTP/1.1\r\n",
                  b"GET  /health HTTP/1.1\r\n", b"GET /health HTTP/1.1 \r\n", b"GET /health HTTP/1.1 x\r\n", b"GET /hea\0lth HTTP/1.1\r\n",
                  b"GET /health HTTP/1.1\x0b\r\n", b"GET /health http/1.1\r\n", b"GET /health HTTP/1.10\r\n", b"GET /health HTTP/01.1\r\n"):
        yield repr(first), first + b"Host: localhost\r\n\r\n"
    yield "a line that begins with a space", b"GET /health HTTP/1.1\r\n Host: localhost\r\nHost: localhost\r\n\r\n"
    yield "fields ended by LF", b"GET /health HTTP/1.1\r\nHost: localhost\n\n"


# Two requests that every parser must read as two: so the harness can tell.
PLAIN = [post(b"Content-Length: %d" % len(GOOD), body=GOOD), post(b"Transfer-Encoding: chunked", body=CHUNKED),
         post(b"transfer-encoding:\tChunked ", body=CHUNKED), post(b"Content-Length: \t%d " % len(GOOD), body=GOOD),
         post(b"Content-Length: 000%d" % len(GOOD), body=GOOD), post(b"Transfer-Encoding: chunked", body=CHUNKED.replace(b"f\r", b"F;a=b\r"))]


def exchange(server, data, piece):
    """(status of each answer, the last one's Connection field)"""
    found, connection_field = [], None
    with server.connect() as connection:
        for at in range(0, len(data), piece):
            connection.raw(data[at:at + piece])
        while connection.buffer or connection.more():
            response = connection.response()
            found.append(response.status)
            connection_field = response.headers["connection"]
    return found, connection_field


def main():
    problems, every = [], list(cases())
    served = 'reprise_http_requests_total{route="/tokenize",code="2xx"}'
    with Server(env={"FAKE_TIMEOUT_MS": "500"}) as server, concurrent.futures.ThreadPoolExecutor(32) as pool:
        for plain in PLAIN:
            got = exchange(server, plain + HIDDEN, len(plain))
            assert got[0] == [200, 200], (plain, got)
        before = server.metric(served)
        assert before == len(PLAIN)
        work = [(name, pool.submit(exchange, server, data + HIDDEN, piece)) for name, data in every for piece in (len(data + HIDDEN), 3)]
        for name, future in work:
            found, connection_field = future.result()
            if len(found) != 1 or found[0] not in (400, 501, 505) or connection_field != "close":
                problems.append(f"{name}: {found} {connection_field}")
        for problem in problems:
            print(problem)
        assert server.metric(served) == before, "a hidden request was served"
    assert not problems and len(every) > 200, len(every)
    print("ok", len(every), "requests")


main()
