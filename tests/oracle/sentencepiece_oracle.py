#!/usr/bin/env python3
"""Compares `reprise tokenize` on tokenizer.model files with the package `sentencepiece`, id for id.

    python3 tests/oracle/sentencepiece_oracle.py --bin build/release/reprise [--count 600] [--seed 1]

Needs the packages `sentencepiece` and `tokenizers`; without them the script prints SKIP and ends with
77. It trains small models of both types with each option that changes ids, changes some pieces by
hand (unused ones, equal scores), and encodes seeded random texts.
"""
import argparse
import io
import json
import os
import random
import sys
import tempfile

try:
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2
    import tokenizers  # noqa: F401 (tokenizer_oracle needs it)
except ImportError:
    print("SKIP: the Python packages 'sentencepiece' and 'tokenizers' are not both installed")
    sys.exit(77)

from tokenizer_oracle import CORPUS, EDGE, Ours, long_texts, random_text, report


def train(kind, **options):
    model = io.BytesIO()
    settings = {"vocab_size": 900 if options.get("byte_fallback") else 700, "hard_vocab_limit": False,
                "character_coverage": 0.98, "normalization_rule_name": "identity", **options}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for line in CORPUS[:8] * 3 if line), model_writer=model,
        model_type=kind, minloglevel=2, **settings)
    return sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())


def models():
    for kind in ("bpe", "unigram"):
        user = ["<sep>", "ing", "你好", "a"]
        if kind == "bpe":  # Unigram: runs of such a symbol are ties, which each version breaks anew
            user.append("▁▁▁")
        yield kind, train(kind)
        yield f"{kind}-bytes", train(kind, byte_fallback=True)
        yield f"{kind}-nmt", train(kind, normalization_rule_name="nmt_nfkc", byte_fallback=True)
        yield f"{kind}-fold", train(kind, normalization_rule_name="nmt_nfkc_cf")
        yield f"{kind}-spaces", train(kind, remove_extra_whitespaces=False, byte_fallback=True,
                                      normalization_rule_name="nmt_nfkc")
        yield f"{kind}-no-prefix", train(kind, add_dummy_prefix=False, remove_extra_whitespaces=False)
        yield f"{kind}-user", train(kind, user_defined_symbols=user, byte_fallback=True,
                                    remove_extra_whitespaces=False)
        yield f"{kind}-user-nmt", train(kind, user_defined_symbols=user, control_symbols=["<ctl>"],
                                        normalization_rule_name="nmt_nfkc")
        proto = train(kind)
        for piece in proto.pieces[40::9]:
            if piece.type == piece.NORMAL and len(piece.piece) > 1:
                piece.type = piece.UNUSED
        yield f"{kind}-unused", proto
        proto = train(kind, byte_fallback=True)
        for piece in proto.pieces:
            piece.score = round(piece.score / 40) * 40.0 if kind == "bpe" else round(piece.score)
        yield f"{kind}-ties", proto


def check(name, proto, path, binary, rng, count):
    with open(path, "wb") as f:
        f.write(proto.SerializeToString())
    theirs = sentencepiece.SentencePieceProcessor(model_file=path)
    ours, failures = Ours(binary, path), 0
    pieces = [p.piece.replace("▁", " ") for p in proto.pieces if p.type != p.BYTE]
    added = [p.piece for p in proto.pieces if p.type in (p.USER_DEFINED, p.CONTROL)]
    texts = ["", " ", "   ", "\n"] + EDGE + [random_text(rng, pieces, added) for _ in range(count)]
    texts += long_texts(rng, pieces, added)
    expected = [theirs.encode(t) for t in texts]
    failures += report(name, "encode", texts, expected, ours.encode(texts, "--no-special", "--plain"))
    bos = [[theirs.bos_id()] + ids for ids in expected]
    failures += report(name, "encode with special", texts, bos, ours.encode(texts, "--plain"))
    # An unknown token decodes to a mark that only this package has.
    ids = [i for i in expected if theirs.unk_id() not in i]
    decoded = [theirs.decode(i) for i in ids]
    failures += report(name, "decode", ids, decoded, ours.decode(ids, "--no-special"))
    print(f"{name}: {len(texts)} texts, {len(ids)} id lists, {failures} differences", flush=True)
    return failures


def check_added(folder, binary):
    """tokenizer_config.json adds tokens, and says what is put around a text."""
    proto = train("bpe", byte_fallback=True)
    count = len(proto.pieces)
    with open(os.path.join(folder, "tokenizer.model"), "wb") as f:
        f.write(proto.SerializeToString())
    config = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False, "add_eos_token": True,
              "legacy": False, "added_tokens_decoder": {
                  str(count): {"content": "<|user|>", "special": True, "lstrip": False,
                               "rstrip": False, "single_word": False, "normalized": True}}}
    path = os.path.join(folder, "tokenizer_config.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f)
    theirs = sentencepiece.SentencePieceProcessor(model_file=os.path.join(folder, "tokenizer.model"))
    after = theirs.encode("▁hello")[1:] if theirs.encode("▁hello")[0] == theirs.piece_to_id("▁") else None
    ours = Ours(binary, folder).encode(["hello<|user|>hello", "hello"])
    plain = theirs.encode("hello")
    failures = report("added", "ids", ["hello"], [plain + [theirs.eos_id()]], [ours[1]])
    if ours[0][:len(plain) + 1] != plain + [count] or ours[0][len(plain) + 1] == plain[0]:
        print("added:", ours[0], plain, after)
        failures += 1
    config["tokenizer_class"] = "XLMRobertaTokenizer"
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f)
    try:
        Ours(binary, folder).encode(["hello"])
        print("added: tokenizer_class XLMRobertaTokenizer is not refused")
        failures += 1
    except Exception as error:
        failures += getattr(error, "returncode", 0) != 3
    return failures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", default=os.environ.get("REPRISE_BIN", "build/debug/reprise"))
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    print(f"sentencepiece {sentencepiece.__version__}, seed {args.seed}")
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, proto in models():
            if args.only in name:
                failures += check(name, proto, os.path.join(folder, name + ".model"), args.bin,
                                  random.Random(args.seed), args.count)
        if args.only in "added":
            failures += check_added(folder, args.bin)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
