"""A server on two GPUs: 64 concurrent streams have the texts of the same requests one at a time, sums are right, a GPU that
fails or hangs ends every request, and nothing is left in the GPUs' memory."""
from gpu import memory_bytes, require_gpu
from gpu_faults import check_fault
from mixed_streams import check_streams
from reprise_server import DEMO, Server

GROUP = ("--tensor-parallel-size", "2")
STARTS = 20


def check_sums():
    with Server(DEMO, "--device", "cuda", *GROUP) as server:
        for a in range(111, 131):
            status, answer = server.post("/v1/completions", {"prompt": f"{a} + {2 * a} =", "max_tokens": 8, "temperature": 0})
            assert status == 200 and answer["choices"][0]["text"].split()[0].rstrip(".") == str(3 * a), answer


def check_memory():
    for i in range(STARTS):
        with Server(DEMO, "--device", "cuda", *GROUP, "--num-gpu-blocks-override", "8"):
            pass
        free = [memory_bytes(gpu)[1] for gpu in range(2)]
        if i == 0:
            first = free
    assert all(now + (8 << 20) >= before for now, before in zip(free, first)), (first, free)


def main():
    require_gpu(2)
    check_sums()
    check_streams(["--device", "cuda", *GROUP], ["--num-gpu-blocks-override", "8", "--max-model-len", "384"], longest=240)
    for kind in ("trap", "hang"):
        check_fault(kind, *GROUP)
    check_memory()
    print("1 passed, 0 failed")


main()
