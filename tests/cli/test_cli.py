"""The command line: exit codes, one-line errors that name the problem, inspect without weights, and truncated or invalid
model files.

Exit codes: 1 anything else, 2 usage, 3 model files, 4 device or memory, 5 port in use.
"""
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile

from free_port import free_port
from reprise_server import BIN, DEMO, Server


def run(*args, stdin=None, env=None):
    done = subprocess.run([BIN, *args], input=stdin, capture_output=True, timeout=120,
                          env=dict(os.environ, **(env or {})), stdin=subprocess.DEVNULL if stdin is None else None)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def refused(code, text, *args, env=None):
    got, _, errors = run(*args, env=env)
    assert got == code, (args, got, errors)
    assert "error: " in errors and text in errors, (args, errors)
    assert len([line for line in errors.splitlines() if line.startswith("error: ")]) == 1, errors


def check_usage():
    assert run("--help")[0] == 0 and run("--version")[1].startswith("reprise ")
    refused(2, "unknown command", "serv")
    refused(2, "unknown command", "help", "serv")
    for command in ("serve", "bench", "quantize"):
        assert run("help", command)[:2] == run(command, "--help")[:2] and run("help", command)[0] == 0, command
    refused(2, "--pipeline-parallel-size (--tensor-parallel-size divides a model among devices), --enable-lora (not supported yet)",
            "serve", DEMO, "--pipeline-parallel-size", "2", "--enable-lora", "--max-num-seqs", "4")
    refused(2, "--tensor-parallel-size: 3 is not 1, 2, 4 or 8", "serve", DEMO, "-tp", "3")
    assert "context 512" in run("inspect", DEMO, "--max-model-len", "0.5K")[1]
    for command in ("serve", "run", "inspect"):
        code, out, _ = run(command, "--help")
        assert code == 0 and "--max-num-seqs" in out and "REPRISE_" in out, (command, out)
        refused(2, "DIR", command)
        refused(2, "unknown flag", command, DEMO, "--max-num-seq", "4")
        refused(2, "--max-num-seqs", command, DEMO, "--max-num-seqs", "4097")
        refused(2, "--max-num-batched-tokens", command, DEMO, "--max-num-batched-tokens", "15")
        refused(2, "--dtype", command, DEMO, "--dtype", "int3")
        refused(2, "--threads", command, DEMO, env={"REPRISE_THREADS": "many"})
    assert "did you mean --max-num-seqs" in run("serve", DEMO, "--max-num-seq", "4")[2]
    # The command line overrides the environment; --help needs nothing.
    bad = {"REPRISE_BLOCK_SIZE": "tcp://10.0.0.1:80"}
    refused(2, "--block-size", "inspect", DEMO, env=bad)
    assert run("inspect", DEMO, "--block-size", "16", env=bad)[0] == 0
    assert run("inspect", "--help", env=bad)[0] == 0
    for command in ("serve", "run", "inspect"):
        refused(2, "not a power of two", command, DEMO, "--block-size", "3")
    refused(2, "--served-model-name", "serve", DEMO, "--served-model-name", "x" * 256)
    refused(2, "no prompt", "run", DEMO) if os.isatty(0) else None


def check_inspect():
    code, out, errors = run("inspect", DEMO)
    assert code == 0, errors
    assert "LlamaForCausalLM" in out and "longest context that fits" in out and "7.3 M" in out, out
    info = json.loads(run("inspect", DEMO, "--json")[1])
    assert info["model"]["parameters"] == 7344384 and info["model"]["vocab_size"] == 4096, info
    assert info["memory"]["total"] == sum(v for k, v in info["memory"].items() if k != "total"), info
    refused(2, "--program", "inspect", DEMO, "--json", "--program")
    code, out, errors = run("inspect", DEMO, "--program")
    assert code == 0, errors
    for text in ("layer.7.attn.qkv", "lm_head", "sample", "bucket decode tokens 1", "linear_add", "first..last"):
        assert text in out, text
    assert "linear_add" not in run("inspect", DEMO, "--program", "--disable-fusion")[1]
    # Each rank of a group has half of the heads; what cannot be divided is refused by name.
    code, out, errors = run("inspect", DEMO, "--device", "cpu", "-tp", "2", "--program", "--max-num-seqs", "2",
                            "--max-num-batched-tokens", "16")
    assert code == 0 and "each of 2 ranks" in out, errors
    assert "layer.0.attn.reduce+layer.0.attn.add+layer.0.mlp.norm" in out, out
    code, out, errors = run("inspect", DEMO, "--device", "cpu", "--tensor-parallel-size=8")
    assert code == 3 and "num_attention_heads of 4" in errors and "--tensor-parallel-size 1, 2, 4" in errors, errors
    # Extreme values of the flags together.
    ends = ["--max-num-seqs", "4096", "--max-num-batched-tokens", "65536", "--num-gpu-blocks-override", "4096"]
    code, _, errors = run("inspect", DEMO, *ends)
    assert code == 0, errors
    # A pool for 64 tokens limits the context; a requested context must fit.
    pool = ["--block-size", "16", "--num-gpu-blocks-override", "4"]
    assert json.loads(run("inspect", DEMO, "--json", *pool)[1])["longest_context"] == 64
    code, _, errors = run("inspect", DEMO, *pool, "--max-model-len", "65")
    assert code == 4 and "try --max-model-len 64" in errors, errors
    code, _, errors = run("inspect", DEMO, "--max-model-len", "2000")
    assert code == 4 and "max_position_embeddings" in errors, errors


def copy_demo(parent, name, change=None, **config):
    directory = os.path.join(parent, name)
    shutil.copytree(DEMO, directory)
    if config:
        path = os.path.join(directory, "config.json")
        with open(path) as file:
            values = json.load(file)
        values.update(config)
        with open(path, "w") as file:
            json.dump(values, file)
    if change:
        change(directory)
    return directory


def weights(directory):
    return os.path.join(directory, "model.safetensors")


def cut(length):
    return lambda directory: os.truncate(weights(directory), length)


def change_header(edit):
    def change(directory):
        with open(weights(directory), "rb") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            header, rest = json.loads(file.read(size)), file.read()
        edit(header)
        text = json.dumps(header).encode()
        with open(weights(directory), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + rest)
    return change


def drop_norm(header):
    # The last tensor of the file, so that no hole is left in the middle.
    last = max((k for k in header if k != "__metadata__"), key=lambda k: header[k]["data_offsets"][1])
    header["renamed.by.the.test"] = header.pop(last)


def reshape_embedding(header):
    shape = header["model.embed_tokens.weight"]["shape"]
    header["model.embed_tokens.weight"]["shape"] = [shape[0] // 2, shape[1] * 2]


def overlap(header):
    header["model.norm.weight"]["data_offsets"] = [0, 512]


def check_model_files():
    with tempfile.TemporaryDirectory() as parent:
        refused(3, "nothing: no such model directory", "serve", os.path.join(parent, "nothing"))
        assert "template" not in run("serve", os.path.join(parent, "nothing"))[2]
        refused(3, "no such model directory", "run", "some-org/some-model")
        for words in (["eval", "ppl", "no.txt", "--model", "nothing", "--dtype", "float32"], ["eval", "ppl", "no.txt", "--against", "nothing"],
                      ["quantize", "nothing", "out", "--rounding", "gptq"], ["tokenize", "nothing"], ["template", "nothing"]):
            refused(3, "nothing: no such model directory", *words)
            assert len(run(*words)[2].splitlines()) == 2, "an error and a hint, no other word before them"
        refused(3, "reprise pull some-org/some-model", "tokenize", "some-org/some-model")
        refused(3, "config.json: is_causal must be true", "serve", copy_demo(parent, "bidirectional", is_causal=False))
        refused(3, "model.safetensors", "serve", copy_demo(parent, "cut", cut(1000000)))
        refused(3, "model.safetensors", "serve", copy_demo(parent, "empty", cut(0)))
        refused(3, "model.safetensors", "serve", copy_demo(parent, "header", cut(100)))
        refused(3, "model.", "serve", copy_demo(parent, "missing", change_header(drop_norm)))
        refused(3, "model.embed_tokens.weight", "serve", copy_demo(parent, "shape", change_header(reshape_embedding)))
        refused(3, "overlaps", "serve", copy_demo(parent, "overlap", change_header(overlap)))
        refused(3, "num_key_value_heads", "serve", copy_demo(parent, "heads", num_key_value_heads=3))
        refused(3, "architectures", "serve", copy_demo(parent, "family", architectures=["GPT9"], model_type="gpt9"))
        refused(3, "vocab_size", "serve", copy_demo(parent, "vocab", vocab_size=-1))
        refused(3, "tokenizer.json", "serve",
                copy_demo(parent, "tokenizer", lambda d: os.truncate(os.path.join(d, "tokenizer.json"), 100)))
        refused(3, "quantization_config", "serve", copy_demo(parent, "quant", quantization_config={"quant_method": "x"}))


def check_doctor():
    code, out, errors = run("doctor")
    assert code == 0 and errors == "", (code, errors)
    for word in ("open files", "free memory", "libuv", "llhttp", "jansson", "cublasLt", "nvml", "module", "device"):
        assert word in out, (word, out)
    findings = json.loads(run("doctor", "--json")[1])["findings"]
    use = [f for f in findings if f["section"] == "use"]
    assert len(use) == 1 and use[0]["found"], findings
    none = run("doctor", env={"REPRISE_CUDA_MODULE": "/nowhere/x.so"})
    assert none[0] == 0 and "no CUDA: there is no /nowhere/x.so" in none[1], none


def check_ports_and_memory():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = str(taken.getsockname()[1])
        refused(5, port, "serve", DEMO, "--host", "127.0.0.1", "--port", port)
    refused(4, "max_model_len", "serve", DEMO, "--port", str(free_port()), "--num-gpu-blocks-override", "2",
            "--max-model-len", "1024")
    refused(2, "--insecure-no-auth", "serve", DEMO, "--host", "0.0.0.0", "--port", str(free_port()))


def check_run():
    code, out, errors = run("run", DEMO, "123 + 456 =", "--temperature", "0", "--max-tokens", "8")
    assert (code, out) == (0, " 579"), (code, out, errors)
    code, out, _ = run("run", DEMO, "--temperature", "0", "--max-tokens", "8", stdin=b"123 + 456 =")
    assert (code, out) == (0, " 579"), out
    code, out, _ = run("run", DEMO, "123 + 456 =", "--temperature", "0", "--stop", "7")
    assert (code, out) == (0, " 5"), out
    refused(2, "1 to 256 bytes", "run", DEMO, "1 + 1 =", "--stop", "x" * 257)
    story = ["run", DEMO, "<|im_start|>user\nTell me a story about a cat.<|im_end|>\n<|im_start|>assistant\n",
             "--seed", "7", "--max-tokens", "60"]
    first, second = run(*story)[1], run(*story, "--threads", "1", "--run-ahead", "0")[1]
    assert first == second and len(first) > 60, (first, second)
    with Server() as server:
        body = {"prompt": story[2], "seed": 7, "max_tokens": 60}
        answer = server.post("/v1/completions", body)[1]
        assert answer["choices"][0]["text"] == first, (answer, first)


def check_bench_step():
    small = ["--shape", "demo", "--device", "cpu", "--steps", "3", "--warm-up", "1"]
    code, out, errors = run("bench", "step", *small, "--batch", "1,3", "--context", "7", "--json")
    assert code == 0, errors
    result = json.loads(out)
    assert [case["batch"] for case in result["cases"]] == [1, 3] and result["left_out"] == 0, result
    code, out, errors = run("bench", "prefill", *small, "--context", "5,20")
    assert code == 0 and "TFLOP/s" in out, (out, errors)
    code, out, errors = run("bench", "prefill", "--model", DEMO, *small, "--context", "16", "--json")
    assert code == 0 and json.loads(out)["cases"][0]["product_tflops"] > 0, (out, errors)
    refused(2, "--batch", "bench", "step", *small, "--batch", "1,x")
    refused(2, "positions are needed", "bench", "step", *small, "--context", "1024")
    refused(2, "there are: ", "bench", "step", "--shape", "no-such-shape", "--device", "cpu")
    refused(3, "config.json", "bench", "prefill", "--model", "/nowhere", "--device", "cpu")


def check_ids():
    assert run("tokenize", DEMO, "--decode", stdin=b"19 20 318 223 21 22 310 201")[1] == "12 + 34 =\n"
    for ids in (b"4096", b"1 99999999999999999999 2"):
        code, out, errors = run("tokenize", DEMO, "--decode", stdin=ids)
        assert code == 1 and out == "" and "not in the vocabulary" in errors, (ids, code, out, errors)


def check_output_that_cannot_be_written():
    """Output that cannot be written is an error: a full disk, or a closed standard output."""
    for arguments in (["run", DEMO, "1 + 1 =", "--ignore-eos", "--temperature", "0"], ["inspect", DEMO]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([BIN, *arguments], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE,
                                  timeout=120)
        assert done.returncode == 1 and b"standard output cannot be written" in done.stderr, (arguments, done)
        done = subprocess.run(["sh", "-c", 'exec "$0" "$@" >&-', BIN, *arguments], stdin=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, timeout=120)
        assert done.returncode == 1, (arguments, done)


def check_start_up():
    with Server() as server:
        lines = server.output().splitlines()
        assert 0 < len(lines) <= 13, lines
        assert "curl" in lines[-1] and "/v1/chat/completions" in lines[-1], lines[-1]
        answer = subprocess.run(["sh", "-c", lines[-1].strip()], capture_output=True, timeout=60)
        assert json.loads(answer.stdout)["object"] == "chat.completion", answer


def main():
    check_usage()
    check_inspect()
    check_doctor()
    check_model_files()
    check_ports_and_memory()
    check_run()
    check_bench_step()
    check_ids()
    check_output_that_cannot_be_written()
    check_start_up()
    print("9 passed, 0 failed")


main()
