"""Runs train.py as two processes on the loopback interface, without a cluster.

    python3 examples/pytorch-ddp/train_test.py

Where Python has no PyTorch, Debian's is unpacked into the cache, and used with Debian's Python.
"""

import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from free_ports import free_ports

WORLD = 2
UNPACK = HERE.parent.parent / "integration/testbed/torch/unpack"
Line = dict[str, Any]


def python() -> tuple[str, dict[str, str]]:
    """A Python interpreter with PyTorch, and its environment."""
    if importlib.util.find_spec("torch"):
        return sys.executable, {}
    folder = pathlib.Path(subprocess.run([UNPACK], check=True, stdout=subprocess.PIPE, text=True).stdout.strip(), "usr/lib")
    (libraries,) = folder.glob("*-linux-gnu")
    return "/usr/bin/python3", {"PYTHONPATH": str(folder / "python3/dist-packages"), "LD_LIBRARY_PATH": str(libraries)}


def losses(lines: list[Line]) -> dict[int, float]:
    """Losses by step. A repeated step has the loss of the second time."""
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


class TrainTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def start(self, steps: int, attempt: int, checkpoints: str) -> list[subprocess.Popen[str]]:
        program, needed = python()
        (port,), ranks = free_ports(1), []
        for rank in range(WORLD):
            settings = {
                "RANK": str(rank),
                "WORLD_SIZE": str(WORLD),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": "lo",
                "CHECKPOINTS": str(self.folder / checkpoints),
                "CHECKPOINT_EVERY": "10",
                "STEPS": str(steps),
                "LOCKSTEP_RESTART_ATTEMPT": str(attempt),
            }
            process = subprocess.Popen(
                [program, str(HERE / "train.py")],
                env=os.environ | needed | settings,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for stream in (process.stdout, process.stderr):
                assert stream
                self.addCleanup(stream.close)
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
            ranks.append(process)
        return ranks

    def finish(self, ranks: list[subprocess.Popen[str]]) -> list[list[Line]]:
        """The output of each rank, which must exit with 0."""
        printed = []
        for process in ranks:
            out, error = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 0, error)
            printed.append([json.loads(line) for line in out.splitlines()])
        return printed

    def test_a_rank_is_killed_and_all_go_on_from_the_checkpoint(self) -> None:
        ranks = self.start(steps=1_000_000, attempt=0, checkpoints="broken")
        seen: list[Line] = []
        assert ranks[0].stdout
        for text in ranks[0].stdout:
            seen.append(json.loads(text))
            if seen[-1].get("step") == 25:
                break
        self.assertIn(20, [line["step"] for line in seen if line.get("event") == "checkpoint"], seen)
        ranks[1].send_signal(signal.SIGKILL)
        # The other rank cannot continue without it.
        out, error = ranks[0].communicate(timeout=120)
        self.assertEqual(ranks[0].returncode, 1, error)
        seen += [json.loads(text) for text in out.splitlines() if text.endswith("}")]

        # An unfinished checkpoint is ignored.
        saved = [int(path.stem) for path in (self.folder / "broken").glob("*.pt")]
        (self.folder / "broken" / f"{max(saved) + 10}.part").write_bytes(b"half of it")
        steps = max(saved) + 30
        again = self.finish(self.start(steps=steps, attempt=1, checkpoints="broken"))
        for rank, lines in enumerate(again):
            self.assertEqual([line["step"] for line in lines if line.get("event") == "resumed"], [max(saved)])
            self.assertEqual(list(losses(lines)), list(range(max(saved), steps)))
            self.assertEqual({(line["rank"], line["attempt"]) for line in lines}, {(rank, 1)})
        # The same losses as without a failure.
        whole = self.finish(self.start(steps=steps, attempt=0, checkpoints="whole"))
        self.assertEqual([line["event"] for line in whole[1] if "event" in line], ["start", "imported", "done"])
        unbroken = losses(whole[0])
        self.assertEqual(list(unbroken), list(range(steps)))
        self.assertLess(unbroken[steps - 1], 0.9 * unbroken[0])
        for step, loss in (losses(seen) | losses(again[0])).items():
            self.assertAlmostEqual(loss, unbroken[step], places=5, msg=f"step {step}")


if __name__ == "__main__":
    unittest.main()
