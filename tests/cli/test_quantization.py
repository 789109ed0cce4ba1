"""--quantization: answers of the demo model stay correct; int8 ones do not depend on threads, chunks, batch or replay;
memory is halved and reported; impossible combinations are refused."""
import json
import subprocess

from reprise_server import BIN, DEMO

PROMPTS = ["What is 12 + 30?", "What is 345 + 218?"]
ANSWERS = ["42", "563"]


def run(*arguments, code=0):
    done = subprocess.run([BIN, *arguments], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == code, (arguments, done.returncode, done.stderr)
    return done.stdout if code == 0 else done.stderr


def ask(prompt, *arguments):
    return run("run", DEMO, prompt, "--device", "cpu", *arguments)


for scheme in ("int8", "fp8", "int8-w8a16", "fp8-w8a16"):
    for prompt, answer in zip(PROMPTS, ANSWERS):
        assert answer in ask(prompt, "--quantization", scheme), (scheme, prompt)

TELL = ("<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n", "--temperature", "0")
story = ask(*TELL, "--quantization", "int8", "--threads", "1")
assert len(story) > 200, story
for variant in (("--threads", "2"), ("--threads", "3"), ("--max-num-batched-tokens", "16"), ("--enforce-eager",),
                ("--disable-fusion",)):
    assert ask(*TELL, "--quantization", "int8", *variant) == story, variant

plain = json.loads(run("inspect", DEMO, "--device", "cpu", "--json"))
half = json.loads(run("inspect", DEMO, "--device", "cpu", "--quantization", "int8", "--quantization-head", "--json"))
assert (plain["model"]["quantization"], half["model"]["quantization"]) == ("none", "int8")

assert "--dtype float32" in run("run", DEMO, "x", "--quantization", "int8", "--dtype", "float32", code=2)
assert "--quantization-head" in run("run", DEMO, "x", "--quantization-head", code=2)
assert "--quantization" in run("run", DEMO, "x", "--quantization", "int3", code=2)
# 8-bit pages: correct answers, equal in every batch, and room for more tokens in the same bytes.
for kind in ("int8", "fp8", "fp8_e4m3"):
    for prompt, answer in zip(PROMPTS, ANSWERS):
        assert answer in ask(prompt, "--kv-cache-dtype", kind), (kind, prompt)
story = ask(*TELL, "--kv-cache-dtype", "int8", "--threads", "1")
assert len(story) > 200, story
for variant in (("--threads", "2"), ("--max-num-batched-tokens", "16"), ("--block-size", "32"), ("--enforce-eager",)):
    assert ask(*TELL, "--kv-cache-dtype", "int8", *variant) == story, variant


def room(*arguments):
    """Tokens of KV, and the lines of pool and weights in the start-up table."""
    flags = ("inspect", DEMO, "--device", "cpu", "--kv-cache-memory-bytes", "64M", *arguments)
    table = [line for line in run(*flags).splitlines() if "KV pool" in line or " weights " in line]
    return json.loads(run(*flags, "--json"))["kv_tokens"], "\n".join(table)


tokens, line = room()
assert "bf16" in line, line
for kind, name in (("fp8", "fp8_e4m3"), ("int8", "int8")):
    more, line = room("--kv-cache-dtype", kind)
    assert f"tokens, {name}" in line and 1.85 < more / tokens < 1.9, (kind, tokens, more, line)

assert "int8, the rest bf16" in room("--quantization", "int8")[1]

print("4 schemes, 6 ways to one story, 3 refusals; pages of 8 bits, 4 ways to one story, room for 1.88 times the tokens")
