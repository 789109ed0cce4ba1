#!/usr/bin/env python3
"""Compares characters, patterns and normal forms with the `tokenizers` package, byte for byte.

    python3 tests/oracle/unicode_oracle.py --bin build/release/reprise [--seed 1] [--only NAME]

Each case is a tokenizer.json whose tokens are the 256 bytes and whose normalizer or pre-tokenizer is
under test, so that the ids spell the resulting text. Properties and normal forms are tested on all
code points, normal forms also on random texts, and patterns that Oniguruma and PCRE2 interpret
differently on texts written for them. Without the package the script prints SKIP and exits with 77.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

try:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
except ImportError:
    print("SKIP: the Python package 'tokenizers' is not installed")
    sys.exit(77)

CHARS = [chr(c) for c in range(1, 0x110000) if not 0xD800 <= c <= 0xDFFF]
LINE = 8192  # characters
ALL = ["".join(CHARS[i:i + LINE]) for i in range(0, len(CHARS), LINE)]
# Where characters are assigned, for the properties that no model uses.
MOST = [line for line in ALL if ord(line[0]) < 0x34000 or 0xDF000 < ord(line[0]) < 0xE1000]
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())

# In the patterns that models use.
USED = [r"\p{%s}" % n for n in "L N M P S Lu Ll Lt Lm Lo Han".split()] + [r"\s", r"\w"]
# The other general categories, some scripts, Oniguruma's classes.
PROPERTIES = (
    [r"\p{%s}" % n for n in
     "Z C Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf "
     "Co Cn Hiragana Katakana Hangul Latin Cyrillic Greek Arabic Thai Common Inherited LC Alphabetic "
     "Uppercase_Letter White_Space".split()]
    + [r"\P{L}", r"\p{^L}", r"\P{^L}", r"\S", r"\d", r"\D", r"\W", r"\h", r"\H", ".",
       r"[\w]", r"[^\w]", r"[\W]", r"[\H]", r"[\S]", r"[^\s\p{L}\p{N}]", r"[^\r\n\p{L}\p{N}]",
       r"[\p{L}\p{M}]", r"[\p{P}\p{S}]", r"[^\r\n\p{L}\p{P}\p{S}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]",
       "[一-龥぀-ゟ゠-ヿ]", r"[\p{L}&&\p{Latin}]", r"[^a-z&&\p{L}]", r"[\p{L}[0-9]]", r"\w\b", r"\B\w",
       "(?i:[a-z])", "(?i:[^a-z])", "(?i:k)", "(?i:s)", "(?i:i)", "(?i:å)", "(?i:σ)", r"(?i:\p{Lu})",
       r"(?i:[^\p{Lu}])"]
    + ["[[:%s:]]" % n for n in "alnum alpha blank cntrl digit graph lower print punct space upper xdigit "
       "word ascii ^alpha".split()])

# (pattern, text)
PATTERNS = [
    ("a(?i)b|c", "ac aB aC bc"), ("(a(?i)b|c)d", "acd aBd abD cd"), ("(?m:a.b)", "a\nb acb"),
    ("(?i:a(?-i:b)c)", "ABC AbC abc"), (r"\bab\b", "ab ab² ab- éab ab"), (r"a{,2}b", "aaab b {,2}"),
    (r"[]a]", "]a["), (r"[^]a]", "]ab"), (r"[a-]", "a-b"), (r"[-a]", "a-b"), (r"[a\-z]", "a-bz"),
    (r"[a-c-e]", "abcde-"), (r"\x{41}\u0042\x43", "ABC"), (r"[\x{41}-C]", "ABCD"), (r"\v", "\x0b\x0c\n"),
    (r"[\b]", "\b\x7fb"), (r"\pL", "pLab"), (r"a{x}", "a{x}"), (r"{", "{}"), (r"[\101]", "AB"),
    (r"\/[\/]", "// /"), (r"(a)b\1", "aba ab"), (r"(?#note)a", "anote"), (r"a++b|a", "aaab aa"),
    (r"^a|b$", "a\nab\nb"), (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'S 'ſ 'RE 'Ll 'x 'D"),
    (r"[&a]", "a&"), (r"[a&&b]", "ab"), (r"\p{ upper case_letter }", "aA"), (r"(?<=\p{L})\d", "a1 1"),
    (r"(?i)raSe", "RASE rase raſe"), (r"a(?=\s)|\s+(?!\S)", "a  b   "), (r"\Aa|b\z", "ab ab"),
    # More large classes than PCRE2 compiles inline.
    ("|".join([r"[\p{L}\p{M}]x(a)?", r"[^\s\p{L}\p{N}]\1", r"\bab\b", r"(?<=\p{L})1"] * 5), "éx éxa -a ab é1 ²ab"),
    (r"[𐐀-𐐧]+", "𐐀𐐨"), (r"(?i:[𐐀-𐐧])", "𐐀𐐨"), (r"\ é", " é"), (r"[\]\[]", "[]"),
]
# Refused by name, never interpreted differently from the package.
REFUSED = ["(?i:ss)", "(?i:ß)", "(?i:[ß])", "(?i:s(?:t))", r"(?i)(a)\1", r"\X", r"\p{Emoji}", r"(?x: a )",
           "a{2}+", "a{2}?", r"\y", r"\xC3\xA9", "(?s:a)", "(*UCP)a", "(?i:[[:alpha:]])"]


def file_of(normalizer=None, pre_tokenizer=None):
    tok = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(BYTES)}, merges=[]))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizer, level]) if pre_tokenizer else level
    tok.decoder = decoders.ByteLevel()
    if normalizer:
        tok.normalizer = normalizer
    return tok


class Runner:
    def __init__(self, binary, folder):
        self.binary, self.path, self.failures = binary, os.path.join(folder, "tokenizer.json"), 0
        bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        byte = {}
        for code in list(range(0x80)) + list(range(0x80, 0x800)) + [0x800 * i for i in range(1, 32)] + \
                [0x10000 * i for i in range(1, 17)] + [0xFFFF, 0xD7FF]:
            if not 0xD800 <= code <= 0xDFFF:
                [(piece, _)] = bytes_of.pre_tokenize_str(chr(code))
                byte.update(zip(piece, chr(code).encode()))
        self.byte_of_id = [byte.get(c) for c in BYTES]

    def run(self, tok, lines):
        tok.save(self.path)
        return subprocess.run([self.binary, "tokenize", self.path, "--lines", "--no-special"],
                              input="".join(json.dumps(t) + "\n" for t in lines).encode(),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)

    def compare(self, name, tok, lines, theirs):
        done = self.run(tok, lines)
        if done.returncode != 0:
            print(f"{name}: {done.stderr.decode()[:300]}")
            self.failures += 1
            return
        ours = [bytes(self.byte_of_id[int(i)] for i in line.split()).decode()
                for line in done.stdout.decode().split("\n")[:-1]]
        bad = [i for i in range(len(lines)) if ours[i] != theirs[i]]
        self.failures += bool(bad)
        for i in bad[:2]:
            at = next((k for k in range(min(len(ours[i]), len(theirs[i]))) if ours[i][k] != theirs[i][k]),
                      min(len(ours[i]), len(theirs[i])))
            print(f"{name}: line {i}, character {at}: package {ascii(theirs[i][at:at + 6])}, "
                  f"reprise {ascii(ours[i][at:at + 6])}")

    def normalizer(self, name, normalizer, lines):
        self.compare(name, file_of(normalizer), lines, [normalizer.normalize_str(t) for t in lines])

    def splitter(self, name, pre, lines):
        """Pieces that the pre-tokenizer leaves out show; so do pieces that it cuts, as a Split after
        it takes the first character of each piece away."""
        first = pre_tokenizers.Split(Regex(r"\A(?:.|\n)"), "removed")
        both = pre_tokenizers.Sequence([pre, first])
        self.compare(name, file_of(None, both), lines,
                     ["".join(piece for piece, _ in both.pre_tokenize_str(t)) for t in lines])


def random_texts(rng, count):
    moving = [c for c in CHARS if unicodedata.combining(c) or unicodedata.decomposition(c)]
    near = moving[:2500] + [chr(c) for c in range(0x1100, 0x1200)]
    for _ in range(count):
        pool = rng.choice([moving, near, CHARS, [c for c in moving if unicodedata.combining(c)]])
        yield "".join(rng.choice(rng.choice([pool, near, "aeios "]))
                      for _ in range(rng.choice([1, 2, 3, 8, 30, 100])))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", default=os.environ.get("REPRISE_BIN", "build/debug/reprise"))
    parser.add_argument("--data", default="", help="ignored; the oracle tests share their arguments")
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    if os.path.basename(os.path.dirname(args.bin)) in ("asan", "tsan"):
        # What depends on the character alone is looked up in the same tables everywhere.
        for lines in (ALL, MOST):
            lines[8:] = lines[8::8]
    texts = list(random_texts(rng, args.count))
    with tempfile.TemporaryDirectory() as folder:
        r = Runner(args.bin, folder)
        for form in ("NFC", "NFD", "NFKC", "NFKD"):
            if args.only in form:
                r.normalizer(form, getattr(normalizers, form)(), ALL + texts)
                spaced = [" ".join(line) for line in ALL]
                r.normalizer(form + " apart", getattr(normalizers, form)(), spaced)
        for pattern in USED + PROPERTIES:
            if args.only in pattern:
                r.normalizer(pattern, normalizers.Replace(Regex(pattern), ""),
                             ALL if pattern in USED else MOST)
        for pattern, text in PATTERNS:
            if args.only in pattern:
                r.normalizer(pattern, normalizers.Replace(Regex(pattern), "_"), [text])
        for pattern in REFUSED:
            if args.only in pattern:
                state = json.loads(file_of(normalizers.Replace("placeholder", "_")).to_str())
                state["normalizer"]["pattern"] = {"Regex": pattern}
                with open(r.path, "w", encoding="utf-8") as f:
                    json.dump(state, f)
                done = subprocess.run([args.bin, "tokenize", r.path], input=b"a",
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
                if done.returncode == 0 or b"is not supported" not in done.stderr:
                    print(f"{pattern}: not refused by name: {done.stderr.decode()[:200]}")
                    r.failures += 1
        spaced = ["x".join(line) for line in ALL]
        for name, pre in (("Digits", pre_tokenizers.Digits(True)),
                          ("Punctuation", pre_tokenizers.Punctuation("removed")),
                          ("Whitespace", pre_tokenizers.Whitespace()),
                          ("WhitespaceSplit", pre_tokenizers.WhitespaceSplit())):
            if args.only in name:
                r.splitter(name, pre, spaced)
    print(f"{len(USED + PROPERTIES)} properties and 4 normal forms on {len(CHARS)} characters, {len(texts)} random "
          f"texts, {len(PATTERNS)} patterns, {len(REFUSED)} refusals: {r.failures} differences")
    sys.exit(1 if r.failures else 0)


if __name__ == "__main__":
    main()
