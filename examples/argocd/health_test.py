"""Runs health.lua over JobSets as Argo CD does: in gopher-lua, with few of its libraries, and the JobSet in `obj`.

    LUA=$(target/debug/lockstep-testbed tools path glua) python3 examples/argocd/health_test.py
"""

import json
import os
import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCRIPT = pathlib.Path(__file__).with_name("health.lua")
# A status that upstream's controller wrote on a real API server.
LEFT = ROOT / "integration/tests/jobset_api/upgrade/upstream.json"

# By default, Argo CD opens base, table and a part of os.
HARNESS = """
local write, script = io.write, assert(loadfile(%s))
for _, library in ipairs({"string", "math", "io", "os", "coroutine", "debug"}) do _G[library] = nil end
getmetatable("").__index = nil
obj = %s
local health = script()
for key in pairs(health) do assert(key == "status" or key == "message", key) end
write(health.status, "\\n", health.message)
"""


def lua(value):
    """The value as Lua writes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"[{lua(key)}] = {lua(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(map(lua, value)) + "}"
    return json.dumps(value)


def health(spec, status=None):
    """The health and the message that Argo CD shows for a JobSet."""
    jobset = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "js"}, "spec": spec}
    if status is not None:
        jobset["status"] = status
    program = HARNESS % (lua(str(SCRIPT)), lua(jobset))
    run = [os.environ["LUA"], "-e", program]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)
    return tuple(done.stdout.split("\n", 1))


def is_(type_, status="True", message="said"):
    """A condition."""
    return {"type": type_, "status": status, "reason": "R", "message": message, "lastTransitionTime": "2026-01-02T03:04:05Z"}


def jobs(name="workers", **counts):
    """The counts of a replicatedJob."""
    return {"name": name, "ready": 0, "succeeded": 0, "failed": 0, "active": 0, "suspended": 0} | counts


def spec(*replicated_jobs, **fields):
    """A spec, by default of one replicatedJob with two Jobs."""
    return {"replicatedJobs": list(replicated_jobs) or [{"name": "workers", "replicas": 2}]} | fields


def status(*counts, conditions=(), **fields):
    """A status, by default with both Jobs ready."""
    found = {"replicatedJobsStatus": list(counts) or [jobs(ready=2, active=2)]} | fields
    return found | ({"conditions": list(conditions)} if conditions else {})


def in_place(phase, **fields):
    """A status during a restart in place. The Jobs stay ready, since their pods stay."""
    return status(inPlaceRestart={"kind": "Supervised", "phase": phase, "generation": 3} | fields)


FIRST = {"name": "first", "replicas": 1}


def second(until):
    """A replicatedJob that waits for the first."""
    return {"name": "second", "replicas": 1, "dependsOn": [{"name": "first", "status": until}]}


def in_order(until=None):
    """An execution policy."""
    return {"executionPolicyOrder": "InOrder"} | ({"replicatedJobsStatus": until} if until else {})


PLAIN = {"name": "second", "replicas": 1}


def gang(**minimums):
    """A gang that starts with this many pods of each replicatedJob."""
    return {"replicatedJobs": [{"name": name, "minAvailable": minimum} for name, minimum in minimums.items()]}


CASES = {
    "has no status yet": (spec(), None, "Progressing", "no Jobs yet"),
    "an empty status": (spec(), {}, "Progressing", "no Jobs yet"),
    "starts": (spec(), status(jobs(active=2)), "Progressing", "workers: 0 of 2 Jobs are ready"),
    "runs in part": (spec(), status(jobs(ready=1, active=2)), "Progressing", "workers: 1 of 2 Jobs are ready"),
    "runs": (spec(), status(), "Healthy", "all workers run"),
    "one replica by default": (spec({"name": "workers"}), status(jobs(ready=1)), "Healthy", "all workers run"),
    "no replicas": (spec({"name": "workers", "replicas": 0}), status(jobs()), "Healthy", "all workers run"),
    "is done in part": (spec(), status(jobs(ready=1, succeeded=1)), "Healthy", "all workers run"),
    "has completed": (spec(), status(jobs(succeeded=2), conditions=[is_("Completed")]), "Healthy", "said"),
    "has failed": (spec(), status(jobs(failed=1), conditions=[is_("Failed")]), "Degraded", "said"),
    "has completed, and is suspended": (spec(suspend=True), status(conditions=[is_("Completed")]), "Healthy", "said"),
    "has failed, and was about to restart": (
        spec(),
        status(conditions=[is_("RestartingJobSet", "False"), is_("Failed")]),
        "Degraded",
        "said",
    ),
    "is created suspended": (spec(suspend=True), None, "Suspended", "jobset is being suspended"),
    "is suspended": (spec(suspend=True), status(jobs(suspended=2), conditions=[is_("Suspended")]), "Suspended", "said"),
    "is suspended in a restart that was blocked": (
        spec(suspend=True),
        status(conditions=[is_("RestartBlocked"), is_("Suspended")]),
        "Suspended",
        "said",
    ),
    "is being resumed": (
        spec(suspend=False),
        status(jobs(suspended=2), conditions=[is_("Suspended")]),
        "Progressing",
        "workers: 0 of 2 Jobs are ready",
    ),
    "was resumed": (spec(suspend=False), status(conditions=[is_("Suspended", "False")]), "Healthy", "all workers run"),
    "is blocked": (
        spec(),
        in_place("Stopping") | {"conditions": [is_("RestartBlocked", message="pod js-workers-0-0 is on node n1")]},
        "Degraded",
        "pod js-workers-0-0 is on node n1",
    ),
    "is no longer blocked": (spec(), status(conditions=[is_("RestartBlocked", "False")]), "Healthy", "all workers run"),
    "is recreated": (spec(), status(jobs(), conditions=[is_("RestartingJobSet")]), "Progressing", "said"),
    "was recreated": (spec(), status(conditions=[is_("RestartingJobSet", "False")]), "Healthy", "all workers run"),
    "stops in place": (
        spec(),
        in_place("Stopping", cause={"reason": "WorkerExited", "message": "js-workers-0-1 exited with 1"}),
        "Progressing",
        "workers restart in place: js-workers-0-1 exited with 1",
    ),
    "stops in place, without a cause": (spec(), in_place("Stopping"), "Progressing", "workers restart in place"),
    "waits at the barrier": (spec(), in_place("Parked"), "Progressing", "workers restart in place"),
    "starts in place": (spec(), in_place("Releasing"), "Progressing", "workers restart in place"),
    "gives up restarts in place": (spec(), in_place("Recreating"), "Progressing", "the Jobs are being recreated"),
    "has used up its restarts": (spec(), in_place("Failed"), "Degraded", "failurePolicy.maxRestarts is used up"),
    "has restarted in place": (spec(), in_place("InSync"), "Healthy", "all workers run"),
    "restarts one worker": (
        spec(),
        in_place("InSync", workerRestarts=[{"job": "js-loaders-0", "index": 1, "container": "main", "generation": 4}]),
        "Progressing",
        "worker 1 of js-loaders-0 restarts",
    ),
    "a gang waits": (spec(), status(jobs(active=2), conditions=[is_("MinAvailable", "False")]), "Progressing", "said"),
    "a gang runs with its minimum": (
        spec(gang=gang(workers=1)),
        status(jobs(active=2), conditions=[is_("MinAvailable")]),
        "Healthy",
        "the minimum of the gang runs",
    ),
    "a gang runs with its minimum of the pods of a Job": (
        spec({"name": "workers", "template": {"spec": {"parallelism": 8, "completions": 8}}}, gang=gang(workers=6)),
        status(jobs(active=1), conditions=[is_("MinAvailable")]),
        "Healthy",
        "the minimum of the gang runs",
    ),
    "a gang runs with the minimum of its only replicatedJob": (
        spec(gang={"minAvailable": 1}),
        status(jobs(active=2), conditions=[is_("MinAvailable")]),
        "Healthy",
        "the minimum of the gang runs",
    ),
    "a gang runs with all its pods": (
        spec(gang=gang(workers=1)),
        status(conditions=[is_("MinAvailable")]),
        "Healthy",
        "all workers run",
    ),
    "a gang of all pods runs, and they are not ready": (
        spec(gang=gang(workers=2)),
        status(jobs(active=2), conditions=[is_("MinAvailable")]),
        "Progressing",
        "workers: 0 of 2 Jobs are ready",
    ),
    "a gang runs with its minimum, and a replicatedJob without optional workers is not ready": (
        spec(FIRST, {"name": "second", "replicas": 2}, gang=gang(first=1, second=1)),
        status(jobs("first", active=1), jobs("second", active=2), conditions=[is_("MinAvailable")]),
        "Progressing",
        "first: 0 of 1 Jobs are ready",
    ),
    "a gang runs, and a Job is missing": (
        spec(gang=gang(workers=1)),
        status(jobs(active=1), conditions=[is_("MinAvailable")]),
        "Progressing",
        "workers: 0 of 2 Jobs are ready",
    ),
    "starts in order": (
        spec(FIRST, PLAIN, startupPolicy={"startupPolicyOrder": "InOrder"}),
        status(jobs("first", ready=1), jobs("second"), conditions=[is_("StartupPolicyInProgress"), is_("Suspended")]),
        "Progressing",
        "said",
    ),
    "has started in order": (
        spec(FIRST, PLAIN),
        status(
            jobs("first", ready=1),
            jobs("second", ready=1),
            conditions=[is_("StartupPolicyInProgress", "False"), is_("StartupPolicyCompleted")],
        ),
        "Healthy",
        "all workers run",
    ),
    "the second waits for the end of the first": (
        spec(FIRST, second("Complete")),
        status(jobs("first", ready=1), jobs("second")),
        "Healthy",
        "all workers run",
    ),
    "the first starts, with a second after it": (
        spec(FIRST, second("Complete")),
        status(jobs("first", active=1), jobs("second")),
        "Progressing",
        "first: 0 of 1 Jobs are ready",
    ),
    "the second comes after the end of the first": (
        spec(FIRST, second("Complete")),
        status(jobs("first", succeeded=1), jobs("second")),
        "Progressing",
        "second: 0 of 1 Jobs are ready",
    ),
    "the second comes after the end of a first without a number of replicas": (
        spec({"name": "first"}, second("Complete")),
        status(jobs("first", succeeded=1), jobs("second")),
        "Progressing",
        "second: 0 of 1 Jobs are ready",
    ),
    "the second comes once the first is ready": (
        spec(FIRST, second("Ready")),
        status(jobs("first", ready=1), jobs("second")),
        "Progressing",
        "second: 0 of 1 Jobs are ready",
    ),
    "the second is run after the first": (
        spec(FIRST, PLAIN, executionPolicy=in_order()),
        status(jobs("first", ready=1), jobs("second")),
        "Healthy",
        "all workers run",
    ),
    "the second is run beside the first": (
        spec(FIRST, PLAIN, executionPolicy=in_order("Ready")),
        status(jobs("first", ready=1), jobs("second")),
        "Progressing",
        "second: 0 of 1 Jobs are ready",
    ),
    "the second handles the failure of the first": (
        spec(FIRST, PLAIN, executionPolicy=in_order("Failed")),
        status(jobs("first", failed=1), jobs("second", ready=1)),
        "Healthy",
        "all workers run",
    ),
}


class HealthTest(unittest.TestCase):
    def setUp(self):
        if "LUA" not in os.environ:
            self.fail("LUA has to name gopher-lua's glua: make examples")

    def test_each_state_has_its_health(self):
        for name, (spec_, status_, word, message) in CASES.items():
            with self.subTest(name):
                self.assertEqual(health(spec_, status_), (word, message))

    def test_a_status_that_a_controller_wrote_is_understood(self):
        left = json.loads(LEFT.read_text(encoding="utf-8"))["jobsets"]
        words = {jobset["metadata"]["name"]: health(jobset["spec"], jobset.get("status"))[0] for jobset in left}
        self.assertEqual(
            words,
            {
                "completed": "Healthy",
                "failed": "Degraded",
                "restarted": "Healthy",
                "running": "Healthy",
                "staged": "Progressing",
                "suspended": "Suspended",
            },
        )

    def test_it_uses_only_names_of_the_api(self):
        text = SCRIPT.read_text(encoding="utf-8")
        api = ROOT / "control-plane/api/src"
        conditions = (api / "conditions.rs").read_text(encoding="utf-8")
        asked = re.findall(r'condition\("(\w+)"', text)
        self.assertGreater(len(asked), 5)
        for condition in asked:
            self.assertIn(f'&str = "{condition}";', conditions)
        phases = re.search(r"pub enum InPlacePhase \{(.*?)\n    \}", (api / "status.rs").read_text(encoding="utf-8"), re.S)
        asked = re.findall(r'restart\.phase == "(\w+)"', text)
        self.assertEqual(len(asked), 5)
        for phase in asked:
            self.assertIn(f" {phase},", phases[1])


if __name__ == "__main__":
    unittest.main()
