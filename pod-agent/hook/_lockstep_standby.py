"""Learns what a program imports, so that its standby can import it ahead.

Only modules that are loaded already, or built into the interpreter, are imported here: a user's own
file may have the name of any other. Nothing here may raise, print, or stay open.
"""

import os
import sys
import time
from _thread import allocate_lock, get_ident

MAGIC = (0x314B534C).to_bytes(4, "little")
HEADER = 8
LARGEST = 256 * 1024
# Of a module's name, and of another line.
LONGEST, LONGEST_LINE = 200, 4096
# How long it tries while another process writes.
TRIES, PAUSE = 100, 0.0001
# What the interpreter calls to import a module. Who only looks whether there is one calls another.
IMPORTS = "_find_and_load_unlocked"
# Options of the interpreter that take a value, and those that end the options.
VALUES, LAST = "WX", "cm"
# Variables that libraries read when they are loaded: beginnings of names, and whole names.
PREFIXES = (
    "LD_", "PYTHON", "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "VECLIB_",
    "MALLOC_", "CUDA_", "NVIDIA_", "NCCL_", "TORCH_", "PYTORCH_", "TF_", "XLA_", "JAX_", "TPU_",
    "HF_", "TRANSFORMERS_", "LC_", "CONDA_",
)  # fmt: skip
NAMES = ("GLIBC_TUNABLES", "LANG", "LANGUAGE", "TZ", "TZDIR", "HOME", "PATH", "VIRTUAL_ENV")
# Read when it is used, and set for ranks by the agent itself.
LATER = ("PYTHON_EXEC",)
# Variables that each attempt, or each rank, has for itself: beginnings of names, and whole names.
OWN = "LOCKSTEP_"
LATE_PREFIXES = (OWN, "MASTER_", "TORCHELASTIC_")
LATE = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK")
# A rank's standby has that of the attempt before.
ATTEMPT = b"LOCKSTEP_RESTART_ATTEMPT"
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

    def names(self, descriptor=None):
        """How many bytes there are, and the lines, in the order in which they were written.

        A line is a module; `/FOLDER` that is looked in before the interpreter's own from here on; or
        `=NAME=VALUE` or `=NAME`: a variable that the program has set or removed itself.
        """
        text = os.pread(self.descriptor if descriptor is None else descriptor, LARGEST, 0)
        if text[:4].strip(b"\0") and text[:4] != MAGIC:
            raise ValueError("the list has another form")
        used = int.from_bytes(text[4:HEADER], "little")
        return used, [line for line in text[HEADER : HEADER + used].decode("ascii", "replace").split("\n") if line]

    def let_go(self):
        """Keeps the descriptor from the program."""
        path = "/proc/%d/fd/%d" % (os.getppid(), self.descriptor)
        try:
            # The parent may be another program: its pipe would have to wait for a reader.
            same = self.identify(os.stat(path)) == self.identity
            if same:
                os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except OSError:
            same = False
        if same:
            os.close(self.descriptor)
            self.descriptor, self.path = -1, path
            return
        self.descriptor = raised(self.descriptor)

    def open(self):
        """A descriptor that no other process writes through meanwhile."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC) if self.path else self.descriptor
        try:
            if self.identify(os.fstat(descriptor)) != self.identity:
                raise OSError("the descriptor is another file's now")
            for _ in range(TRIES):
                try:
                    os.lockf(descriptor, os.F_TLOCK, 0)
                    return descriptor
                except OSError:
                    time.sleep(PAUSE)
            raise OSError("the list is in use")
        except BaseException:
            if self.path:
                os.close(descriptor)
            raise

    def close(self, descriptor):
        if self.path:
            os.close(descriptor)
        else:
            os.lockf(descriptor, os.F_ULOCK, 0)


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
        # Set where an import would not be imported in the same way by a standby.
        self.closed = False
        self.mutex, self.holder = allocate_lock(), None
        self.path, self.environment = list(sys.path), dict(os.environ._data)
        # The agent sees that the program runs with the hook.
        self.write([], "")

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
        thread = get_ident()
        # A handler of a signal may come here while this is under way.
        if self.closed or os.getpid() != self.process or self.holder == thread:
            return
        if not self.mutex.acquire(True, TRIES * PAUSE):
            return
        try:
            self.holder = thread
            self.closed = True
            self.seen.add(name)
            lines = [line for line in self.circumstances() if line not in self.seen]
            simple = name.isascii() and name.replace(".", "").replace("_", "").isalnum() and len(name) <= LONGEST
            if all(line.isascii() and line.isprintable() and len(line) <= LONGEST_LINE for line in lines):
                self.closed = not self.write(lines, name if simple else "")
        finally:
            self.holder = None
            self.mutex.release()

    def write(self, lines, name):
        """Appends lines, and a module's name. Returns true if there was room."""
        descriptor = self.list.open()
        try:
            header = os.pread(descriptor, HEADER, 0)
            if int.from_bytes(header[4:], "little") != self.used:
                # Another process writes, too.
                self.used, others = self.list.names(descriptor)
                self.seen.update(others)
                lines = [line for line in lines if line not in others]
                name = "" if name in others else name
            text = "".join(line + "\n" for line in [*lines, name] if line).encode("ascii")
            end = HEADER + self.used
            if end + len(text) > LARGEST:
                return False
            for offset, length in self.failed():
                os.pwrite(descriptor, b"\n" * length, offset)
            self.seen.update(lines)
            self.used += len(text)
            os.pwrite(descriptor, text, end)
            os.pwrite(descriptor, MAGIC + self.used.to_bytes(4, "little"), 0)
            if name:
                self.open.append((HEADER + self.used - len(name) - 1, name, get_ident()))
            return True
        finally:
            self.list.close(descriptor)

    def circumstances(self):
        """What the program has changed for the imports that follow: folders to look in, the environment."""
        lines = []
        if sys.path != self.path:
            library = os.path.dirname(os.__file__)
            end = sys.path.index(library) if library in sys.path else len(sys.path)
            lines += [os.path.abspath(place) for place in sys.path[:end] if place not in self.path]
            self.path = list(sys.path)
        now, before = os.environ._data, self.environment
        if now != before:
            for raw in sorted({*now, *before}):
                name, value = os.fsdecode(raw), now.get(raw)
                if value != before.get(raw) and name not in LATER and not name.startswith(OWN):
                    lines.append("=" + name if value is None else "=%s=%s" % (name, os.fsdecode(value)))
            self.environment = dict(now)
        return lines

    def failed(self):
        """Where the names are whose import has failed: to import them ahead would fail, too."""
        places = []
        while self.open:
            offset, name, thread = self.open[-1]
            module = sys.modules.get(name)
            if module is None and thread == get_ident():
                places.append((offset, len(name)))
            elif module is not None and initializing(module):
                break
            self.open.pop()
        return places


def is_read_at_load(name):
    """Reports if libraries may have read a variable already."""
    return name not in LATER and (name in NAMES or name.startswith(PREFIXES))


def is_late(name):
    """Reports if a standby gets a variable only when it is released."""
    return name in LATE or name.startswith(LATE_PREFIXES)


def initializing(module):
    """Reports if a module's import has not ended."""
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
