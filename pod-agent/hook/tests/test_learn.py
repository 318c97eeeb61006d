"""What the hook learns in a program that it does not wait in."""

import os
import struct
import subprocess
import unittest
from pathlib import Path

from agent import MAGIC, hooked
from case import StandbyTest


class Learns(StandbyTest):
    def test_form_of_the_list(self) -> None:
        self.run_hooked(self.program("import csv, json.tool"))
        raw = self.list.raw()
        magic, used = struct.unpack("<II", raw[:8])
        self.assertEqual((MAGIC, len(raw) - 8), (magic, used))
        self.assertEqual(b"LSK1", raw[:4])
        self.assertTrue(raw.endswith(b"\n"))
        names = self.list.names()
        self.assertEqual(len(names), len(set(names)))
        self.assertLess(names.index("csv"), names.index("_csv"))
        self.assertIn("json.tool", names)

    def test_that_it_runs_is_seen_when_nothing_is_learned(self) -> None:
        self.run_hooked([self.python, "-sc", "import os; os._exit(0)"])
        self.assertEqual(struct.pack("<I", MAGIC), self.list.raw()[:4])

    def test_keeps_what_attempts_before_have_learned(self) -> None:
        self.run_hooked(self.program("import csv"))
        before = self.list.raw()[8:]
        self.run_hooked(self.program("import csv, decimal"))
        self.assertTrue(self.list.raw()[8:].startswith(before))
        self.assertIn("decimal", self.list.names())

    def test_learns_also_after_a_release(self) -> None:
        standby = self.standby(self.program("import decimal"))
        standby.wait_for("ready")
        standby.start()
        standby.process.wait()
        self.assertIn("decimal", self.list.names())

    def test_where_the_agents_number_is_another(self) -> None:
        """A descriptor is kept, out of the program's way; the program may close it, and use its number."""
        text = """
            import os, csv
            number = max(map(int, os.listdir("/proc/self/fd")))
            print(number, os.open("/dev/null", os.O_RDONLY), os.get_inheritable(number))
            os.closerange(3, number + 1)
            os.dup2(os.open("file", os.O_RDWR | os.O_CREAT), number)
            import decimal
            print(os.path.getsize("file"))
        """
        listed = self.list.descriptor
        renumber = f"import os, sys; os.dup2({listed}, 201); os.close({listed}); os.execv(sys.argv[1], sys.argv[1:])"
        ran = subprocess.run(
            [self.python, "-ESc", renumber, *self.program(text)],
            env=hooked(self.environment, self.hook, "run", 201),
            pass_fds=(listed,),
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=True,
        )
        self.assertEqual(f"{min(os.sysconf('SC_OPEN_MAX'), 1024) - 1} 3 False\n0\n", ran.stdout)
        self.assertIn("csv", self.list.names())
        self.assertNotIn("decimal", self.list.names())

    def test_forks_do_not_write(self) -> None:
        self.run_hooked(self.program("import os\nif os.fork() == 0: import csv; os._exit(0)\nos.wait(); import cmd"))
        self.assertNotIn("csv", self.list.names())
        self.assertIn("cmd", self.list.names())

    def test_programs_that_learn_at_the_same_time(self) -> None:
        """Ranks of one kind share a list."""
        names = ["csv", "decimal", "cmd", "sched", "http.server", "asyncio", "xml.dom.minidom", "pdb"]
        text = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
        listed = self.list.descriptor
        ranks = [
            subprocess.Popen(
                [*self.program(text), *names[rank:], *names[:rank]],
                env=hooked(self.environment, self.hook, "run", listed),
                pass_fds=(listed,),
            )
            for rank in range(4)
        ]
        self.assertEqual([0] * 4, [rank.wait() for rank in ranks])
        learned = self.list.names()
        self.assertEqual(sorted(set(learned)), sorted(learned))
        self.assertLessEqual(set(names), set(learned))
        self.assertTrue(all(name.replace(".", "").replace("_", "").isalnum() or name[0] == "/" for name in learned))

    def test_threads(self) -> None:
        ran = self.run_hooked(self.program("""
            import importlib, threading
            def work(names):
                for name in names.split(): importlib.import_module(name)
            threads = [threading.Thread(target=work, args=(names,)) for names in ("csv sched wave", "cmd decimal pdb")]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            print("done")
        """))
        self.assertEqual("done\n", ran.stdout, ran.stderr)
        self.assertLessEqual({"csv", "sched", "cmd", "decimal"}, set(self.list.names()))

    def test_a_handler_of_a_signal_that_imports(self) -> None:
        ran = self.run_hooked(self.program("""
            import importlib, signal
            def attempt(name):
                try: importlib.import_module(name)
                except ImportError: pass
            for n in range(200):
                signal.signal(signal.SIGALRM, lambda *_: attempt("no_such_%d" % n))
                signal.setitimer(signal.ITIMER_REAL, 0.0002)
                for m in range(10): attempt("none_%d_%d" % (n, m))
            signal.setitimer(signal.ITIMER_REAL, 0)
            print("done")
        """))
        self.assertEqual("done\n", ran.stdout, ran.stderr)

    def test_only_imports_count(self) -> None:
        self.run_hooked(self.program("""
            import importlib.util
            importlib.util.find_spec("csv")
            try: import no_such_module
            except ImportError: pass
            import cmd
            importlib.import_module("decimal")
        """))
        names = set(self.list.names())
        self.assertTrue(names.isdisjoint({"csv", "no_such_module"}), names)
        self.assertLessEqual({"cmd", "decimal"}, names)

    def test_a_module_whose_import_has_failed_is_forgotten(self) -> None:
        self.install("module_x", "import csv; raise ValueError")
        self.run_hooked(self.program("try: import module_x\nexcept ValueError: import cmd\nimport decimal"))
        self.assertNotIn("module_x", self.list.names())
        self.assertLessEqual({"csv", "cmd", "decimal"}, set(self.list.names()))

    def test_odd_names_and_a_full_list(self) -> None:
        ran = self.run_hooked(self.program("""
            import importlib, importlib.machinery, sys
            class Any:
                def find_spec(self, name, path=None, target=None):
                    return importlib.machinery.ModuleSpec(name, self) if name.startswith("m") else None
                def create_module(self, spec): return None
                def exec_module(self, module): pass
            sys.meta_path.append(Any())
            for name in ("m\\n", "m\\u00e9", "m-x", "m" * 201): importlib.import_module(name)
            for n in range(3000): importlib.import_module("m" * 190 + str(n))
        """))
        self.assertEqual("", ran.stderr)
        self.assertLessEqual(len(self.list.raw()), 256 * 1024)
        self.assertGreater(len(self.list.raw()), 255 * 1024)
        self.assertTrue(all(len(name) <= 200 and name.isidentifier() for name in self.list.names() if name[0] == "m"))

    def test_a_list_that_is_none_is_left_alone(self) -> None:
        os.pwrite(self.list.descriptor, b"something else", 0)
        self.assertEqual("1\n", self.run_hooked(self.program("import csv; print(1)")).stdout)
        self.assertEqual(b"something else", self.list.raw())

    def test_without_anything_it_is_silent(self) -> None:
        for asked in (None, "", "2;run;3;-1;0;", "1;run;99;-1;0;", "1;run;x;-1;0;", "1;run"):
            environment = self.environment | {"PYTHONPATH": str(self.hook)} | ({"LOCKSTEP_HOOK": asked} if asked else {})
            text = "import csv, os, sys; print('LOCKSTEP_HOOK' in os.environ, 'PYTHONPATH' in os.environ, sys.path[0])"
            ran = subprocess.run([self.python, "-c", text], env=environment, capture_output=True, text=True, check=False)
            self.assertEqual(("False False \n", ""), (ran.stdout, ran.stderr), asked)

    def test_not_first_in_pythonpath(self) -> None:
        environment = self.environment | {"PYTHONPATH": f"/nowhere:{self.hook}", "LOCKSTEP_HOOK": "1;run;99;-1;0;"}
        command = self.program("import os, sys; print(sys.path[1], os.environ['PYTHONPATH'], 'LOCKSTEP_HOOK' in os.environ)")
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        self.assertEqual((f"/nowhere /nowhere:{self.hook} False\n", ""), (ran.stdout, ran.stderr))

    def test_a_child_that_is_given_the_first_environment(self) -> None:
        """What it inherits has the list's number by chance."""
        text = "import os, sys; print(os.listdir('/proc/self/fd'), [n for n in range(3, 40) if os.get_inheritable(n)])"
        ran = self.run_hooked(self.program(f"""
            import os, subprocess, sys
            with open("/proc/self/environ", "rb") as file:
                first = dict(entry.split(b"=", 1) for entry in file.read().split(b"\\0") if entry)
            for number in range(3, 40): os.dup2(0, number)
            for environment in (os.environ, first):
                subprocess.run([sys.executable, "-c", {text!r}], env=environment, close_fds=False)
        """))
        plain, child = ran.stdout.splitlines()
        self.assertEqual((plain, ""), (child, ran.stderr))

    def test_another_implementation(self) -> None:
        """It may have the version of a Python that is known."""
        text = "import sys; sys.implementation.name = 'pypy'; import site; site.main(); print([*sys.meta_path])"
        command = [self.python, "-Sc", text]
        ran = self.run_hooked(command)
        self.assertEqual((False, ""), ("Learner" in ran.stdout, ran.stderr))
        self.assertEqual(b"", self.list.raw())
        self.assertRegex(self.standby(command).hear(), r"^refused Python 3\.\d+ \(pypy\)$")

    def test_ranks_of_torchrun(self) -> None:
        shim = self.hook / "python"
        text = "import os, sys; print(os.environ.get('PYTHON_EXEC'), os.environ.get('LOCKSTEP_PYTHON_EXEC'))"
        command = self.program(text, "torchrun")
        self.assertEqual("None None\n", self.run_hooked(command).stdout)
        shim.symlink_to("/bin/true")
        self.addCleanup(shim.unlink)
        self.assertEqual(f"{shim} {self.python}\n", self.run_hooked(command).stdout)
        self.assertEqual("mine None\n", self.run_hooked(command, self.environment | {"PYTHON_EXEC": "mine"}).stdout)
        self.assertEqual("None None\n", self.run_hooked(self.program(text, "other")).stdout)
        package = self.folder / "torch/distributed"
        package.mkdir(parents=True)
        (package / "run.py").write_text(text)
        environment = self.environment | {"PYTHONPATH": str(self.folder)}
        command = [self.python, "-u", "-X", "dev", "-mtorch.distributed.run", "--nproc-per-node", "2"]
        self.assertEqual(f"{shim} {self.python}\n", self.run_hooked(command, environment).stdout)
        standby = self.standby(self.program(text, "torchrun"))
        standby.wait_for("ready")
        standby.start()
        self.assertEqual(f"{shim} {self.python}\n".encode(), standby.process.communicate()[0])

    def test_other_versions(self) -> None:
        """Any Python that is not known runs the program as ever."""
        for name in ("python2", "python2.7", "python3.6", "python3.7"):
            for python in sorted(Path.home().glob(f".pyenv/versions/*/bin/{name}")):
                text = "import os, sys; print([os.environ.get('PYTHONPATH'), os.environ.get('LOCKSTEP_HOOK'), sys.path[0]])"
                ran = self.run_hooked([str(python), "-c", text])
                self.assertEqual(("[None, None, '']\n", ""), (ran.stdout, ran.stderr))
                standby = self.standby([str(python), "-c", text])
                self.assertTrue(standby.hear().startswith("refused Python "))
                self.assertEqual(120, standby.process.wait())


if __name__ == "__main__":
    unittest.main()
