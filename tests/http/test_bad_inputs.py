"""Invalid requests, as data: each has one documented answer, names the field, and does not affect others:
concurrent streams have the same bytes as alone."""
import threading

from fake_server import VOCAB, Server

HOST = b"Host: localhost\r\n"


def head(first, *fields, body=b""):
    return first + b"\r\n" + b"".join(field + b"\r\n" for field in fields) + b"\r\n" + body


def post(*fields, body=b""):
    return head(b"POST /v1/completions HTTP/1.1", b"Host: localhost", *fields, body=body)


def get(target, *fields, method=b"GET"):
    return head(method + b" " + target + b" HTTP/1.1", b"Host: localhost", *fields)


GOOD = b'{"prompt":"a"}'
LENGTH = b"Content-Length: %d" % len(GOOD)

# name, bytes, status; the connection closes after each.
HTTP = [
    ("HTTP/2.0", head(b"GET /health HTTP/2.0", b"Host: localhost"), 505),
    ("HTTP/0.9", b"GET /health\r\n\r\n", (400, 505)),
    ("HTTP/1.2", head(b"GET /health HTTP/1.2", b"Host: localhost"), 505),
    ("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    ("length and coding", post(b"Content-Length: 5", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"), 400),
    ("coding and length", post(b"Transfer-Encoding: chunked", b"Content-Length: 5", body=b"0\r\n\r\n"), 400),
    ("two equal lengths", post(LENGTH, LENGTH, body=GOOD), 400),
    *((f"length {value!r}", post(b"Content-Length: " + value, body=b"hello"), 400) for value in
      (b"+5", b"5,5", b"0x5", b"", b"18446744073709551616", b"-1", b"5 5", b"1e3", b"\xd9\xa5")),
    *((f"coding {value!r}", post(b"Transfer-Encoding: " + value, body=b"0\r\n\r\n"), 400) for value in
      (b"chunked, identity", b"xchunked", b"chunked, chunked", b"identity", b"gzip", b"chunked\x0b")),
    *((f"coding {value!r}", post(b"Transfer-Encoding: " + value, body=b"0\r\n\r\n"), 501) for value in
      (b"gzip, chunked", b"identity, chunked", b"gzip,chunked")),
    ("chunked in HTTP/1.0", head(b"POST /tokenize HTTP/1.0", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"), 400),
    ("space before colon", get(b"/health", b"X : a"), 400),
    ("name without colon", get(b"/health", b"X"), 400),
    ("empty name", get(b"/health", b": a"), 400),
    ("no Host", head(b"GET /health HTTP/1.1"), 400),
    ("two Hosts", get(b"/health", b"Host: localhost"), 400),
    ("Host with a path", head(b"GET /health HTTP/1.1", b"Host: x/?"), 400),
    ("Host with a user", head(b"GET /health HTTP/1.1", b"Host: a@localhost"), 400),
    ("Host of somebody else", head(b"GET /health HTTP/1.1", b"Host: example.com"), 403),
    ("obs-fold", get(b"/health", b"X: a\r\n b"), 400),
    ("obs-fold with a tab", get(b"/health", b"X: a\r\n\tb"), 400),
    ("obs-fold that hides a length", post(b"X: a\r\n Content-Length: 5", body=b"hello"), 400),
    ("bare LF", b"GET /health HTTP/1.1\nHost: localhost\n\n", 400),
    ("bare LF in a field", get(b"/health", b"X: a\nY: b"), 400),
    ("bare CR", get(b"/health", b"X: a\rY: b"), 400),
    ("bare CR after an empty value", get(b"/health", b"X:\rTransfer-Encoding: chunked"), 400),
    ("CR LF CR", b"GET /health HTTP/1.1\r\n" + HOST + b"\r\rX", 400),
    ("NUL in a value", get(b"/health", b"X: a\0b"), 400),
    ("NUL in the path", get(b"/hea\0lth"), 400),
    ("DEL in a value", get(b"/health", b"X: a\x7fb"), 400),
    ("17 KiB in one field", get(b"/health", b"X: " + b"a" * 17000), 431),
    ("101 fields", get(b"/health", *(b"X%d: a" % i for i in range(100))), 431),
    ("9 KiB target", get(b"/" + b"a" * 9000), 414),
    ("fields without end", b"GET /health HTTP/1.1\r\n" + HOST + b"X: a\r\n" * 5000, 431),
    *((f"chunk size {size!r}", post(b"Transfer-Encoding: chunked", body=size + b"\r\n"), 400) for size in
      (b"FFFFFFFFFFFFFFFF1", b"-1", b"+1", b"0x1", b"", b"1 ", b"g")),
    ("chunk extension of 64 KiB", post(b"Transfer-Encoding: chunked", body=b"5;e=" + b"a" * 65536), 400),
    ("trailers without end", post(b"Transfer-Encoding: chunked", body=b"0\r\n" + b"X: a\r\n" * 20000), 400),
    ("chunk longer than its size", post(b"Transfer-Encoding: chunked", body=b"2\r\nabc\r\n"), 400),
    ("body too large", post(b"Content-Length: 8388609"), 413),
    ("body too large, expected", post(b"Content-Length: 8388609", b"Expect: 100-continue"), 413),
    ("chunked body too large", post(b"Transfer-Encoding: chunked", body=(b"100000\r\n" + b" " * 0x100000 + b"\r\n") * 9),
     413),
    ("chunk size of 64 bits", post(b"Transfer-Encoding: chunked", body=b"ffffffffffffffff\r\n"), 413),
    ("chunk above the limit", post(b"Transfer-Encoding: chunked", body=b"800001\r\n"), 413),
    ("two spaces after the method", b"GET  /health HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    ("unknown expectation", post(b"Content-Length: 5", b"Expect: x"), 417),
    *((f"{method.decode()[:20]}", get(b"/health", method=method), status) for method, status in
      ((b"TRACE", 501), (b"SOURCE", (400, 501)), (b"PROPFIND", 501), (b"M-SEARCH", 501), (b"A" * 1000, 400),
       (b"get", 400), (b"PUT", 405), (b"DELETE", 405), (b"PATCH", 405), (b"POST", 405))),
    ("CONNECT", head(b"CONNECT localhost:80 HTTP/1.1", b"Host: localhost:80"), 501),
    ("text/plain", post(LENGTH, b"Content-Type: text/plain", body=GOOD), 415),
    ("a form", post(LENGTH, b"Content-Type: application/x-www-form-urlencoded", body=GOOD), 415),
    ("utf-16", post(LENGTH, b"Content-Type: application/json; charset=utf-16", body=GOOD), 415),
    *((f"charset {name!r}", post(LENGTH, b"Content-Type: application/json; charset=" + name, body=GOOD), 415)
      for name in (b"utf-8x", b"us-asciix", b'"utf-8x"', b"utf", b"")),
    ("Origin of another site", post(LENGTH, b"Origin: https://example.com", body=GOOD), 403),
    ("Origin of another port", post(LENGTH, b"Origin: http://localhost:1", body=GOOD), 403),
    ("Origin null", post(LENGTH, b"Origin: null", body=GOOD), 403),
    ("two Origins", post(LENGTH, b"Origin: http://localhost", b"Origin: http://localhost", body=GOOD), 403),
    ("gzip", post(LENGTH, b"Content-Type: application/json", b"Content-Encoding: gzip", body=GOOD), 415),
    *((f"target {target!r}", get(target), status) for target, status in
      ((b"/v1/../metrics", 404), (b"/%2e%2e/metrics", 404), (b"//v1/models", 404), (b"/v1/models%00", 404),
       (b"/v1/models/", 404), (b"/metrics/", 404), (b"/METRICS", 404), (b"", 400), (b"x", 400),
       (b"http://example.com/health", 403), (b"http:///health", 400), (b"/caf\xc3\xa9", 400))),
]

# name, body, status, param, code
INT_BAD = [(b"1.5", "invalid_type"), (b'"2"', "invalid_type"), (b"true", "invalid_type"), (b"[1]", "invalid_type"),
           (b"9223372036854775808", "invalid_json"), (b"1e2", "invalid_type"), (b"NaN", "invalid_json")]
REAL_BAD = [(b'"1"', "invalid_type"), (b"false", "invalid_type"), (b"1e309", "invalid_json"), (b"-1e309", "invalid_json"),
            (b"NaN", "invalid_json"), (b"Infinity", "invalid_json"), (b"{}", "invalid_type")]


def field(name, values):
    for value, code in values:
        yield (f"{name} {value[:40]!r}", b'{"prompt":"a","%s":%s}' % (name.encode(), value), 400, name, code)


def prompt(value, code, status=400):
    return (f"prompt {value[:40]!r}", b'{"prompt":%s}' % value, status, "prompt", code)


RANGE, UNSUPPORTED = "out_of_range", "unsupported_parameter"
COMPLEX = "grammar_too_complex"
BODIES = [
    *((f"body {body[:30]!r}", body, 400, None, "invalid_json") for body in
      (b"", b"null", b"[]", b'"x"', b"1", b"{", b"{}x", b"{}{}", b"\xef\xbb\xbf{}", '{"prompt":"a"}'.encode("utf-16"),
       b"\0", b"[" * 2049, b"[" * 100000, b'{"prompt":' * 65 + b"1" + b"}" * 65, b'{"prompt":"a",}', b"{'prompt':'a'}")),
    *((f"prompt {text!r}", b'{"prompt":"%s"}' % text, 400, "prompt", "invalid_json") for text in
      (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\\ud83d", b"a\nb", b"\\x", b"\xf4\x90\x80\x80")),
    # U+0000 may be in what the model reads, and nowhere else.
    ("a NUL in the model's name", b'{"prompt":"a","model":"fake\\u0000"}', 400, "model", "invalid_json"),
    ("a NUL in a list", b'{"prompt":"a\\u0000","stop":["b",["c\\u0000"]]}', 400, "stop", "invalid_json"),
    ("a NUL in a schema", b'{"prompt":"a","json_schema":{"const":"\\u0000"}}', 400, "json_schema", "invalid_json"),
    ("a NUL in a name", b'{"prompt":"a","logit_bias":{"\\u0000":1}}', 400, "logit_bias", "invalid_json"),
    ("two models", b'{"model":"fake","model":"fake","prompt":"a"}', 400, None, "invalid_json"),
    ("tree too large", b"{\"prompt\":[" + b"{}," * 2700000 + b"{}]}", 413, None, "body_too_large"),
    ("no prompt", b"{}", 400, "prompt", "missing"),
    ("another model", b'{"model":"gpt-4","prompt":"a"}', 404, "model", "model_not_found"),
    ("model 1", b'{"model":1,"prompt":"a"}', 400, "model", "invalid_type"),
    *field("n", [*INT_BAD, (b"1000000", RANGE), (b"-1", RANGE), (b"0", RANGE), (b"9", RANGE)]),
    *field("best_of", [*INT_BAD, (b"0", RANGE), (b"9", RANGE)]),
    ("best_of below n", b'{"prompt":"a","n":3,"best_of":2}', 400, "best_of", RANGE),
    ("a streamed best_of", b'{"prompt":"a","best_of":2,"stream":true}', 400, "best_of", "invalid_value"),
    ("33 prompts, 8 answers each", b'{"n":8,"prompt":[' + b'"a",' * 32 + b'"a"]}', 400, "prompt", RANGE),
    *field("temperature", [*REAL_BAD, (b"-1", RANGE), (b"1e308", RANGE), (b"-0.001", RANGE)]),
    *field("top_p", [*REAL_BAD, (b"0", RANGE), (b"1.0001", RANGE), (b"-1", RANGE)]),
    *field("min_p", [*REAL_BAD, (b"1.1", RANGE), (b"-0.1", RANGE)]),
    *field("top_k", [*INT_BAD, (b"-9223372036854775808", RANGE), (b"-2", RANGE), (b"2147483648", RANGE)]),
    *field("max_tokens", [*INT_BAD, (b"0", RANGE), (b"2147483648", RANGE), (b"9223372036854775807", RANGE), (b"-1", RANGE),
                          (b"4096", "context_length_exceeded"), (b"2147483647", "context_length_exceeded")]),
    *field("min_tokens", [*INT_BAD, (b"17", RANGE), (b"-1", RANGE)]),
    *field("seed", [(b"1.5", "invalid_type"), (b'"2"', "invalid_type"), (b"18446744073709551615", "invalid_json")]),
    *field("presence_penalty", [(b"1e9", RANGE), (b"-1e9", RANGE), (b"2.001", RANGE), (b'"0"', "invalid_type")]),
    *field("frequency_penalty", [(b"1e9", RANGE), (b"-1e9", RANGE), (b"-2.001", RANGE), *REAL_BAD]),
    *field("repetition_penalty", [(b"-1", RANGE), (b"0", RANGE), (b"100.1", RANGE), *REAL_BAD]),
    *field("length_penalty", [(b"1.1", UNSUPPORTED)]),
    *field("stream", [(b"1", "invalid_type"), (b'"true"', "invalid_type")]),
    *field("ignore_eos", [(b"1", "invalid_type")]),
    *field("add_special_tokens", [(b'"no"', "invalid_type")]),
    *field("stream_options", [(b"{}", "invalid_value"), (b"1", "invalid_type")]),
    ("include_usage 1", b'{"prompt":"a","stream":true,"stream_options":{"include_usage":1}}', 400, "include_usage",
     "invalid_type"),
    prompt(b"1", "invalid_type"), prompt(b"true", "invalid_type"), prompt(b"{}", "invalid_type"), prompt(b"null", "missing"),
    prompt(b"[]", "invalid_type"), prompt(b"[[]]", "invalid_value"), prompt(b"[-1]", RANGE), prompt(b"[%d]" % VOCAB, RANGE),
    prompt(b"[4294967296]", RANGE), prompt(b"[1.0]", "invalid_type"), prompt(b"[0,1.0]", "invalid_type"),
    prompt(b'["a",1]', "invalid_type"), prompt(b'[1,"a"]', "invalid_type"), prompt(b'[[1],"a"]', "invalid_type"),
    prompt(b'["a",null]', "invalid_type"), prompt(b"[[[1]]]", "invalid_type"), prompt(b"[null]", "invalid_type"),
    prompt(b"[18446744073709551616]", "invalid_json"), prompt(b"[" + b"1," * 1000000 + b"1]", "context_length_exceeded"),
    prompt(b"[" + b'"a",' * 300 + b'"a"]', RANGE), prompt(b'"' + b"a" * 5000 + b'"', "context_length_exceeded"),
    prompt(b'"' + b"a" * (4 << 20) + b'"', "context_length_exceeded"),
    prompt(b'"' + b"^" * 1000000 + b'"', "context_length_exceeded"),
    prompt(b'"' + "\u0301".encode() * 1000000 + b'"', "context_length_exceeded"),
    prompt(b'"' + "\U0001f469\u200d".encode() * 500000 + b'"', "context_length_exceeded"),
    *field("stop", [(b'""', RANGE), (b'["a",""]', RANGE), (b"[" + b'"a",' * 16 + b'"a"]', RANGE), (b'"' + b"a" * 257 + b'"', RANGE),
                    (b'"' + b"a" * (1 << 20) + b'"', RANGE), (b"1", "invalid_type"), (b'["a",1]', "invalid_type"), (b"{}", "invalid_type")]),
    *field("stop_token_ids", [(b"1", "invalid_type"), (b"[-1]", RANGE), (b"[%d]" % VOCAB, RANGE), (b'["a"]', "invalid_type"),
                              (b"[" + b"1," * 64 + b"1]", RANGE)]),
    *field("logit_bias", [(b"1", "invalid_type"), (b"[]", "invalid_type"), (b'{"x":1}', RANGE), (b'{"":1}', RANGE),
                          (b'{"-1":1}', RANGE), (b'{"%d":1}' % VOCAB, RANGE), (b'{"05":1}', RANGE), (b'{" 5":1}', RANGE),
                          (b'{"5.0":1}', RANGE), (b'{"4294967301":1}', RANGE), (b'{"99999999999999999999":1}', RANGE),
                          (b'{"5":1,"5":2}', "invalid_json"), (b'{"5":101}', RANGE), (b'{"5":-100.5}', RANGE),
                          (b'{"5":1e39}', RANGE), (b'{"5":"1"}', "invalid_type"), (b'{"5":null}', "invalid_type"),
                          (b'{"5":[1]}', "invalid_type"), (b"{%s}" % b",".join(b'"%d":1' % i for i in range(301)), RANGE)]),
    *field("allowed_token_ids", [(b"[]", "invalid_type"), (b"1", "invalid_type"), (b"[-1]", RANGE), (b"[%d]" % VOCAB, RANGE),
                                 (b"[4294967296]", RANGE), (b'["a"]', "invalid_type"), (b"[1.0]", "invalid_type")]),
    *field("bad_words", [(b'"a"', "invalid_type"), (b"[1]", "invalid_type"), (b"[null]", "invalid_type"), (b'[""]', RANGE),
                         (b'["' + b"a" * 129 + b'"]', RANGE), (b"[" + b'"a",' * 64 + b'"a"]', RANGE),
                         (b'["' + b"a" * 17 + b'"]', RANGE), (b"[" + b",".join([b'"aaaaaaaaaaaaaaaa"'] * 17) + b"]", RANGE)]),
    *field("logprobs", [*INT_BAD, (b"21", RANGE), (b"-1", RANGE)]),
    *field("prompt_logprobs", [*INT_BAD, (b"21", RANGE), (b"-1", RANGE)]),
    ("streamed prompt_logprobs", b'{"prompt":"a","stream":true,"prompt_logprobs":0}', 400, "prompt_logprobs", "invalid_value"),
    *field("echo", [(b"1", "invalid_type"), (b'"yes"', "invalid_type")]),
    *field("suffix", [(b'"x"', UNSUPPORTED)]),
    *field("response_format", [(b"3", "invalid_type"), (b'{"type":3}', "invalid_type"), (b"[]", "invalid_type")]),
    *field("tools", [(b"[{}]", UNSUPPORTED)]),
    *field("tool_choice", [(b'"required"', UNSUPPORTED), (b"{}", UNSUPPORTED)]),
    *field("functions", [(b"[{}]", UNSUPPORTED)]),
    *field("function_call", [(b'{"name":"f"}', UNSUPPORTED)]),
    *field("guided_json", [(b"3", "invalid_type"), (b'"{"', "invalid_type"), (b'{"type":"frog"}', "invalid_grammar"),
                           (b'{"$ref":"#/a"}', "invalid_grammar"), (b'{"uniqueItems":true}', "invalid_grammar"),
                           (b'{"enum":[]}', "invalid_grammar")]),
    *field("guided_regex", [(b"3", "invalid_type"), (b'"("', "invalid_grammar"), (b'"(?=a)"', "invalid_grammar"),
                            (b'"a{99999}{99999}"', COMPLEX), (b'"\\\\1"', "invalid_grammar"),
                            (b'"' + b"(" * 20000 + b'"', COMPLEX), (b'"' + b"a?" * 40000 + b'"', COMPLEX)]),
    *field("guided_choice", [(b'"a"', "invalid_type"), (b"[]", "invalid_type"), (b'["a",1]', "invalid_type")]),
    *field("grammar", [(b"3", "invalid_type"), (b'"root ::= [a-z"', "invalid_grammar"), (b'"root ::= other"', "invalid_grammar"),
                       (b'"root ::= a\\na ::= root"', "invalid_grammar"), (b'"' + b"(" * 20000 + b'"', "invalid_grammar")]),
    *field("ebnf", [(b"3", "invalid_type"), (b'""', "invalid_grammar")]),
    *field("guided_grammar", [(b"3", "invalid_type"), (b'"start: other"', "invalid_grammar")]),
    *field("structural_tag", [(b"3", "invalid_type"), (b'{"format":{"type":"frog"}}', "invalid_grammar")]),
    *field("messages", [(b"[]", UNSUPPORTED)]),
    *field("cache_salt", [(b"1", "invalid_type")]),
]

# Valid requests that look invalid.
ACCEPTED = [{"n": 1}, {"n": 8}, {"n": 2, "best_of": 8}, {"best_of": 1}, {"logit_bias": {"0": -100, "262": 100}},
            {"logit_bias": {str(i): 0.5 for i in range(VOCAB)}}, {"allowed_token_ids": [0, 262, 0]}, {"bad_words": []},
            {"bad_words": ["hello", " hello", "a" * 16]}, {"logprobs": 0}, {"logprobs": 20}, {"prompt_logprobs": 20},
            {"echo": True}, {"presence_penalty": -2}, {"frequency_penalty": 2}, {"repetition_penalty": 0.01},
            {"tool_choice": "none"}, {"logprobs": None}, {"echo": False}, {"logit_bias": {}}, {"suffix": ""}, {"tools": []},
            {"response_format": {"type": "text"}}, {"presence_penalty": 0}, {"repetition_penalty": 1.0}, {"top_k": -1},
            {"top_k": 0}, {"top_p": 1}, {"top_p": 1e-300}, {"temperature": 0}, {"temperature": 2}, {"seed": -1},
            {"seed": 9223372036854775807}, {"stop": []}, {"stop": None}, {"stop": ["x" * 256] * 16}, {"min_tokens": 16},
            {"max_tokens": 4094}, {"cache_salt": "x"}, {"chat_template": "{{ x }}"}, {"model": None}, {"user": 1}]


def problem_of_http(server, data, statuses):
    with server.connect() as connection:
        connection.raw(data)
        response = connection.response()
        if response.status not in statuses:
            return f"{response.status} {response.body}"
        if response.headers["connection"] != "close" or not connection.at_end():
            return "the connection stays open"
        if not response.error["type"] or not response.error["message"] or len(response.headers["x-request-id"]) != 16:
            return f"{response.headers} {response.body}"
        if response.status == 405 and "GET" not in response.headers["allow"]:
            return f"Allow: {response.headers['allow']}"
        return None


def problem_of_body(connection, body, status, param, code):
    connection.send("POST", "/v1/completions", body)
    response = connection.response()
    error = response.error
    if (response.status, error["code"]) != (status, code) or set(error) != {"message", "type", "param", "code"}:
        return f"{response.status} {error}"
    if error["param"] != param and not (param is None and code == "invalid_json"):
        return f"names {error['param']}"
    return None if len(response.body) < 700 else "long-winded"


def check_all(server):
    problems = []
    for name, data, status in HTTP:
        problem = problem_of_http(server, data, status if isinstance(status, tuple) else (status,))
        if problem:
            problems.append(f"{name}: {problem}")
    with server.connect() as connection:
        for name, *case in BODIES:
            problem = problem_of_body(connection, *case)
            if problem:
                problems.append(f"{name}: {problem}")
    for fields in ACCEPTED:
        response = server.complete("a", **{"max_tokens": 16, **fields})
        if response.status != 200:
            problems.append(f"{fields}: {response.body}")
    assert not problems, "\n".join(problems)


def check_expect(server):
    with server.connect() as connection:
        connection.raw(post(LENGTH, b"Expect: 100-continue"))
        assert connection.line() == b"HTTP/1.1 100 Continue" and connection.line() == b""
        connection.raw(GOOD)
        assert connection.response().status == 200
    with server.connect() as connection:
        connection.raw(post(LENGTH, b"Expect: 100-continue", body=GOOD))  # did not wait
        assert connection.response().status == 200
    with server.connect() as connection:  # upgrades are not supported: HTTP/1.1 continues
        connection.raw(post(LENGTH, b"Connection: Upgrade", b"Upgrade: h2c", body=GOOD))
        assert connection.response().status == 200
    with server.connect() as connection:  # a trailer has no effect
        connection.raw(post(b"Transfer-Encoding: chunked", body=b"e\r\n" + GOOD + b"\r\n0\r\nContent-Length: 5\r\n\r\n"))
        assert connection.response().status == 200
        connection.send("GET", "/health")
        assert connection.response().status == 200
    with server.connect() as connection:  # 2 MiB, one byte per chunk
        body = GOOD[:-1] + b" " * (2 << 20) + b"}"
        connection.raw(post(b"Transfer-Encoding: chunked", body=b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"))
        assert connection.response().status == 200


def good_stream(server, text, count, results):
    fields = {"prompt": text, "max_tokens": count, "stream": True}
    results.append("".join(e["choices"][0]["text"] for e in server.post("/v1/completions", fields).events()[:-1]))


def main():
    with Server(env={"FAKE_STEP_US": "1000"}) as server:
        prompts = [f"good {i} 🙂 " for i in range(4)]
        quiet = []
        for text in prompts:
            good_stream(server, text, 3000, quiet)
        loud = [[] for _ in prompts]
        threads = [threading.Thread(target=good_stream, args=(server, text, 3000, result))
                   for text, result in zip(prompts, loud)]
        for thread in threads:
            thread.start()
        check_all(server)
        check_expect(server)
        for thread in threads:
            thread.join()
        assert [result[0] for result in loud] == quiet, "the good streams were disturbed"
        assert server.metric("reprise_completions_open") == 0
    print(f"{len(HTTP)} requests, {len(BODIES)} bodies, {len(ACCEPTED)} that are right")


main()
