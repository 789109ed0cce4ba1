"""tools/hash_outputs.py: equal runs compare equal; with one bit of one weight changed, or a case
failed or missing, they do not."""
import contextlib
import io
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from types import SimpleNamespace

from reprise_server import BIN, DEMO, SOURCE

sys.dont_write_bytecode = True
TOOL = os.path.join(SOURCE, "tools", "hash_outputs.py")
sys.path.insert(0, os.path.dirname(TOOL))

import hash_outputs


def flip_lowest_bit(path, name):
    """Changes the first value of tensor `name`, bf16, by one unit in the last place."""
    with open(path, "r+b") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        tensor = json.loads(file.read(size))[name]
        assert tensor["dtype"] == "BF16", tensor
        file.seek(8 + size + tensor["data_offsets"][0])
        value = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([value ^ 1]))


def run(directory, folder):
    arguments = SimpleNamespace(bin=BIN, device="cpu", parallel=1)
    results = hash_outputs.run_cases([("demo/auto", directory, "auto")], arguments, folder)
    parts = ("", " hits", " batches", " logits")
    assert set(results) == {"demo/auto" + part for part in parts}, results
    return results


def compared(a, b):
    """Exit code and output of --compare."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("a.json", "b.json")]
        for path, value in zip(paths, (a, b)):
            hash_outputs.write_results(path, value)
        done = subprocess.run([sys.executable, TOOL, "--compare", *paths],
                              capture_output=True, text=True)
        return done.returncode, done.stdout


def test_outputs():
    with tempfile.TemporaryDirectory() as folder:
        hash_outputs.write_text(folder)
        copy = os.path.join(folder, "copy")
        shutil.copytree(DEMO, copy)
        before, again = run(DEMO, folder), run(copy, folder)
        assert compared(before, again) == (0, "4 of 4 equal\n"), (before, again)
        flip_lowest_bit(os.path.join(copy, "model.safetensors"), "model.norm.weight")
        changed = run(copy, folder)
    code, out = compared(before, changed)
    assert code == 1 and out.endswith("0 of 4 equal\n"), out
    for name in before:
        assert f"{name}: {before[name]} and {changed[name]}\n" in out, out


def test_compare():
    assert compared({"x": "1", "y": "2"}, {"x": "1", "y": "3"}) == (1, "y: 2 and 3\n1 of 2 equal\n")
    assert compared({"x": "1", "y": "2"}, {"x": "1"}) == (1, "y: 2 and missing\n1 of 2 equal\n")
    assert compared({"y": "failed"}, {"y": "failed"}) == (1, "y: failed and failed\n0 of 1 equal\n")
    assert compared({}, {})[0] == 1


def test_failed_case():
    """A model that cannot be loaded fails by name and does not end the run."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        hash_outputs.write_text(folder)
        empty = os.path.join(folder, "empty")
        os.makedirs(empty)
        shutil.copy(os.path.join(DEMO, "config.json"), empty)
        arguments = SimpleNamespace(bin=BIN, device="cpu", parallel=1)
        results = hash_outputs.run_cases([("broken/auto", empty, "auto")], arguments, folder)
    assert results == {"broken/auto": "failed"}, results


test_compare()
test_failed_case()
test_outputs()
