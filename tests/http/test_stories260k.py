"""A real model's greedy text, byte for byte, over HTTP and with `reprise run`.

The expected text is llama2.c's for the same weights at temperature 0; the decoder of the model's
tokenizer.json strips the leading space.
"""
import json
import subprocess

from reprise_server import BIN, Server, data, skip

MODEL = data("weights/stories260K/hf_derived")
EXPECTED = data("weights/stories260K/expected_greedy_200.txt")
REFERENCE = data("weights/stories260K/ref_llama2c_tinystories.json")


def expected_text():
    with open(EXPECTED, "rb") as file:
        return file.read().decode().strip()


def check(text, how):
    assert text == expected_text(), f"{how}: {text!r}"


def check_echo(server):
    """The log-probabilities of a given text are llama2.c's; a completion continues its prompt's text."""
    with open(REFERENCE, encoding="utf-8") as file:
        reference = json.load(file)
    body = {"prompt": reference["tokens"], "max_tokens": 0, "echo": True, "logprobs": 0}
    whole = server.post("/v1/completions", body)[1]["choices"][0]["logprobs"]
    streamed = server.stream(body)[0]["choices"][0]["logprobs"]
    assert whole == streamed and whole["token_logprobs"][0] is None
    worst = max(abs(a - b) for a, b in zip(whole["token_logprobs"][1:], reference["logprob_next"], strict=True))
    assert worst < 1e-3, worst
    ask = {"prompt": "Once upon a", "temperature": 0, "max_tokens": 2}
    assert server.post("/v1/completions", ask)[1]["choices"][0]["text"] == " time,"
    assert server.post("/v1/completions", {**ask, "echo": True})[1]["choices"][0]["text"] == "Once upon a time,"
    return worst


def main():
    if not MODEL or not EXPECTED:
        skip("test data not found: weights/stories260K")
    body = {"prompt": [1], "temperature": 0, "ignore_eos": True, "max_tokens": 200}
    for flags in ([], ["--enforce-eager"], ["--run-ahead", "0"], ["--disable-fusion"]):
        with Server(MODEL, *flags) as server:
            status, answer = server.post("/v1/completions", body)
            assert status == 200, answer
            check(answer["choices"][0]["text"], f"HTTP {flags}")
            assert answer["choices"][0]["finish_reason"] == "length"
            assert answer["usage"]["prompt_tokens"] == 1 and answer["usage"]["completion_tokens"] == 200
            check(server.stream_text(body), f"HTTP stream {flags}")
            if REFERENCE and not flags:
                check_echo(server)
            chunks = server.stream(dict(body, max_tokens=20))
            assert len([c for c in chunks[:-1] if c["choices"]]) >= 20, "one chunk per token"
            # The counts that another server's test suite expects on this model.
            for prompt, count in (("I believe the meaning of life is", 18),
                                  ("Write a joke about AI from a very long prompt which will not be truncated", 46)):
                answer = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1})[1]
                assert answer["usage"]["prompt_tokens"] == count, (prompt, answer["usage"])
    run = subprocess.run([BIN, "run", MODEL, "", "--temperature", "0", "--ignore-eos", "--max-tokens", "200"],
                         stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
    assert run.returncode == 0, run.stderr
    check(run.stdout.decode(), "reprise run")
    print("1 passed, 0 failed")


main()
