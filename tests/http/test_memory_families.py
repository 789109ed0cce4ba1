"""Every kind of model whose memory differs: `reprise inspect` prints experts, active parameters, bytes a token and the longest
context, and what a ready server owns is that plan, on the CPU and on a fake GPU."""
import os
import subprocess
import tempfile

from reprise_server import BIN, Server, skip

try:
    import memory_families as families
    from safetensors_file import read_tensors
except ImportError as error:
    skip(str(error))

GPU = os.environ.get("REPRISE_FAKE_GPU", "")
MIB = 1 << 20
FLAGS = ("--max-num-seqs", "4", "--max-num-batched-tokens", "64", "--kv-cache-memory-bytes", "4M", "--swap-space", "0.01")
USED = {"experts": (6, 2), "experts in every layer": (5, 2), "MXFP4 experts, windows": (6, 3),
        "layers with different K and V": (6, 2), "latents": (12, 3), "gated delta rule, experts": (6, 2)}


def parameters(folder):
    """Parameters of the file, of these in experts, and in embeddings of which a token reads a row. Four bits are two a byte."""
    total = experts = rows = 0
    for name, (_, array) in read_tensors(os.path.join(folder, "model.safetensors")).items():
        count = 0 if name.endswith("_scales") else array.size * (2 if name.endswith("_blocks") else 1)
        total += count
        experts += count if "experts." in name and "shared_experts." not in name else 0
        rows += count if "embed_tokens_per_layer" in name else 0
    return total, experts, rows


def check_inspect(kind, folder, config):
    flags = ("--device", "cpu", *FLAGS)
    text, shown = families.printed(folder, *flags), families.inspect(folder, *flags)
    assert families.printed_kv_bytes(text) == families.kv_bytes(config, kind), text
    assert f"longest context that fits: {shown['longest_context']} tokens\n" in text, text
    total, experts, rows = parameters(folder)
    model = shown["model"]
    assert model["parameters"] == total, (kind, model["parameters"], total)
    assert ("experts" in model) == (kind in USED) == ("\nexperts  " in text), (kind, text)
    windows = [layers for layers in shown["kv_layers"] if layers["window"]]
    assert bool(windows) == (kind in families.WINDOWS), shown["kv_layers"]
    assert all(layers["window"] == families.WINDOW for layers in windows), windows
    assert ("state" in shown["memory"]) == (kind in families.STATES), shown["memory"]
    if kind not in USED:
        return
    count, used = USED[kind]
    layers, active = families.expert_layers(config, kind), total - experts * (count - used) // count
    assert (model["experts"], model["experts_per_token"]) == (count, used), model
    assert f"experts        {used} of {count} a token in {layers} layers, " in text, text
    assert model["active_parameters"] == active, (kind, model["active_parameters"], active)
    read = model["weight_bytes_per_token"]
    assert f"active         {active * 1e-6:.1f} M parameters, {read / MIB:.1f} MiB of weights a token alone\n" in text, text
    four_bits = experts * used // count if kind.startswith("MXFP4") else 0
    expected = 2 * (active - rows - four_bits) + four_bits * 4.25 / 8
    assert abs(read - expected) <= 0.05 * expected, (kind, read, expected)  # norms and routers are f32


def check_longest(kind, folder):
    """A pool that is too small for all positions: the longest context can be asked for, and no token more."""
    flags = ("--device", "cpu", "--max-num-seqs", "4", "--max-num-batched-tokens", "64", "--num-gpu-blocks-override", "120")
    longest = families.inspect(folder, *flags)["longest_context"]
    assert 64 < longest < families.POSITIONS, (kind, longest)
    assert families.inspect(folder, *flags, "--max-model-len", str(longest))["max_model_len"] == longest
    done = subprocess.run([BIN, "inspect", folder, *flags, "--max-model-len", str(longest + 1)], capture_output=True, text=True)
    assert done.returncode == 4 and f"--max-model-len {longest}\n" in done.stderr, (kind, done.returncode, done.stderr)


def check_cpu(kind, folder):
    planned = families.inspect(folder, "--device", "cpu", *FLAGS)["memory"]
    with Server(folder, "--device", "cpu", *FLAGS) as server:
        found = families.owners(server)
        for name in ("weights", *families.EXACT):
            assert found.get(name) == planned.get(name), (kind, name, found, planned)
        assert 4 * MIB <= found["KV pool"] <= 4 * MIB + families.PAGE, (kind, found)


def check_fake_gpu(kind, folder):
    planned = families.inspect(folder, "--device", "cuda", *FLAGS)["memory"]
    with Server(folder, "--device", "cuda", *FLAGS) as server:
        before = server.metrics()["reprise_device_allocations_total"]
        families.check_plan(families.owners(server), planned, 4 * MIB, 0.08 * planned["weights"])  # padded rows
        body = {"prompt": list(range(200)), "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        assert server.post("/v1/completions", body)[1]["usage"]["completion_tokens"] == 8
        assert server.metrics()["reprise_device_allocations_total"] == before > 0, kind


def main():
    assert len(families.KINDS) == 10 and set(USED) < set(families.KINDS)
    os.environ["REPRISE_CUDA_MODULE"] = GPU
    with tempfile.TemporaryDirectory() as parent:
        for i, kind in enumerate(families.KINDS):
            folder = os.path.join(parent, str(i))
            config = families.write(folder, kind, wide=False)
            check_inspect(kind, folder, config)
            check_longest(kind, folder)
            check_cpu(kind, folder)
            if os.path.exists(GPU):
                check_fake_gpu(kind, folder)
            print("ok", kind, flush=True)
    print(f"{i + 1} passed, 0 failed")


if __name__ == "__main__":
    main()
