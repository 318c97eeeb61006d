"""What `site` imports first in a worker that may have standbys.

The agent puts the folder of this file before the others of PYTHONPATH. This file puts everything
back as it would be without: the environment, `sys.path` and `sys.modules`. It hands over to
`_lockstep_standby`, and in the end the real `sitecustomize` is imported, if there is one.
Runs in every Python since 2.7. If it does not know the version, it only puts things back.
"""

import os
import sys


def _restore(here):
    """Puts the environment and `sys.path` back. What the agent asks for, or None."""
    asked = os.environ.pop("LOCKSTEP_HOOK", "").split(";", 5)
    first, colon, rest = os.environ.get("PYTHONPATH", "").partition(":")
    # Not so in another interpreter of the same process: the first has put the variable back.
    ours = first and os.path.abspath(first) == here
    if ours and (rest or len(asked) == 6 and asked[4] == "1"):
        os.environ["PYTHONPATH"] = rest
    elif ours:
        del os.environ["PYTHONPATH"]
    if here in sys.path:
        at = sys.path.index(here)
        # An empty PYTHONPATH names no folder. After a colon it has named the current one.
        if ours and colon and not rest and sys.path[at + 1 : at + 2] == [os.getcwd()]:
            del sys.path[at + 1]
        del sys.path[at]
    sys.path_importer_cache.pop(here, None)
    return asked if ours and len(asked) == 6 and asked[0] == "1" and _is_meant(asked) else None


def _is_meant(asked):
    """Reports if the agent asks this process, and not a parent that has passed its environment on."""
    if asked[1] == "wait":
        return True
    try:
        return os.readlink("/proc/self/fd/" + asked[2]).startswith("/memfd:lockstep-modules")
    except OSError:
        return False


def _refuse(asked, why):
    """Lets the program run as without the hook; a standby says why it ends."""
    if asked[1] == "wait":
        try:
            os.write(int(asked[3]), ("refused " + why).encode("utf-8", "replace")[:1000])
        finally:
            os._exit(120)
    for descriptor in (int(asked[2]), int(asked[3])):
        try:
            os.close(descriptor)
        except OSError:
            pass


def _begin(waits):
    here = os.path.dirname(os.path.abspath(__file__))
    failure = "Python %d.%d" % sys.version_info[:2]
    kind = getattr(getattr(sys, "implementation", None), "name", "")
    if kind not in ("", "cpython"):
        failure += " (%s)" % kind
    standby = waiting = None
    if kind == "cpython" and (3, 8) <= sys.version_info[:2] <= (3, 14) and os.environ.get("LOCKSTEP_HOOK"):
        writes = sys.dont_write_bytecode
        try:
            # Only in the agent's own folder. Compiling each time would take longer than the rest.
            sys.dont_write_bytecode = writes and bool(sys.pycache_prefix)
            import _lockstep_standby as standby

            if waits:
                import _lockstep_wait as waiting
        except Exception as error:
            standby, failure = None, repr(error)
        sys.dont_write_bytecode = writes
    asked = _restore(here)
    for name in ("_lockstep_wait", "_lockstep_release", "_lockstep_standby"):
        sys.modules.pop(name, None)
    if asked is None:
        return False
    try:
        if standby is None:
            _refuse(asked, failure)
        elif waits:
            waiting.wait(here, asked)
        else:
            standby.run(here, int(asked[2]))
    except Exception as error:
        _refuse(asked, repr(error))
    return True


_waits = os.environ.get("LOCKSTEP_HOOK", "").split(";")[1:2] == ["wait"]
try:
    _done = _begin(_waits)
except Exception:
    _done = False
if _waits and not _done:
    # The agent has not released it.
    os._exit(120)
# Kept, since Python 2 empties a module without references.
_this = sys.modules.pop("sitecustomize", None)
# If there is none, `site` expects this to fail.
import sitecustomize  # noqa: E402, F401
