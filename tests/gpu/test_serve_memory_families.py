"""A GPU's memory by family: of each kind of model whose memory differs, the plan of `reprise inspect` is what the ready server
owns, that sum is the driver's count, and requests allocate nothing."""
import concurrent.futures
import os
import random
import tempfile
import threading
import time

from gpu import memory_bytes, require_gpu
from reprise_server import Server, skip

require_gpu()
try:
    import memory_families as families
except ImportError as error:  # numpy, safetensors
    skip(str(error))

MIB = 1 << 20
KV_MIB = 384
FLAGS = ("--device", "cuda", "--kv-cache-memory-bytes", f"{KV_MIB}M", "--max-num-seqs", "8", "--max-num-batched-tokens", "512",
         "--max-model-len", "4096", "--swap-space", "0.1")
UNSEEN = 64 * MIB  # smaller than each pool: the driver's count may differ by so much from one start to the next
PROMPTS = (1, 30, 200, 700, 1300, 2100, 3000, 3900)


def used():
    total, free = memory_bytes()
    return total - free


def settled(least):
    """The driver's count when the memory of the server before is back."""
    end = time.monotonic() + 20
    while used() > least + 16 * MIB and time.monotonic() < end:
        time.sleep(0.2)


def ask(server):
    """Prompts of all lengths at once, and again with their prefixes in the cache."""
    ids, failures = random.Random(7), []
    prompts = [[ids.randrange(256) for _ in range(length)] for length in PROMPTS]

    def one(prompt):
        body = {"prompt": prompt, "max_tokens": 40, "temperature": 0, "ignore_eos": True}
        status, answer = server.post("/v1/completions", body)
        if status != 200 or answer["usage"]["completion_tokens"] != 40:
            failures.append(answer)

    for _ in range(2):
        threads = [threading.Thread(target=one, args=(prompt,)) for prompt in prompts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures, failures[0]


def check(kind, folder):
    """What the driver counts beyond the server's sum."""
    planned = families.inspect(folder, *FLAGS)["memory"]
    began = time.monotonic()
    with Server(folder, *FLAGS) as server:
        found, before = families.owners(server), server.metrics()["reprise_device_allocations_total"]
        said, first = sum(found.values()), used()
        print(f"{kind}: {({name: value // MIB for name, value in found.items()})} MiB; the sum {said // MIB} MiB, the driver "
              f"{first // MIB} MiB; start {time.monotonic() - began:.1f} s", flush=True)
        families.check_plan(found, planned, KV_MIB * MIB, 0.01 * planned["weights"] + MIB)
        assert abs(said - first) <= 0.01 * memory_bytes()[0], (kind, said, first)
        ask(server)
        assert server.metrics()["reprise_device_allocations_total"] == before > 0, kind
        after = used()
        assert abs(after - first) <= UNSEEN, (kind, first, after)
        assert families.owners(server) == found, kind
    return first - said


def main():
    kinds, beyond, empty = list(families.KINDS), {}, used()
    with tempfile.TemporaryDirectory() as parent:
        folders = {kind: os.path.join(parent, str(i)) for i, kind in enumerate(kinds)}
        with concurrent.futures.ProcessPoolExecutor(max_workers=min(8, os.cpu_count())) as pool:
            configs = list(pool.map(families.write, folders.values(), kinds, [True] * len(kinds)))
        assert len(configs) == len(kinds) == 10
        for kind in kinds:
            beyond[kind] = check(kind, folders[kind])
            settled(empty)
    least, most = min(beyond.values()), max(beyond.values())
    print({kind: value // MIB for kind, value in beyond.items()}, "MiB beyond the sum", flush=True)
    assert len(beyond) == len(kinds) and most - least <= UNSEEN, beyond  # the same part of the driver's in each
    print(f"{len(beyond)} passed, 0 failed")


if __name__ == "__main__":
    main()
