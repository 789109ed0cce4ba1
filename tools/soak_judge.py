"""Judges the samples of a soak (soak.py): a pure function of numbers, so that a test can feed it with a leak.

A sample is taken while the server is idle: {"t": seconds, "rss": bytes, "fds": n, "threads": n, "held": KV pages of
sequences, "live": running and waiting requests, "connections": n}.

Criteria:
  rss          over the last half of the samples, the slope of a least-squares line times their span is at most RSS_BYTES,
               or RSS_SHARE of their mean if that is more. Judged when the last half spans at least RSS_SECONDS: before,
               pools and rings are still touched for the first time.
  fds, threads the most of the last half exceeds the most of the first half by at most FDS and THREADS
  held, live   0 in each sample
"""
RSS_BYTES = 4 << 20
RSS_SHARE = 0.01
RSS_SECONDS = 120
FDS = 2
THREADS = 0
SAMPLES_MIN = 4


def slope(points):
    """Least squares of (x, y) pairs; 0 if all x are equal."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    square = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / square if square else 0.0


def rss_growth(samples):
    """(bytes that the line through the last half grows, the limit, seconds that it spans)"""
    last = samples[len(samples) // 2:]
    span = last[-1]["t"] - last[0]["t"]
    mean = sum(sample["rss"] for sample in last) / len(last)
    return slope([(sample["t"], sample["rss"]) for sample in last]) * span, max(RSS_BYTES, RSS_SHARE * mean), span


def judge(samples):
    """What is wrong, as sentences; empty: nothing."""
    if len(samples) < SAMPLES_MIN:
        return [f"{len(samples)} samples are too few to judge, at least {SAMPLES_MIN} are needed"]
    problems = []
    growth, limit, span = rss_growth(samples)
    if span >= RSS_SECONDS and growth > limit:
        problems.append(f"resident memory grew by {growth / 2**20:.1f} MiB in the last {span:.0f} s, "
                        f"more than {limit / 2**20:.1f} MiB")
    half = len(samples) // 2
    for name, words, more in (("fds", "open files", FDS), ("threads", "threads", THREADS)):
        before, after = (max(sample[name] for sample in part) for part in (samples[:half], samples[half:]))
        if after > before + more:
            problems.append(f"{words} grew from {before} to {after}")
    for name, words in (("held", "KV pages are held"), ("live", "requests are live")):
        bad = [sample for sample in samples if sample[name]]
        if bad:
            problems.append(f"{bad[0][name]} {words} by an idle server after {bad[0]['t']:.0f} s")
    return problems
