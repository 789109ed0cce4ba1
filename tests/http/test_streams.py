"""64 concurrent streams of mixed lengths and seeds on the demo model: every text equals that of the same
request alone, with the prefix cache on and off, run-ahead 0 and 1, and a pool so small that sequences
are swapped. Afterwards every page is free or cached."""
from mixed_streams import check_streams

check_streams([], ["--block-size", "4", "--num-gpu-blocks-override", "60", "--max-model-len", "240"])
print("1 passed, 0 failed")
