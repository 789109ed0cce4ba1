"""A real model's greedy text, byte for byte, over HTTP and with `reprise run`.

The expected text is what llama2.c prints for the same weights at temperature 0; the decoder of the model's
tokenizer.json strips the leading space.
"""
import subprocess

from reprise_server import BIN, Server, data, skip

MODEL = data("weights/stories260K/hf_derived")
EXPECTED = data("weights/stories260K/expected_greedy_200.txt")


def expected_text():
    with open(EXPECTED, "rb") as file:
        return file.read().decode().strip()


def check(text, how):
    assert text == expected_text(), f"{how}: {text!r}"


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
