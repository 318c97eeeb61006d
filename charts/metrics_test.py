"""Checks alert rules and dashboard against the code and the docs.

The control plane has each metric, label and value, and the docs have a runbook for each alert.

    python3 charts/metrics_test.py
    python3 charts/metrics_test.py panels       # the dashboard's expressions as rules, which promtool can check
"""

import json
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILES = ROOT / "charts/lockstep/files"
RUNBOOKS = ROOT / "docs/operations.md"
URL = "https://github.com/lockstep-dev/lockstep/blob/main/docs/operations.md#"

# Metrics of other exporters, with their labels.
FOREIGN = {"kube_daemonset_status_number_unavailable": {"namespace", "daemonset"}}
SUFFIXES = {"Counter": ["_total"], "Gauge": [""], "Histogram": ["_bucket", "_count", "_sum"]}
# Files below control-plane/ with the values that rules and panels name.
VALUES = {
    ("lockstep_restarts", "scope"): [("core/src/restart/observed.rs", "impl Scope")],
    ("lockstep_restarts", "level"): [("core/src/jobset/in_place.rs", "impl RestartLevel")],
    ("lockstep_restarts", "kind"): [("src/controllers/restart/metrics.rs", "fn crash_or_deliberate")],
    ("lockstep_restarts", "cause"): [("core/src/restart/cause.rs", "impl Reason")],
    ("lockstep_restart_phase_seconds", "level"): [("core/src/jobset/in_place.rs", "impl RestartLevel")],
    ("lockstep_restart_phase_seconds", "phase"): [("src/controllers/restart/phases.rs", "fn phases"), ("src/controllers/restart/phases.rs", "fn total")],
    ("lockstep_replacement_pods", "result"): [("src/controllers/restart/metrics.rs", "fn pod")],
    ("lockstep_standbys", "state"): [("src/controllers/restart/metrics/standbys.rs", "fn show")],
    ("lockstep_worker_starts", "kind"): [("src/controllers/restart/metrics/standbys.rs", "fn count")],
    ("lockstep_hub_refusals", "reason"): [
        ("src/hub/protocol.rs", "impl HandshakeError"),
        ("src/hub/auth.rs", "fn reason"),
        ("src/hub/protocol.rs", "impl ProtocolViolation"),
        ("src/hub/registry/link.rs", "fn reason"),
        ("src/hub/epoch_tracker.rs", "fn reason"),
        ("src/hub/report_limits.rs", "fn reason"),
        ("src/net/tls/connection_limit.rs", "fn reason"),
    ],
    ("lockstep_reconciles", "result"): [("src/telemetry/metrics.rs", "enum Outcome")],
}
KEYWORDS = {"and", "or", "unless", "offset", "bool", "le"}


def search(pattern, text, what, flags=0):
    """The match. Fails with the pattern if there is none."""
    match = re.search(pattern, text, flags)
    if not match:
        raise AssertionError(f"not found: {what}. Was it rewritten? The pattern is {pattern}")
    return match


def registered():
    """The labels of each metric of the control plane, by its name in Prometheus."""
    found = {}
    for path in (ROOT / "control-plane/src").rglob("*.rs"):
        if path.name == "tests.rs":
            continue
        text = path.read_text(encoding="utf-8")
        structs = dict(re.findall(r"struct (\w+)[ (]\{?(.*?)[})][;\n]", text, re.S))
        for name, field in re.findall(
            r'registry\.register\(\s*"(\w+)",\s*"(?:[^"\\]|\\.)*",\s*([\w.]+)\.clone\(\)', text, re.S
        ):
            field = field.removesuffix(".0").split(".")[-1]
            where = f"in {path.relative_to(ROOT)}, for {name}"
            kind = search(rf"\b{field}: (\w.*),\n", text, f"the field {field} {where}")[1]
            kind = structs.get(kind, kind)
            labels = re.search(r"Family<(\w+)", kind)
            if labels and labels[1] not in structs:
                raise AssertionError(f"not found: the struct {labels[1]} {where}")
            fields = re.findall(r"^    (\w+):", structs[labels[1]], re.M) if labels else []
            metric = search(r"Counter|Gauge|Histogram", kind, f"the type of {field} {where}")[0]
            for suffix in SUFFIXES[metric]:
                found[name + suffix] = set(fields) | ({"le"} if suffix == "_bucket" else set())
        # Metrics that are counted by reason: `Reasons` in `telemetry/metrics.rs`.
        for name in re.findall(r'Reasons::register\(\s*\w+,\s*"(\w+)"', text):
            found[name + "_total"] = {"reason"}
    return found


def values(metric, label):
    """The values of a metric's label: texts in a function or implementation, or variants of an enum."""
    place = metric.removesuffix("_total").removesuffix("_bucket").removesuffix("_count").removesuffix("_sum"), label
    if place not in VALUES:
        raise AssertionError(f"{metric}: say in VALUES where the values of {label} come from")
    found = set()
    for path, item in VALUES[place]:
        text = (ROOT / "control-plane" / path).read_text(encoding="utf-8")
        start = rf"^( *)(?:pub(?:\([a-z]+\))? )?{item}\b.*?^\1}}"
        text = search(start, text, f"{item} in {path}", re.M | re.S)[0]
        found |= set(re.findall(r"^    (\w+),$" if item.startswith("enum") else r'"(\w+)"', text, re.M))
    if not found:
        raise AssertionError(f"{metric}: no values of {label} in {VALUES[place]}")
    return found


def metrics_in(expression):
    """The metrics in a PromQL expression, each with its matchers (label, value)."""
    expression = re.sub(r"\$__\w+|\b\d+[smhd]\b", "", expression)
    grouped = r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)"
    labels = {label.strip() for group in re.findall(grouped, expression) for label in group.split(",")}
    expression = re.sub(grouped, " ", expression)
    found = []
    for name, matchers in re.findall(r"(?<![\w:\"])([a-z_][\w:]*)(?!\w|:|\s*\()(?:\{([^}]*)\})?", expression):
        if name not in KEYWORDS:
            found.append((name, re.findall(r'(\w+)(?:=~|!~|!=|=)"([^"]*)"', matchers)))
    return found, labels


def rules():
    """The rules as (kind, name, text); the file is plain YAML that the standard library cannot read."""
    text = (FILES / "alerts.yaml").read_text(encoding="utf-8")
    for part in re.split(r"\n      - (?=alert:|record:)", text)[1:]:
        kind, name = search(r"^(\w+): (\S+)", part, "the name of a rule").groups()
        yield kind, name, part


def expression(rule):
    """The value of `expr:`, on its line or below."""
    return search(r"^ {8}expr: (\|\n(?: {10}.*\n)+|.*\n)", rule, f"the expression of {rule[:60]!r}", re.M)[1]


def panels():
    return json.loads((FILES / "dashboard.json").read_text(encoding="utf-8"))["panels"]


def as_rules():
    """A file of rules with the expression of each panel, as JSON, which is YAML."""
    targets = [target for panel in panels() for target in panel.get("targets", [])]
    # Variables that Grafana replaces: an interval, and selections of the page.
    asked = [re.sub(r"\$\{?\w+\}?", ".*", re.sub(r"\$__\w+", "5m", target["expr"])) for target in targets]
    recorded = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(asked)]
    return json.dumps({"groups": [{"name": "dashboard", "rules": recorded}]}, indent=1)


class MetricsTest(unittest.TestCase):
    def setUp(self):
        self.known = registered() | FOREIGN
        self.recorded = {name for kind, name, _ in rules() if kind == "record"}

    def test_the_metrics_of_the_code_are_found(self):
        self.assertEqual(
            self.known["lockstep_restarts_total"], {"group", "scope", "level", "kind", "cause"}
        )
        self.assertEqual(self.known["lockstep_restart_phase_seconds_bucket"], {"phase", "level", "le"})
        self.assertEqual(self.known["lockstep_api_requests_total"], {"method"})
        self.assertEqual(self.known["lockstep_gangs_waiting"], set())
        self.assertNotIn("lockstep_restarts", self.known)
        code = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "control-plane/src").rglob("*.rs"))
        count = len(re.findall(r"(?:registry\.register\(|Reasons::register\(\s*\w+,)\s*\"(?!mine)", code))
        self.assertEqual(len({re.sub("_(total|bucket|count|sum)$", "", n) for n in self.known} - FOREIGN.keys()), count)

    def check(self, text, where):
        found, grouped = metrics_in(text)
        self.assertTrue(found, where)
        allowed = {"le"}
        for name, matchers in found:
            if name in self.recorded:
                allowed |= {"level", "kind", "cause"}
            else:
                self.assertIn(name, self.known, where)
                allowed |= self.known[name]
            for label, value in matchers:
                self.assertIn(label, allowed, where)
                if name not in FOREIGN:
                    known = values("lockstep_restarts" if name in self.recorded else name, label)
                    self.assertLessEqual(set(value.split("|")), known, where)
        self.assertLessEqual(grouped, allowed, where)

    def test_rules_and_dashboard_name_existing_metrics(self):
        for _, name, rule in rules():
            self.check(expression(rule), name)
        for panel in panels():
            for target in panel.get("targets", []):
                self.check(target["expr"], panel["title"])

    def test_every_metric_is_on_the_dashboard(self):
        text = (FILES / "dashboard.json").read_text(encoding="utf-8")
        # Metrics with upstream's names are for existing dashboards. Ours has the same under our names.
        upstreams = ("controller_runtime_", "leader_election_", "rest_client_", "workqueue_")
        for name in (name for name in registered() if not name.startswith(upstreams)):
            self.assertIn(re.sub("_(bucket|count|sum)$", "", name), text)

    def test_every_metric_is_in_the_docs(self):
        text = RUNBOOKS.read_text(encoding="utf-8")
        for name in registered():
            self.assertIn(f"`{re.sub('_(bucket|count|sum)$', '', name)}`", text)

    def test_each_alert_has_its_texts_its_runbook_and_its_test(self):
        headings = re.findall(r"^#+ (\w+)$", RUNBOOKS.read_text(encoding="utf-8"), re.M)
        tests = (ROOT / "charts/alerts_test.yaml").read_text(encoding="utf-8")
        alerts = {name: rule for kind, name, rule in rules() if kind == "alert"}
        for name, rule in alerts.items():
            self.assertIn(f"runbook_url: {URL}{name.lower()}\n", rule + "\n")
            self.assertIn(name, headings)
            for needed in ["severity: ", "summary: ", "description: "]:
                self.assertIn(needed, rule, name)
            self.assertRegex(tests, rf"\b{name}\b", f"{name} has no test in which it fires")
        self.assertEqual(sorted(alerts), sorted(h for h in headings if h.startswith("Lockstep") and h != "Lockstep"))

    def test_panels_do_not_overlap(self):
        places = set()
        for panel in panels():
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            self.assertLessEqual(at["x"] + at["w"], 24, panel["title"])
            self.assertFalse(cells & places, panel["title"])
            places |= cells
        self.assertEqual(len({panel["id"] for panel in panels()}), len(panels()))


if __name__ == "__main__":
    if sys.argv[1:] == ["panels"]:
        print(as_rules())
    else:
        unittest.main()
