"""--quantization: answers of the demo model stay right, int8 ones do not depend on threads, chunks, company or replay;
memory is halved and said; what cannot be is refused."""
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

story = ask("Tell me a story.", "--quantization", "int8", "--threads", "1")
for variant in (("--threads", "2"), ("--threads", "3"), ("--max-num-batched-tokens", "16"), ("--enforce-eager",),
                ("--disable-fusion",)):
    assert ask("Tell me a story.", "--quantization", "int8", *variant) == story, variant

plain = json.loads(run("inspect", DEMO, "--device", "cpu", "--json"))
half = json.loads(run("inspect", DEMO, "--device", "cpu", "--quantization", "int8", "--quantization-head", "--json"))
assert (plain["model"]["quantization"], half["model"]["quantization"]) == ("none", "int8")

assert "--dtype float32" in run("run", DEMO, "x", "--quantization", "int8", "--dtype", "float32", code=2)
assert "--quantization-head" in run("run", DEMO, "x", "--quantization-head", code=2)
assert "--quantization" in run("run", DEMO, "x", "--quantization", "int3", code=2)
print("4 schemes, 6 ways to one story, 3 refusals")
