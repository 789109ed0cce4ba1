"""Requests of mixed lengths and seeds for the demo model, sent together. Tests compare each text with that of the same
request sent alone."""
import random
import threading
import time

from reprise_server import DEMO, Server

STREAMS = 64
TASKS = ["What is {a} + {b}?", "Tell me a story about a {w}.", "Reverse the word: {w}", "{a} - {b}",
         "Sort these words: {w}, pear, apple"]
WORDS = ["cat", "dog", "river", "bird", "house"]


def make_requests(longest=70):
    rng = random.Random(5)
    requests = []
    for i in range(STREAMS):
        text = rng.choice(TASKS).format(a=rng.randint(10, 999), b=rng.randint(10, 999), w=rng.choice(WORDS))
        history = "<|im_start|>user\nCount from 1 to 10.<|im_end|>\n<|im_start|>assistant\n1, 2, 3<|im_end|>\n"
        body = {"prompt": history * (i % 3) + f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n",
                "max_tokens": rng.randint(1, longest), "temperature": 0 if i % 2 else 0.8, "seed": i}
        if i % 4 == 2:
            body.update(top_p=0.9, top_k=40)
        if i % 8 == 5:
            body["stop"] = ["the", "a "]
        if i % 8 == 3 or longest > 70 and i % 4 == 1:
            body.update(ignore_eos=True, min_tokens=5)
        requests.append(body)
    return requests


def together(server, requests):
    texts, errors = [None] * len(requests), []

    def ask(i):
        try:
            texts[i] = server.stream_text(requests[i])
        except Exception as error:  # raised in the main thread
            errors.append((i, error))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    return texts


def check_pages(server):
    """A wasted run-ahead step may hold pages when the last text has arrived; after it, no pages may be held."""
    deadline = time.monotonic() + 30
    metrics = server.metrics()
    while metrics['reprise_kv_pages{state="held"}'] and time.monotonic() < deadline:
        time.sleep(0.05)
        metrics = server.metrics()
    free, cached = metrics['reprise_kv_pages{state="free"}'], metrics['reprise_kv_pages{state="cached"}']
    assert free + cached == metrics["reprise_kv_pages_capacity"], (free, cached, metrics['reprise_kv_pages{state="held"}'])
    return metrics


def check_streams(flags, small, longest=70):
    """Each text alone, streamed and whole, then all together in a pool so `small` that sequences are swapped, with the
    prefix cache on and off and run-ahead 0 and 1. longest: maximum tokens of an answer; above 70, more answers reach it."""
    requests = make_requests(longest)
    with Server(DEMO, *flags) as server:
        alone = [server.stream_text(body) for body in requests]
        whole = [server.post("/v1/completions", body)[1]["choices"][0]["text"] for body in requests[:16]]
    assert whole == alone[:16], "streamed and whole answers differ"
    for cache in ("--enable-prefix-caching", "--no-enable-prefix-caching"):
        for run_ahead in ("0", "1"):
            with Server(DEMO, *flags, cache, "--run-ahead", run_ahead, *small) as server:
                texts = together(server, requests)
                different = [i for i in range(STREAMS) if texts[i] != alone[i]]
                assert not different, (cache, run_ahead, different, texts[different[0]], alone[different[0]])
                metrics = check_pages(server)
                swaps = metrics['reprise_preemptions_total{cause="pages",phase="decode"}']
                assert swaps > 0, "the pool was not small enough"
                print(cache, "run-ahead", run_ahead, int(swaps), "preemptions", flush=True)
