#!/usr/bin/env python3
"""Penalties, biases, bad words, masks and log-probabilities agree with numpy.

    python3 tests/oracle/sampling_oracle.py

Random slots run through the CPU's kernel (test_device_sample_features --apply) and through the formulas below, which
follow the published definitions: repetition (CTRL), frequency and presence (OpenAI), bias, bad words, allowed
ids, log-softmax of the unmodified logits, rank and likeliest tokens. Needs numpy; exits with 77 without it.
"""
import os
import struct
import subprocess
import sys

try:
    import numpy as np
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

PENALTIES, BIASES, BAD_WORDS, ALLOWED = 1, 2, 4, 8
BIAS_MAX, BAD_MAX, WORD_MAX, TOP_MAX = 300, 256, 16, 20
CASES = 250


def draw_bad_words(random, vocab, last):
    """Words of few ids, some of which continue the end of the answer."""
    words, room = [], BAD_MAX
    for _ in range(int(random.integers(1, 30))):
        count = int(random.integers(1, min(WORD_MAX, room) + 1)) if room else 0
        if not count:
            break
        word = [int(x) for x in random.integers(0, vocab, count)]
        if random.random() < 0.5:
            word[:-1] = last[len(last) - count + 1:] if count > 1 else []
        if len(word) == count:
            words.append(word)
            room -= count
    return words


def expected(case):
    """Logits in double precision, and the ids that may not be chosen."""
    x = case["logits"].astype(np.float64)
    if case["asks"] & PENALTIES:
        seen = case["in_prompt"] | (case["counts"] > 0)
        x = np.where(seen, np.where(x > 0, x / case["repetition"], x * case["repetition"]), x)
        x = x - case["frequency"] * case["counts"] - case["presence"] * (case["counts"] > 0)
    if case["asks"] & BIASES:
        for token, value in case["biases"]:
            x[token] += value
    forbidden = np.zeros(len(x), bool)
    if case["asks"] & BAD_WORDS:
        for word in case["bad_words"]:
            prefix = word[:-1]
            if not prefix or case["last"][-len(prefix):] == prefix:
                forbidden[word[-1]] = True
    if case["asks"] & ALLOWED:
        forbidden |= ~case["allowed"]
    x[forbidden] = -np.inf
    return x


def draw_case(random):
    vocab = int(random.choice([1, 31, 32, 33, 100, 512, 1000, 32003]))
    output_count = int(random.integers(1, 60))
    answer = [int(x) for x in random.integers(0, min(vocab, 5), output_count)]
    ids = random.permutation(vocab)[:int(random.integers(0, BIAS_MAX + 1))]
    case = {"asks": int(random.integers(0, 16)), "output_count": output_count, "last": answer,
            "top": int(random.integers(0, TOP_MAX + 1)), "logits": random.normal(0, 4, vocab).astype(np.float32),
            "repetition": np.float32(random.uniform(0.5, 2)), "presence": np.float32(random.normal()),
            "frequency": np.float32(random.normal()), "in_prompt": random.random(vocab) < 0.2,
            "counts": random.integers(0, 4, vocab) * (random.random(vocab) < 0.3),
            "biases": [(int(i), np.float32(random.normal(0, 5))) for i in ids],
            "bad_words": draw_bad_words(random, vocab, answer), "allowed": random.random(vocab) < 0.7}
    if random.random() < 0.3:  # ties
        case["logits"] = np.round(case["logits"])
    return case


def encode(case):
    vocab, words = len(case["logits"]), case["bad_words"]
    ring = [0] * WORD_MAX
    for i, token in enumerate(case["last"]):
        ring[i % WORD_MAX] = token
    heads, tokens = [], []
    for word in words:
        heads.append((len(words) + len(tokens)) << 8 | len(word))
        tokens += word
    biases = b"".join(struct.pack("<If", *bias) for bias in case["biases"])
    bits = np.zeros((vocab + 31) // 32 * 32, bool)
    bits[:vocab] = case["allowed"]
    return b"".join([
        struct.pack("<6I", vocab, case["asks"], case["output_count"], len(words), len(case["biases"]), case["top"]),
        struct.pack("<3f", case["repetition"], case["presence"], case["frequency"]),
        struct.pack(f"<{WORD_MAX}I", *ring), biases.ljust(8 * BIAS_MAX, b"\0"),
        np.array(heads + tokens, np.uint32).tobytes().ljust(8 * BAD_MAX, b"\0"),
        np.packbits(bits, bitorder="little").tobytes(), case["in_prompt"].astype(np.uint32).tobytes(),
        case["counts"].astype(np.uint32).tobytes(), case["logits"].tobytes()])


def check_scores(case, token, raw):
    """raw: struct rp_token_scores."""
    got_token, logprob, rank, count = struct.unpack_from("<ifII", raw)
    x = case["logits"].astype(np.float64)
    scores = x - x.max() - np.log(np.exp(x - x.max()).sum())
    order = np.lexsort((np.arange(len(x)), -x))
    assert got_token == token and rank == 1 + int((x > x[token]).sum()), (got_token, token, rank)
    assert abs(logprob - scores[token]) < 1e-4, (logprob, scores[token])
    assert count == min(case["top"], len(x)), (count, case["top"])
    for i in range(count):
        entry, value = struct.unpack_from("<if", raw, 16 + 8 * i)
        assert entry == order[i] and abs(value - scores[entry]) < 1e-4, (i, entry, order[i])


def main():
    binary = os.path.join(os.path.dirname(os.environ.get("REPRISE_BIN", "build/release/reprise")), "tests",
                          "test_device_sample_features")
    if not os.path.exists(binary):
        print(f"SKIP: {binary} is not built")
        return 77
    random = np.random.default_rng(6)
    worst, chosen = 0.0, 0
    for index in range(CASES):
        case = draw_case(random)
        vocab = len(case["logits"])
        out = subprocess.run([binary, "--apply"], input=encode(case), stdout=subprocess.PIPE, check=True).stdout
        got = np.frombuffer(out, np.float32, vocab).astype(np.float64)
        want = expected(case)
        assert (np.isinf(got) == np.isinf(want)).all(), (index, np.flatnonzero(np.isinf(got) != np.isinf(want)))
        finite = np.isfinite(want)
        if finite.any():
            error = np.abs(got[finite] - want[finite]) / np.maximum(1, np.abs(want[finite]))
            worst = max(worst, float(np.max(error)))
        token = struct.unpack_from("<i", out, 4 * vocab)[0]
        assert token == (int(np.argmax(got)) if finite.any() else -1), (index, token)
        if token >= 0:
            check_scores(case, token, out[4 * vocab + 4:])
            chosen += 1
    assert worst < 1e-5 and chosen > CASES / 2, (worst, chosen)
    print(f"{CASES} slots, {chosen} tokens; relative error of logits at most {worst:.1e}")
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
