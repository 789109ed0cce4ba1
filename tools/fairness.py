#!/usr/bin/env python3
"""Measures how one client's load affects another: a client sends one streamed request at a time (128 tokens in, 64 out)
while another client

  modest   keeps exactly one request of the same size running
  greedy   repeats a request of 32 prompts x n 8 x 200 tokens

    tools/fairness.py --url http://127.0.0.1:8000 [--requests 200] [--rounds 3] [--keys NEIGHBOR OTHER]

Prints the first client's p50 and p99 of TTFT and ITL with each of the two, interleaved, and the ratios. Prompts are
token ids drawn with a fixed seed; the first client's texts must be equal in all phases."""
import argparse
import http.client
import json
import multiprocessing
import random
import statistics
import sys
import time
import urllib.parse


def open_connection(url):
    return http.client.HTTPConnection(url.hostname, url.port, timeout=600)


def send(connection, body, key):
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = "Bearer " + key
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"{response.status}: {response.read()[:300]}")
    return response


def prompt_ids(seed, count, vocab):
    numbers = random.Random(seed)
    return [numbers.randrange(10, vocab) for _ in range(count)]


def salted(body, phase, number):
    """Keeps requests from hitting cached pages of equal prompts in other phases."""
    return {**body, "cache_salt": f"{phase}-{number}"}


def stream(connection, body, key):
    """Times from the send to each chunk with a token, and the text."""
    began = time.perf_counter()
    response = send(connection, {**body, "stream": True}, key)
    times, text = [], []
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        times.append(time.perf_counter() - began)
        text.append(json.loads(line[6:])["choices"][0]["text"])
    return times, "".join(text)


def background(url, kind, vocab, key, name, stop):
    """The other client, a process of its own: its work must not delay the clock of the first one."""
    connection, body_of, number = open_connection(url), bodies(vocab)[kind], 0
    while not stop.is_set():
        number += 1
        send(connection, salted(body_of(number), name + "-other", number), key).read()


def bodies(vocab):
    def modest(number):
        return {"prompt": prompt_ids(10 ** 6 + number, 128, vocab), "max_tokens": 64, "ignore_eos": True, "temperature": 0}

    def greedy(number):
        return {"prompt": [prompt_ids(10 ** 7 + number * 32 + i, 128, vocab) for i in range(32)], "n": 8, "max_tokens": 200,
                "ignore_eos": True, "temperature": 1, "seed": number}
    return {"modest": modest, "greedy": greedy}


def phase(url, kind, name, count, keys, vocab):
    stop = multiprocessing.Event()
    other = multiprocessing.Process(target=background, args=(url, kind, vocab, keys[1], name, stop), daemon=True)
    other.start()
    time.sleep(1.5)
    connection, firsts, gaps, texts = open_connection(url), [], [], []
    for i in range(count):
        body = {"prompt": prompt_ids(i, 128, vocab), "max_tokens": 64, "ignore_eos": True, "temperature": 0}
        times, text = stream(connection, salted(body, name, i), keys[0])
        firsts.append(times[0])
        gaps += [later - earlier for earlier, later in zip(times, times[1:])]
        texts.append(text)
    stop.set()
    other.join(600)  # a greedy request that is still running must not slow the next phase
    if other.exitcode != 0:
        raise RuntimeError(f"the {kind} client failed")
    return firsts, gaps, texts


def percentile(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vocab", type=int, default=500)
    parser.add_argument("--keys", nargs=2, default=[None, None])
    options = parser.parse_args()
    url = urllib.parse.urlparse(options.url)
    expected, ratios = None, []
    print("other     TTFT p50   p99      ITL p50   p99   (ms)")
    for number in range(options.rounds):
        row = {}
        for kind in ("modest", "greedy"):
            firsts, gaps, texts = phase(url, kind, f"{kind}-{number}-{time.time_ns()}", options.requests, options.keys, options.vocab)
            expected = expected or texts
            if texts != expected:
                sys.exit("the first client's texts differ")
            row[kind] = [percentile(values, part) * 1e3 for values in (firsts, gaps) for part in (0.5, 0.99)]
            print(f"{kind:8} " + " ".join(f"{value:9.2f}" for value in row[kind]), flush=True)
        ratios.append([row["greedy"][i] / row["modest"][i] for i in (1, 3)])
    print("ratio of p99, greedy / modest, median of rounds: "
          f"TTFT {statistics.median(r[0] for r in ratios):.2f}, ITL {statistics.median(r[1] for r in ratios):.2f}; texts equal")


if __name__ == "__main__":
    main()
