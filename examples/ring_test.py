"""Runs the ring of ring-allreduce.yaml as four processes on the loopback interface, without a cluster.

    python3 examples/ring_test.py
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import unittest

from free_ports import free_ports

WORLD = 4
MANIFEST = pathlib.Path(__file__).with_name("ring-allreduce.yaml")


def program():
    """The text of ring.py in the ConfigMap."""
    _, _, rest = MANIFEST.read_text(encoding="utf-8").partition("  ring.py: |\n")
    return textwrap.dedent(rest.partition("---\n")[0])


class RingTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "ring.py").write_text(program(), encoding="utf-8")
        self.peers = ",".join(f"127.0.0.1:{port}" for port in free_ports(WORLD))

    def start(self, steps, attempt):
        ranks = []
        for rank in range(WORLD):
            settings = {
                "JOB_COMPLETION_INDEX": str(rank),
                "WORLD_SIZE": str(WORLD),
                "PEERS": self.peers,
                "STEPS": str(steps),
                "CHECKPOINT": str(self.folder / f"checkpoint-{rank}"),
                "LOCKSTEP_RESTART_ATTEMPT": str(attempt),
            }
            process = subprocess.Popen(
                [sys.executable, str(self.folder / "ring.py")],
                env=os.environ | settings,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            self.addCleanup(process.stdout.close)
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
            ranks.append(process)
        return ranks

    def read_until(self, process, text):
        for line in process.stdout:
            if text in line:
                return line
        self.fail(f"the process ended without saying {text!r}")

    def test_completes(self):
        ranks = self.start(steps=20, attempt=0)
        for rank, process in enumerate(ranks):
            self.assertIn(f"rank {rank} attempt 0 done after 20 steps", process.communicate(timeout=60)[0])
            self.assertEqual(process.returncode, 0)

    def test_one_death_breaks_the_ring_and_the_next_attempt_goes_on(self):
        ranks = self.start(steps=1_000_000, attempt=0)
        for process in ranks:
            # A rank prints a step once its checkpoint is on disk. The first step is 0.
            while " sum=" not in (line := self.read_until(process, " step ")) or int(line.split("step ")[1].split()[0]) < 1:
                pass
        ranks[2].kill()
        self.assertEqual(ranks[2].wait(timeout=60), -signal.SIGKILL)
        for rank in (0, 1, 3):
            self.assertIn(f"rank {rank} attempt 0: lost a neighbour", ranks[rank].communicate(timeout=60)[0])
            self.assertEqual(ranks[rank].returncode, 1)

        ranks = self.start(steps=1_000_000, attempt=1)
        first = int(self.read_until(ranks[0], "ring of 4 is up").split("step ")[1])
        self.assertGreater(first, 0)
        for process in ranks:
            process.terminate()
        for process in ranks:
            process.communicate(timeout=60)
            # Stopped, or a neighbour of a stopped rank.
            self.assertIn(process.returncode, (143, 1))


if __name__ == "__main__":
    unittest.main()
