"""Files that tests/support/gguf_small.py writes, where the package `gguf` is missing, equal the package's byte for byte: the demo
model and a random one, in every type that the server reads."""
import os
import sys
import tempfile

SOURCE = os.environ.get("REPRISE_SOURCE_DIR", ".")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
try:
    import gguf
    import gguf_files
    import gguf_small
    import numpy as np
    from gguf_models import KINDS, write_random
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)


def content(package, directory, path, kind):
    gguf_files.gguf, gguf_files.T = package, package.GGMLQuantizationType
    own = gguf_files.OWN
    gguf_files.OWN = {package.GGMLQuantizationType[of.name]: quantizer for of, quantizer in own.items()}
    gguf_files.write_gguf(directory, path, kind)
    with open(path, "rb") as file:
        return file.read()


def main():
    for of, size in gguf_small.GGML_QUANT_SIZES.items():
        theirs = gguf.GGMLQuantizationType[of.name]
        assert int(theirs) == of and gguf.GGML_QUANT_SIZES[theirs] == size, of
    assert all(int(getattr(gguf.TokenType, of.name)) == of for of in gguf_small.TokenType)
    compared = 0
    with np.errstate(all="ignore"), tempfile.TemporaryDirectory() as folder:
        model, path = os.path.join(folder, "model"), os.path.join(folder, "file.gguf")
        write_random(model)
        for directory, kinds in ((os.path.join(SOURCE, "models", "demo"), ("Q8_0", "Q4_K_M")), (model, KINDS)):
            for kind in kinds:
                assert content(gguf, directory, path, kind) == content(gguf_small, directory, path, kind), (directory, kind)
                compared += 1
    assert compared == 18
    print(f"{compared} passed, 0 failed")


if __name__ == "__main__":
    main()
