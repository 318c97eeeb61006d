"""What the cases of the hook share: an interpreter with modules of its own, a program, a list."""

import json
import os
import shutil
import subprocess
import tempfile
import textwrap
import unittest
from pathlib import Path

from agent import List, Standby, folder_of_hook, hooked
from interpreters import interpreters

# A program that tells what it was given.
TOLD = """
import ctypes, json, os, signal, sys, time
libc = ctypes.CDLL(None); libc.getenv.restype = ctypes.c_char_p
print(json.dumps({
    "environment": dict(os.environ), "C": str(libc.getenv(b"NEW")), "umask": os.umask(0),
    "score": open("/proc/self/oom_score_adj").read(), "argv": sys.argv, "streams": [os.fstat(n).st_ino for n in (0, 1, 2)],
    "descriptors": sorted(os.listdir("/proc/self/fd")), "modules": list(sys.modules),
    "signals": [str(signal.getsignal(n)) for n in (2, 15)],
}), flush=True)
"""


class StandbyTest(unittest.TestCase):
    """The newest Python, unless a case says something else, in a virtual environment of its own."""

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.base = Path(folder.name).resolve()
        found = interpreters()
        subprocess.run([found[max(found)], "-m", "venv", "--without-pip", cls.base / "venv"], check=True)
        cls.python = str(cls.base / "venv/bin/python")
        (cls.packages,) = (cls.base / "venv/lib").glob("python*/site-packages")
        cls.hook = folder_of_hook(str(cls.base))
        cls.environment = {"PATH": os.environ["PATH"], "HOME": str(cls.base), "OMP_NUM_THREADS": "2"}

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()
        self.list = List()
        self.addCleanup(self.list.close)

    def program(self, text: str, name: str = "main.py") -> list[str]:
        (self.folder / name).write_text(textwrap.dedent(text))
        return [self.python, str(self.folder / name)]

    def install(self, name: str, text: str) -> None:
        """Puts a module into the interpreter's installation."""
        path = self.packages / f"{name}.py"
        path.write_text(textwrap.dedent(text))
        # That of a text of the same second and length would be taken for its own.
        shutil.rmtree(self.packages / "__pycache__", ignore_errors=True)
        self.addCleanup(path.unlink, missing_ok=True)

    def run_hooked(self, command, environment=None, listed: int | None = None) -> subprocess.CompletedProcess:
        listed = self.list.descriptor if listed is None else listed
        environment = hooked(environment or self.environment, self.hook, "run", listed)
        return subprocess.run(command, env=environment, pass_fds=(listed,), capture_output=True, text=True, check=False)

    def standby(self, command=None, **options) -> Standby:
        options.setdefault("environment", self.environment)
        options.setdefault("stdout", subprocess.PIPE)
        standby = Standby(command or self.program(TOLD), self.hook, self.list, stdin=subprocess.DEVNULL, **options)
        self.addCleanup(standby.end)
        return standby

    def wait_until_ready(self, standby: Standby) -> None:
        if not standby.heard or not standby.heard[-1].startswith("ready"):
            self.assertTrue(standby.wait_for("ready"), standby.heard)

    def released(self, standby: Standby, *changes: str, **options) -> dict:
        """Releases a standby of TOLD: what it tells."""
        self.wait_until_ready(standby)
        standby.start(*changes, **options)
        self.assertEqual("started", standby.hear())
        return json.loads(standby.process.communicate()[0])

    def refused(self, standby: Standby, *changes: str) -> str:
        """Releases a standby that refuses: why."""
        self.wait_until_ready(standby)
        standby.start(*changes)
        said = standby.hear()
        self.assertEqual(b"", standby.process.communicate()[0])
        self.assertEqual(121, standby.process.returncode)
        return said

    def fails(self, text: str) -> tuple[str, int]:
        """The last message of a standby that imports a module, and its status."""
        self.install("module_x", text)
        self.list.write(["json", "module_x", "csv"])
        standby = self.standby()
        self.assertEqual("", standby.wait_for("ready"), standby.heard)
        self.assertIn("importing module_x", standby.heard)
        return standby.heard[-1], standby.process.wait()
