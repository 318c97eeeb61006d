"""The submitter of a RayJob, against a stub of Ray's dashboard and of its command line. Run by `make ray-test`."""
import http.server
import json
import os
import pathlib
import subprocess
import tempfile
import threading
import unittest

SCRIPT = pathlib.Path(__file__).parents[3] / "control-plane/core/src/ray/submitter.py"

# `ray job submit` and `ray job logs`, as far as the submitter uses them: both ask the stub.
RAY = """#!/usr/bin/env python3
import sys, urllib.request
command, address = sys.argv[2], sys.argv[sys.argv.index("--address") + 1]
if command == "submit":
    data = "\\0".join(sys.argv[3:]).encode()
    answer = urllib.request.urlopen(urllib.request.Request(address + "/submit", data)).read()
    if answer != b"ok":
        sys.exit("RuntimeError: Request failed with status code %s." % answer.decode())
    sys.exit(0)
follow = "?follow" if "--follow" in sys.argv else ""
sys.stdout.write(urllib.request.urlopen(address + "/logs" + follow).read().decode())
if follow:
    sys.stdout.write(urllib.request.urlopen(address + "/end").read().decode())
"""


class Head(http.server.ThreadingHTTPServer):
    """Ray, whose answers a test scripts."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.session = "s0"
        self.status = None  # of the job; None: it is not known
        self.then = {}  # what it becomes when its logs were followed
        self.accepts = True
        self.busy = 0  # submissions that it cannot take yet
        self.unhealthy = 0  # requests that fail before one is answered
        self.submitted = []
        self.logs = ["line 1\n"]
        self.end = ""  # what the command adds to logs that it has followed
        self.message = "because"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def send(self, code, body):
        self.send_response(code)
        self.end_headers()
        self.wfile.write(body.encode())

    def do_GET(self):
        head = self.server
        if self.path == "/api/gcs_healthz":
            head.unhealthy -= 1
            return self.send(503 if head.unhealthy >= 0 else 200, "success")
        if self.path == "/api/version":
            return self.send(200, json.dumps({"session_name": head.session}))
        if self.path.startswith("/logs"):
            body = "".join(head.logs)
            if "follow" in self.path:
                head.status, more, head.session = head.then.pop(head.status, (head.status, [], head.session))
                head.logs += more
            return self.send(200, body)
        if self.path == "/end":
            return self.send(200, head.end)
        if head.status is None:
            return self.send(404, "")
        self.send(200, json.dumps({"status": head.status, "message": head.message}))

    def do_POST(self):
        head = self.server
        head.submitted.append(self.rfile.read(int(self.headers["Content-Length"])).decode().split("\0"))
        head.busy -= 1
        if head.busy >= 0:
            return self.send(200, "500: No available agent to submit job, please try again later")
        if not head.accepts:
            return self.send(200, "400: no such package")
        head.status = "RUNNING"
        self.send(200, "ok")


class Submitter(unittest.TestCase):
    def setUp(self):
        self.head = Head()
        self.addCleanup(self.head.server_close)
        self.addCleanup(self.head.shutdown)
        self.bin = tempfile.TemporaryDirectory()
        self.addCleanup(self.bin.cleanup)
        ray = pathlib.Path(self.bin.name, "ray")
        ray.write_text(RAY)
        ray.chmod(0o755)

    entrypoint = "echo it's"

    def start(self):
        env = {
            "PATH": self.bin.name + ":" + os.environ["PATH"],
            "RAY_DASHBOARD_ADDRESS": "127.0.0.1:%d" % self.head.server_port,
            "RAY_JOB_SUBMISSION_ID": "rj-1",
            "RAYJOB_SESSION": "s0",
            "RAYJOB_SUBMIT": json.dumps(["--runtime-env-json", "{}", "--", self.entrypoint]),
        }
        command = ["python3", "-u", "-c", SCRIPT.read_text()]
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)

    def run_it(self):
        submitter = self.start()
        stdout, _ = submitter.communicate(timeout=60)
        return subprocess.CompletedProcess(submitter.args[:2], submitter.returncode, stdout)

    def test_submits_once_and_shows_the_output(self):
        self.head.then = {"RUNNING": ("SUCCEEDED", ["line 2\n"], "s0")}
        ran = self.run_it()
        self.assertEqual(ran.returncode, 0, ran)
        self.assertEqual(len(self.head.submitted), 1)
        self.assertEqual(self.head.submitted[0][-4:], ["--", "sh", "-c", "echo it's"])
        self.assertEqual([line for line in ran.stdout.splitlines() if line.startswith("line")], ["line 1", "line 2"])

    def test_waits_for_the_dashboard(self):
        self.head.unhealthy = 1
        self.head.then = {"RUNNING": ("SUCCEEDED", [], "s0")}
        ran = self.run_it()
        self.assertEqual(ran.returncode, 0, ran)
        self.assertIn("waiting for Ray", ran.stdout)

    def test_asks_again_where_ray_cannot_take_the_job_yet(self):
        self.head.busy = 2
        self.head.then = {"RUNNING": ("SUCCEEDED", [], "s0")}
        ran = self.run_it()
        self.assertEqual(ran.returncode, 0, ran)
        self.assertEqual(len(self.head.submitted), 3)
        self.assertIn("No available agent", ran.stdout)

    def test_kuberay_2314_attaches_to_a_job_that_runs(self):
        self.head.status = "RUNNING"
        self.head.then = {"RUNNING": ("SUCCEEDED", [], "s0")}
        ran = self.run_it()
        self.assertEqual((ran.returncode, self.head.submitted), (0, []), ran)
        self.assertIn("line 1", ran.stdout)

    def test_kuberay_3211_ends_as_the_job_did_however_often_it_is_started(self):
        for status, code in [("FAILED", 1), ("STOPPED", 1), ("SUCCEEDED", 0)]:
            self.head.status = status
            for _ in range(2):
                ran = self.run_it()
                self.assertEqual((ran.returncode, self.head.submitted), (code, []), ran)
                self.assertIn(status, ran.stdout)

    def test_plain_words_are_submitted_as_they_are(self):
        self.entrypoint = "python main.py --steps 3"
        self.head.then = {"RUNNING": ("SUCCEEDED", [], "s0")}
        ran = self.run_it()
        self.assertEqual(ran.returncode, 0, ran)
        self.assertEqual(self.head.submitted[0][-5:], ["--", "python", "main.py", "--steps", "3"])

    def test_kuberay_1489_submits_nothing_to_another_run_of_ray(self):
        self.head.session = "s1"
        ran = self.run_it()
        self.assertEqual((ran.returncode, self.head.submitted), (76, []), ran)

    def test_kuberay_3903_ends_when_the_head_is_started_anew_under_it(self):
        self.head.status = "RUNNING"
        self.head.then = {"RUNNING": (None, [], "s1")}
        ran = self.run_it()
        self.assertEqual((ran.returncode, self.head.submitted), (76, []), ran)

    def test_a_submission_that_is_refused_is_tried_again_by_another(self):
        self.head.accepts = False
        ran = self.run_it()
        self.assertEqual((ran.returncode, len(self.head.submitted)), (75, 1), ran)

    def test_kuberay_2317_one_that_is_told_to_end_does_so_and_leaves_the_job_alone(self):
        self.head.unhealthy = 1000
        submitter = self.start()
        self.assertIn("waiting for Ray", submitter.stdout.readline())
        submitter.terminate()
        submitter.communicate(timeout=10)
        self.assertEqual((submitter.returncode, self.head.submitted), (75, []))

    def test_output_is_not_shown_twice(self):
        self.head.status = "RUNNING"
        self.head.then = {"RUNNING": ("PENDING", ["line 2\n"], "s0"), "PENDING": ("SUCCEEDED", [], "s0")}
        ran = self.run_it()
        self.assertEqual(ran.stdout.count("line 1"), 1, ran)
        self.assertEqual(ran.stdout.count("line 2"), 1, ran)

    def test_a_failure_is_shown_once(self):
        last = "Traceback\n---\n\nRuntimeError: THE REASON\n"
        self.head.message = "Job entrypoint command failed with exit code 1, last available logs (truncated to 20,000 chars):\n" + last
        ruler = "-" * 20 + "\n"
        self.head.end = "\n" + ruler + "Job 'rj-1' failed\n" + ruler + "\nStatus message: " + self.head.message
        self.head.status = "RUNNING"
        self.head.then = {"RUNNING": ("FAILED", [], "s0")}
        self.head.logs = ["line 1\n", last]
        ran = self.run_it()
        self.assertEqual(ran.returncode, 1, ran)
        self.assertEqual(
            ran.stdout,
            "line 1\n" + last + "submitter: the job has FAILED: Job entrypoint command failed with exit code 1\n",
        )

    def test_a_failure_is_shown_once_where_ray_writes_to_no_terminal(self):
        last = "Traceback\n---\n\nRuntimeError: THE REASON\n"
        own = "2026-11-27 15:00:00,000\tERR cli.py:74 -- \x1b[31m%s\x1b[39m\n"
        self.head.message = "Job entrypoint command failed with exit code 1, last available logs:\n" + last
        ruler = own % ("-" * 20)
        self.head.end = "\n" + ruler + own % "Job 'rj-1' failed" + ruler + "\nStatus message: " + self.head.message
        self.head.status = "RUNNING"
        self.head.then = {"RUNNING": ("FAILED", [], "s0")}
        self.head.logs = ["line 1\n", last]
        ran = self.run_it()
        self.assertEqual(ran.stdout.count("THE REASON"), 1, ran)
        self.assertEqual(ran.stdout.count("line 1"), 1, ran)

    def test_what_comes_while_the_end_is_told_is_shown_too(self):
        self.head.status = "RUNNING"
        self.head.end = "\n---\nJob 'rj-1' failed\n---\n\nStatus message: a\nb\nc\n"
        self.head.then = {"RUNNING": ("FAILED", ["line 2\n", "line 3\n", "-----\n", "\n", "\n", "\n", "line 4\n"], "s0")}
        ran = self.run_it()
        lines = ran.stdout.split("\n")
        self.assertEqual(lines[:8], ["line 1", "line 2", "line 3", "-----", "", "", "", "line 4"], ran)


if __name__ == "__main__":
    unittest.main()
