"""Generates the platform API's messages and their types from the .proto when a wheel is built."""

import pathlib
import subprocess
import sys
import sysconfig
import tempfile
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROTO = "lockstep/platform/v1/platform.proto"


class CustomBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = pathlib.Path(self.root)
        # A source distribution has its own copy of proto/; a checkout uses that of the repository.
        protos = next(p for p in [root / "proto", root / "../../proto"] if (p / PROTO).is_file())
        self.made = tempfile.TemporaryDirectory()
        outputs = ["python_out", "grpc_python_out", "mypy_out", "mypy_grpc_out"]
        scripts = pathlib.Path(sysconfig.get_path("scripts"))
        plugins = [scripts / name for name in ["protoc-gen-mypy", "protoc-gen-mypy_grpc"]]
        command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={protos}"]
        # In an isolated build the scripts are on PATH, not beside this interpreter.
        command += [f"--plugin={plugin.name}={plugin}" for plugin in plugins if plugin.exists()]
        command += [f"--{output}={self.made.name}" for output in outputs]
        done = subprocess.run([*command, PROTO], stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"protoc exited with {done.returncode}:\n{done.stderr}")
        for path in sorted(pathlib.Path(self.made.name).rglob("*.py*")):
            build_data["force_include"][str(path)] = str(path.relative_to(self.made.name))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self.made.cleanup()
