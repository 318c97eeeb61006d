"""Runs each program plainly, with the hook, and from a standby, and compares what can be seen.

A program that must be refused is refused. All versions of Python that there are run the table: the
oldest and the newest all of it.
"""

import os
import re
import subprocess
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from agent import PATIENCE, List, Standby, folder_of_hook, hooked
from interpreters import interpreters
from programs import PROGRAMS, Program

# Programs that run side by side. Standbys rest most of the time.
POOL = 3
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH")
# What cannot be the same twice: addresses, and names that are random.
VARIES = re.compile(rb"0x[0-9a-f]{6,16}|/tmp/pymp-\w+|/tmp/tmp\w+")


@dataclass
class Seen:
    """What can be seen of a program."""

    status: int
    stdout: bytes
    stderr: bytes


class Place:
    """A folder with a program, and how it is run there."""

    def __init__(self, python: str, program: Program, parent: Path) -> None:
        self.program = program
        self.folder = parent / "program"
        self.folder.mkdir()
        self.cwd = self.folder / program.folder
        self.cwd.mkdir(exist_ok=True)
        program.write(self.folder)
        if program.prepare:
            program.prepare(python, self.folder)
        self.input = self.folder / "stdin"
        self.input.write_text(program.stdin)
        self.hook = folder_of_hook(str(parent))
        self.command = [self.put(program.python) or python, *map(self.put, program.words)]
        self.environment = {name: os.environ[name] for name in KEPT if name in os.environ}
        self.environment |= {name: self.put(value) for name, value in program.environment.items()}

    def put(self, word):
        """The word with this folder in it."""
        return word.replace("{dir}", str(self.folder)) if isinstance(word, str) else word

    def run(self, environment: dict[str, str], descriptors: tuple[int, ...] = ()) -> Seen:
        with self.input.open("rb") as stdin:
            ran = subprocess.run(
                self.command, env=environment, cwd=self.cwd, stdin=stdin, capture_output=True,
                timeout=PATIENCE, pass_fds=descriptors, check=False,
            )  # fmt: skip
        return seen(ran.returncode, ran.stdout, ran.stderr)

    def learned(self, listed: List) -> Seen:
        """With the hook."""
        environment = hooked(self.environment, self.hook, "run", listed.descriptor)
        return self.run(environment, (listed.descriptor,))

    def waited(self, listed: List) -> Seen | str:
        """From a standby, or why it refuses."""
        pipes = [os.pipe() for _ in range(2)]
        ours, theirs = [pipe[0] for pipe in pipes], [pipe[1] for pipe in pipes]
        stdin = os.open(self.input, os.O_RDONLY)
        streams = (stdin, *theirs)
        inherited = (subprocess.DEVNULL,) * 3 if self.program.given else streams
        standby = Standby(
            self.command, self.hook, listed, self.environment, cwd=self.cwd,
            stdin=inherited[0], stdout=inherited[1], stderr=inherited[2],
        )  # fmt: skip
        try:
            said = standby.wait_for("ready", "refused", "spoiled", "failed")
            if said.startswith("ready"):
                standby.start(descriptors=streams if self.program.given else ())
                said = standby.wait_for("started", "refused")
            for descriptor in streams:
                os.close(descriptor)
            with ThreadPoolExecutor(2) as readers:
                outputs = list(readers.map(read_all, ours))
            status = standby.process.wait(PATIENCE)
            return seen(status, *outputs) if said == "started" else said
        finally:
            standby.end()


def read_all(descriptor: int) -> bytes:
    with open(descriptor, "rb") as file:
        return file.read()


def seen(status: int, stdout: bytes, stderr: bytes) -> Seen:
    return Seen(status, VARIES.sub(b"0x", stdout), VARIES.sub(b"0x", stderr))


def compare(python: str, program: Program) -> str:
    """How a program behaves differently; empty if it does not."""
    with tempfile.TemporaryDirectory() as parent:
        place = Place(python, program, Path(parent))
        listed = List()
        try:
            plain = place.run(place.environment)
            learned = place.learned(listed)
            waited = place.waited(listed)
        finally:
            listed.close()
    if learned != plain:
        return f"with the hook:\n{learned}\nplain:\n{plain}"
    if program.refused:
        return "" if program.refused in str(waited) else f"refused: {waited}"
    if waited != plain:
        return f"from a standby:\n{waited}\nplain:\n{plain}"
    return ""


class Programs(unittest.TestCase):
    def test_programs(self) -> None:
        found = interpreters()
        self.assertTrue(found, "no Python of 3.8 to 3.14")
        whole = {min(found), max(found)}
        cases = [
            (version, program)
            for version in found
            for program in PROGRAMS
            if version >= program.since and (program.every or version in whole)
        ]
        with ThreadPoolExecutor(POOL) as pool:
            differences = pool.map(lambda case: compare(found[case[0]], case[1]), cases)
            for (version, program), difference in zip(cases, differences, strict=True):
                with self.subTest(version=version, program=program.name):
                    self.assertEqual("", difference)
        print(f"{len(cases)} programs in {len(found)} versions of Python")


if __name__ == "__main__":
    unittest.main()
