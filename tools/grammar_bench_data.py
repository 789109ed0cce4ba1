"""Writes the two files that bench_grammar reads.

  grammar_bench_data.py VALUES_FOLDER VOCABULARY_OUT SCHEMAS_OUT [COUNT [judging]]

VALUES_FOLDER holds JSON files {"schema": .., "tests": [{"valid": .., "data": ..}]}, as MaskBench has them (only the splits
named below are read; "judging": only the others). The vocabulary is tekken_240911 of the package mistral-common; tiktoken
tokenizes.
"""
import base64
import json
import os
import random
import struct
import sys

import mistral_common
import tiktoken

SPLITS = ("Github_easy", "Github_medium", "Glaive", "Kubernetes", "Handwritten", "Synthesized")


def packed(data):
    return struct.pack("<I", len(data)) + data


def load_tokenizer():
    """tiktoken's encoding, the ranks of its tokens, the size of the vocabulary, the first id of a rank."""
    path = os.path.join(os.path.dirname(mistral_common.__file__), "data", "tekken_240911.json")
    with open(path, encoding="utf-8") as file:
        tekken = json.load(file)
    config = tekken["config"]
    special, size = config.get("default_num_special_tokens", 1000), config["default_vocab_size"]
    ranks = {base64.b64decode(v["token_bytes"]): v["rank"] for v in tekken["vocab"][:size - special]}
    encoding = tiktoken.Encoding("tekken", pat_str=config["pattern"], mergeable_ranks=ranks, special_tokens={})
    return encoding, ranks, size, special


def main(folder, vocabulary_out, schemas_out, count=800, which=""):
    encoding, ranks, size, special = load_tokenizer()
    tokens = [b""] * size
    for token, rank in ranks.items():
        tokens[rank + special] = token
    with open(vocabulary_out, "wb") as out:
        out.write(struct.pack("<I", size) + b"".join(packed(token) for token in tokens))
    names = sorted(name for name in os.listdir(folder) if name.startswith(SPLITS) != (which == "judging"))
    random.Random(7).shuffle(names)
    with open(schemas_out, "wb") as out:
        for name in names[:int(count)]:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                case = json.load(file)
            schema = json.dumps(case["schema"], ensure_ascii=False).encode("utf-8", "surrogatepass")
            out.write(packed(name.encode()) + packed(schema) + struct.pack("<I", len(case["tests"])))
            for test in case["tests"]:
                text = json.dumps(test["data"], ensure_ascii=False)
                ids = [i + special for i in encoding.encode_ordinary(text)]
                out.write(struct.pack("<I", test["valid"]) + packed(text.encode("utf-8", "surrogatepass")))
                out.write(struct.pack(f"<I{len(ids)}I", len(ids), *ids))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
