"""Submits a job to Ray, once, shows the driver's output, and ends as the job does.

Exit codes: 0 the job has succeeded; 1 it has failed or was stopped; 75 anything else, try again;
76 Ray has restarted, and the job belongs to an earlier session. A submitter that is started again
attaches to the running job.
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
# How many seconds to retry while Ray cannot accept the job yet: its head answers before all of Ray
# is up. Three submitters make 5 minutes.
BUSY = 90


def get(path):
    """The text of the answer, or None for a 404. Raises OSError if there is no answer."""
    try:
        with urllib.request.urlopen(ADDRESS + path, timeout=10) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def words(entrypoint):
    """The entrypoint as arguments. Ray quotes each of them before it passes them to a shell."""
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
    """Returns if Ray has accepted the job, and if it may do so later: the job is not to blame."""
    entrypoint = [*SUBMIT[:-1], *words(SUBMIT[-1])]
    command = ray("submit", "--address", ADDRESS, "--submission-id", JOB, "--no-wait", *entrypoint)
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    sys.stdout.buffer.write(ran.stdout)
    sys.stdout.buffer.flush()
    return ran.returncode == 0, b"failed with status code 5" in ran.stdout


def printed(lines):
    """The driver's output, without what `ray job logs --follow` adds below a ruler: how the job has
    ended and, if it has failed, all of the output again."""
    ends = [("Job '%s' %s" % (JOB, end)).encode() for end in ("succeeded", "failed", "was stopped")]
    held = []
    for line in lines:
        # Without a terminal, Ray's own lines begin with time, level and place. They have colours.
        bare = re.sub(rb"^.*\bcli\.py:\d+ -- |\x1b\[[0-9;]*m", b"", line)
        if not bare.strip(b"-\r\n"):
            # A ruler, or an empty line before it.
            held.append(line)
            if len(held) > 2:
                yield held.pop(0)
            continue
        if any(end in line for end in ends) and (held or b"was stopped" in line):
            # Drain the pipe, so that its writer does not block.
            for _ in lines:
                pass
            return
        yield from held
        held = []
        yield line
    yield from held


def show(follow, shown):
    """Prints the driver's output after the first `shown` lines. Returns how many are shown now."""
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
    """Why the job has ended so, without the driver's last output, which is shown already."""
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
            # If another submitter was faster, Ray refuses this submission.
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


# As PID 1 it would ignore the signal otherwise. The job runs on.
signal.signal(signal.SIGTERM, lambda *_: os._exit(75))
try:
    code = main()
except Exception as error:
    # No error of the submitter says anything about the job.
    say("%s: %s" % (type(error).__name__, error))
    code = 75
sys.exit(code)
