"""Mask programs over HTTP and on the command line: tokens attend as --attention-mask specifies, each request has its own
values, errors in programs and values are answered with their place and a hint, and /debug/masks shows the masks in use."""
import json
import os
import subprocess
import tempfile
import threading

from reprise_server import BIN, DEMO, Server

PROMPT = "Reverse the word: planet. Sort the words: pear apple fig. What is 12 + 34? Tell a story of a boat, a whale and a cat."
WINDOW = "param w = 1024 in 1..1024; param s = 0 in 0..64; causal && (sliding_window(w) || sink(s))"
ASK = {"prompt": PROMPT, "temperature": 0, "max_tokens": 32, "ignore_eos": True}


def complete(server, **fields):
    status, answer = server.post("/v1/completions", {**ASK, **fields})
    assert status == 200, answer
    return answer["choices"][0]["text"], answer["usage"]


def run(*flags, prompt=PROMPT, env=None):
    command = [BIN, "run", DEMO, prompt, "--temperature", "0", "--max-tokens", "32", "--ignore-eos", *flags]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
                          env={**os.environ, **(env or {})})


def text_of(*flags, **options):
    result = run(*flags, **options)
    assert result.returncode == 0, result.stderr
    return result.stdout


# --- masks in use

def check_same_text():
    """A program equivalent to the model's mask gives equal bytes, recognized or not, in chunks and swapped out."""
    plain = text_of()
    assert len(plain) > 20
    assert text_of("--attention-mask", "causal") == plain
    assert text_of("--attention-mask", WINDOW, "--max-num-batched-tokens", "16") == plain
    with Server(DEMO, "--attention-mask", WINDOW, "--num-gpu-blocks-override", "14", "--max-model-len", "200",
                "--max-num-batched-tokens", "32") as server:
        texts = together(server, [{} for _ in range(6)])
        assert all(text == plain for text in texts), texts
        assert preemptions(server) > 0
        assert "attention mask: param w = 1024" in server.output()


def preemptions(server):
    return json.loads(server.get("/debug/status")[1])["requests"]["preemptions"]


def together(server, requests):
    texts = [None] * len(requests)

    def ask(i):
        texts[i] = complete(server, **requests[i])[0]
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return texts


def check_values():
    """Requests in one batch have their own values, pages are shared only between equal values, and bytes are those of the
    visible pages."""
    with Server(DEMO, "--attention-mask", WINDOW) as server:
        values = [{"w": 4}, {"w": 4, "s": 4}, {"w": 9}, {"w": 1}, {}, {"w": 1024, "s": 64}]
        requests = [{"attention_mask": value} for value in values]
        alone = [complete(server, **request)[0] for request in requests]
        assert together(server, requests) == alone
        assert alone[4] == alone[5] == text_of() and len(set(alone)) >= 4, alone
        cached = [complete(server, **request)[1]["prompt_tokens_details"]["cached_tokens"] for request in requests]
        assert all(count >= 16 for count in cached), cached
        fresh = complete(server, attention_mask={"w": 5})[1]["prompt_tokens_details"]["cached_tokens"]
        assert fresh == 0, fresh
        assert complete(server, attention_mask={"w": 5, "s": 0})[1]["prompt_tokens_details"]["cached_tokens"] >= 16
        check_bytes(server)


def check_bytes(server):
    words = "boat whale cat " * 100
    read = []
    for width in (1024, 64):
        body = {"prompt": words, "temperature": 0, "max_tokens": 20, "ignore_eos": True, "attention_mask": {"w": width}}
        status, answer = server.post("/v1/completions", body)
        assert status == 200, answer
        record = json.loads(server.get("/debug/requests/" + answer["id"])[1])
        read.append(record["work"]["bytes"] if "work" in record else find(record, "bytes"))
        tokens = answer["usage"]["prompt_tokens"]
    # demo: 2 x 8 layers x 2 heads x 64 x 2 bytes per key, for 19 tokens of the answer
    saved = (tokens - 64 - 2 * 64) * 4096 * 19
    assert read[0] - read[1] >= saved > 5e6, (read, saved)


def find(value, key):
    if isinstance(value, dict):
        if key in value:
            return value[key]
        value = list(value.values())
    for item in value if isinstance(value, list) else []:
        got = find(item, key)
        if got is not None:
            return got
    return None


def check_noncausal():
    """A fully visible prefix, on the fast and on the scalar kernels, and each prompt in one step."""
    flags = ["--attention-mask", "param p = 64 in 0..512; prefix_lm(p)", "--allow-noncausal", "--max-num-batched-tokens", "128"]
    scalar = text_of(*flags, env={"REPRISE_CPU_ISA": "scalar"})
    assert scalar != text_of()
    with Server(DEMO, *flags) as server:
        assert complete(server)[0] == scalar
        assert complete(server)[1]["prompt_tokens_details"]["cached_tokens"] == 0
        assert together(server, [{}] * 4 + [{"attention_mask": {"p": 0}}] * 4) == [scalar] * 4 + [text_of()] * 4
        status, answer = server.post("/v1/completions", {"prompt": "boat " * 200, "max_tokens": 1})
        error = answer["error"]
        assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt"), answer
        assert "--max-num-batched-tokens" in error["message"] and "128" in error["message"]
        chat = {"messages": [{"role": "user", "content": "What is 12 + 34?"}], "temperature": 0, "attention_mask": {"p": 8}}
        assert server.post("/v1/chat/completions", chat)[0] == 200
    result = run(*flags, prompt="boat " * 200)
    assert result.returncode == 2 and "--max-num-batched-tokens" in result.stderr, result.stderr


# --- errors

PROGRAMS = [  # text, words of the error, of the hint
    ("causl", "column 1", "causal"),
    ("causal && ", "column", ""),
    ("causal && q / (kv - 3) > 1", "column", ""),
    ("causal && q % kv == 0", "column", ""),
    ("causal && q * q * q * q > 5", "column", ""),
    ("causal && q < 99999999999", "column", ""),
    ("param w = 5 in 9..1; causal && sliding_window(w)", "column", ""),
    ("causal && " + "(" * 200 + "q" + ")" * 200 + " > 1", "column", ""),
    ("causal && sliding_window(w)", "column", ""),
    ("causal && kv < 1 || kv > q", "attend to later", "--allow-noncausal"),
    ("prefix_lm(8)", "attend to later", "--allow-noncausal"),
    ("causal; " + "score = score + 1; " * 400, "", ""),
    ("@/no/such/file", "/no/such/file", ""),
]


def check_programs():
    for text, words, hint in PROGRAMS:
        for command in (["run", DEMO, "x"], ["serve", DEMO, "--port", "0"], ["inspect", DEMO]):
            result = subprocess.run([BIN, *command, "--attention-mask", text], stdin=subprocess.DEVNULL, capture_output=True,
                                    text=True, timeout=60)
            first = result.stderr.splitlines()[0]
            assert result.returncode == 2, (text, result)
            assert first.startswith("error: --attention-mask: ") and words in first, (text, first)
            assert len(result.stderr.splitlines()) >= 2 or not hint, (text, result.stderr)
            assert hint in result.stderr, (text, result.stderr)
            if text.startswith("causal && ("):
                break
    with tempfile.NamedTemporaryFile("w", suffix=".mask") as file:
        file.write("causal &&\n  sliding_window(16)\n")
        file.flush()
        assert text_of("--attention-mask", "@" + file.name) == text_of("--attention-mask", "causal && sliding_window(16)")


VALUES = [  # attention_mask, param, code
    ({"w": 0}, "attention_mask.w", "out_of_range"),
    ({"w": 1025}, "attention_mask.w", "out_of_range"),
    ({"w": 10 ** 18}, "attention_mask.w", "out_of_range"),
    ({"s": -1}, "attention_mask.s", "out_of_range"),
    ({"w": 1.0}, "attention_mask.w", "invalid_type"),
    ({"w": "9"}, "attention_mask.w", "invalid_type"),
    ({"w": None}, "attention_mask.w", "invalid_type"),
    ({"width": 9}, "attention_mask", "invalid_value"),
    ("causal", "attention_mask", "invalid_type"),
    ([1], "attention_mask", "invalid_type"),
]


def check_bad_values(server):
    for value, param, code in VALUES:
        for route, body in (("/v1/completions", ASK), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]})):
            status, answer = server.post(route, {**body, "attention_mask": value})
            error = answer["error"]
            assert (status, error["param"], error["code"]) == (400, param, code), (value, answer)
    assert "w, s" in server.post("/v1/completions", {**ASK, "attention_mask": {"width": 9}})[1]["error"]["message"]


def check_without_program():
    with Server(DEMO) as server:
        status, answer = server.post("/v1/completions", {**ASK, "attention_mask": {"w": 9}})
        assert (status, answer["error"]["param"]) == (400, "attention_mask") and "--attention-mask" in answer["error"]["message"]
        assert server.post("/v1/completions", {**ASK, "attention_mask": {}})[0] == 200
        masks = json.loads(server.get("/debug/masks?q=300&kv=200")[1])
        assert masks["program"] is None and masks["layers"][0]["class"] == "plain"
        assert masks["tiles"]["rows"] == ["+...", "#+..", "##+.", "###+", "####"]


# --- /debug/masks

def check_debug():
    text = "param w = 64 in 1..512; causal && (layer == 1 ? true : kv < 4 || q - kv < w); alibi"
    with Server(DEMO, "--attention-mask", text) as server:
        masks = json.loads(server.get("/debug/masks?q=256")[1])
        assert masks["causal"] is True and masks["score_rules"] is True
        assert masks["parameters"] == [{"name": "w", "default": 64, "min": 1, "max": 512}]
        assert len(masks["layers"]) == 8 and {layer["kernels"] for layer in masks["layers"]} == {"attention"}
        assert "kv < 4" in masks["layers"][0]["program"] and "kv < 4" not in masks["layers"][1]["program"]
        assert masks["tiles"]["rows"] == ["+...", "++..", "+++.", "+.++"], masks["tiles"]
        assert json.loads(server.get("/debug/masks?q=256&layer=1")[1])["tiles"]["rows"] == ["+...", "#+..", "##+.", "###+"]
        shown = server.get("/debug/masks?format=text&kv=128")[1]
        assert "parameter w: 64, from 1 to 512" in shown and "   64 ++" in shown and "alibi" not in shown.split("\n")[0]
        for query in ("q=0", "q=1025", "layer=8", "what=1", "format=xml"):
            assert server.get("/debug/masks?" + query)[0] == 400, query


def main():
    check_same_text()
    check_values()
    check_noncausal()
    check_programs()
    with Server(DEMO, "--attention-mask", WINDOW) as server:
        check_bad_values(server)
    check_without_program()
    check_debug()
    print("7 passed, 0 failed")


main()
