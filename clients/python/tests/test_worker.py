"""Tests of what a worker's program may call, against an agent that the test plays."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
from collections.abc import Iterator

from lockstep import worker


def oldest() -> str:
    """The oldest interpreter that the file promises to run with, if it is here; else the test's own."""
    versions = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv")) / "versions"
    for path in [shutil.which("python3.8"), *sorted(versions.glob("3.8.*/bin/python3.8"))]:
        # What pyenv puts on PATH may be a script that finds no Python.
        if path and subprocess.run([path, "-c", ""], stderr=subprocess.DEVNULL).returncode == 0:
            return str(path)
    return sys.executable


OLDEST = oldest()
# It must do with one file: nothing else of the package is beside it.
FILE = pathlib.Path(worker.__file__)
# Tells what a program sees once it may go on.
TELL = "print(*park(), os.environ.get('A'), os.environ.get('B'), 'LOCKSTEP_PARK' in os.environ, flush=True)"
PLAIN = f"import os\nfrom worker import park\n{TELL}"


class Program:
    """A program that an agent has started with a socket to park on."""

    def __init__(self, text: str, interpreter: str, folder: str, variables: dict[str, str]) -> None:
        self.agent, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.agent.settimeout(30)
        own = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
        number = theirs.fileno()
        self.process = subprocess.Popen(
            [interpreter, "-c", text],
            env={**own, "LOCKSTEP_PARK": str(number), "PYTHONPATH": folder, **variables},
            pass_fds=[number],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        theirs.close()

    def hear(self) -> bytes:
        return self.agent.recv(100)

    def says(self) -> str:
        """What it prints until it ends."""
        return self.process.communicate(timeout=30)[0]

    def await_sleep(self) -> None:
        """Waits until it blocks in a system call."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            state = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rsplit(") ", 1)[1]
            if state[0] == "S":
                return
            time.sleep(0.01)
        raise AssertionError("it does not block")


class ParkTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        shutil.copy(FILE, self.folder)

    @contextlib.contextmanager
    def program(self, text: str = PLAIN, interpreter: str = OLDEST, **variables: str) -> Iterator[Program]:
        program = Program(text, interpreter, self.folder, variables)
        try:
            yield program
        finally:
            program.agent.close()
            program.process.kill()
            program.process.communicate()

    def standby(self, text: str = PLAIN, interpreter: str = OLDEST) -> contextlib.AbstractContextManager[Program]:
        return self.program(text, interpreter, A="1", B="2")

    def test_a_standby_goes_on_with_the_environment_of_its_attempt(self) -> None:
        for interpreter in {OLDEST, sys.executable}:
            with self.subTest(interpreter), self.standby(interpreter=interpreter) as program:
                self.assertEqual(program.hear(), b"ready")
                program.await_sleep()
                self.assertIsNone(program.process.poll())
                program.agent.send(b"start\0LOCKSTEP_RESTART_ATTEMPT=7\0LOCKSTEP_RESUME_STEP=300\0A=x=y\0B\0C")
                self.assertEqual(program.hear(), b"started")
                self.assertEqual(program.hear(), b"")
                self.assertEqual(program.says(), "7 300 True x=y None False\n")
                self.assertEqual(program.process.returncode, 0)

    def test_a_standby_that_was_given_up_never_runs_on(self) -> None:
        with self.standby() as program:
            self.assertEqual(program.hear(), b"ready")
            program.agent.shutdown(socket.SHUT_RD)
            program.agent.send(b"start\0LOCKSTEP_RESTART_ATTEMPT=1")
            self.assertEqual(program.says(), "")
            self.assertEqual(program.process.returncode, 120)

    def test_a_worker_that_was_started_cold_goes_on_at_once(self) -> None:
        with self.program(A="1", LOCKSTEP_RESTART_ATTEMPT="2") as program:
            self.assertEqual(program.hear(), b"ready")
            program.agent.send(b"start")
            self.assertEqual(program.hear(), b"started")
            self.assertEqual(program.hear(), b"")
            self.assertEqual(program.says(), "2 None False 1 None False\n")

    def test_values_may_be_any_bytes_and_a_second_call_returns_at_once(self) -> None:
        with self.standby(f"import os\nfrom worker import park\npark()\n{TELL}\nprint(os.environb[b'N'])") as program:
            program.hear()
            program.agent.send(b"start\0N=\xff\n\0LOCKSTEP_RESTART_ATTEMPT=1")
            self.assertEqual(program.says(), "1 None True 1 2 False\nb'\\xff\\n'\n")

    def test_no_child_holds_the_socket_and_no_default_timeout_counts(self) -> None:
        text = f"import os, socket\nfrom worker import park\nsocket.setdefaulttimeout(0.05)\n{TELL}\nprint(os.listdir('/proc/self/fd'))"
        with self.standby(text) as program:
            self.assertEqual(program.hear(), b"ready")
            time.sleep(0.2)
            self.assertIsNone(program.process.poll())
            program.agent.send(b"start\0LOCKSTEP_RESTART_ATTEMPT=1")
            self.assertEqual(program.hear(), b"started")
            told, descriptors = program.says().splitlines()
            self.assertEqual(told, "1 None True 1 2 False")
            # The streams, and the folder that is listed.
            self.assertEqual(len(descriptors.split(",")), 4, descriptors)

    def test_one_whose_agent_goes_away_never_runs_on(self) -> None:
        catches = "import worker\ntry:\n    worker.park()\nfinally:\n    print('ran on')"
        for interpreter in {OLDEST, sys.executable}:
            with self.subTest(interpreter), self.standby(catches, interpreter) as program:
                program.hear()
                program.agent.close()
                self.assertEqual(program.says(), "")
                self.assertEqual(program.process.returncode, 120)

    def test_one_that_is_told_something_else_never_runs_on(self) -> None:
        for said in [b"begin", b"start\nA=1", b"\0"]:
            with self.subTest(said), self.standby() as program:
                program.hear()
                program.agent.send(said)
                self.assertEqual(program.says(), "")
                self.assertEqual(program.process.returncode, 120)

    def test_signals_end_it_as_they_end_a_program_that_does_not_catch_them(self) -> None:
        catches = "import worker\ntry:\n    worker.park()\nexcept KeyboardInterrupt:\n    print('caught')\nprint('ran on')"
        for number in [signal.SIGTERM, signal.SIGINT]:
            with self.subTest(number), self.standby(catches) as program:
                program.hear()
                program.await_sleep()
                program.process.send_signal(number)
                self.assertEqual(program.says(), "")
                self.assertEqual(program.process.returncode, -number)

    def test_a_handler_of_a_signal_runs_and_it_waits_on(self) -> None:
        text = f"import os, signal\nfrom worker import park\nsignal.signal(signal.SIGUSR1, lambda *_: print('handled', flush=True))\n{TELL}"
        with self.standby(text) as program:
            program.hear()
            assert program.process.stdout
            for _ in range(3):
                program.await_sleep()
                program.process.send_signal(signal.SIGUSR1)
                self.assertEqual(program.process.stdout.readline(), "handled\n")
            program.agent.send(b"start\0LOCKSTEP_RESTART_ATTEMPT=1")
            self.assertEqual(program.says(), "1 None True 1 2 False\n")

    def test_a_handler_that_raises_does_not_let_it_run_on(self) -> None:
        text = "import signal, sys, worker\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\ntry:\n    worker.park()\nfinally:\n    print('ran on')"
        with self.standby(text) as program:
            program.hear()
            program.await_sleep()
            program.process.terminate()
            self.assertEqual(program.says(), "")
            self.assertEqual(program.process.returncode, 120)

    def test_a_number_that_is_no_socket_of_the_agent_is_left_alone(self) -> None:
        tells = f"import os, socket\nfrom worker import park\nown = socket.socket()\nos.environ['LOCKSTEP_PARK'] = NUMBER or str(own.fileno())\n{TELL}\nown.fileno() > 0 and own.getsockname()"
        for number in ["", "1", "999", "-1", "x", str(1 << 40)]:
            text = tells.replace("NUMBER", repr(number))
            # A worker's child, which has inherited only the variable, goes on.
            with self.subTest(number), self.program(text, LOCKSTEP_RESTART_ATTEMPT="3") as program:
                self.assertEqual(program.says(), "3 None False None None False\n")
                self.assertEqual(program.process.returncode, 0)
            # A standby must not.
            with self.subTest(number), self.program(text) as program:
                self.assertEqual(program.says(), "")
                self.assertEqual(program.process.returncode, 120)


class AttemptTest(unittest.TestCase):
    def test_outside_of_lockstep_it_is_the_first(self) -> None:
        with unittest.mock.patch.dict(os.environ, clear=True):
            self.assertEqual(worker.park(), worker.Attempt(0, None, False))
            self.assertEqual((worker.attempt(), worker.resume_step()), (0, None))

    def test_only_numbers_count(self) -> None:
        for text, number in [("5", 5), ("0", 0), ("", None), ("-1", None), ("x", None), ("1.5", None), ("٣", None)]:
            variables = {"LOCKSTEP_RESTART_ATTEMPT": text, "LOCKSTEP_RESUME_STEP": text}
            with self.subTest(text), unittest.mock.patch.dict(os.environ, variables):
                self.assertEqual((worker.attempt(), worker.resume_step()), (number or 0, number))

    def test_the_module_needs_no_other_package(self) -> None:
        text = "import sys; import lockstep.worker; print({'grpc', 'google', 'lockstep.client'} & set(sys.modules))"
        done = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True)
        self.assertEqual(done.stdout, "set()\n")


class RetryTest(unittest.TestCase):
    def test_it_calls_until_it_works(self) -> None:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            address = first.getsockname()
            calls = 0

            def bind() -> str:
                nonlocal calls
                calls += 1
                if calls == 3:
                    first.close()
                second.bind(address)
                return "bound"

            self.assertEqual(worker.retry(bind), "bound")
            self.assertEqual(calls, 3)

    def test_it_gives_up_in_the_end(self) -> None:
        def fails() -> None:
            raise PermissionError("busy")

        began = time.monotonic()
        with self.assertRaisesRegex(PermissionError, "busy"):
            worker.retry(fails, timeout=0.3)
        took = time.monotonic() - began
        self.assertGreaterEqual(took, 0.3)
        self.assertLess(took, 5)

    def test_other_errors_are_raised_at_once(self) -> None:
        calls: list[int] = []

        def fails() -> None:
            calls.append(1)
            raise ValueError

        with self.assertRaises(ValueError):
            worker.retry(fails)
        with self.assertRaises(ValueError):
            worker.retry(fails, timeout=0, errors=(ValueError,))
        self.assertEqual(len(calls), 2)


class TellTest(unittest.TestCase):
    """What a program says of its work."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name, "beat")

    def tell(self, path: str) -> None:
        with unittest.mock.patch.dict(os.environ, {"LOCKSTEP_HEARTBEAT": path}):
            worker.step(7)
            worker.section("load\nSTEP=9")
            worker.section("ä" * 100)
            worker.section("")

    def test_it_goes_to_the_socket(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
            agent.bind(str(self.path))
            self.tell(str(self.path))
            said = [agent.recv(2000, socket.MSG_DONTWAIT).decode() for _ in range(4)]
        self.assertEqual(said, ["STEP=7", "SECTION=load STEP=9", "SECTION=" + "ä" * 100, "SECTION="])

    def test_an_exception_that_ends_the_program_is_told(self) -> None:
        class Odd(Exception):
            def __str__(self) -> str:
                raise ValueError

        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
            agent.bind(str(self.path))
            for error, said in [(OSError("no\nspace " + "x" * 2000), b"ERROR=OSError: no space xxx"), (Odd(), None)]:
                former = unittest.mock.Mock()
                variables = unittest.mock.patch.dict(os.environ, {"LOCKSTEP_HEARTBEAT": str(self.path)})
                with variables, unittest.mock.patch.object(sys, "excepthook", former):
                    worker.excepthook()
                    sys.excepthook(type(error), error, None)
                former.assert_called_once_with(type(error), error, None)
                if said:
                    got = agent.recv(2000, socket.MSG_DONTWAIT)
                    self.assertTrue(got.startswith(said) and len(got) == 512, got)

    def test_a_full_socket_holds_nothing_up(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
            agent.bind(str(self.path))
            for _ in range(1000):
                self.tell(str(self.path))
            self.assertEqual(agent.recv(2000, socket.MSG_DONTWAIT), b"STEP=7")

    def test_a_file_is_touched(self) -> None:
        self.path.touch()
        os.utime(self.path, (1, 1))
        self.tell(str(self.path))
        self.assertGreater(self.path.stat().st_mtime, 1)
        self.assertEqual(self.path.read_bytes(), b"")

    def test_without_an_agent_it_does_nothing(self) -> None:
        for path in ["", "socket", "beat", str(self.path)]:
            self.tell(path)
        self.assertFalse(self.path.exists())
        with unittest.mock.patch.dict(os.environ):
            os.environ.pop("LOCKSTEP_HEARTBEAT", None)
            worker.step(1)


class PackageTest(unittest.TestCase):
    def test_all_that_is_exported_can_be_imported(self) -> None:
        import lockstep

        for name in lockstep.__all__:
            self.assertTrue(hasattr(lockstep, name), name)
            self.assertIn(name, dir(lockstep))
        found: dict[str, object] = {}
        exec("from lockstep import *", found)
        self.assertEqual(set(lockstep.__all__) - set(found), set())
        self.assertIs(found["Group"], lockstep.Group)
        self.assertFalse(hasattr(lockstep, "missing"))

    def test_its_modules_are_attributes(self) -> None:
        text = "import lockstep; print(lockstep.client.Client is lockstep.Client, lockstep.errors.NotFound is lockstep.NotFound)"
        done = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True)
        self.assertEqual(done.stdout, "True True\n")


if __name__ == "__main__":
    unittest.main()
