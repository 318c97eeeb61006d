"""How a standby becomes a worker: what must be as it was, and what takes effect then."""

import os
import sys

import _io
from _frozen_importlib_external import PathFinder
from _lockstep_standby import ATTEMPT, command_line, is_late, is_read_at_load

CUSTOM = ("sitecustomize", "usercustomize")


class Release:
    """What a standby was started with."""

    def __init__(self):
        self.environment = dict(os.environ)
        self.folder = os.getcwd()
        self.kind, self.name = command_line()
        self.python_path = os.environ["PYTHONPATH"].split(":") if os.environ.get("PYTHONPATH") else []
        # Folders that the program adds to `sys.path`, and variables as the program will set them:
        # what they were before, and what they are now.
        self.added = []
        self.pretended = {}
        self.before = self.places(self.folder)

    def circumstance(self, line):
        """Makes it as it was when the program imported what follows in the list."""
        if line[0] == "/":
            if line not in self.before:
                self.added.append(line)
                self.before = self.places(self.folder)
            return
        name, equals, value = line[1:].partition("=")
        value = value if equals else None
        if os.environ.get(name) != value:
            self.pretended.setdefault(name, [os.environ.get(name), None])[1] = value
            put(name, value)

    def stop_pretending(self):
        """Leaves it to the program to set its variables again."""
        for name, (before, value) in self.pretended.items():
            if os.environ.get(name) == value:
                put(name, before)

    def places(self, folder):
        """The folders that the interpreter looks in before its own, when it runs the program in a folder."""
        found = [os.path.join(folder, place) if place else folder for place in self.python_path]
        found += self.added
        if getattr(sys.flags, "safe_path", False):
            return found
        if self.kind != "script":
            return [folder, *found]
        script = os.path.join(folder, self.name)
        # A folder or an archive is itself looked in.
        return [script, *found] if os.path.isdir(script) else [script, os.path.dirname(os.path.realpath(script)), *found]

    def shadowed(self, name, spec):
        """Reports if the program would find another module than the one of `spec`."""
        other = PathFinder.find_spec(name, self.before)
        if other is None:
            return False
        # A folder without __init__.py comes after any module, unless that is such a folder, too.
        return other.has_location or spec is None or not spec.has_location

    def custom(self):
        """The name of a module that `site` would import before all others, and that may change them."""
        names = CUSTOM if sys.modules["site"].ENABLE_USER_SITE else CUSTOM[:1]
        for name in names:
            spec = PathFinder.find_spec(name)
            # Distributions have an empty one beside the standard library.
            if spec is not None and os.path.dirname(spec.origin or "") != os.path.dirname(os.__file__):
                return name
        return ""

    @staticmethod
    def changes(words):
        """What the agent wants changed: the value of each name, or None. The mask of new files is `=umask`."""
        changed = {}
        for word in map(os.fsdecode, words):
            if word.startswith("=umask"):
                changed["=umask"] = word[len("=umask") :]
            elif word:
                name, equals, value = word.partition("=")
                changed[name] = value if equals else None
        changed.pop("LOCKSTEP_HOOK", None)
        return changed

    def refused_files(self, guard):
        """Why modules that are imported are not those that the program would find."""
        self.forget()
        for name in guard.looked:
            if self.shadowed(name, getattr(sys.modules.get(name), "__spec__", None)):
                return "shadowed " + name
        for origin, (name, changed, size) in guard.files.items():
            try:
                status = os.stat(origin)
            except OSError:
                return "changed " + name
            if (status.st_mtime_ns, status.st_size) != (changed, size):
                return "changed " + name
        return ""

    def forget(self):
        """Forgets what was seen in folders."""
        for place in self.before:
            if place not in sys.path:
                sys.path_importer_cache.pop(place, None)
        for finder in list(sys.path_importer_cache.values()):
            if type(finder).__name__ == "FileFinder":
                finder.invalidate_caches()

    def apply(self, changes):
        """Makes the changes."""
        for name, value in changes.items():
            if name == "=umask":
                os.umask(int(value))
            else:
                put(name, value)
        self.forget()


class Watched(dict):
    """The variables while a standby imports: ends it if a module reads one that comes with the release."""

    def __init__(self, standby, environment):
        super().__init__(environment._data)
        self.standby, self.environment, self.plain = standby, environment, environment._data
        self.attempt = self.pop(ATTEMPT, None)
        self.use(self)

    def use(self, variables):
        """Puts them in the place of those that there are."""
        self.environment._data = os.environb._data = variables

    def __missing__(self, key):
        name = os.fsdecode(key)
        if is_late(name) and self.standby.is_importing():
            self.standby.spoil("reads " + name)
        raise KeyError(key)

    def end(self):
        if self.attempt is not None:
            self.setdefault(ATTEMPT, self.attempt)
        self.plain.clear()
        self.plain.update(self)
        self.use(self.plain)


def put(name, value):
    """Sets a variable, or removes it."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def refused_environment(release, changes):
    """Why the changes come too late for what has been imported."""
    for name, value in changes.items():
        was = release.environment.get(name)
        if not name.startswith("=") and value != was:
            # What an import has set itself, it would have set on top of the change.
            if is_read_at_load(name) or os.environ.get(name) != was:
                return "environment " + name
    return ""


def renew_streams():
    """Makes the standard streams as if the interpreter had begun with the descriptors of now.

    Libraries may hold the objects: each is set up again in its place, as pylifecycle.c does it.
    """
    for number, stream in enumerate((sys.__stdin__, sys.__stdout__, sys.__stderr__)):
        if type(stream) is _io.TextIOWrapper:
            renew(number, stream)


def renew(number, stream):
    buffer = stream.buffer
    name, mode, through = buffer.name, stream.mode, stream.write_through
    # It has looked whether it can seek, and would not look again.
    raw = _io.FileIO(number, "rb" if number == 0 else "wb", closefd=False)
    raw.name = name
    if type(buffer) is _io.FileIO:
        buffer = raw
    else:
        size = raw._blksize if raw._blksize > 1 else _io.DEFAULT_BUFFER_SIZE
        if sys.version_info >= (3, 14):
            size = max(min(raw._blksize, 8192 * 1024), _io.DEFAULT_BUFFER_SIZE)
        buffer.__init__(raw, size)
    lines = not through and (raw.isatty() or number == 2 and sys.version_info >= (3, 9))
    stream.__init__(buffer, stream.encoding, stream.errors, "\n", lines, through)
    stream.mode = mode
