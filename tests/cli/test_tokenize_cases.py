"""47 adversarial texts each for GPT-2, Llama 2 and Phi-3, through `reprise tokenize`: exactly the ids given.

The texts are separated by lines `__ggml_vocab_test__`; the ids stand one line each, without special tokens. All
go through --lines in one run; every eighth also alone through standard input.
"""
import json
import subprocess

from reprise_server import BIN, data, skip

FAMILIES = {"gpt-2": "gpt-2", "llama-spm": "hf_llama2", "phi-3": "hf_phi-3-mini"}
SEPARATOR = "\n__ggml_vocab_test__\n"


def tokenize(directory, text, *flags):
    done = subprocess.run([BIN, "tokenize", directory, "--no-special", *flags], input=text.encode(), capture_output=True,
                          timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def ids_of(line):
    return [int(word) for word in line.split()]


def main():
    if not data("tokenizers/cases"):
        skip("test data not found: tokenizers/cases")
    for case, folder in FAMILIES.items():
        directory = data("tokenizers/" + folder)
        with open(data(f"tokenizers/cases/{case}.inp"), encoding="utf-8", newline="") as file:
            texts = file.read().split(SEPARATOR)
        with open(data(f"tokenizers/cases/{case}.out"), encoding="utf-8") as file:
            want = [ids_of(line) for line in file.read().split("\n")]
        if len(texts) > 47 and not texts[47]:
            texts = texts[:47]
        assert len(texts) == 47, len(texts)
        got = tokenize(directory, "".join(json.dumps(text) + "\n" for text in texts), "--lines").split("\n")
        for i, text in enumerate(texts):
            assert ids_of(got[i].replace("[", " ").replace("]", " ").replace(",", " ")) == want[i], (case, i, text, got[i], want[i])
            if i % 8 == 0:
                alone = ids_of(tokenize(directory, text))
                assert alone == want[i], (case, i, text, alone, want[i])
        print(f"{case}: 47 of 47")
    print("1 passed, 0 failed")


main()
