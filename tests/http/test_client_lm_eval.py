"""lm-eval's models for OpenAI-compatible servers, unmodified, with the demo model: log-likelihoods of continuations equal
those of the prompt, also where the model would end the text, and texts are generated up to a stop string."""
import json

from clients import needs
from reprise_server import Server

needs("lm_eval", "aiohttp", "tenacity")
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.models.api_models import JsonChatStr  # noqa: E402
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI  # noqa: E402

PAIRS = [("12 + 34 =", " 46"), ("12 + 34 =", " 47"), ("12 + 34 =", " 46."), ("The sky is", " blue"), ("Once upon", " a time")]


def instances(kind, *arguments):
    return [Instance(request_type=kind, doc={}, arguments=one, idx=i) for i, one in enumerate(arguments)]


def likelihood(server, context, text):
    """The same from the prompt alone."""
    count = len(server.post("/tokenize", {"prompt": context})[1]["tokens"])
    entries = server.post("/v1/completions", {"prompt": context + text, "max_tokens": 0, "prompt_logprobs": 1})[1]
    entries = [list(entry.values()) for entry in entries["choices"][0]["prompt_logprobs"][count:]]
    own = [next(iter(sorted(entry, key=lambda one: one["rank"], reverse=True))) for entry in entries]
    return sum(one["logprob"] for one in own), all(one["rank"] == 1 for one in own)


def check_likelihoods(server):
    for tokenized in (True, False):
        model = LocalCompletionsAPI(model="demo", base_url=f"http://127.0.0.1:{server.port}/v1/completions",
                                    tokenizer_backend="remote", tokenized_requests=tokenized, max_length=1024)
        found = model.loglikelihood(instances("loglikelihood", *PAIRS), disable_tqdm=True)
        for pair, (value, greedy) in zip(PAIRS, found, strict=True):
            wanted, likeliest = likelihood(server, *pair)
            assert abs(value - wanted) < 1e-3 and greedy == likeliest, (tokenized, pair, value, wanted, greedy)
        assert found[0][1] and found[0][0] > -0.01 and found[1][0] < -5, found
        (whole,) = model.loglikelihood_rolling(instances("loglikelihood_rolling", ("Once upon a time.",)), disable_tqdm=True)
        assert -100 < whole < 0
        texts = model.generate_until(instances("generate_until", ("12 + 34 =", {"until": [".", "\n"], "max_gen_toks": 3})),
                                     disable_tqdm=True)
        assert texts == [" 46"], texts


def check_chat(server):
    model = LocalChatCompletion(model="demo", base_url=f"http://127.0.0.1:{server.port}/v1/chat/completions", tokenizer_backend=None,
                                tokenized_requests=False)
    chat = JsonChatStr(json.dumps([{"role": "user", "content": "What is 12 + 34?"}]))
    assert model.generate_until(instances("generate_until", (chat, {"until": ["\n"], "max_gen_toks": 8})), disable_tqdm=True) == ["46"]


with Server() as running:
    check_likelihoods(running)
    check_chat(running)
