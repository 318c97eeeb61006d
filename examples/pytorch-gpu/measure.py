"""Kills the training of this folder, and measures until its next optimizer step is done: cold, and from a standby, by turns.

    python3 examples/pytorch-gpu/measure.py --namespace default > gpu.json

Needs kubectl, and a cluster with Lockstep and a free GPU. All times are from the clock of the pod's node.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any

FOLDERS = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = {"script": "pytorch-gpu", "torchrun": "pytorch-gpu-torchrun"}
# Kills a process, and before it all standbys if the next start is to be cold: their score is 1000. Prints the time. The image has Python.
KILL = """
import glob, os, sys, time
if sys.argv[2] == "cold":
    for score in glob.glob("/proc/[0-9]*/oom_score_adj"):
        if open(score).read().strip() == "1000":
            os.kill(int(score.split("/")[2]), 9)
print(time.time(), flush=True)
os.kill(int(sys.argv[1]), 9)
"""
PATIENCE_SECONDS = 900


class Training:
    """A JobSet of one worker that runs train.py."""

    def __init__(self, kubectl: list[str], name: str) -> None:
        self.kubectl = kubectl
        self.name = name
        self.pod = ""

    def run(self, *arguments: str) -> str:
        return subprocess.run([*self.kubectl, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout

    def start(self) -> None:
        self.remove()  # of an earlier run
        self.run("apply", "--kustomize", str(FOLDERS / self.name))
        label = f"jobset.sigs.k8s.io/jobset-name={self.name}"
        names = ("get", "pods", "--selector", label, "--output", "jsonpath={.items[*].metadata.name}")
        self.pod = until("the pod", lambda: self.run(*names))
        self.run("wait", "--for=condition=Ready", f"--timeout={PATIENCE_SECONDS}s", f"pod/{self.pod}")

    def remove(self) -> None:
        self.run("delete", "--kustomize", str(FOLDERS / self.name), "--ignore-not-found")

    def says(self, attempt: int) -> list[dict[str, Any]]:
        """What rank 0 has printed in this attempt, or a later one."""
        lines = [line for line in self.run("logs", self.pod).splitlines() if line.startswith("{") and line.endswith("}")]
        said = [json.loads(line) for line in lines]
        return [each for each in said if each["rank"] == 0 and each["attempt"] >= attempt]

    def first_step(self, attempt: int) -> dict[str, Any]:
        """What it prints of the first step of this attempt, or of a later one."""
        return until(f"a step of attempt {attempt}", lambda: next((said for said in self.says(attempt) if "step" in said and "loss" in said), None))

    def restart(self, attempt: int, ahead: bool) -> float:
        """Kills the worker of the attempt before this one. Returns the seconds until the first step."""
        started = [said for said in self.says(attempt - 1) if said.get("event") == "start"]
        start = "warm" if ahead else "cold"
        killed_at = float(self.run("exec", self.pod, "--", "python3", "-c", KILL, str(started[-1]["pid"]), start))
        step = self.first_step(attempt)
        begun = next(said for said in self.says(attempt) if said.get("event") == "start")
        if begun["ahead"] != ahead or step["attempt"] != attempt:
            raise SystemExit(f"attempt {attempt} of {self.name} began otherwise: {begun}")
        return step["time"] - killed_at


def until(what: str, look: Any) -> Any:
    """The first result of `look` that is not empty."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.5)
    raise SystemExit(f"{what} has not come within {PATIENCE_SECONDS} s")


def measure(training: Training, rounds: int, warm_seconds: float) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {"cold": [], "standby": []}
    training.start()
    training.first_step(0)
    until("a checkpoint", lambda: any(said.get("event") == "checkpoint" for said in training.says(0)))
    for attempt in range(1, 2 * rounds + 1):
        ahead = attempt % 2 == 0
        # A worker that fails again within a minute would get a new pod.
        time.sleep(warm_seconds)
        took = training.restart(attempt, ahead)
        seconds["standby" if ahead else "cold"].append(round(took, 3))
        print(f"{training.name}: {took:.2f} s {'from a standby' if ahead else 'cold'}", file=sys.stderr)
    return seconds


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--rounds", type=int, default=5, help="kills of each kind")
    parser.add_argument("--warm-seconds", type=float, default=90, help="how long the worker runs before each kill")
    parser.add_argument("--kubectl", default="kubectl", help="the command")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"{' or '.join(PROGRAMS)} [default: all]")
    args = parser.parse_args(arguments)
    if unknown := set(args.programs) - set(PROGRAMS):
        parser.error(f"PROGRAM: {', '.join(sorted(unknown))} is none of {', '.join(PROGRAMS)}")
    results = {}
    for program in args.programs or PROGRAMS:
        training = Training([*args.kubectl.split(), "--namespace", args.namespace], PROGRAMS[program])
        try:
            results[program] = measure(training, args.rounds, args.warm_seconds)
        finally:
            training.remove()
        cold, standby = (statistics.median(results[program][kind]) for kind in ("cold", "standby"))
        print(f"{program}: {cold:.2f} s cold, {standby:.2f} s from a standby, {cold / standby:.1f} times faster", file=sys.stderr)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
