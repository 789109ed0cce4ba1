"""`reprise bench sweep` against a server of known capacity: one place, a fixed time for each request, so that no rate
above its reciprocal can hold for long. How near the answer comes from below depends on the machine and is not asserted;
that it is not above is. Bad flags and servers that fail everything end with an error that says why.
"""
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading

from reprise_server import BIN

SERVICE_S = 0.01  # capacity: 100 requests/s


class CapacityServer:
    """Completions, streamed: each waits for the one place, holds it for SERVICE_S, and then sends all its tokens."""

    def __init__(self, status=200):
        self.status, self.seen, self.prompts = status, 0, []

    def __enter__(self):
        self.loop = asyncio.new_event_loop()
        started = threading.Event()
        self.thread = threading.Thread(target=self.run, args=(started,), daemon=True)
        self.thread.start()
        assert started.wait(30)
        return self

    def run(self, started):
        asyncio.set_event_loop(self.loop)
        self.place = asyncio.Lock()
        server = self.loop.run_until_complete(asyncio.start_server(self.serve, "127.0.0.1", 0, backlog=4096))
        self.url = "http://127.0.0.1:%d" % server.sockets[0].getsockname()[1]
        started.set()
        self.loop.run_forever()

    def __exit__(self, kind, value, trace):
        asyncio.run_coroutine_threadsafe(self.stop(), self.loop)
        self.thread.join(30)

    async def stop(self):
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.loop.stop()

    async def serve(self, reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                await self.answer(head.split()[1], body, writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            writer.close()

    async def answer(self, path, body, writer):
        if not path.endswith("/completions"):
            known = path == "/v1/models"
            text = json.dumps({"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": 64}]})
            self.send(writer, "200 OK" if known else "404 Not Found", "application/json", text if known else "{}")
            return
        request = json.loads(body)
        self.seen += 1
        self.prompts.append(tuple(request["prompt"]))
        if self.status != 200:
            self.send(writer, f"{self.status} No", "application/json", json.dumps({"error": {"message": "not today"}}))
            return
        async with self.place:
            await asyncio.sleep(SERVICE_S)
        tokens = request["max_tokens"]
        events = [{"choices": [{"index": 0, "text": " a", "finish_reason": None}]}] * tokens
        events.append({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
        events.append({"choices": [], "usage": {"prompt_tokens": len(request["prompt"]), "completion_tokens": tokens,
                                                "total_tokens": len(request["prompt"]) + tokens}})
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        self.send(writer, "200 OK", "text/event-stream", text)

    @staticmethod
    def send(writer, status, kind, text):
        data = text.encode()
        writer.write(f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)


def sweep(server, *flags):
    """(exit code, standard output, standard error)"""
    done = subprocess.run([BIN, "bench", "sweep", "--base-url", server.url, "--input-len", "20", "--output-len", "3",
                           "--vocab-begin", "10", "--vocab-end", "2000", *flags],
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=250)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


SHORT = ["--first-rate", "50", "--growth", "4", "--tolerance", "0.6", "--seconds", "1", "--min-requests", "50",
         "--share", "0.9"]


def check_the_answer_is_not_above_the_capacity():
    with CapacityServer() as server, tempfile.TemporaryDirectory() as folder:
        saved, page = os.path.join(folder, "sweep.json"), os.path.join(folder, "sweep.html")
        code, out, errors = sweep(server, *SHORT, "--goodput", "ttft:100", "--save-result", saved, "--html", page)
        lines = errors.splitlines()
        assert all(line.startswith(("run ", "  ")) for line in lines), errors
        with open(saved) as file:
            result = json.load(file)
        with open(page) as file:
            html = file.read()
        prompts = server.prompts
    print(out)
    # 100 ms of a run of 1 s: at 1.1 times the capacity a tenth of the requests is late at the end.
    assert result["highest_rate"] <= 1.3 / SERVICE_S, result["highest_rate"]
    assert result["state"] in ("found", "client_limit", "never_held"), result["state"]
    assert code == (0 if result["highest_rate"] > 0 else 1), code
    assert result["objective"] == {"name": "goodput", "ttft_ms": 100, "share": 0.9, "each": False}, result["objective"]
    assert sum(point["runs"] for point in result["points"]) == len(result["runs"]), result["points"]
    assert [point["rate"] for point in result["points"]] == sorted({run["request_rate"] for run in result["runs"]})
    assert len({run["seed"] for run in result["runs"]}) == len(result["runs"])
    assert sum(line.startswith("run ") for line in lines) >= len(result["runs"]), errors
    # A run that is lost ends early, so that not all of its prompts are sent.
    assert len(set(prompts)) == len(prompts) <= sum(run["num_prompts"] for run in result["runs"])
    assert all(10 <= token < 2000 for prompt in prompts for token in prompt)
    for run in result["runs"]:
        assert run["total_input_tokens"] <= 20 * run["num_prompts"] and run["failed"] == 0, run
    assert out.count(" met") + out.count(" failed") + out.count(" inconclusive") >= len(result["runs"]), out
    assert "<svg" in html and "ttft 100 ms" in html and html.count("<tr>") == len(result["runs"]) + 1, len(html)


def check_a_preset_and_a_rate_that_never_breaks():
    with CapacityServer() as server:
        code, out, errors = sweep(server, "--objective", "llama2-70b-server", "--first-rate", "20", "--max-rate", "40",
                                  "--seconds", "1", "--min-requests", "20", "--share", "0.5", "--json")
    result = json.loads(out)
    assert "error" not in errors and code == 0, (code, errors)
    assert result["objective"] == {"name": "llama2-70b-server", "ttft_ms": 2000, "tpot_ms": 200, "share": 0.5,
                                   "each": True}, result["objective"]
    assert result["state"] == "never_broke" and result["highest_rate"] == 40 and result["breaks_at"] == 0, result


def check_a_run_far_above_the_capacity_ends_early():
    with CapacityServer() as server:
        code, out, errors = sweep(server, "--goodput", "ttft:100", "--share", "0.9", "--first-rate", "300", "--seconds",
                                  "30", "--max-runs", "1", "--json")
        assert server.seen < 4500, server.seen
    result = json.loads(out)
    assert code == 1 and result["state"] == "out_of_runs", (code, out[:1000], errors)
    assert all(point["good"] < 0.9 * point["requests"] and point["requests"] > 8000
               for point in result["points"]), result["points"]


def check_without_a_first_rate_it_begins_near_the_capacity():
    with CapacityServer() as server:
        code, out, errors = sweep(server, "--goodput", "ttft:100000", "--share", "0.9", "--seconds", "0.5",
                                  "--min-requests", "20", "--max-runs", "1", "--json")
    result = json.loads(out)
    assert result["state"] == "out_of_runs" and len(result["runs"]) == 1, (code, out[:1000], errors)
    first = result["points"][0]["rate"]
    assert 0 < first <= 0.85 / SERVICE_S and first == result["estimate"]["first_rate"], first
    assert result["estimate"]["ttft_ms"] >= 1000 * SERVICE_S, result["estimate"]
    assert "begin at %.4g requests/s" % first in errors, errors


def check_an_objective_that_no_rate_meets_is_refuted_at_once():
    with CapacityServer() as server:
        code, out, errors = sweep(server, "--goodput", "ttft:5")
        assert server.seen == 3, server.seen
        json_code, text, _ = sweep(server, "--goodput", "ttft:5", "--json")
    assert code == 1 and "not met at any rate that was tried: a request alone misses it" in out, (code, out, errors)
    assert json_code == 1 and json.loads(text)["state"] == "never_held" and json.loads(text)["runs"] == [], text


def check_servers_that_fail_everything_end_it():
    with CapacityServer(status=400) as server:
        code, out, errors = sweep(server, *SHORT, "--first-rate", "300")
        assert code == 1 and "no request succeeded; the first: status, status 400" in errors, (code, errors)
        assert "not today" in errors and 0 < server.seen <= 450, (errors, server.seen)
    with CapacityServer(status=429) as server:  # busy, at any rate
        code, out, errors = sweep(server, *SHORT, "--first-rate", "100", "--min-rate", "50", "--json")
        assert code == 1 and "error" not in errors, (code, errors)
        assert json.loads(out)["state"] == "never_held", out[:2000]
    server.url = "http://127.0.0.1:1"
    code, out, errors = sweep(server, *SHORT)
    assert code == 1 and "error: " in errors and out == "", (code, out, errors)


def check_bad_flags_are_refused_by_name():
    with CapacityServer() as server:
        for words, *flags in [("--objective: no preset x", "--objective", "x"),
                              ("alternatives", "--objective", "llama2-70b-server", "--goodput", "ttft:1"),
                              ("goodput: 'ttft'", "--goodput", "ttft"),
                              ("--goodput has no bound", "--goodput", " "),
                              ("repeats must be odd", "--repeats", "2"),
                              ("rates must be", "--first-rate", "5", "--min-rate", "6"),
                              ("--dataset-path", "--dataset-name", "azure"),
                              ("cannot open", "--dataset-name", "azure", "--dataset-path", "/nowhere/at/all"),
                              ("requires text", "--api", "chat"),
                              ("--vocab-begin", "--vocab-begin", "5000"),
                              ("requests fits into a context", "--input-len", "62")]:
            code, out, errors = sweep(server, *flags)
            assert code in (1, 2) and "error: " in errors and words in errors, (flags, code, errors)
        assert server.seen == 0


def main():
    check_bad_flags_are_refused_by_name()
    check_servers_that_fail_everything_end_it()
    check_a_preset_and_a_rate_that_never_breaks()
    check_the_answer_is_not_above_the_capacity()
    check_a_run_far_above_the_capacity_ends_early()
    check_without_a_first_rate_it_begins_near_the_capacity()
    check_an_objective_that_no_rate_meets_is_refuted_at_once()


if __name__ == "__main__":
    sys.exit(main())
