"""64 concurrent streams on a card, in a pool so small that sequences are swapped: the texts of the same requests one
at a time. (What mixed_streams does on the CPU.)"""
from card import require_card
from mixed_streams import check_streams

require_card()
check_streams(["--device", "cuda"], ["--num-gpu-blocks-override", "8", "--max-model-len", "256"])
print("1 passed, 0 failed")
