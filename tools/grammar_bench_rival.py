"""The times and verdicts of llguidance on the files of grammar_bench_data.py, to compare with bench_grammar.

  grammar_bench_rival.py VOCABULARY SCHEMAS

Thread time in Python: about 1 us of each mask is the call. A schema that llguidance refuses is counted and left out.
"""
import struct
import sys
import time

import llguidance
from grammar_bench_data import load_tokenizer
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper


class Vocabulary:
    """What TokenizerWrapper reads."""
    eos_token_id, bos_token_id, special_token_ids = 2, None, [2]

    def __init__(self, path):
        data = open(path, "rb").read()
        at, self.tokens = 4, []
        for i in range(struct.unpack_from("<I", data)[0]):
            (size,) = struct.unpack_from("<I", data, at)
            token = data[at + 4:at + 4 + size]
            self.tokens.append(token or b"<empty_%d>" % i)
            at += 4 + size
        self.special_token_ids = list(range(1000))
        self.encoding, _, _, self.first = load_tokenizer()

    def __call__(self, text):  # llguidance allows forced text as the tokenizer splits it only
        return [token + self.first for token in self.encoding.encode_ordinary(text)]


def line(name, times):
    times.sort()
    count = len(times)
    at = lambda share: times[min(int(count * share), count - 1)] / 1000
    print(f"{name:20} n {count:8}  mean {sum(times) / count / 1000:8.1f}  p50 {at(.5):8.1f}  p90 {at(.9):8.1f}  "
          f"p99 {at(.99):8.1f}  p99.9 {at(.999):8.1f}  max {times[-1] / 1000:8.1f} us")


def main(vocabulary, schemas):
    tokenizer = LLTokenizer(TokenizerWrapper(Vocabulary(vocabulary)))
    data, at = open(schemas, "rb").read(), 0
    compiles, masks, refused, count, valid_refused, invalid_accepted, values = [], [], 0, 0, 0, 0, 0

    def number():
        nonlocal at
        at += 4
        return struct.unpack_from("<I", data, at - 4)[0]

    def text():
        nonlocal at
        size = number()
        at += size
        return data[at - size:at]
    while at < len(data):
        text()
        schema = text().decode("utf-8", "surrogatepass")
        count += 1
        begin = time.thread_time_ns()
        matcher = LLMatcher(tokenizer, '{"grammars": [{"json_schema": ' + schema + "}]}")
        if ok := not matcher.is_error():
            matcher.compute_bitmask()
            compiles.append(time.thread_time_ns() - begin)
        refused += not ok
        for _ in range(number()):
            valid = number()
            text()
            tokens = struct.unpack_from(f"<{(size := number())}I", data, at)
            at += 4 * size
            if not ok:
                continue
            matcher.reset()
            values += 1
            accepted = True
            for token in tokens:
                begin = time.thread_time_ns()
                mask = matcher.compute_bitmask()
                accepted = bool(mask[token // 8] >> token % 8 & 1)
                accepted = accepted and matcher.consume_token(token)
                masks.append(time.thread_time_ns() - begin)
                if not accepted:
                    break
            accepted = accepted and matcher.is_accepting()
            valid_refused += bool(valid and not accepted)
            invalid_accepted += bool(not valid and accepted)
    print("llguidance", getattr(llguidance, "__version__", ""))
    line("compile + first mask", compiles)
    line("mask + step", masks)
    print(f"schemas {count}, refused {refused} ({100 * refused / count:.1f} %); values {values}: valid refused "
          f"{valid_refused}, invalid accepted {invalid_accepted}")


if __name__ == "__main__":
    main(*sys.argv[1:])
