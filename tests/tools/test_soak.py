"""tools/soak.py: its judge finds every kind of leak in made-up samples, and a few seconds of the whole pass on the demo."""
import os
import random
import subprocess
import sys
import unittest

from reprise_server import BIN, SOURCE

TOOLS = os.path.join(SOURCE, "tools")
sys.dont_write_bytecode = True
sys.path.insert(0, TOOLS)

import soak_judge
import soak_traffic

MIB = 1 << 20


def samples(count=60, leak=0, noise=0, **changes):
    """One a minute; memory grows for the first ten, as pools are touched, and by `leak` bytes in each minute."""
    numbers = random.Random(1)
    out = [{"t": 60.0 * i, "rss": 100 * MIB + min(i, 10) * 10 * MIB + i * leak + numbers.randrange(-noise, noise + 1),
            "fds": 12 + i % 2, "threads": 9, "held": 0, "live": 0} for i in range(count)]
    for name, values in changes.items():
        for at, value in values.items():
            out[at][name] = value
    return out


class Judge(unittest.TestCase):
    def assertFound(self, words, *args, **kwargs):
        problems = soak_judge.judge(samples(*args, **kwargs))
        self.assertEqual(len(problems), 1, problems)
        self.assertIn(words, problems[0])

    def test_flat_samples_pass_whatever_the_warm_up_took(self):
        self.assertEqual(soak_judge.judge(samples()), [])
        self.assertEqual(soak_judge.judge(samples(noise=2 * MIB)), [])

    def test_a_leak_of_memory_is_found(self):
        self.assertFound("resident memory grew", leak=MIB // 2)
        self.assertFound("resident memory grew", leak=MIB // 2, noise=2 * MIB)
        # A day finds what an hour cannot.
        self.assertEqual(soak_judge.judge(samples(leak=20000)), [])
        self.assertFound("resident memory grew", count=24 * 60, leak=20000)

    def test_one_high_sample_is_no_leak(self):
        self.assertEqual(soak_judge.judge(samples(rss={40: 230 * MIB})), [])

    def test_a_short_run_is_not_judged_by_memory(self):
        self.assertEqual(soak_judge.judge(samples(count=4, leak=MIB)), [])
        self.assertIn("too few", soak_judge.judge(samples(count=3))[0])

    def test_files_threads_pages_and_requests_that_stay_are_found(self):
        self.assertFound("open files grew from 13 to 16", fds={59: 16})
        self.assertFound("threads grew from 9 to 10", threads={40: 10})
        self.assertFound("3 KV pages are held by an idle server after 300 s", held={5: 3})
        self.assertFound("1 requests are live by an idle server", live={59: 1})


class Traffic(unittest.TestCase):
    def test_a_stream_without_its_end_is_wrong(self):
        self.assertEqual(soak_traffic.chunks(b'data: {"a": 1}\n\ndata: [DONE]\n\n'), [{"a": 1}])
        for answer in (b"", b'data: {"a": 1}\n\n'):
            with self.assertRaises(soak_traffic.Wrong):
                soak_traffic.chunks(answer)


class Whole(unittest.TestCase):
    def run_soak(self, *flags):
        return subprocess.run([sys.executable, os.path.join(TOOLS, "soak.py"), "--seconds", "1", "--workers", "2", *flags],
                              capture_output=True, text=True, timeout=240, env={**os.environ, "REPRISE_BIN": BIN})

    def test_a_few_seconds_pass(self):
        done = self.run_soak()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("passed", done.stdout)
        self.assertIn("KV pages held 0, live requests 0", done.stdout)

    def test_a_server_that_answers_otherwise_fails(self):
        # The first request of worker 1 wants four answers, and a key may have three.
        done = self.run_soak("--", "--max-requests-per-key", "3")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("needs 4 answers, this API key may have 3", done.stdout)


if __name__ == "__main__":
    unittest.main()
