"""Reads --kv-events-config's sockets as vLLM's subscribers do: batches by number, replays for what was missed, and the
set of blocks that a server says it has."""
import msgpack
import zmq

TIMEOUT_MS = 60000  # far longer than anything takes
END = (-1).to_bytes(8, "big", signed=True)


class Subscriber:
    def __init__(self, endpoint, replay_endpoint, topic=b"kv"):
        self.context = zmq.Context()
        self.live = self.context.socket(zmq.SUB)
        self.live.setsockopt(zmq.SUBSCRIBE, topic)
        self.live.connect(endpoint)
        self.asks = self.context.socket(zmq.DEALER)
        self.asks.setsockopt(zmq.RCVHWM, 0)
        self.asks.connect(replay_endpoint)
        self.topic = topic

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.destroy(linger=0)

    def hear(self, timeout_ms=TIMEOUT_MS):
        """The next (number, batch) as it is published; None: nothing came in that time."""
        if not self.live.poll(timeout_ms):
            return None
        topic, number, batch = self.live.recv_multipart()
        assert topic == self.topic and len(number) == 8, (topic, number)
        return int.from_bytes(number, "big"), msgpack.unpackb(batch)

    def replay(self, first):
        """[(number, batch)] of what is kept from this number on."""
        self.asks.send_multipart([b"", first.to_bytes(8, "big")])
        batches = []
        while True:
            assert self.asks.poll(TIMEOUT_MS), "no answer to a replay request"
            empty, number, batch = self.asks.recv_multipart()
            assert empty == b""
            if number == END:
                assert batch == b""
                return batches
            batches.append((int.from_bytes(number, "big"), msgpack.unpackb(batch)))


class Blocks:
    """What a router knows of one server: hash -> (parent, token ids)."""

    def __init__(self):
        self.known, self.stored, self.removed, self.cleared = {}, 0, 0, 0

    def apply(self, batch):
        time, events, rank = batch
        assert isinstance(time, float) and rank == 0 and events, batch
        for event in events:
            getattr(self, event.pop("type"))(**event)
        return self

    def AllBlocksCleared(self):  # noqa: N802
        self.known.clear()
        self.cleared += 1

    def BlockStored(self, block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium, lora_name):  # noqa: N802
        assert (lora_id, medium, lora_name) == (None, "GPU", None)
        assert len(token_ids) == len(block_hashes) * block_size
        for i, block in enumerate(block_hashes):
            assert block not in self.known, "a block is stored twice"
            self.known[block] = (parent_block_hash, tuple(token_ids[i * block_size:(i + 1) * block_size]))
            parent_block_hash = block
        self.stored += len(block_hashes)

    def BlockRemoved(self, block_hashes, medium):  # noqa: N802
        assert medium == "GPU"
        for block in block_hashes:
            del self.known[block]
        self.removed += len(block_hashes)

    def hit_tokens(self, tokens, block_size):
        """Tokens at the beginning of a prompt that the server has; the last one is always computed."""
        children = {block: hash_ for hash_, block in self.known.items()}
        parent, hits = None, 0
        while hits + block_size < len(tokens):
            parent = children.get((parent, tuple(tokens[hits:hits + block_size])))
            if parent is None:
                break
            hits += block_size
        return hits
