"""Submits a job to Ray, once, shows the driver's output, and ends as the job does.

Exit codes: 0 the job has succeeded; 1 it has failed, or was stopped; 75 something else, try again; 76 this Ray is not the one that the job
belongs to. Whoever is started again attaches to the job that runs.
"""
import http.client
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

ADDRESS = "http://" + os.environ["RAY_DASHBOARD_ADDRESS"]
JOB = os.environ["RAY_JOB_SUBMISSION_ID"]
SESSION = os.environ.get("RAYJOB_SESSION", "")
SUBMIT = json.loads(os.environ["RAYJOB_SUBMIT"])
ENDS = ("SUCCEEDED", "FAILED", "STOPPED")
# For how many seconds a Ray that cannot take the job yet is asked again: its head answers before all of it is up. Three submitters make 5 minutes.
BUSY = 90


def get(path):
    """The answer: its text, or None where there is no such thing. OSError: there is no answer."""
    try:
        with urllib.request.urlopen(ADDRESS + path, timeout=10) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def words(entrypoint):
    """The entrypoint as arguments, each of which Ray quotes before it hands all to a shell."""
    try:
        split = shlex.split(entrypoint)
    except ValueError:
        split = []
    return split if shlex.join(split) == entrypoint else ["sh", "-c", entrypoint]


def ray(*args):
    return ["ray", "job", *args]


def say(text):
    print("submitter: " + text, flush=True)


def submit():
    """Whether Ray has taken the job, and where not, whether it may soon: it has refused for no fault of the job's."""
    entrypoint = [*SUBMIT[:-1], *words(SUBMIT[-1])]
    command = ray("submit", "--address", ADDRESS, "--submission-id", JOB, "--no-wait", *entrypoint)
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    sys.stdout.buffer.write(ran.stdout)
    sys.stdout.buffer.flush()
    return ran.returncode == 0, b"failed with status code 5" in ran.stdout


def printed(lines):
    """What the driver has printed. `ray job logs --follow` adds how the job has ended below a ruler, and for a job that has failed all of it again."""
    ends = [("Job '%s' %s" % (JOB, end)).encode() for end in ("succeeded", "failed", "was stopped")]
    held = []
    for line in lines:
        # Ray's own lines have the time, the level and the place before them, where it writes to no terminal, and colours.
        bare = re.sub(rb"^.*\bcli\.py:\d+ -- |\x1b\[[0-9;]*m", b"", line)
        if not bare.strip(b"-\r\n"):
            # A ruler, or an empty line before it.
            held.append(line)
            if len(held) > 2:
                yield held.pop(0)
            continue
        if any(end in line for end in ends) and (held or b"was stopped" in line):
            # It is read to its end, so that who writes it is not stopped.
            for _ in lines:
                pass
            return
        yield from held
        held = []
        yield line
    yield from held


def show(follow, shown):
    """Prints the driver's output beyond what was shown; returns how many lines that makes."""
    command = ray("logs", "--address", ADDRESS, *(["--follow"] if follow else []), JOB)
    logs = subprocess.Popen(command, stdout=subprocess.PIPE)
    lines = 0
    for line in printed(logs.stdout):
        lines += 1
        if lines > shown:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
    logs.wait()
    return max(shown, lines)


def why(info):
    """Why the job has ended so, without the driver's last words, which are shown already."""
    return (info.get("message") or "").partition(", last available logs")[0]


def main():
    shown = 0
    waits = False
    busy = None  # since when
    while True:
        try:
            get("/api/gcs_healthz")
            session = json.loads(get("/api/version") or "{}").get("session_name", "")
            if SESSION and session and session != SESSION:
                say("Ray has restarted: the job belongs to an earlier session")
                return 76
            found = get("/api/jobs/" + JOB)
        except (OSError, ValueError, http.client.HTTPException) as error:
            if not waits:
                say("waiting for Ray at %s (%s)" % (ADDRESS, error))
            waits = True
            time.sleep(2)
            continue
        if found is None:
            if shown:
                say("Ray no longer knows the job")
                return 75
            # One that was submitted meanwhile is refused by Ray.
            taken, is_busy = submit()
            if taken:
                continue
            busy = busy or time.monotonic()
            try:
                if get("/api/jobs/" + JOB) is not None:
                    continue
            except (OSError, http.client.HTTPException):
                pass
            if not is_busy or time.monotonic() - busy >= BUSY:
                return 75
            say("Ray cannot accept the job yet")
            time.sleep(2)
            continue
        info = json.loads(found)
        if info["status"] in ENDS:
            show(False, shown)
            say("the job has %s: %s" % (info["status"], why(info)))
            return 0 if info["status"] == "SUCCEEDED" else 1
        shown = show(True, shown)
        time.sleep(1)


# As PID 1 it would not be ended by the signal else. The job runs on.
signal.signal(signal.SIGTERM, lambda *_: os._exit(75))
try:
    code = main()
except Exception as error:
    # Whatever it is, it says nothing about the job.
    say("%s: %s" % (type(error).__name__, error))
    code = 75
sys.exit(code)
