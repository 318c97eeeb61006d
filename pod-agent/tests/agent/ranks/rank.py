"""A rank: writes down what it sees, and does what the test writes into `rank.<attempt>.<rank>`."""

import sys

AHEAD = len(sys.modules)
import asyncio  # noqa: E402, F401
import json  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402, F401
import subprocess  # noqa: E402, F401
import time  # noqa: E402

NAME = os.environ["LOCKSTEP_RESTART_ATTEMPT"] + "." + os.environ["RANK"]


def tell(name, text):
    with open("new." + name, "w") as file:
        file.write(str(text))
    os.rename("new." + name, name)


def umask():
    before = os.umask(0)
    os.umask(before)
    return before


def descriptors():
    found = {}
    for number in os.listdir("/proc/self/fd"):
        if int(number) < 100:
            try:
                found[number] = os.readlink("/proc/self/fd/" + number).split(":")[0]
            except OSError:
                pass
    return sorted(item for item in found.items() if not item[1].endswith("/fd"))


os.write(2, b"a line of " + NAME.encode() + b"\n")
seen = {
    "argv": sys.argv,
    "executable": sys.executable,
    "environment": dict(os.environ),
    "path": sys.path,
    "cwd": os.getcwd(),
    "umask": umask(),
    "signals": [str(signal.getsignal(number)) for number in (1, 2, 13, 15)],
    "mask": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    "descriptors": descriptors(),
    "command": open("/proc/self/cmdline").read().split("\0"),
    "main": __file__,
    "leads": os.getpgrp() == os.getpid(),
    "score": open("/proc/self/oom_score_adj").read(),
}
tell("saw." + NAME, json.dumps(seen, sort_keys=True))
tell("pid." + NAME, "%d %d" % (os.getpid(), AHEAD))
tell("up." + NAME, "")
if "BEATS" in os.environ:
    os.utime(os.environ["LOCKSTEP_HEARTBEAT"])
done = 0
while True:
    order = "rank.%s" % NAME
    if os.path.exists(order):
        with open(order) as file:
            text = file.read()
        os.remove(order)
        exec(text)
        tell("did." + order, "")
    time.sleep(0.01)
