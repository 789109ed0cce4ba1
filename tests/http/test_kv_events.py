"""--kv-events-config: a subscriber that follows the events knows which prompts find their beginning in the prefix cache."""
import json
import subprocess
import tempfile
import time

from free_port import free_port
from reprise_server import BIN, DEMO, Server, skip

try:
    import msgpack
    import zmq
    from kv_subscriber import Blocks, Subscriber
except ImportError as error:
    skip(f"{error.name} is not installed")

PAGE = 16
FLAGS = ("--num-gpu-blocks-override", "40", "--max-model-len", "256", "--max-num-seqs", "2", "--block-size", str(PAGE))
PATIENCE_S = 60


def config(folder, **more):
    return json.dumps({"enable_kv_cache_events": True, "endpoint": f"ipc://{folder}/events",
                       "replay_endpoint": f"ipc://{folder}/replay", "topic": "kv", **more})


def serve(folder, **more):
    return Server(DEMO, *FLAGS, "--kv-events-config", config(folder, **more))


def subscriber(folder):
    return Subscriber(f"ipc://{folder}/events", f"ipc://{folder}/replay")


def prompt(number, length=5 * PAGE + 3):
    """Token ids that no other number begins with."""
    return [20 + number] + [20 + (i * (number + 3)) % 400 for i in range(length - 1)]


def complete(server, tokens, **fields):
    """Tokens of the prompt that were found in the prefix cache."""
    status, answer = server.post("/v1/completions", {"prompt": tokens, "max_tokens": 1, "temperature": 0, **fields})
    assert status == 200, answer
    return (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)


def until(found, what):
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        value = found()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"did not happen: {what}")


def known(server, listener, stored):
    """What events tell of a server at rest once it has stored so many blocks, and the numbers of its batches."""
    def look():
        cached = server.metrics()['reprise_kv_pages{state="cached"}']
        blocks, batches = Blocks(), listener.replay(0)
        for _, batch in batches:
            blocks.apply(batch)
        assert blocks.stored <= stored
        return (blocks, [number for number, _ in batches]) \
            if blocks.stored == stored and len(blocks.known) == cached else None
    return until(look, "the events tell of as many blocks as are cached")


def test_events_tell_what_the_cache_finds():
    with tempfile.TemporaryDirectory() as folder, serve(folder) as server, subscriber(folder) as listener:
        assert listener.replay(0) == []
        for number in range(20):  # 100 pages; 39 fit
            assert complete(server, prompt(number)) == 0
        blocks, numbers = known(server, listener, 100)
        assert numbers == list(range(len(numbers))) and blocks.cleared == 1
        assert blocks.removed >= 60 and blocks.stored - blocks.removed == len(blocks.known)
        hits = {number: blocks.hit_tokens(prompt(number), PAGE) for number in range(20)}
        assert hits[0] == 0 and hits[19] == 5 * PAGE, hits
        # Newest first: a hit evicts nothing.
        for number in (19, 18, 17, 16):
            assert complete(server, prompt(number)) == hits[number] == 5 * PAGE
        longer = prompt(19) + prompt(18)
        assert complete(server, longer) == blocks.hit_tokens(longer, PAGE) == 5 * PAGE
        blocks, _ = known(server, listener, 105)
        assert blocks.hit_tokens(longer + [1], PAGE) == len(longer) // PAGE * PAGE
        # A salt makes other blocks of the same tokens.
        assert complete(server, prompt(19), cache_salt="other") == 0
        blocks, _ = known(server, listener, 110)
        assert complete(server, prompt(19), cache_salt="other") == 5 * PAGE
        first = tuple(prompt(19)[:PAGE])
        assert [parent for parent, tokens in blocks.known.values() if tokens == first] == [None, None]
        metrics = server.metrics()
        assert metrics['reprise_kv_events_total{result="published"}'] == blocks.stored + blocks.removed
        assert metrics['reprise_kv_events_total{result="dropped"}'] == 0


def test_a_late_subscriber_misses_nothing():
    with tempfile.TemporaryDirectory() as folder, serve(folder) as server:
        complete(server, prompt(0))
        with subscriber(folder) as listener:
            heard = None
            for number in range(1, 10000):  # until its subscription has arrived
                complete(server, prompt(number % 300))
                heard = listener.hear(20)
                if heard:
                    break
            first, batch = heard
            missed = listener.replay(0)
            assert [number for number, _ in missed[:first + 1]] == list(range(first + 1))
            assert missed[first] == heard and missed[0][1][1][0] == {"type": "AllBlocksCleared"}, missed
            rest = listener.replay(first)
            assert rest[0] == heard and listener.replay(first + 1000000) == []
            complete(server, prompt(301))
            number, _ = listener.hear()
            assert number == first + 1


def test_malformed_requests_are_ignored():
    with tempfile.TemporaryDirectory() as folder, serve(folder) as server, subscriber(folder) as listener:
        complete(server, prompt(0))
        for frames in ([b""], [b"", b"1234567"], [b"", b"123456789"], [b"x", b"12345678"], [b"12345678"], [b""] * 40,
                       [b"", b"12345678", b"more"], [b"", b"x" * 400]):
            listener.asks.send_multipart(frames)
        assert known(server, listener, 5)
        listener.asks.send_multipart([b"", b"x" * 5000])  # above the limit of a message: the connection is closed
        with subscriber(folder) as other:
            assert known(server, other, 5)


def test_a_full_queue_leaves_numbers_out():
    with tempfile.TemporaryDirectory() as folder, serve(folder, max_queue_size=1) as server, \
            subscriber(folder) as listener:
        def drops():
            complete(server, prompt(drops.number % 300, 15 * PAGE))
            drops.number += 1
            numbers = [number for number, _ in listener.replay(0)]
            return server.metrics()['reprise_kv_events_total{result="dropped"}'] and numbers and \
                numbers != list(range(len(numbers)))
        drops.number = 0
        until(drops, "a gap in the numbers")


def test_few_batches_are_kept():
    with tempfile.TemporaryDirectory() as folder, serve(folder, buffer_steps=2) as server, subscriber(folder) as listener:
        def wraps():
            complete(server, prompt(wraps.number % 300))
            wraps.number += 1
            batches = listener.replay(0)
            assert len(batches) <= 2
            return batches and batches[0][0] >= 2
        wraps.number = 0
        until(wraps, "old batches are gone")


def test_a_reader_that_never_reads_holds_up_nobody():
    with tempfile.TemporaryDirectory() as folder, serve(folder, hwm=1) as server, subscriber(folder) as listener:
        listener.live.setsockopt(zmq.RCVHWM, 1)
        for number in range(30):
            complete(server, prompt(number))
        assert known(server, listener, 150)


def fails(*flags):
    result = subprocess.run([BIN, "serve", DEMO, "--port", str(free_port()), *flags], capture_output=True, text=True,
                            timeout=PATIENCE_S, check=False)
    return result.returncode, result.stderr


def test_what_cannot_be_served_is_refused_before_the_model_is_loaded():
    with tempfile.TemporaryDirectory() as folder:
        code, text = fails("--kv-events-config", '{"enable_kv_cache_events": true, "end_point": 1}')
        assert code == 2 and "end_point: is unknown" in text, text
        code, text = fails("--kv-events-config", config(folder), "--no-enable-prefix-caching")
        assert code == 2 and "--enable-prefix-caching" in text, text
        code, text = fails("--kv-events-config", config(folder, endpoint="tcp://*:notaport"))
        assert code == 2 and "endpoint tcp://*:notaport" in text, text
        port = free_port()
        code, text = fails("--kv-events-config",
                           config(folder, endpoint=f"tcp://*:{port}", replay_endpoint=f"tcp://*:{port}"))
        assert code == 5 and f"replay_endpoint tcp://*:{port}" in text and "in use" in text, text


def test_it_connects_to_a_router():
    with tempfile.TemporaryDirectory() as folder:
        context = zmq.Context()
        router = context.socket(zmq.SUB)
        router.setsockopt(zmq.SUBSCRIBE, b"kv@")
        port = router.bind_to_random_port("tcp://127.0.0.1")
        with serve(folder, endpoint=f"tcp://127.0.0.1:{port}", topic="kv@pod@demo") as server:
            def heard():
                complete(server, prompt(heard.number % 300))
                heard.number += 1
                return router.poll(20) and router.recv_multipart()
            heard.number = 0
            topic, _, batch = until(heard, "a batch arrives")
            assert topic == b"kv@pod@demo" and any(event["type"] == "BlockStored" for event in msgpack.unpackb(batch)[1])
        context.destroy(linger=0)


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok", name, flush=True)
