"""What the agent does for a hooked program: the environment, the list, and the messages."""

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Without job control, a shell has what it runs in the background ignore SIGINT, and programs inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

HOOK = Path(__file__).resolve().parent.parent
MAGIC = 0x314B534C
FILES = ("sitecustomize.py", "_lockstep_standby.py", "_lockstep_release.py", "_lockstep_wait.py")
PATIENCE = 60


def folder_of_hook(parent: str) -> Path:
    """A folder as the agent writes it."""
    folder = Path(parent, "standby")
    folder.mkdir()
    for name in FILES:
        shutil.copy(HOOK / name, folder)
    return folder


class List:
    """The list of modules, in a memfd."""

    def __init__(self, names: list[str] | None = None) -> None:
        self.descriptor = os.memfd_create("lockstep-modules")
        if names is not None:
            self.write(names)

    def write(self, names: list[str]) -> None:
        text = "".join(f"{name}\n" for name in names).encode()
        os.pwrite(self.descriptor, struct.pack("<II", MAGIC, len(text)) + text, 0)

    def raw(self) -> bytes:
        return os.pread(self.descriptor, 1 << 20, 0)

    def names(self) -> list[str]:
        raw = self.raw()
        if len(raw) < 8:
            return []
        magic, used = struct.unpack("<II", raw[:8])
        assert magic == MAGIC and used <= len(raw) - 8, raw[:8]
        return [name for name in raw[8 : 8 + used].decode("ascii").split("\n") if name]

    def close(self) -> None:
        os.close(self.descriptor)


def hooked(
    environment: dict[str, str], folder: Path, mode: str, listed: int, channel: int = -1, skip: str = ""
) -> dict[str, str]:
    """The environment of a hooked process."""
    path = environment.get("PYTHONPATH")
    return environment | {
        "PYTHONPATH": str(folder) if path is None else f"{folder}:{path}",
        "LOCKSTEP_HOOK": f"1;{mode};{listed};{channel};{int(path is not None)};{skip}",
    }


class Standby:
    """A process that waits, and the agent's end of its socket."""

    def __init__(self, command, folder: Path, listed: List, environment, skip: str = "", **options) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(PATIENCE)
        self.process = subprocess.Popen(
            command,
            env=hooked(environment, folder, "wait", listed.descriptor, theirs.fileno(), skip),
            pass_fds=(listed.descriptor, theirs.fileno()),
            **options,
        )
        theirs.close()
        self.heard: list[str] = []

    def hear(self) -> str:
        """The next message; empty when the standby has ended."""
        try:
            message = self.socket.recv(1 << 16).decode(errors="replace")
        except ConnectionResetError:
            message = ""
        if message:
            self.heard.append(message)
        return message

    def wait_for(self, *kinds: str) -> str:
        """The next message of these kinds; empty when the standby has ended."""
        while message := self.hear():
            if message.split(" ", 1)[0] in kinds:
                return message
        return ""

    def start(self, *changes: str | bytes, descriptors: tuple[int, ...] = ()) -> None:
        """Releases it."""
        message = b"\0".join([b"start", *(os.fsencode(change) for change in changes)])
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        if descriptors:
            socket.send_fds(self.socket, [message], descriptors)
        else:
            self.socket.send(message)

    def end(self) -> None:
        self.socket.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream:
                stream.close()
