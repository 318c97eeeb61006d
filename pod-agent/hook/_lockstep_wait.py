"""A standby: imports ahead what attempts before have imported, then waits to become a worker.

It stands in `site`, before the interpreter has looked at the program. Released, it returns, and the
interpreter runs the program as ever. Nothing of the user's own is imported ahead.
"""

import os
import sys
import time

import _signal
import _socket
from _frozen_importlib import BuiltinImporter, FrozenImporter, _find_spec
from _lockstep_release import Release, Watched, refused_environment, renew_streams
from _lockstep_standby import IMPORTS, List, learn

# While importing, it sleeps three times as long as it has computed, for 2 s at a time at most.
REST, LONGEST_REST = 3, 2.0
# How often it looks whether there is more to import.
LOOK = 2.0
# Never 0: it is no success of the worker.
REFUSED, SPOILED = 120, 121
# Files in /dev that are no devices of the program.
HARMLESS = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
HARMLESS_FOLDERS = ("/dev/shm/", "/dev/pts/")


class Guard:
    """The first of the finders while a standby imports: keeps out what is not the interpreter's own."""

    def __init__(self, standby):
        self.standby = standby
        # What was looked for outside of packages: a file beside the program may be found instead.
        self.looked = set()
        self.admitted = 0
        # The files of modules, and how they were when they were imported.
        self.files = {}

    def invalidate_caches(self):
        pass

    def find_spec(self, name, path=None, target=None):
        imports = sys._getframe(2).f_code.co_name == IMPORTS
        spec = None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                break
        if self.standby.is_importing():
            self.look(name, spec)
            if spec is not None and imports:
                self.admit(name, spec)
                self.standby.rest()
        return spec

    def look(self, name, spec):
        """Keeps what was looked for. Ends the standby if the program would find something else."""
        if "." not in name and name not in self.looked and not (spec and is_built_in(spec)):
            self.looked.add(name)
            if self.standby.release.shadowed(name, spec):
                self.standby.refuse("shadowed " + name)

    def admit(self, name, spec):
        """Ends the standby before the code of a module runs that it must not run."""
        if name in self.standby.main:
            self.standby.spoil("main " + name)
        if not self.standby.is_installed(spec) and not self.standby.is_generated(spec):
            self.standby.spoil("user " + name)
        self.admitted += 1
        if spec.has_location and spec.origin:
            status = os.stat(spec.origin)
            self.files[spec.origin] = (name, status.st_mtime_ns, status.st_size)


def is_built_in(spec):
    """Reports if the interpreter finds the module before it looks at any folder."""
    return spec.loader is BuiltinImporter or spec.loader is FrozenImporter


class Standby:
    """One process that waits."""

    def __init__(self, here, asked):
        self.here = here
        self.channel = _socket.socket(fileno=int(asked[3]))
        os.set_inheritable(self.channel.fileno(), False)
        self.list = List(int(asked[2]))
        self.release = Release()
        self.known = set(filter(None, asked[5].split(",")))
        self.process = os.getpid()
        self.importing = ""
        self.read = -1
        # Time of the processor: in all, and at the last rest.
        self.seconds, self.rested = 0.0, 0.0
        # What the agent has said.
        self.message = None
        # `runpy` warns of a program that has been imported before it runs.
        name = self.release.name
        self.main = (name, name + ".__main__") if self.release.kind == "-m" else ()
        self.guard = Guard(self)
        self.folders = self.installation()
        self.began, self.path = time.time(), list(sys.path)
        self.null = -1
        self.score = None

    def installation(self):
        """The folders of `sys.path` that are the interpreter's own."""
        site = sys.modules["site"]
        own = set(site.getsitepackages())
        if site.ENABLE_USER_SITE and site.USER_SITE:
            own.add(site.USER_SITE)
        own.add(os.path.dirname(os.__file__))
        own.update(folder for folder in sys.path if os.path.basename(folder) == "lib-dynload")
        return tuple(os.path.join(folder, "") for folder in own)

    def is_installed(self, spec):
        """Reports if a module belongs to the interpreter's installation."""
        if is_built_in(spec):
            return True
        if spec.origin and spec.has_location:
            places = [spec.origin]
        else:
            places = [os.path.join(place, "") for place in spec.submodule_search_locations or ()]
        # What has no file is made by code that is admitted already.
        return all(place.startswith(self.folders) for place in places)

    def is_generated(self, spec):
        """Reports if an import has written a module into a folder of its own, as PyTorch does."""
        if not spec.origin or not spec.has_location:
            return False
        folder = os.path.dirname(spec.origin)
        if folder in self.path or folder in self.release.before:
            return False
        status = [os.stat(place) for place in (folder, spec.origin)]
        private = not status[0].st_mode & 0o077
        return private and all(each.st_uid == os.geteuid() and each.st_ctime > self.began for each in status)

    def say(self, text):
        self.channel.settimeout(None)
        try:
            self.channel.send(text.encode("utf-8", "replace")[:1000])
        except OSError:
            os._exit(REFUSED)

    def refuse(self, why, status=REFUSED):
        self.say("refused " + why)
        os._exit(status)

    def spoil(self, why):
        self.say("spoiled %s %s" % (self.importing, why))
        os._exit(SPOILED)

    # Imports.

    def is_importing(self):
        """Reports if this process imports, and is no child that a module has forked."""
        return self.importing and os.getpid() == self.process

    def import_new(self):
        """Imports what is new in the list. Returns true if there was anything."""
        used, names = self.list.names()
        if used == self.read:
            return False
        self.read = used
        names = [name for name in names if name not in self.known]
        self.known.update(names)
        saved = [os.dup(number) for number in (1, 2)]
        self.redirect(self.null)
        sys.meta_path.insert(0, self.guard)
        watched = Watched(self, os.environ)
        began = self.rested = time.process_time()
        try:
            for name in names:
                if name[0] in "/=":
                    self.release.circumstance(name)
                else:
                    self.import_one(name)
                if self.message:
                    break
        finally:
            sys.meta_path.remove(self.guard)
            watched.end()
            flush()
            for number, kept in zip((1, 2), saved):
                os.dup2(kept, number, inheritable=True)
                os.close(kept)
        self.seconds += time.process_time() - began
        return True

    def rest(self):
        """Leaves the processor to others, for as long as the last imports deserve."""
        took = time.process_time() - self.rested
        if not self.message:
            self.hear(min(took * REST, LONGEST_REST))
        self.rested = time.process_time()

    @staticmethod
    def redirect(descriptor):
        flush()
        for number in (1, 2):
            os.dup2(descriptor, number, inheritable=True)

    def import_one(self, name):
        """Imports one module."""
        if name in sys.modules or name in self.main or not self.is_wanted(name):
            return
        self.importing = name
        self.say("importing " + name)
        before = descriptors()
        try:
            __import__(name)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if os.getpid() != self.process:
                end_child(error)
            kind = type(error).__name__
            text = kind if kind == "SystemExit" else "%s: %s" % (kind, error)
            self.say("failed %s %s" % (name, text.replace("\n", " ")))
            os._exit(SPOILED)
        if os.getpid() != self.process:
            # It would run the program beside its parent.
            os._exit(SPOILED)
        for number, target in sorted(descriptors() - before):
            why = spoils(number, target)
            if why:
                self.spoil(why)
        self.importing = ""
        self.rest()

    def is_wanted(self, name):
        """Reports if the module can be found now, and is no module of the user."""
        parent, _, last = name.rpartition(".")
        path = None
        if parent:
            path = getattr(sys.modules.get(parent), "__path__", None)
            if path is None:
                return False
        try:
            spec = _find_spec(name, path)
        except Exception:
            return False
        if spec is None or not self.is_installed(spec):
            return False
        return bool(parent) or is_built_in(spec) or not self.release.shadowed(name, spec)

    # Messages.

    def hear(self, seconds):
        """Waits some seconds for what the agent says: the bytes, and descriptors."""
        self.channel.settimeout(seconds)
        try:
            size = _socket.CMSG_SPACE(3 * 4)
            text, ancillary, _, _ = self.channel.recvmsg(1 << 20, size, _socket.MSG_CMSG_CLOEXEC)
        except (_socket.timeout, BlockingIOError):
            return
        except OSError:
            os._exit(REFUSED)
        if text.split(b"\0", 1)[0] != b"start":
            os._exit(REFUSED)
        received = []
        for level, kind, data in ancillary:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                received += [int.from_bytes(data[at : at + 4], sys.byteorder) for at in range(0, len(data) - 3, 4)]
        self.message = text, received

    def park(self):
        """Imports and waits, until the agent releases it."""
        self.score = raise_oom_score()
        self.null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        while not self.message:
            new = self.import_new()
            # A process that has not begun ends by SIGINT. A library may have set its own.
            interrupt = _signal.getsignal(_signal.SIGINT)
            if interrupt is _signal.default_int_handler:
                _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
            if new and not self.message:
                self.say("ready %d %d %d" % (self.guard.admitted, resident(), self.seconds * 1000))
            if not self.message:
                self.hear(LOOK)
            if interrupt is _signal.default_int_handler:
                _signal.signal(_signal.SIGINT, interrupt)

    def become(self):
        """Becomes the worker, or ends."""
        text, received = self.message
        self.release.stop_pretending()
        changes = self.release.changes(text.split(b"\0")[1:])
        why = refused_environment(self.release, changes)
        if not why:
            why = self.release.refused_files(self.guard)
        if not why and self.score is not None and not write_oom_score(self.score):
            why = "oom_score_adj"
        if why:
            self.refuse(why, SPOILED)
        flush()
        if len(received) == 3:
            for number, given in enumerate(received):
                os.dup2(given, number, inheritable=True)
        for given in received:
            os.close(given)
        os.close(self.null)
        self.release.apply(changes)
        renew_streams()
        learn(self.here, self.list)
        self.say("started")
        self.channel.close()


def end_child(error):
    """Ends a process that a module has forked as the interpreter would."""
    code = error.code if isinstance(error, SystemExit) else 1
    flush()
    os._exit(code & 255 if isinstance(code, int) else int(code is not None))


def flush():
    """Has nothing wait in the streams that was printed into another descriptor."""
    for stream in (sys.__stdout__, sys.__stderr__):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass


def descriptors():
    """The open descriptors, and what they are."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add((number, os.readlink("/proc/self/fd/" + number)))
        except OSError:
            # That of the listing itself.
            pass
    return found


def spoils(number, target):
    """Why a descriptor that an import has opened is one that a process in waiting must not hold."""
    try:
        if target.startswith("/dev/") and target not in HARMLESS and not target.startswith(HARMLESS_FOLDERS):
            return target
        if target.startswith("socket:"):
            return "socket" if holds_port(int(number)) else ""
        with open("/proc/self/fdinfo/" + number) as file:
            flags = next((int(line[6:], 8) for line in file if line.startswith("flags:")), 0)
        writes = flags & os.O_ACCMODE != os.O_RDONLY
        if writes and target.startswith("/") and not target.endswith(" (deleted)") and os.path.isfile(target):
            return "writes " + target
    except (OSError, ValueError):
        pass
    return ""


def holds_port(number):
    """Reports if a socket listens, or has a port that others may send to."""
    copy = _socket.socket(fileno=os.dup(number))
    try:
        if copy.getsockopt(_socket.SOL_SOCKET, _socket.SO_ACCEPTCONN):
            return True
        internet = copy.family in (_socket.AF_INET, _socket.AF_INET6)
        return bool(internet and copy.type == _socket.SOCK_DGRAM and copy.getsockname()[1])
    finally:
        copy.close()


def resident():
    """Memory, in KiB."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def raise_oom_score():
    """Makes this the first process to go when memory is short. What it was, or None."""
    try:
        with open("/proc/self/oom_score_adj") as file:
            score = int(file.read())
        return score if write_oom_score(1000) else None
    except (OSError, ValueError):
        return None


def write_oom_score(score):
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("%d\n" % score)
        return True
    except OSError:
        return False


def wait(here, asked):
    """What the hook does in a standby: returns when it has become the worker."""
    try:
        standby = Standby(here, asked)
        custom = standby.release.custom()
        if custom:
            standby.refuse(custom)
        standby.park()
        standby.become()
    except KeyboardInterrupt:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        os.kill(os.getpid(), _signal.SIGINT)
        # The signal may be blocked, and the program must not run.
        os._exit(130)
