"""Runs measure.py against a kubectl that only pretends.

    python3 examples/pytorch-gpu/measure_test.py
"""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

import measure

# Keeps the attempt in a file. After a kill at second N, the first step is done at N + 4, or at N + 1 in each second attempt.
PRETENDER = """
import json, pathlib, sys
state = pathlib.Path(sys.argv[1])
killed = json.loads(state.read_text()) if state.exists() else []
words = sys.argv[4:]
if words[0] == "get":
    print("pod", end="")
elif words[0] == "exec":
    cold = "warm" if len(killed) % 2 else "cold"
    assert words[-2:] == [str(100 + len(killed)), cold], words
    killed.append(10.0 * len(killed) + 10)
    state.write_text(json.dumps(killed))
    print(killed[-1])
elif words[0] == "logs":
    print("lockstep: a line of the agent")
    for attempt in range(len(killed) + 1):
        ahead = attempt % 2 == 0 and attempt > 0
        begun = killed[attempt - 1] if attempt else 0.0
        say = lambda **what: print(json.dumps({"rank": 0, "attempt": attempt} | what))
        say(time=begun, event="start", pid=100 + attempt, ahead=ahead)
        say(time=begun + (1 if ahead else 4), step=7, loss=0.5)
        say(time=begun + 5, event="checkpoint", step=8)
"""


class MeasureTest(unittest.TestCase):
    def test_cold_starts_and_standbys_are_measured_by_turns(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, "kubectl.py")
            program.write_text(PRETENDER)
            kubectl = f"{sys.executable} {program} {folder}/state"
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch("time.sleep"):
                measure.main(["--kubectl", kubectl, "--rounds", "2", "script"])
            self.assertEqual(json.loads(out.getvalue()), {"script": {"cold": [4.0, 4.0], "standby": [1.0, 1.0]}})
            self.assertIn("script: 4.00 s cold, 1.00 s from a standby, 4.0 times faster", err.getvalue())

    def test_a_start_of_the_other_kind_ends_the_measurement(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, "kubectl.py")
            program.write_text(PRETENDER.replace("attempt % 2 == 0 and attempt > 0", "False"))
            kubectl = f"{sys.executable} {program} {folder}/state"
            with contextlib.redirect_stderr(io.StringIO()), mock.patch("time.sleep"), self.assertRaisesRegex(SystemExit, "attempt 2 of pytorch-gpu began otherwise"):
                measure.main(["--kubectl", kubectl, "script"])


if __name__ == "__main__":
    unittest.main()
