"""Twenty consecutive sessions of kernel tracing on a GPU that serves 32 streams: each records every kernel of its steps, no
text changes, and the memory of GPU and process does not grow after the first ones."""
import threading

from gpu import memory_bytes, require_gpu
from mixed_streams import make_requests, together
from reprise_server import DEMO, Server, skip

SESSIONS = 20
STREAMS = 32
SETTLED = 3  # the first sessions load CUPTI and allocate its buffers


def resident_bytes(server):
    with open(f"/proc/{server.process.pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def run_session(server, number):
    wanted = {"wait": number % 3, "warmup": 1, "active": 10 + number, "repeat": 1 + number % 2, "detail": "cupti", "row_limit": 0,
              "timeout_seconds": 60}
    status, answer = server.post("/debug/profile", wanted)
    if number == 0 and status == 400:
        skip(answer["error"]["message"])
    assert status == 200, answer
    session = answer["session"]
    kernels = session["kernels"]
    assert session["detail"] == "cupti" and kernels["records"] > 0 and kernels["replays"] >= 2 * wanted["active"], session
    assert not any(kernels[what] for what in ("without_time", "over_the_cap", "dropped", "unmatched")), kernels
    for repeat in answer["repeats"]:
        assert repeat["rows"] and repeat["stamps"]["footer"]["steps_stamped"] == wanted["active"], repeat["stamps"]["footer"]
    slowdown = answer["slowdown"]
    return slowdown["during"]["ratio"], slowdown["after"]["ratio"]


def main():
    require_gpu()
    requests = make_requests(120)[:STREAMS]
    with Server(DEMO, "--device", "cuda", "--gpu-memory-utilization", "0.5") as server:
        alone = [server.stream_text(body) for body in requests]
        stop, different, rounds = threading.Event(), [], []

        def load():
            while not stop.is_set():
                texts = together(server, requests)
                different.extend(i for i in range(STREAMS) if texts[i] != alone[i])
                rounds.append(1)
        thread = threading.Thread(target=load)
        thread.start()
        sizes, ratios = [], []
        try:
            for number in range(SESSIONS):
                ratios.append(run_session(server, number))
                sizes.append((memory_bytes()[1], resident_bytes(server)))
        finally:
            stop.set()
            thread.join()
        assert not different, sorted(set(different))
        assert together(server, requests) == alone, "texts after the sessions"
        print(f"{SESSIONS} sessions under {STREAMS} streams, {len(rounds)} rounds of texts unchanged; steps in a session and after it, "
              f"beside those before: first {ratios[0]}, last {ratios[-1]}")
        print("free bytes of the GPU, resident bytes:", sizes[0], sizes[SETTLED], sizes[-1])
        assert sizes[-1][0] >= sizes[SETTLED][0] - (4 << 20), [free for free, _ in sizes]
        assert sizes[-1][1] <= sizes[SETTLED][1] + (32 << 20), [resident for _, resident in sizes]
    print("1 passed, 0 failed")


if __name__ == "__main__":
    main()
