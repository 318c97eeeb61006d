"""Starts ranks as torchrun does, and does what the test writes into `do.<attempt>.<number>`."""

import os
import signal
import subprocess
import sys
import time

attempt = os.environ["LOCKSTEP_RESTART_ATTEMPT"]
count, session = int(sys.argv[1]), sys.argv[2] == "session"
ranks = {}


def tell(name, text):
    with open("new." + name, "w") as file:
        file.write(str(text))
    os.rename("new." + name, name)


def start(rank):
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "OMP_NUM_THREADS": 1, "TORCHELASTIC_RUN_ID": "run " + attempt}
    with open("out.%s.%d" % (attempt, rank), "w") as out:
        ranks[rank] = subprocess.Popen(
            [os.getenv("PYTHON_EXEC", sys.executable), "-u", "rank.py", "a b", ""],
            env=os.environ | {name: str(value) for name, value in variables.items()},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=session,
        )


def stop(signum, frame):
    for rank in ranks.values():
        rank.terminate()
    sys.exit(3)


signal.signal(signal.SIGTERM, stop)
for rank in range(count):
    start(rank)
told, done = set(), 0
while True:
    for rank, process in ranks.items():
        if process.poll() is not None and rank not in told:
            told.add(rank)
            tell("end.%s.%d" % (attempt, rank), process.returncode)
    if all(os.path.exists("up.%s.%d" % (attempt, rank)) for rank in ranks):
        os.utime(os.environ["LOCKSTEP_HEARTBEAT"])
    order = "do.%s.%d" % (attempt, done)
    if os.path.exists(order):
        done += 1
        with open(order) as file:
            exec(file.read())
        tell("did" + order[2:], "")
    time.sleep(0.01)
