"""Programs that must behave with the hook, and from a standby, as they do without."""

import textwrap
import zipapp
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

MAIN = "{dir}/main.py"
# Says all that a program is told about itself.
SELF = """
    import json, os, sys, threading
    told = {name: os.environ[name] for name in sorted(os.environ)}
    print(json.dumps([sys.argv, sys.path, list(sys.flags), sys.warnoptions, sys._xoptions, told]))
    print(sys.executable, sys.prefix, sys.base_prefix, getattr(sys, "orig_argv", ""))
    print(globals().get("__file__"), __name__, __package__, __spec__, globals().get("__cached__"), __loader__)
    print(sorted(globals()), sys.modules["__main__"].__dict__ is globals(), sys._getframe().f_back)
    print(sorted(os.listdir("/proc/self/fd")), os.getcwd(), os.umask(0o22))
    print(threading.main_thread() is threading.current_thread(), threading.active_count())
    print(sys.stdin, sys.stdout, sys.stderr, sys.stdout.line_buffering, sys.stderr.line_buffering)
    print([name for name in sys.modules if "lockstep" in name or "custom" in name], sys.getrecursionlimit())
"""
LONG = "x" * 100_000


@dataclass(frozen=True)
class Program:
    """A row of the table."""

    name: str
    # The text of main.py, or the texts of files.
    files: str | dict[str, str]
    words: tuple[str | bytes, ...] = (MAIN,)
    environment: dict[str, str | bytes] = field(default_factory=dict)
    stdin: str = ""
    folder: str = ""
    since: tuple[int, int] = (3, 8)
    # What a standby may refuse.
    refused: str = ""
    # Makes more in the folder: given the interpreter and the folder.
    prepare: Callable[[str, Path], None] | None = None
    # If the interpreter is another one then.
    python: str = ""
    # In every version of Python; others only in the oldest and the newest.
    every: bool = False
    # The standby is given its standard streams when it is released.
    given: bool = False

    def write(self, folder: Path) -> None:
        texts = {"main.py": self.files} if isinstance(self.files, str) else self.files
        for name, text in texts.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")


def make_zipapp(python: str, folder: Path) -> None:
    zipapp.create_archive(folder / "app", folder / "app.pyz", compressed=True)


def make_venv(python: str, folder: Path) -> None:
    import subprocess

    subprocess.run([python, "-m", "venv", "--without-pip", folder / "venv"], check=True)


def ends(name: str, text: str, **more) -> Program:
    """A program that ends in a certain way."""
    return Program(f"ends: {name}", text, **more)


IN_SPAWNED = """
    import multiprocessing, pickle, sys, os
    class Thing:
        def __init__(self, value): self.value = value
    def work(queue, thing):
        print("child", type(thing).__module__, thing.value, flush=True)
        queue.put(pickle.dumps(Thing(thing.value + 1)))
        print(os.environ.get("PYTHONPATH"), os.environ.get("LOCKSTEP_HOOK"), sys.argv, sys.path, flush=True)
    if __name__ == "__main__":
        context = multiprocessing.get_context("METHOD")
        queue = context.SimpleQueue()
        child = context.Process(target=work, args=(queue, Thing(1)))
        child.start()
        print(pickle.loads(queue.get()).value, pickle.dumps(Thing(3)))
        child.join()
        print(child.exitcode)
        with context.Pool(2) as pool:
            print(pool.map(abs, [-1, -2]))
"""

PROGRAMS = [
    Program("itself", SELF, (MAIN, "a", "-b", "--", ""), every=True),
    Program("itself, streams given", SELF, given=True, stdin="in"),
    Program("-c", "", ("-c", textwrap.dedent(SELF), "-m", "x"), every=True),
    Program("-c in one word", "", ("-cimport sys; print(sys.argv)", "-c")),
    Program("-m module", {"mod.py": SELF}, ("-m", "mod", "x"), every=True),
    Program("-m package", {"pack/__init__.py": "print(__name__)", "pack/__main__.py": SELF}, ("-mpack",)),
    Program("-m module of a package", {"p/__init__.py": "", "p/q.py": SELF + "from . import q"}, ("-m", "p.q")),
    Program("-m of the library", "", ("-m", "json.tool", "--compact", "{dir}/in.json"), every=True,
            prepare=lambda _, folder: (folder / "in.json").write_text('{"a": [1, 2]}') and None),
    Program("-m, missing", "", ("-m", "no_such_module.at_all")),
    Program("-m, imported before", {"p/__init__.py": "import p.q", "p/q.py": "print(__name__)"}, ("-m", "p.q")),
    Program("stdin, no argument", "", (), stdin=textwrap.dedent(SELF), every=True),
    Program("stdin, -", "", ("-", "a"), stdin="import sys, csv\nprint(sys.argv, sys.stdin.read())\n", given=True),
    Program("stdin is read", "import sys, json\nprint(sys.stdin.readline(), sys.stdin.read())", stdin="a\nb\n" * 3000),
    Program("stdin is read, given", "import sys, csv\nprint(sys.stdin.buffer.tell(), sys.stdin.read())",
            stdin="a\nb\n", given=True),
    Program("folder", {"app/__main__.py": SELF, "app/own.py": ""}, ("{dir}/app", "x")),
    Program("zipapp", {"app/__main__.py": SELF + "import own\nprint(own.__file__)", "app/own.py": "import csv"},
            ("{dir}/app.pyz", "x"), prepare=make_zipapp, every=True),
    Program("relative path, elsewhere", {"sub/main.py": SELF, "x": ""}, ("../sub/main.py",), folder="work"),
    Program("link to a script", {"real/main.py": "import own", "real/own.py": "print(__file__)"}, ("{dir}/link.py",),
            prepare=lambda _, folder: (folder / "link.py").symlink_to("real/main.py")),
    Program("own modules", {"main.py": "import own, json\nfrom pack import part", "own.py": "import csv\nprint(csv)",
                            "pack/__init__.py": "", "pack/part.py": "print(__file__)"}, every=True),
    Program("own PYTHONPATH", {"main.py": SELF + "import own", "lib/own.py": "import csv\nprint(__file__)"},
            environment={"PYTHONPATH": "{dir}/lib:/nowhere"}, every=True),
    Program("empty PYTHONPATH", SELF, environment={"PYTHONPATH": ""}),
    Program("relative PYTHONPATH", SELF, environment={"PYTHONPATH": ":lib"}),
    Program("own random", {"main.py": "import random, csv\nprint(random)", "random.py": "x = 1"}, every=True),
    Program("own module under an import", {"main.py": "import statistics", "numbers.py": "import sys; sys.exit(5)"},
            refused="shadowed numbers", every=True),
    Program("own module in PYTHONPATH under an import", {"main.py": "import sched", "lib/heapq.py": ""},
            environment={"PYTHONPATH": "{dir}/lib"}, refused="shadowed heapq"),
    Program("own socket, types, time", {"main.py": "import types, time, socket\nprint(time, types, socket)",
                                        "socket.py": "", "types.py": "import enum", "time.py": ""},
            refused="shadowed types"),
    Program("-u", SELF, ("-u", MAIN), every=True),
    Program("-u, given", SELF, ("-u", MAIN), given=True),
    Program("-X dev", SELF + "    open('/dev/null')", ("-X", "dev", MAIN)),
    Program("-X utf8", SELF, ("-Xutf8", MAIN), {"LC_ALL": "C"}),
    Program("LC_ALL=C", "import json; print(ascii(__import__('sys').stdout.encoding), '\\u00e9')", environment={"LC_ALL": "C"}),
    Program("-W error", "import csv, warnings\nwarnings.warn('as an error')", ("-W", "error", MAIN), every=True),
    Program("-b and others", SELF, ("-bqsB", MAIN)),
    Program("-P", SELF, ("-P", MAIN), since=(3, 11)),
    Program("-O", "def f():\n    'doc'\nassert False\nprint(__debug__, f.__doc__)\nimport csv", ("-O", MAIN)),
    Program("-OO", "def f():\n    'doc'\nassert False\nprint(__debug__, f.__doc__)\nimport csv", ("-OO", MAIN)),
    ends("None", "import sys, json; sys.exit()"),
    ends("300", "import sys, json; sys.exit(300)", every=True),
    ends("-1", "import sys; sys.exit(-1)"),
    ends("big", "import sys; sys.exit(1 << 70)"),
    ends("text", "import sys, json; sys.exit('because')", every=True),
    ends("object", "import sys; sys.exit([1, None])"),
    ends("os._exit", "import os, csv; print('lost', end=''); os._exit(7)"),
    ends("exception", """
        import json
        def inner(): json.loads("{")
        try: inner()
        except ValueError as error: raise KeyError("x") from error
    """, every=True),
    ends("syntax error", "import json\nif:\n"),
    ends("no script", {}, words=("{dir}/none.py",)),
    ends("excepthook", "import sys\nsys.excepthook = lambda *e: print(e[0], e[2].tb_frame.f_back)\n1/0"),
    ends("atexit", """
        import atexit, csv, sys
        for n in range(3): atexit.register(print, n)
        atexit.register(lambda: 1/0)
        sys.exit(4)
    """),
    ends("in a thread", """
        import threading
        def fail(): raise ValueError("x")
        one = threading.Thread(target=fail, name="one"); one.start(); one.join(); print("on")
    """),
    ends("SIGINT", "import os, signal, json\nos.kill(os.getpid(), signal.SIGINT)\nfor _ in range(9): pass", every=True),
    ends("SIGINT, caught", """
        import os, signal, time, csv
        print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
        try: os.kill(os.getpid(), signal.SIGINT); time.sleep(9)
        except KeyboardInterrupt: print("caught")
    """, every=True),
    ends("SIGTERM", "import os, signal, json; print(1, flush=True); os.kill(os.getpid(), 15)"),
    ends("SIGTERM, handled", """
        import os, signal, sys
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
        os.kill(os.getpid(), 15)
    """),
    ends("abort", "import faulthandler, os, json; faulthandler.enable(); os.abort()", every=True),
    ends("SIGSEGV", "import os, json, signal; os.kill(os.getpid(), signal.SIGSEGV)"),
    ends("recursion", "import json\ndef f(n): return f(n + 1)\ntry: f(0)\nexcept RecursionError as e: print(e)\nf(0)"),
    Program("depth", "import sys, json\nn = 0\ndef f():\n    global n; n += 1; f()\ntry: f()\nexcept RecursionError: print(n)"),
    *(Program(f"multiprocessing {how}", IN_SPAWNED.replace("METHOD", how), every=how == "spawn")
      for how in ("spawn", "fork", "forkserver")),
    Program("threads", """
        import concurrent.futures, threading
        with concurrent.futures.ThreadPoolExecutor(4) as pool: print(sum(pool.map(int, "1234")))
        print(threading.main_thread().name, threading.get_ident() == threading.main_thread().ident)
    """),
    Program("asyncio", """
        import asyncio, sys
        async def main():
            child = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(1)")
            return await child.wait()
        print(asyncio.run(main()))
    """, every=True),
    Program("children", """
        import subprocess, sys
        text = "import os, sys; print(sorted(os.environ.items()), sys.path, sorted(os.listdir('/proc/self/fd')))"
        subprocess.run([sys.executable, "-c", text])
        subprocess.run("env | sort; echo $PYTHONPATH", shell=True)
    """, environment={"PYTHONPATH": "{dir}/lib"}, every=True),
    Program("child, PYTHONPATH unset", "import os; os.system('env | grep -e PYTHONPATH -e LOCKSTEP; true')"),
    Program("another interpreter in the process", """
        try: import _interpreters as them
        except ImportError: import _xxsubinterpreters as them
        run = getattr(them, "exec", None) or them.run_string
        run(them.create(), "import sys; print(sys.path, 'sitecustomize' in sys.modules, len(sys.meta_path), flush=True)")
    """, environment={"PYTHONPATH": "{dir}/lib"}),
    Program("fork", "import os, json\nif os.fork() == 0: import csv; os._exit(3)\nprint(os.wait()[1], flush=True)"),
    Program("exec", "import os, sys, csv\nos.execv(sys.executable, [sys.executable, '-c', 'import sys; print(sys.path)'])"),
    Program("huge argv and environment", "import sys, os\nprint(len(sys.argv[1]), len(os.environ['BIG']), os.environ['Z'])",
            (MAIN, LONG), {"BIG": LONG, "Z": "a=b\nc"}, every=True),
    Program("bytes that are no UTF-8", "import sys, os, json\nprint(ascii(sys.argv), ascii(os.environ['ODD']))",
            (MAIN, b"\xff\xfe"), {"ODD": b"\xe9\n"}),
    Program("own sitecustomize", {"main.py": SELF, "lib/sitecustomize.py": "import csv; print(__name__, __file__)"},
            environment={"PYTHONPATH": "{dir}/lib"}, refused="sitecustomize", every=True),
    Program("sitecustomize that fails", {"main.py": "import json", "lib/sitecustomize.py": "import no_such"},
            environment={"PYTHONPATH": "{dir}/lib"}, refused="sitecustomize"),
    Program("own usercustomize", {"main.py": SELF, "lib/usercustomize.py": "print(__name__)"},
            environment={"PYTHONPATH": "{dir}/lib"}, refused="usercustomize"),
    Program("user site", {"main.py": "import site, sys, json\nprint(site.USER_SITE, sys.path)"},
            environment={"PYTHONUSERBASE": "{dir}/base", "PYTHONSTARTUP": "{dir}/none.py"}),
    Program("venv", SELF, python="{dir}/venv/bin/python", prepare=make_venv, every=True),
    Program("getsource", "import inspect\ndef f(): pass\nprint(inspect.getsource(f), inspect.getsourcefile(inspect))"),
    Program("print_stack", "import traceback, warnings\ntraceback.print_stack()\nwarnings.warn('here', stacklevel=2)"),
    Program("-c, stack", "", ("-c", "import traceback, warnings; traceback.print_stack(); warnings.warn('x', stacklevel=2); 1/0")),
    Program("much output", "import json\nfor n in range(20000): print(n)", given=True),
    Program("no descriptor kept", """
        import os
        os.closerange(3, 1024)
        with open("/proc/self/cmdline") as file: print(file.fileno())
        import csv, json, tempfile
        print(sorted(os.listdir("/proc/self/fd")))
    """),
    Program("sets variables before it imports", """
        import os
        os.environ["OMP_NUM_THREADS"] = "3"
        os.environ.pop("TZ")
        os.environ["HF_X"] = "a\\n"
        import csv, decimal
        print(sorted(os.environ.items()))
    """, environment={"TZ": "UTC"}),
    Program("adds folders to sys.path", {"main.py": """
        import sys
        sys.path.insert(0, "lib")
        import sched, csv
        print(csv.__file__)
    """, "lib/csv.py": "", "lib/xml/__init__.py": ""}, every=True),
    Program("adds folders to sys.path under an import", {"main.py": """
        import sys
        sys.path.insert(0, "lib")
        import sched
    """, "lib/heapq.py": ""}, refused="shadowed heapq"),
    Program("files of others", {"main.py": "import data, wandb\nprint(data.__path__, wandb)", "data/x": "", "wandb/x": ""}),
]  # fmt: skip
