"""A server whose model is divided between two ranks of CPU workers: the answers of one device in f32, structured output, an 8-bit KV pool,
a trace with the nodes of each rank and the tool that reads it, the memory plan of a rank; random weights; and a rank that fails ends
the server with its cause, whoever launches."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

from reprise_server import DEMO, SOURCE, Server

FLAGS = ["--device", "cpu", "--max-num-seqs", "4", "--max-num-batched-tokens", "32", "--profile-every", "1"]
GROUP = [*FLAGS, "--tensor-parallel-size", "2"]
PROMPT = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0, "logprobs": 2}


def complete(server, **fields):
    status, answer = server.post("/v1/completions", {**PROMPT, **fields})
    assert status == 200, answer
    return answer["choices"][0]


def check_answers():
    with Server(DEMO, *FLAGS, "--dtype", "float32") as server:
        one = complete(server)
    with Server(DEMO, *GROUP, "--dtype", "float32") as server:
        many = complete(server)
        assert many["text"] == one["text"] and many["finish_reason"] == one["finish_reason"], (one, many)
        for a, b in zip(one["logprobs"]["token_logprobs"], many["logprobs"]["token_logprobs"], strict=True):
            assert abs(a - b) <= 1e-4, (a, b)
    print("ok answers")


def check_tool(trace):
    """Both ranks of the last steps beside each other."""
    with tempfile.TemporaryDirectory() as folder:
        path, reduced = os.path.join(folder, "trace.json"), os.path.join(folder, "reduced.json.gz")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": trace}, file)
        tool = os.path.join(SOURCE, "tools", "trace_ranks.py")
        table = subprocess.run([sys.executable, tool, path, "--layer", "1", "--json", reduced], stdout=subprocess.PIPE, text=True,
                               check=True).stdout
        assert re.search(r"^ +[\d.-]+ +[\d.]+ +[\d.-]+ +[\d.]+ +layer\.1\.attn\.attention$", table, re.M), table
        assert os.path.getsize(reduced) > 0


def check_random_weights():
    """Of the shape in config.json, without any weight file."""
    with tempfile.TemporaryDirectory() as folder:
        for name in os.listdir(DEMO):
            if name.endswith((".json", ".jinja")):
                shutil.copy(os.path.join(DEMO, name), folder)
        with Server(folder, *GROUP, "--load-format", "dummy") as server:
            status, answer = server.post("/v1/completions", {**PROMPT, "ignore_eos": True})
            assert status == 200 and answer["usage"]["completion_tokens"] == PROMPT["max_tokens"], answer
    print("ok random weights")


def check_features():
    with Server(DEMO, *GROUP, "--kv-cache-dtype", "int8") as server:
        first = complete(server)
        assert complete(server) == first
        number = complete(server, structured_outputs={"regex": "[0-9]{3}-[0-9]{3}"}, temperature=1, seed=4)
        assert re.fullmatch("[0-9]{3}-[0-9]{3}", number["text"]), number
        trace = json.loads(server.get("/debug/trace?seconds=60")[1])["traceEvents"]
        tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace if e["name"] == "thread_name"}
        spans = [e for e in trace if e["ph"] == "X" and tracks.get((e["pid"], e["tid"])) == "nodes of rank 1"]
        assert any(e["name"].endswith("(exchange_wait)") for e in spans), sorted(tracks.values())
        assert all(e["args"]["rank"] == 1 for e in spans), spans[0]
        check_tool(trace)
        status, memory = server.get("/debug/memory")[:2]
        assert status == 200 and json.loads(memory)["device"]["ranks"] == 2, memory
    print("ok features")


def check_fault():
    with Server(DEMO, *GROUP, "--debug-fault", "trap@4", exit_code=70) as server:
        status, answer = server.post("/v1/completions", PROMPT)
        assert status == 500 and "rank 1 of 2: injected: trap" in json.dumps(answer), (status, answer)
    print("ok fault")


if __name__ == "__main__":
    check_answers()
    check_features()
    check_random_weights()
    check_fault()
