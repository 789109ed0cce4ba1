"""Every strict request block of llhttp's own tests, over a socket: one that must fail is answered 4xx or 505
and the connection closes; a well-formed one gets a valid HTTP answer. Each is sent unchanged and
again as a request to one of our routes (Host added, target replaced), so that a missing Host or an unknown
route does not hide the parser's result."""
import concurrent.futures
import os
import re
import sys

from fake_server import Server, skip

FOLDER = os.path.join(os.environ.get("REPRISE_TEST_DATA", "../shared/data"), "http", "llhttp_request")
BLOCK = re.compile(r"<!--\s*meta=(\{.*?\})\s*-->\s*```http\n(.*?)\n```(?:(?!<!--).)*?```log\n(.*?)```",
                   re.S)

# Blocks that our server correctly accepts: name -> reason.
EXCEPTIONS = {}
# These end in the middle of a request: the answer is 408 after the timeout.
STATUSES = {400, 403, 404, 405, 408, 411, 413, 414, 415, 417, 431, 501, 505}


def unescape(text):
    text = re.sub(r"\\\n", "", text)
    text = text.replace("\n", "\r\n")
    text = text.replace("\\r", "\r").replace("\\n", "\n").replace("\\t", "\t").replace("\\f", "\f")
    text = re.sub(r"\\x([0-9a-fA-F]{2})", lambda match: chr(int(match.group(1), 16)), text)
    return text.encode("latin-1" if all(ord(c) < 256 for c in text) else "utf-8")


def must_fail(log):
    """Codes 21 and 22 are not errors: the parser is paused, or another protocol would follow."""
    return any(code not in ("21", "22") for code in re.findall(r" error code=(\d+)", log))


def blocks():
    if not os.path.isdir(FOLDER):
        skip(f"{FOLDER} is not there")
    for name in sorted(os.listdir(FOLDER)):
        if not name.endswith(".md"):
            continue
        with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
            text = file.read()
        for match in BLOCK.finditer(text):
            if "lenient" in match.group(1):
                continue
            title = re.findall(r"^#+ (.*)$", text[:match.start()], re.M)[-1]
            yield f"{name[:-3]}: {title}", unescape(match.group(2)), must_fail(match.group(3))


# The fault is in the part that ours() replaces.
NOT_OURS = {"uri: Disallow UTF-8 in URI path in strict mode"}


def ours(data):
    """The same request to one of our routes, if it has a request line."""
    match = re.match(rb"((?:\r\n)*)([A-Z-]+) (\S+) (HTTP/1\.1)\r\n", data)
    if not match:
        return None
    # PUT is not supported: its body would never be read.
    method = match.group(2).replace(b"PUT", b"POST")
    path = b"/v1/completions" if method == b"POST" else b"/health"
    host = b"" if re.search(rb"\r\nHost:", data, re.I) else b"Host: localhost\r\n"
    data = re.sub(rb"\r\nHost: *[^\r\n]*\r\n", b"\r\nHost: localhost\r\n", data, flags=re.I)
    rest = data[match.end():]
    return match.group(1) + method + b" " + path + b" HTTP/1.1\r\n" + host + rest


def exchange(server, data):
    """Status of each answer until the server closes."""
    found = []
    with server.connect() as connection:
        connection.raw(data)
        while connection.buffer or connection.more():
            # Our answers to HEAD have the length of the body.
            found.append(connection.response(head_only=data.lstrip().startswith(b"HEAD ")))
    return found


def judge(name, fails, found):
    if not found:
        # Only what may precede a request: closed after the idle time.
        return None if not fails else f"{name}: no answer"
    for response in found:
        if response.status >= 500 and response.status not in STATUSES:
            return f"{name}: {response.status} {response.body!r}"
    if fails and (found[-1].status not in STATUSES or found[-1].headers["connection"] != "close"):
        return f"{name}: answered {found[-1].status} {found[-1].headers}"
    return None


def main():
    cases = list(blocks())
    problems, failing, variants = [], 0, 0
    with Server(env={"FAKE_TIMEOUT_MS": "400"}) as server:
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            work = []
            for name, data, fails in cases:
                failing += fails
                fails = fails and name not in EXCEPTIONS
                work.append((name, fails, pool.submit(exchange, server, data)))
                variant = None if name in NOT_OURS else ours(data)
                if variant:
                    variants += 1
                    work.append((name + " (ours)", fails, pool.submit(exchange, server, variant)))
            for name, fails, future in work:
                try:
                    found = future.result()
                except Exception as error:  # not HTTP: named with its block
                    problems.append(f"{name}: {type(error).__name__}: {error}")
                    continue
                if "-v" in sys.argv:
                    print(name, fails, [(r.status, r.body[:150]) for r in found])
                problem = judge(name, fails, found)
                if problem:
                    problems.append(problem)
        assert server.get("/health").status == 200
    for problem in problems:
        print(problem)
    unused = set(EXCEPTIONS) - {name for name, _, fails in cases if fails}
    assert not unused, f"exceptions that no block needs: {unused}"
    print(f"{len(cases)} strict blocks, {failing} of them must fail, {variants} sent again as ours, "
          f"{len(problems)} problems")
    return 1 if problems else 0


sys.exit(main())
