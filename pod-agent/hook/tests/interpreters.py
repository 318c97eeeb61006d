"""The interpreters of this machine that the hook supports."""

import functools
import os
import shutil
import subprocess
from pathlib import Path

SYSTEM = "/usr/bin/python3"
VERSIONS = [(3, minor) for minor in range(8, 15)]
SHIMS = "shims"


def candidates(name: str) -> list[str]:
    """Where an interpreter may be: on PATH, and where pyenv puts them."""
    path = os.pathsep.join(p for p in os.get_exec_path() if Path(p).name != SHIMS)
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which(name, path=path), *map(str, sorted(versions.glob(f"*/bin/{name}")))]
    return [python for python in found if python]


def works(python: str, version: tuple[int, int]) -> bool:
    text = "import sys, ssl, ctypes; print(*sys.version_info[:2])"
    if not Path(python).exists():
        return False
    ran = subprocess.run([python, "-c", text], capture_output=True, text=True, check=False)
    return ran.stdout.split() == [str(number) for number in version]


@functools.cache
def interpreters() -> dict[tuple[int, ...], str]:
    """One of each version, and the system's, which distributions change."""
    found = {}
    for version in VERSIONS:
        name = "python{}.{}".format(*version)
        python = next((python for python in candidates(name) if works(python, version)), None)
        if python:
            found[version] = python
        if works(SYSTEM, version) and os.path.realpath(SYSTEM) != os.path.realpath(python or ""):
            found[*version, 1] = SYSTEM
    return found
