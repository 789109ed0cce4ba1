"""Log-probabilities, echo, n and best_of: their shapes, tokens removed by a stop string, and streams that add up to the
whole answer. The fake engine defines each token's numbers (fake_engine.h)."""
from fake_server import VOCAB, Server

FIRST = 3  # id of byte 0


def ids(text):
    return [byte + FIRST for byte in text.encode()]


def logprob(token):
    return -(token % 40 + 1) / 4


def top(token, count):
    return [((token + 1 + i) % VOCAB, -(i + 1) / 8) for i in range(count)]


def complete(server, prompt, **fields):
    response = server.complete(prompt, **fields)
    assert response.status == 200, response.body
    return response.json()


def stream(server, prompt, **fields):
    events = server.complete(prompt, stream=True, **fields).events()
    assert events[-1] == "[DONE]"
    return events[:-1]


def name(token):
    """The text of a token of the fake tokenizer."""
    if token < FIRST:
        return ["<s>", "</s>", "<|x|>"][token]
    if token >= FIRST + 256:
        return ["he", "ll", "hell", "hello"][token - FIRST - 256]
    byte = token - FIRST
    return chr(byte) if byte < 0x80 else f"bytes:\\x{byte:02x}"


def test_completions(server):
    for count in (0, 1, 5, 20):
        choice = complete(server, "abcd", max_tokens=4, logprobs=count)["choices"][0]
        found = choice["logprobs"]
        assert choice["text"] == "abcd" and set(found) == {"text_offset", "token_logprobs", "tokens", "top_logprobs"}
        assert found["tokens"] == list("abcd") and found["text_offset"] == [0, 1, 2, 3]
        assert found["token_logprobs"] == [logprob(token) for token in ids("abcd")]
        for token, likely in zip(ids("abcd"), found["top_logprobs"]):
            wanted = {name(other): value for other, value in top(token, count)}
            assert likely == {**wanted, name(token): logprob(token)}, likely  # with the token itself
            assert list(likely)[:count] == [name(other) for other, _ in top(token, count)]
    assert complete(server, "abcd", max_tokens=4)["choices"][0]["logprobs"] is None


def test_token_ids_in_place_of_texts(server):
    found = complete(server, "ab", max_tokens=2, logprobs=1, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]
    assert found["tokens"] == [f"token_id:{token}" for token in ids("ab")]
    assert list(found["top_logprobs"][0]) == [f"token_id:{ids('a')[0] + 1}", f"token_id:{ids('a')[0]}"]


def test_parts_of_characters(server):
    """No two parts have the same text, offsets count characters, and a part has its character's offset."""
    found = complete(server, "é日a", max_tokens=6, logprobs=0)["choices"][0]
    assert found["text"] == "é日a"
    assert found["logprobs"]["tokens"] == ["bytes:\\xc3", "bytes:\\xa9", "bytes:\\xe6", "bytes:\\x97", "bytes:\\xa5", "a"]
    assert found["logprobs"]["text_offset"] == [0, 0, 1, 1, 1, 2]


def joined(events, index=0):
    """The sum of one choice's chunks."""
    out = {"text": "", "finish_reason": None, "logprobs": {}}
    for choice in (choice for event in events for choice in event["choices"] if choice["index"] == index):
        out["text"] += choice["text"]
        out["finish_reason"] = choice["finish_reason"]
        for key, values in (choice["logprobs"] or {}).items():
            out["logprobs"].setdefault(key, []).extend(values)
    return out


def test_streams_add_up(server):
    cases = [("abcabd", {"stop": "abce"}), ("abcdefgh", {"stop": "def"}), ("héllo wörld 🙂", {}), ("hello hello", {"stop": "o h"}),
             ("abc</s>def", {}), ("abc</s>def", {"ignore_eos": True}), ("ab<|x|>c", {"skip_special_tokens": False}),
             ("abcdefgh", {"stop": "def", "include_stop_str_in_output": True}), ("ééé", {"stop": "é"}),
             ("abcd", {"stop": "b", "min_tokens": 3}), ("a", {"stop": "aaa"}), ("ab<|x|>cde", {"stop": "cd"})]
    for prompt, fields in cases:
        for echo in (False, True):
            for limit in (1, 2, 3, 5, 9, 20):
                fields = {**fields, "echo": echo, "max_tokens": max(limit, fields.get("min_tokens", 0)), "logprobs": 2}
                whole = complete(server, prompt, **fields)["choices"][0]
                parts = joined(stream(server, prompt, **fields))
                wanted = {key: whole[key] for key in parts}
                if not any(wanted["logprobs"].values()):
                    wanted["logprobs"] = {}
                assert parts == wanted, (prompt, fields, parts, wanted)


def test_a_stop_string_takes_the_tokens_it_cuts(server):
    def tokens(prompt, **fields):
        choice = complete(server, prompt, max_tokens=20, logprobs=0, **fields)["choices"][0]
        return choice["text"], choice["logprobs"]["tokens"]

    assert tokens("abcdefgh", stop="def") == ("abc", list("abc"))
    assert tokens("abcdefgh", stop="def", include_stop_str_in_output=True) == ("abcdef", list("abcdef"))
    assert tokens("xhello y", stop="llo") == ("xhe", ["x", "hello"]), "a token that is partly shown stays"
    assert tokens("xhello y", stop="hello") == ("x", ["x"])
    assert tokens("aé", stop="é") == ("a", ["a"])
    # The token that ends the text is not part of it, but has its log-probability, as in other servers.
    assert tokens("abc</s>d") == ("abc", [*"abc", "</s>"])
    assert tokens("abcd", stop_token_ids=ids("c")) == ("ab", list("abc"))
    assert tokens("abcd", stop_token_ids=ids("c"), include_stop_str_in_output=True) == ("abc", list("abc"))


def test_echo(server):
    answer = complete(server, "abc", max_tokens=2, echo=True)
    assert answer["choices"][0]["text"] == "abcab" and answer["choices"][0]["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == 2 and answer["usage"]["prompt_tokens"] == 4
    for fields in ({}, {"stream": False}):
        found = complete(server, "abé", max_tokens=2, echo=True, logprobs=1, **fields)["choices"][0]
        assert found["text"] == "abéab"
        assert found["logprobs"]["tokens"] == ["<s>", "a", "b", "bytes:\\xc3", "bytes:\\xa9", "a", "b"]
        assert found["logprobs"]["text_offset"] == [0, 0, 1, 2, 2, 3, 4]
        assert found["logprobs"]["token_logprobs"] == [None] + [logprob(token) for token in ids("abéab")]
        assert found["logprobs"]["top_logprobs"][0] is None
        assert list(found["logprobs"]["top_logprobs"][1]) == ["b", "a"]
    # Programs that score a text rely on exactly max_tokens entries after those of the prompt.
    found = complete(server, "</s>é", max_tokens=1, echo=True, logprobs=1, stream=False)["choices"][0]
    assert found["text"] == "</s>é" and found["finish_reason"] == "stop", found
    assert found["logprobs"]["tokens"] == ["<s>", "</s>", "bytes:\\xc3", "bytes:\\xa9", "</s>"]
    assert found["logprobs"]["token_logprobs"][1:] == [logprob(token) for token in [1, *ids("é"), 1]]
    assert found["logprobs"]["text_offset"][-1] == len(found["text"])
    # Ids: their texts; special tokens according to skip_special_tokens.
    assert complete(server, [0, *ids("hé")], max_tokens=1, echo=True)["choices"][0]["text"] == "héh"
    assert complete(server, [0, *ids("h")], max_tokens=1, echo=True,
                    skip_special_tokens=False)["choices"][0]["text"] == "<s>hh"
    # Stop strings match in the answer only.
    assert complete(server, "abc", max_tokens=9, echo=True, stop="bc")["choices"][0]["text"] == "abca"


def test_echo_alone(server):
    """max_tokens 0 scores a text."""
    answer = complete(server, "hello abc", max_tokens=0, echo=True, logprobs=0)
    choice = answer["choices"][0]
    assert choice["text"] == "hello abc" and choice["finish_reason"] == "length"
    assert choice["logprobs"]["tokens"] == ["<s>", "hello", " ", "a", "b", "c"] and answer["usage"]["completion_tokens"] == 0
    assert answer["usage"]["total_tokens"] == 6
    assert joined(stream(server, "hello abc", max_tokens=0, echo=True, logprobs=0))["logprobs"] == choice["logprobs"]
    assert complete(server, "ab", max_tokens=0, prompt_logprobs=0)["choices"][0]["text"] == ""
    assert server.complete("ab", max_tokens=0, logprobs=1).error["param"] == "max_tokens"


def test_prompt_logprobs(server):
    for fields in ({}, {"echo": True, "logprobs": 5}, {"n": 2}):
        answer = complete(server, "ab", max_tokens=1, prompt_logprobs=2, **fields)
        for choice in answer["choices"]:
            found = choice["prompt_logprobs"]
            assert found[0] is None and len(found) == 3
            for token, entry in zip(ids("ab"), found[1:]):
                wanted = {str(other): {"logprob": value, "rank": rank, "decoded_token": name(other)}
                          for rank, (other, value) in enumerate(top(token, 2), 1)}
                wanted[str(token)] = {"logprob": logprob(token), "rank": token % 7 + 1, "decoded_token": name(token)}
                assert entry == wanted, (entry, wanted)
    assert "prompt_logprobs" not in complete(server, "ab", max_tokens=1)["choices"][0]


def test_n(server):
    answer = complete(server, "abc", n=3, max_tokens=2, seed=5)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 6, "total_tokens": 10,
                               "prompt_tokens_details": {"cached_tokens": 0}}, "a prompt counts once"
    answer = complete(server, ["ab", "cd"], n=2, max_tokens=2, logprobs=0, echo=True)
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [
        (0, "abab"), (1, "abab"), (2, "cdcd"), (3, "cdcd")]
    assert all(choice["logprobs"]["tokens"] == ["<s>", *choice["text"]] for choice in answer["choices"])
    assert answer["usage"]["prompt_tokens"] == 6 and answer["usage"]["completion_tokens"] == 8
    events = stream(server, ["ab", "cd"], n=2, max_tokens=2, logprobs=0, echo=True, stream_options={"include_usage": True})
    for index in range(4):
        assert joined(events, index)["text"] == ["abab", "abab", "cdcd", "cdcd"][index]
    assert events[-1]["usage"]["completion_tokens"] == 8 and events[-1]["usage"]["prompt_tokens"] == 6
    assert len({(event["id"], event["created"]) for event in events}) == 1


def test_each_answer_has_a_seed_of_its_own(server):
    def seeds(**fields):
        complete(server, "ab", max_tokens=1, **fields)
        records = server.get("/debug/requests?recent=8").json()["requests"]
        newest = max(record["completion_id"] for record in records if record["engine_id"] == max(
            record["engine_id"] for record in records))
        return [record["params"]["seed"] for record in sorted(records, key=lambda record: record["engine_id"])
                if record["completion_id"] == newest]

    assert seeds(n=3, seed=7) == [7, 8, 9], "as vLLM counts them"
    assert len(set(seeds(n=8))) == 8
    assert seeds(n=2, seed=9223372036854775807) == [9223372036854775807, 0]


def test_best_of(server):
    """The likeliest answers per token come first; usage counts them all."""
    answer = complete(server, "abc", n=2, best_of=5, max_tokens=2, logprobs=0)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["usage"]["completion_tokens"] == 10 and answer["usage"]["prompt_tokens"] == 4


def main():
    tests = [(name, value) for name, value in globals().items() if name.startswith("test_")]
    with Server() as server:
        for title, test in tests:
            test(server)
            print("ok", title)


main()
