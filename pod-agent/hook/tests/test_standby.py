"""What a standby imports and what it refuses to hold, and how it becomes the program."""

import json
import os
import select
import signal
import socket
import subprocess
import unittest
from pathlib import Path

from case import TOLD, StandbyTest


class Imports(StandbyTest):
    def test_imports_what_is_listed(self) -> None:
        self.list.write(["csv", "no_such_module", "xml", "xml.dom", "xml.dom.none", "decimal"])
        standby = self.standby(skip="decimal,cmd")
        self.assertRegex(standby.wait_for("ready"), r"^ready [1-9]\d* \d{4,} \d+$")
        self.assertEqual(["importing csv", "importing xml", "importing xml.dom"], standby.heard[:-1])

    def test_what_is_listed_later(self) -> None:
        self.list.write(["csv"])
        standby = self.standby()
        standby.wait_for("ready")
        self.list.write(["csv", "decimal"])
        self.assertTrue(standby.wait_for("ready"))
        self.assertIn("importing decimal", standby.heard)
        self.assertLessEqual({"csv", "decimal"}, set(self.released(standby)["modules"]))

    def test_never_imports_the_users_own(self) -> None:
        ran = self.folder / "ran"
        for folder in ("script", "path", "editable"):
            (self.folder / folder).mkdir()
            text = f"open({str(ran)!r}, 'a').write({folder!r})"
            (self.folder / folder / f"own_{folder}.py").write_text(text)
        pth = self.packages / "editable.pth"
        pth.write_text(f"{self.folder / 'editable'}\n")
        self.addCleanup(pth.unlink)
        self.list.write(["own_script", "own_path", "own_editable", "csv"])
        command = self.program("print(1)", "script/main.py")
        standby = self.standby(command, environment=self.environment | {"PYTHONPATH": str(self.folder / "path")})
        standby.wait_for("ready")
        self.assertEqual(["importing csv"], standby.heard[:-1])
        self.install("module_x", "import own_editable")
        self.list.write(["csv", "module_x"])
        standby = self.standby(command)
        self.assertEqual("", standby.wait_for("ready"))
        self.assertEqual("spoiled module_x user own_editable", standby.heard[-1])
        self.assertEqual(121, standby.process.wait())
        self.assertFalse(ran.exists())

    def test_what_an_import_has_written_itself(self) -> None:
        # As torch.distributed.nn does, which torch._dynamo imports.
        self.install("module_x", """
            import os, sys, tempfile
            made = tempfile.TemporaryDirectory()
            sys.path.append(made.name)
            with open(os.path.join(made.name, "made_here.py"), "w") as file:
                file.write("x = 1")
            import made_here
            """)
        self.list.write(["module_x"])
        self.assertLessEqual({"module_x", "made_here"}, set(self.released(self.standby())["modules"]))
        # A folder of the user's own is none, whatever adds it.
        own = self.folder / "own"
        own.mkdir(mode=0o700)
        (own / "own_module.py").write_text("")
        self.assertEqual(("spoiled module_x user own_module", 121), self.fails(f"import sys; sys.path.append({str(own)!r}); import own_module"))
        text = f"import sys, tempfile; sys.path.append(tempfile.mkdtemp(dir={str(self.folder)!r})); "
        text += "name = sys.path[-1]; open(name + '/made_there.py', 'w').close(); import os; os.chmod(name, 0o755); import made_there"
        self.assertEqual(("spoiled module_x user made_there", 121), self.fails(text))

    def test_variables_that_the_program_sets_before_it_imports(self) -> None:
        self.install("module_x", "import os; seen = [os.environ.get(n) for n in ('OMP_NUM_THREADS', 'TF_X', 'TZ')]")
        program = self.program("""
            import os
            before = [os.environ.get(n) for n in ("OMP_NUM_THREADS", "TF_X", "TZ")]
            os.environ.update({"OMP_NUM_THREADS": "7", "TF_X": "1"})
            os.environ.pop("TZ")
            import module_x
            print(before, module_x.seen)
        """)
        environment = self.environment | {"TZ": "UTC"}
        told = "['2', None, 'UTC'] ['7', '1', None]\n"
        self.assertEqual(told, self.run_hooked(program, environment).stdout)
        self.assertLessEqual({"=OMP_NUM_THREADS=7", "=TF_X=1", "=TZ"}, set(self.list.names()))
        standby = self.standby(program, environment=environment)
        self.wait_until_ready(standby)
        self.assertIn("importing module_x", standby.heard)
        standby.start()
        self.assertEqual(told, standby.process.communicate()[0].decode())

    def test_any_variable_that_the_program_sets_before_it_imports(self) -> None:
        self.install("module_x", "import os; seen = os.environ.get('BACKEND')")
        program = self.program("import os; os.environ['BACKEND'] = 'b'; import module_x; print(module_x.seen)")
        self.assertEqual("b\n", self.run_hooked(program).stdout)
        standby = self.standby(program)
        self.wait_until_ready(standby)
        standby.start("LOCKSTEP_RESTART_ATTEMPT=2")
        self.assertEqual(b"b\n", standby.process.communicate()[0])

    def test_imports_that_read_what_comes_with_the_release(self) -> None:
        for name in ("RANK", "MASTER_PORT", "LOCKSTEP_HEARTBEAT"):
            for read in (f"os.getenv({name!r})", f"{name!r} in os.environ", f"os.environb.get({name.encode()})"):
                self.assertEqual((f"spoiled module_x reads {name}", 121), self.fails(f"import os; x = {read}"))
        self.install("module_x", """
            import os
            seen = [os.getenv("RANK"), os.getenv("NONE"), os.environ.pop("OLD"), len(dict(os.environ)) > 3]
            os.environ["MINE"] = "1"
        """)
        self.install("module_y", "import os; seen = os.environ['LOCKSTEP_RESTART_ATTEMPT']")
        environment = self.environment | {"RANK": "3", "OLD": "1", "LOCKSTEP_RESTART_ATTEMPT": "1"}
        self.list.write(["module_x"])
        standby = self.standby(
            self.program("""
                import module_x, os
                print(module_x.seen, [os.getenv(n) for n in ("RANK", "OLD", "MINE", "LOCKSTEP_RESTART_ATTEMPT")])
                os.environb[b"X"] = b"y"
                print(os.environ["X"], type(os.environ._data))
            """),
            environment=environment,
        )
        self.wait_until_ready(standby)
        standby.start("LOCKSTEP_RESTART_ATTEMPT=2")
        told = "['3', None, '1', True] ['3', None, '1', '2']\ny <class 'dict'>\n"
        self.assertEqual(told, standby.process.communicate()[0].decode())
        self.list.write(["module_y"])
        standby = self.standby(environment=environment)
        standby.wait_for("ready")
        self.assertEqual("spoiled module_y reads LOCKSTEP_RESTART_ATTEMPT", standby.heard[-1])

    def test_imports_that_fork(self) -> None:
        """Their children say nothing, keep out nothing, and never become the program."""
        self.install("module_x", """
            import os, sys
            sys.path.insert(0, sys.prefix)
            codes = []
            for end in ("sys.exit()", "sys.exit(7)", "sys.exit('x')", "1/0", "import own; os._exit(own.x)", "", "os.getenv('RANK')"):
                if os.fork() == 0:
                    exec(end)
                    break
                codes.append(os.WEXITSTATUS(os.wait()[1]))
            sys.path.pop(0)
        """)
        own = self.base / "venv/own.py"
        own.write_text("x = 9")
        self.addCleanup(own.unlink)
        self.list.write(["module_x", "csv"])
        standby = self.standby(self.program("import module_x; print(module_x.codes)"))
        self.wait_until_ready(standby)
        self.assertEqual(["importing module_x", "importing csv"], standby.heard[:-1])
        standby.start()
        self.assertEqual(b"[0, 7, 1, 1, 9, 121, 121]\n", standby.process.communicate()[0])

    def test_imports_that_fail(self) -> None:
        self.assertEqual(("failed module_x ValueError: no good", 121), self.fails("raise ValueError('no\\ngood')"))
        self.assertEqual(("failed module_x SystemExit", 121), self.fails("raise SystemExit(3)"))
        self.assertEqual(("importing module_x", 9), self.fails("import os; os._exit(9)"))
        self.assertEqual(("importing module_x", -11), self.fails("import os; os.kill(os.getpid(), 11)"))

    def test_imports_that_hold_something(self) -> None:
        self.assertEqual(("spoiled module_x socket", 121), self.fails("import socket; s = socket.create_server(('', 0))"))
        udp = "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('', 0))"
        self.assertEqual(("spoiled module_x socket", 121), self.fails(udp))
        path = self.folder / "log"
        self.assertEqual((f"spoiled module_x writes {path}", 121), self.fails(f"f = open({str(path)!r}, 'w')"))

    def test_devices(self) -> None:
        """Those of all vendors, which this machine may not have."""
        held = ["/dev/nvidia0", "/dev/kfd", "/dev/dri/renderD128", "/dev/accel0", "/dev/infiniband/uverbs0", "/dev/neuron0"]
        free = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/shm/x", "/dev/pts/0", "pipe:[1]"]
        text = f"import sys; sys.path.insert(0, {str(self.hook)!r}); import _lockstep_wait as w"
        text += f"; print(*(path for path in {held + free} if w.spoils('0', path)))"
        ran = subprocess.run([self.python, "-c", text], capture_output=True, text=True, check=True)
        self.assertEqual(held, ran.stdout.split())
        self.install("module_x", "files = [open('/dev/' + name) for name in ('null', 'zero', 'urandom')]")
        self.list.write(["module_x"])
        self.wait_until_ready(self.standby())

    def test_the_program_is_not_imported(self) -> None:
        self.install("module_y", "print(__name__)")
        self.install("module_x", "import module_y")
        self.list.write(["csv", "module_y"])
        command = [self.python, "-m", "module_y"]
        standby = self.standby(command)
        standby.wait_for("ready")
        self.assertEqual(["importing csv"], standby.heard[:-1])
        standby.start()
        self.assertEqual(b"__main__\n", standby.process.communicate()[0])
        self.list.write(["module_x"])
        standby = self.standby(command)
        standby.wait_for("ready")
        self.assertEqual("spoiled module_x main module_y", standby.heard[-1])

    def test_output_of_imports_is_not_shown(self) -> None:
        self.install("module_x", "import os, sys; print(1); print(2, file=sys.stderr); os.system('echo 3; echo 4 >&2')")
        self.list.write(["module_x"])
        standby = self.standby(self.program("import module_x; print(5)"), stderr=subprocess.STDOUT)
        standby.wait_for("ready")
        standby.start()
        self.assertEqual(b"5\n", standby.process.communicate()[0])


class Releases(StandbyTest):
    def test_environment_and_mask(self) -> None:
        self.list.write(["multiprocessing.process", "csv", "ctypes", "_ctypes", "struct", "_struct"])
        environment = self.environment | {"OLD": "1", "CHANGED": "1", "ODD": "\udcff"}
        standby = self.standby(environment=environment, preexec_fn=lambda: os.umask(0o22) and None)
        told = self.released(standby, "NEW=2=3", "CHANGED=", "OLD", "=umask63")
        expected = environment | {"NEW": "2=3", "CHANGED": ""}
        del expected["OLD"]
        told["environment"].pop("LC_CTYPE", None)
        self.assertEqual(expected, told["environment"])
        self.assertEqual(["b'2=3'", 0o77], [told["C"], told["umask"]])

    def test_environment_that_libraries_have_read(self) -> None:
        for change in ("OMP_NUM_THREADS=4", "OMP_NUM_THREADS", "LD_PRELOAD=x", "PATH=/x", "TZ=UTC", "PYTHONPATH=/x"):
            name = change.partition("=")[0]
            self.assertEqual(f"refused environment {name}", self.refused(self.standby(), "NEW=1", change))
        allowed = ("OMP_NUM_THREADS=2", "TORCHELASTIC_RUN_ID=1", "PATHS=1", "PYTHON_EXEC=x", "LOCKSTEP_ATTEMPT=2")
        self.assertEqual("2", self.released(self.standby(), *allowed)["environment"]["OMP_NUM_THREADS"])

    def test_environment_that_an_import_has_set(self) -> None:
        self.install("module_x", "import os; os.environ['MINE'] = 'x'; os.environ['OTHER'] = 'y'")
        self.list.write(["module_x"])
        self.assertEqual("refused environment MINE", self.refused(self.standby(), "MINE=z"))
        self.assertEqual("x", self.released(self.standby(), "NEW=z")["environment"]["MINE"])

    def test_three_descriptors(self) -> None:
        standby = self.standby(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.wait_until_ready(standby)
        reader, writer = os.pipe()
        with open(os.devnull, "rb") as stdin, open(self.folder / "errors", "wb") as errors:
            standby.start(descriptors=(stdin.fileno(), writer, errors.fileno()))
            inodes = [os.fstat(n).st_ino for n in (stdin.fileno(), writer, errors.fileno())]
        os.close(writer)
        with open(reader, "rb") as file:
            told = json.loads(file.read())
        self.assertEqual(inodes, told["streams"])
        self.assertEqual(["0", "1", "2", "3"], told["descriptors"])

    def test_a_release_while_it_imports(self) -> None:
        self.list.write(["csv", "asyncio", "decimal", "http", "http.server"])
        standby = self.standby()
        self.assertEqual("importing csv", standby.hear())
        standby.start("NEW=1")
        self.assertEqual("started", standby.wait_for("started", "ready"))
        self.assertEqual("1", json.loads(standby.process.communicate()[0])["environment"]["NEW"])

    def test_memory_score_while_it_waits(self) -> None:
        before = Path("/proc/self/oom_score_adj").read_text()
        standby = self.standby()
        self.wait_until_ready(standby)
        self.assertEqual("1000\n", Path(f"/proc/{standby.process.pid}/oom_score_adj").read_text())
        self.assertEqual(before, self.released(standby)["score"])

    def test_signals(self) -> None:
        told = self.released(self.standby())
        self.assertTrue(told["signals"][0].startswith("<built-in function default_int_handler"))
        self.assertIn(told["signals"][1], ("0", "Handlers.SIG_DFL"))
        for number in (signal.SIGINT, signal.SIGTERM):
            standby = self.standby()
            self.wait_until_ready(standby)
            # Parked: it waits for a message, which takes two seconds at most.
            standby.process.send_signal(number)
            self.assertEqual(-number, standby.process.wait())

    def test_end_of_the_agent_and_stop(self) -> None:
        for end in (lambda standby: standby.socket.send(b"stop"), lambda standby: standby.socket.close()):
            standby = self.standby(stderr=subprocess.STDOUT)
            self.wait_until_ready(standby)
            end(standby)
            self.assertEqual((b"", None), standby.process.communicate())
            self.assertEqual(120, standby.process.returncode)

    def test_an_interrupt_that_does_not_arrive(self) -> None:
        self.install("module_x", "import signal; signal.pthread_sigmask(0, [2]); raise KeyboardInterrupt")
        self.list.write(["module_x"])
        standby = self.standby(stderr=subprocess.STDOUT)
        self.assertEqual(b"", standby.process.communicate()[0])
        self.assertEqual(130, standby.process.returncode)

    def test_no_program_runs_that_was_given_up(self) -> None:
        """The agent does not hear any more that it goes on."""
        standby = self.standby(stderr=subprocess.STDOUT)
        self.wait_until_ready(standby)
        standby.socket.shutdown(socket.SHUT_RD)
        standby.start("NEW=1")
        self.assertEqual((b"", None), standby.process.communicate())
        self.assertEqual(120, standby.process.returncode)

    def test_no_program_runs_that_nobody_has_released(self) -> None:
        """Whatever fails: the agent is gone without having read, or the environment is not as it made it."""
        standby = self.standby(stderr=subprocess.STDOUT)
        select.select([standby.socket], [], [])
        standby.socket.close()
        self.assertEqual((b"", None), standby.process.communicate())
        self.assertEqual(120, standby.process.returncode)
        self.list.write(["csv"])
        standby = self.standby(stderr=subprocess.STDOUT)
        standby.socket.close()
        self.assertEqual((b"", None), standby.process.communicate())
        self.assertEqual(120, standby.process.returncode)
        for path, descriptors in ((f"/nowhere:{self.hook}", (99, 98)), (self.hook, (99, 98)), (self.hook, ("", ""))):
            asked = "1;wait;%s;%s;0;" % descriptors
            environment = self.environment | {"PYTHONPATH": str(path), "LOCKSTEP_HOOK": asked}
            ran = subprocess.run(self.program(TOLD), env=environment, capture_output=True, check=False)
            self.assertEqual((b"", b"", 120), (ran.stdout, ran.stderr, ran.returncode))

    def test_a_file_beside_the_program_that_has_come_since(self) -> None:
        self.list.write(["csv"])
        standby = self.standby()
        self.wait_until_ready(standby)
        (self.folder / "csv.py").touch()
        self.assertEqual("refused shadowed csv", self.refused(standby))

    def test_folders_beside_the_program_shadow_nothing(self) -> None:
        (self.folder / "csv").mkdir()
        self.list.write(["csv"])
        standby = self.standby()
        standby.wait_for("ready")
        self.assertEqual(["importing csv"], standby.heard[:-1])
        self.assertIn("csv", self.released(standby)["modules"])

    def test_a_module_that_has_changed_since(self) -> None:
        self.install("module_x", "x = 1")
        self.list.write(["module_x"])
        standby = self.standby()
        self.wait_until_ready(standby)
        self.install("module_x", "x = 2345")
        self.assertEqual("refused changed module_x", self.refused(standby))

    def test_a_list_that_cannot_be_read(self) -> None:
        os.pwrite(self.list.descriptor, b"something else", 0)
        standby = self.standby()
        self.assertRegex(standby.hear(), "^refused ")
        self.assertEqual(120, standby.process.wait())


if __name__ == "__main__":
    unittest.main()
