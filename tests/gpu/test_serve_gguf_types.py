"""A small random model in every type of GGUF tensor, served on a GPU: the log-probabilities of a text are those of the CPU in f32
within the rounding of bf16, and greedy texts are equal up to near ties."""
import math
import os
import random
import tempfile

from gpu import require_gpu
from reprise_server import Server, skip

require_gpu()
try:
    import numpy as np
    from gguf_files import write_gguf
    from gguf_models import KINDS, write_random
except ImportError as error:
    skip(str(error))

TEXT, PROMPT, ANSWER = 160, 20, 60
VOCABULARY = 260
# 1e-2 as in test_transformers.py for bf16, of weights that are rounded once. Those of blocks are rounded twice, for their scale is
# (quant/tiles.h): sqrt(2) times that. With a minimum a weight is the difference of S u and M, both rounded and about twice as large.
ONCE, TWICE, DIFFERENCE = 1e-2, 1.42e-2, 3e-2
PLAIN, WITH_MINIMUM = ("F32", "F16", "BF16"), ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K")
FLAGS = ("--max-num-seqs", "2", "--max-num-batched-tokens", "256", "--kv-cache-memory-bytes", "64M")


def complete(server, prompt, tokens, **more):
    status, answer = server.post("/v1/completions", {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
                                                     **more})
    assert status == 200, answer
    return answer["choices"][0]["logprobs"]


def scores(path, *flags):
    """Log-probabilities of a text, and a greedy answer with the two likeliest tokens at each place."""
    draw = random.Random(3)
    ids = [draw.randrange(256) for _ in range(TEXT)]
    with Server(path, *FLAGS, *flags) as server:
        text = complete(server, ids, 0, echo=True, logprobs=1)["token_logprobs"]
        assert len(text) == TEXT and text[0] is None
        return np.array(text[1:]), complete(server, ids[:PROMPT], ANSWER, logprobs=2)


def same_until_a_tie(want, got, difference, kind):
    """The number of equal tokens; where they part, the CPU's two likeliest tokens are closer than rounding can tell."""
    for i, (a, b) in enumerate(zip(want["tokens"], got["tokens"])):
        if a != b:
            likeliest = sorted(want["top_logprobs"][i].values(), reverse=True)
            assert likeliest[0] - likeliest[1] <= 4 * difference, (kind, i, a, b, likeliest, difference)
            return i
    return ANSWER


def main():
    equal = {}
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "model")
        write_random(model)
        for kind in KINDS:
            path = os.path.join(folder, kind + ".gguf")
            with np.errstate(all="ignore"):
                write_gguf(model, path, kind)
            want, answer = scores(path, "--device", "cpu", "--dtype", "float32")
            got, answer_gpu = scores(path, "--device", "cuda", "--dtype", "bfloat16")
            error = np.linalg.norm(got - want) / np.linalg.norm(want + math.log(VOCABULARY))
            difference = abs(got - want).max()
            equal[kind] = same_until_a_tie(answer, answer_gpu, difference, kind)
            print(f"{kind}: relative error {error:.1e}, largest difference {difference:.3f}, {equal[kind]} of {ANSWER} tokens",
                  flush=True)
            assert 0 < error <= (ONCE if kind in PLAIN else DIFFERENCE if kind in WITH_MINIMUM else TWICE), (kind, error)
            os.remove(path)
    assert len(equal) == len(KINDS) == 16 and set(WITH_MINIMUM) < set(equal)
    assert sum(equal.values()) >= 16 * ANSWER // 4, equal
    print(f"{len(equal)} passed, 0 failed")


if __name__ == "__main__":
    main()
