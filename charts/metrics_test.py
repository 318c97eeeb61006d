"""Checks alert rules and dashboard against the code and the docs: each metric, label and value is one that the control plane has, and each alert
has its runbook.

    python3 charts/metrics_test.py
"""

import json
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILES = ROOT / "charts/lockstep/files"
RUNBOOKS = ROOT / "docs/operations.md"
URL = "https://github.com/lockstep-dev/lockstep/blob/main/docs/operations.md#"

# Metrics of others, with their labels.
FOREIGN = {"kube_daemonset_status_number_unavailable": {"namespace", "daemonset"}}
SUFFIXES = {"Counter": ["_total"], "Gauge": [""], "Histogram": ["_bucket", "_count", "_sum"]}
KEYWORDS = {"and", "or", "unless", "offset", "bool", "le"}


def registered():
    """The labels of each metric that the control plane registers, by the name under which Prometheus knows it."""
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
            kind = re.search(rf"\b{field}: (\w.*),\n", text)[1]
            kind = structs.get(kind, kind)
            labels = re.search(r"Family<(\w+)", kind)
            fields = re.findall(r"^    (\w+):", structs[labels[1]], re.M) if labels else []
            metric = re.search(r"Counter|Gauge|Histogram", kind)[0]
            for suffix in SUFFIXES[metric]:
                found[name + suffix] = set(fields) | ({"le"} if suffix == "_bucket" else set())
    return found


def literals():
    """Every text and variant of an enum in the control plane: what a label may be."""
    sources = [*(ROOT / "control-plane/src").rglob("*.rs"), *(ROOT / "control-plane/core/src").rglob("*.rs")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources if path.name != "tests.rs")
    return set(re.findall(r'"(\w+)"', text)) | set(re.findall(r"^    (\w+),$", text, re.M))


def metrics_in(expression):
    """The metrics of an expression of PromQL, each with its matchers (label, value)."""
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
        kind, name = re.match(r"(\w+): (\S+)", part).groups()
        yield kind, name, part


def expression(rule):
    """What stands behind `expr:`, on its line or below."""
    return re.search(r"^ {8}expr: (\|\n(?: {10}.*\n)+|.*\n)", rule, re.M)[1]


def panels():
    return json.loads((FILES / "dashboard.json").read_text(encoding="utf-8"))["panels"]


class MetricsTest(unittest.TestCase):
    def setUp(self):
        self.known = registered() | FOREIGN
        self.recorded = {name for kind, name, _ in rules() if kind == "record"}

    def test_the_metrics_of_the_code_are_found(self):
        self.assertEqual(
            self.known["lockstep_restarts_total"], {"group", "scope", "rung", "kind", "cause"}
        )
        self.assertEqual(self.known["lockstep_restart_phase_seconds_bucket"], {"phase", "le"})
        self.assertEqual(self.known["lockstep_api_requests_total"], {"method"})
        self.assertEqual(self.known["lockstep_gangs_waiting"], set())
        self.assertNotIn("lockstep_restarts", self.known)
        code = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "control-plane/src").rglob("*.rs"))
        count = len(re.findall(r"registry\.register\(\s*\"(?!mine)", code))
        self.assertEqual(len({re.sub("_(total|bucket|count|sum)$", "", n) for n in self.known} - FOREIGN.keys()), count)

    def check(self, text, where):
        found, grouped = metrics_in(text)
        self.assertTrue(found, where)
        allowed = {"le"}
        for name, matchers in found:
            if name in self.recorded:
                allowed |= {"rung", "kind", "cause"}
            else:
                self.assertIn(name, self.known, where)
                allowed |= self.known[name]
            for label, value in matchers:
                self.assertIn(label, allowed, where)
                if name not in FOREIGN:
                    for one in value.split("|"):
                        self.assertIn(one, self.values, where)
        self.assertLessEqual(grouped, allowed, where)

    def test_rules_and_dashboard_know_what_there_is(self):
        self.values = literals()
        for _, name, rule in rules():
            self.check(expression(rule), name)
        for panel in panels():
            for target in panel.get("targets", []):
                self.check(target["expr"], panel["title"])

    def test_every_metric_is_on_the_dashboard(self):
        text = (FILES / "dashboard.json").read_text(encoding="utf-8")
        for name in registered():
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

    def test_panels_stand_side_by_side(self):
        places = set()
        for panel in panels():
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            self.assertLessEqual(at["x"] + at["w"], 24, panel["title"])
            self.assertFalse(cells & places, panel["title"])
            places |= cells
        self.assertEqual(len({panel["id"] for panel in panels()}), len(panels()))


if __name__ == "__main__":
    unittest.main()
