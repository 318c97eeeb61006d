"""What a worker's own program may call: `park()`, to be started ahead for the next attempt, and
`step()`, to say how far it is.

This file needs Python 3.8 and its standard library alone. It works outside of Lockstep, too, where
`park()` returns at once, and `step()` does nothing. It may be copied into an image by itself.
"""

import os
import signal
import socket
import stat
import sys
import time
from types import TracebackType
from typing import Callable, NamedTuple, NoReturn, Optional, Tuple, Type, TypeVar

__all__ = ["Attempt", "attempt", "excepthook", "park", "resume_step", "retry", "section", "step"]

_PARK = "LOCKSTEP_PARK"
_ATTEMPT = "LOCKSTEP_RESTART_ATTEMPT"
_RESUME_STEP = "LOCKSTEP_RESUME_STEP"
_HEARTBEAT = "LOCKSTEP_HEARTBEAT"
# Exit code of a process that waits and must not run on. Never 0: it is no success of the worker.
_REFUSED = 120
# More than a message can hold.
_LONGEST_MESSAGE = 1 << 20
# More than is taken of any line, and less than is read of a datagram, in bytes.
_LONGEST_LINE = 512
# The first and the longest pause of `retry`, in seconds.
_PAUSES = (0.02, 1.0)

_Result = TypeVar("_Result")


class Attempt(NamedTuple):
    """The attempt that this process runs."""

    number: int
    """How often the worker has been restarted; 0 outside of Lockstep."""
    resume_step: Optional[int]
    """The step to go on from, if `LOCKSTEP_RESUME_STEP` names one."""
    was_parked: bool
    """True if this process was started ahead, and has waited for its attempt."""


_was_parked = False


def park() -> Attempt:
    """Waits until this process is needed, if it was started ahead; else returns at once.

    With `lockstep.dev/standby: program` the worker's command is started a second time while the
    worker runs. That process stops in this call, and goes on from here as the next attempt. So call
    it once, in the main process, after imports and whatever else may be done early. What comes
    before it runs beside the worker: it must not hold a port, a lock, or memory of a device that
    the worker needs, and must not write what the worker writes.

    When it returns, the environment is that of the attempt. If the agent goes away meanwhile, or a
    signal handler raises, this process ends without running on.
    """
    global _was_parked
    named = os.environ.pop(_PARK, None)
    if named is not None:
        channel = _channel(named)
        if channel is not None:
            with channel:
                _was_parked = _wait(channel)
        elif _ATTEMPT not in os.environ:
            _end("LOCKSTEP_PARK=%s names no socket of the agent" % named)
    return Attempt(attempt(), resume_step(), _was_parked)


def attempt() -> int:
    """How often the worker has been restarted; 0 outside of Lockstep."""
    number = _number(_ATTEMPT)
    return 0 if number is None else number


def resume_step() -> Optional[int]:
    """The step to go on from, if `LOCKSTEP_RESUME_STEP` names one."""
    return _number(_RESUME_STEP)


def retry(
    call: Callable[[], _Result],
    *,
    timeout: float = 60.0,
    errors: Tuple[Type[BaseException], ...] = (OSError,),
) -> _Result:
    """Calls until none of `errors` is raised. After `timeout` seconds the last one is.

    A process that waited goes on a moment after the one before it was killed. What that held may
    not be free yet: the kernel takes some 100 ms to free a device's memory, and longer for a port
    with open connections. Use it for the first call that needs such a thing, as in
    `retry(lambda: server.bind(address))`, or with the errors of a library, such as
    `errors=(torch.cuda.OutOfMemoryError,)`.
    """
    end = time.monotonic() + timeout
    pause, longest = _PAUSES
    while True:
        try:
            return call()
        except errors:
            left = end - time.monotonic()
            if left <= 0:
                raise
        time.sleep(min(pause, left))
        pause = min(pause * 2, longest)


def step(number: int) -> None:
    """Says that the worker has done this step, which is a heartbeat, too.

    Call it after each step: it takes some microseconds, and never waits or raises. The step is
    shown if the container's `LOCKSTEP_HEARTBEAT` is `socket`. Within an attempt it never falls: a
    lower one is ignored.
    """
    _tell("STEP=%d" % number)


def section(name: str) -> None:
    """Says what the worker is doing, such as `load` or `save`; "" for nothing in particular.

    It is for people, and a heartbeat, too. Its first 64 bytes count.
    """
    _tell("SECTION=" + name)


def excepthook() -> None:
    """From now on an exception that ends the program is told as the error of the worker.

    It is then a part of the restart's cause, in status and events. `sys.excepthook` is replaced by
    a function that calls the former one, too.
    """
    former = sys.excepthook

    def hook(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
        try:
            _tell("ERROR=%s: %s" % (kind.__name__, error))
        except Exception:
            pass  # An exception without a text.
        former(kind, error, trace)

    sys.excepthook = hook


def _tell(text: str) -> None:
    """Sends a heartbeat of one line, as far as somebody takes it."""
    path = os.environ.get(_HEARTBEAT, "")
    if not os.path.isabs(path):
        return
    try:
        if stat.S_ISSOCK(os.stat(path).st_mode):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as beat:
                line = " ".join(text.split())
                beat.sendto(line.encode("utf-8", "replace")[:_LONGEST_LINE], path)
        else:
            os.utime(path)
    except OSError:
        pass  # The agent is busy, or there is none.


def _number(name: str) -> Optional[int]:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None


def _channel(named: str) -> Optional[socket.socket]:
    """The socket of this name. None if there is none: a process in between has closed it, and its
    number may be something else by now."""
    if not (named.isascii() and named.isdigit()):
        return None
    number = int(named)
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return None
        channel = socket.socket(fileno=number)
    except (OSError, OverflowError):
        return None
    if channel.family == socket.AF_UNIX and channel.type == socket.SOCK_SEQPACKET:
        return channel
    channel.detach()
    return None


def _wait(channel: socket.socket) -> bool:
    """Waits for the release, and makes the environment that of the attempt. False if the agent has
    nothing to change, since the attempt runs already."""
    try:
        # No child inherits it from here on, and no default timeout counts.
        os.set_inheritable(channel.fileno(), False)
        channel.settimeout(None)
        channel.send(b"ready")
        start, *changes = channel.recv(_LONGEST_MESSAGE).split(b"\0")
        if start == b"start":
            for change in changes:
                _change(change)
            channel.send(b"started")
            return bool(changes)
        _end("the agent has gone" if not start else "the agent says what is not known here")
    except KeyboardInterrupt:
        # As it ends a program that does not catch it. This one might, and run on.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        os._exit(128 + signal.SIGINT)
    except BaseException as error:
        _end("%s: %s" % (type(error).__name__, error))


def _change(change: bytes) -> None:
    """`NAME=VALUE` sets a variable, a bare name removes it."""
    name, equals, value = change.partition(b"=")
    if equals:
        os.environb[name] = value
    elif name:
        os.environb.pop(name, None)


def _end(why: str) -> NoReturn:
    """Ends this process, which must not run on."""
    try:
        print("lockstep: parked process ends: " + why, file=sys.stderr, flush=True)
    finally:
        os._exit(_REFUSED)
