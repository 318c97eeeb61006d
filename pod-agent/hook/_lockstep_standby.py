"""Learns what a program imports, so that its standby can import it ahead.

Only modules that are loaded already, or built into the interpreter, are imported here: a user's own
file may have the name of any other. Nothing here may raise, print, or stay open.
"""

import os
import sys
from _thread import get_ident

MAGIC = (0x314B534C).to_bytes(4, "little")
HEADER = 8
LARGEST = 256 * 1024
LONGEST_NAME = 200
# What the interpreter calls to import a module. Who only looks whether there is one calls another.
IMPORTS = "_find_and_load_unlocked"
# Options of the interpreter that take a value, and those that end the options.
VALUES, LAST = "WX", "cm"
LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch")


class List:
    """The list of modules, in memory that the agent shares with attempts and standbys.

    If the agent's own descriptor of it can be seen in /proc, none is kept here: the program has the
    descriptors that it would have without. Otherwise a high number is kept.
    """

    def __init__(self, descriptor):
        os.set_inheritable(descriptor, False)
        self.descriptor = descriptor
        self.path = None
        self.identity = self.identify(os.fstat(descriptor))

    @staticmethod
    def identify(status):
        return status.st_dev, status.st_ino

    def names(self):
        """The names, in the order in which they were imported first."""
        text = os.pread(self.descriptor, LARGEST, 0)
        if text[:4].strip(b"\0") and text[:4] != MAGIC:
            raise ValueError("the list has another form")
        used = int.from_bytes(text[4:HEADER], "little")
        return used, [name for name in text[HEADER : HEADER + used].decode("ascii", "replace").split("\n") if name]

    def let_go(self):
        """Keeps the descriptor from the program."""
        path = "/proc/%d/fd/%d" % (os.getppid(), self.descriptor)
        try:
            # The parent may be another program: its pipe would have to wait for a reader.
            same = self.identify(os.stat(path)) == self.identity
            if same:
                os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
        except OSError:
            same = False
        if same:
            os.close(self.descriptor)
            self.descriptor, self.path = -1, path
            return
        self.descriptor = raised(self.descriptor)

    def write(self, pieces):
        """Writes pieces of text at their offsets, unless the descriptor is another file's now."""
        descriptor = self.descriptor
        if self.path:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            if self.identify(os.fstat(descriptor)) == self.identity:
                for offset, text in pieces:
                    os.pwrite(descriptor, text, offset)
        finally:
            if self.path:
                os.close(descriptor)


def raised(descriptor):
    """The descriptor at a number out of the way of the program's own."""
    highest = min(os.sysconf("SC_OPEN_MAX"), 1024) - 1
    for number in range(highest, 3, -1):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(descriptor, number, inheritable=False)
            os.close(descriptor)
            return number
    return descriptor


class Learner:
    """A finder that finds nothing, and writes down what is looked for to be imported."""

    def __init__(self, listed):
        self.list = listed
        self.process = os.getpid()
        self.used, names = listed.names()
        self.seen = set(names)
        # Modules that are being imported: offset, name, thread.
        self.open = []

    def find_spec(self, name, path=None, target=None):
        try:
            if name not in self.seen and sys._getframe(2).f_code.co_name == IMPORTS:
                self.learn(name)
        except Exception:
            pass
        return None

    def invalidate_caches(self):
        pass

    def learn(self, name):
        if os.getpid() != self.process:
            return
        self.seen.add(name)
        text = name.encode("ascii", "replace") + b"\n"
        if not name.replace(".", "").replace("_", "").isalnum() or not name.isascii():
            return
        offset, used = HEADER + self.used, self.used + len(text)
        if len(name) > LONGEST_NAME or HEADER + used > LARGEST:
            return
        pieces = self.failed()
        self.open.append((offset, name, get_ident()))
        self.used = used
        self.list.write([*pieces, (offset, text), (0, MAGIC + used.to_bytes(4, "little"))])

    def failed(self):
        """Removes the names whose import has failed: to import them ahead would fail, too."""
        pieces = []
        while self.open:
            offset, name, thread = self.open[-1]
            module = sys.modules.get(name)
            if module is None and thread == get_ident():
                pieces.append((offset, b"\n" * len(name)))
            elif module is not None and initializing(module):
                break
            self.open.pop()
        return pieces


def initializing(module):
    """Whether a module's import has not ended."""
    return getattr(getattr(module, "__spec__", None), "_initializing", False)


def command_line():
    """The interpreter's command line: how the program is named (-c, -m, script or -), and its name."""
    words = getattr(sys, "orig_argv", None)
    if words is None:
        with open("/proc/self/cmdline", "rb") as file:
            words = os.fsdecode(file.read()).split("\0")[:-1]
    words = words[1:]
    while words:
        word = words.pop(0)
        if word == "--":
            word = words.pop(0) if words else "-"
            return ("-", "") if word == "-" else ("script", word)
        if word == "-" or not word.startswith("-"):
            return ("-", "") if word == "-" else ("script", word)
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                del words[:1]
            continue
        for at, letter in enumerate(word[1:], 2):
            if letter in VALUES + LAST:
                value = word[at:] or (words.pop(0) if words else "")
                if letter in LAST:
                    return "-" + letter, value
                break
    return "-", ""


def launch(here):
    """Has torchrun start its ranks by the agent."""
    kind, name = command_line()
    launcher = os.path.basename(name) == "torchrun" if kind == "script" else kind == "-m" and name in LAUNCHERS
    shim = os.path.join(here, "python")
    if launcher and "PYTHON_EXEC" not in os.environ and sys.executable and os.path.exists(shim):
        os.environ["PYTHON_EXEC"] = shim
        os.environ["LOCKSTEP_PYTHON_EXEC"] = sys.executable


def learn(here, listed):
    """Learns from now on."""
    learner = Learner(listed)
    listed.let_go()
    sys.meta_path.insert(0, learner)
    launch(here)


def run(here, descriptor):
    """What the hook does in a worker that is started cold."""
    learn(here, List(descriptor))
