"""`reprise bench tokenize`: counts equal those of `reprise tokenize`, text round-trips where possible, every
field exists; invalid files, tokenizers and numbers are refused. Times are not checked.
"""
import json
import os
import subprocess
import tempfile

from reprise_server import BIN, DEMO

SHORT = ["--passes", "3", "--seconds", "5"]
RATE = {"mb_per_second_best", "mb_per_second_p50", "spread"}
FIELDS = {"bench", "file", "tokenizer", "clock", "bytes", "tokens", "tokens_per_byte", "encode_cold", "encode_warm",
          "decode", "tokens_per_second_cold", "tokens_per_second_warm", "tokens_per_second_decode", "comes_back",
          "passes", "reliable", "settled_after", "load_seconds", "tokenizer_bytes", "scratch_bytes"}
TEXT = "The quick brown fox isn't 12345 times <|im_start|> as lazy.\n\n\tif (x) { return y; }\n" * 40 + "中文，café 🙂\n" * 30


def run(*arguments):
    done = subprocess.run([BIN, "bench", "tokenize", *arguments], stdin=subprocess.DEVNULL, capture_output=True,
                          timeout=280)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def result(path, *arguments):
    code, out, errors = run(path, "--json", "--tokenizer", DEMO, *SHORT, *arguments)
    assert code == 0, errors
    row = json.loads(out)
    assert set(row) == FIELDS and all(set(row[k]) == RATE for k in ("encode_cold", "encode_warm", "decode")), row
    return row


def refused(expected, text, *arguments):
    code, out, errors = run(*arguments)
    assert code == expected and out == "" and errors.startswith("error: ") and text in errors, (arguments, code, errors)


def tokens_of(data):
    done = subprocess.run([BIN, "tokenize", DEMO, "--no-special", "--plain"], input=data, capture_output=True,
                          timeout=280, check=True)
    return len(done.stdout.split())


def check_counts_and_rates(folder):
    path = os.path.join(folder, "text")
    data = TEXT.encode()
    with open(path, "wb") as f:
        f.write(data)
    row = result(path)
    assert row["bench"] == "tokenize" and row["file"] == path and row["tokenizer"] == DEMO and row["clock"] == "wall"
    assert row["bytes"] == len(data) and row["tokens"] == tokens_of(data), row
    assert abs(row["tokens_per_byte"] - row["tokens"] / row["bytes"]) < 1e-9, row
    assert row["comes_back"] and row["passes"] == 3 and not row["reliable"] and row["settled_after"] == 0, row
    for name in ("encode_cold", "encode_warm", "decode"):
        assert row[name]["mb_per_second_best"] >= row[name]["mb_per_second_p50"] > 0 <= row[name]["spread"], row
    rate = row["tokens"] / row["bytes"] * row["encode_cold"]["mb_per_second_p50"] * 1e6
    assert abs(row["tokens_per_second_cold"] / rate - 1) < 1e-6, row
    assert row["tokenizer_bytes"] > os.path.getsize(os.path.join(DEMO, "tokenizer.json")) / 10, row
    assert row["scratch_bytes"] > 4096 and row["load_seconds"] > 0, row
    assert result(path, "--clock", "cpu")["clock"] == "cpu"


def check_bytes_that_are_no_text_do_not_come_back(folder):
    path = os.path.join(folder, "bytes")
    data = bytes(range(256)) * 8
    with open(path, "wb") as f:
        f.write(data)
    row = result(path)
    assert not row["comes_back"] and row["tokens"] == tokens_of(data) > 0, row


def check_enough_passes_settle_or_say_so(folder):
    path = os.path.join(folder, "text")
    row = result(path, "--passes", "120", "--seconds", "60")
    assert row["passes"] + row["settled_after"] == 120 and (row["reliable"] or row["settled_after"] == 0), row


def check_an_empty_file(folder):
    path = os.path.join(folder, "empty")
    open(path, "wb").close()
    row = result(path)
    assert row["bytes"] == row["tokens"] == 0 and row["comes_back"], row


def check_the_table(folder):
    code, out, errors = run(os.path.join(folder, "text"), "--tokenizer", os.path.join(DEMO, "tokenizer.json"), *SHORT)
    lines = out.splitlines()
    assert code == 0 and len(lines) == 8, (out, errors)
    assert "MiB" in lines[0] and "restores it" in lines[1] and "unreliable" in lines[2], out
    assert [line.split(",")[0] for line in lines[5:]] == ["encode", "encode", "decode"], out


def check_errors(folder):
    text = os.path.join(folder, "text")
    refused(2, "FILE", "--json")
    refused(2, "--passes", text, "--passes", "0")
    refused(2, "--clock", text, "--clock", "sun")
    refused(1, "/nowhere", "/nowhere")
    refused(1, folder, folder)
    refused(3, "/nowhere", text, "--tokenizer", "/nowhere/tokenizer.json")
    refused(3, "line 1", text, "--tokenizer", text)


def main():
    checks = [check_counts_and_rates, check_bytes_that_are_no_text_do_not_come_back,
              check_enough_passes_settle_or_say_so, check_an_empty_file, check_the_table, check_errors]
    with tempfile.TemporaryDirectory() as folder:
        for check in checks:
            check(folder)
            print("ok", check.__name__)
    print(f"{len(checks)} passed, 0 failed")


main()
