"""Runs every command of the documentation, as a reader who follows it would.

    python3 docs/commands.py list     # each command, and what runs it
    python3 docs/commands.py run      # by `make api-test`, which sets the scene: integration/tests/jobset_api/platform/documented.rs

The scene is an API server without nodes, a control plane, a JobSet `js` whose workers are played, and the programs kubectl, kubectl-lockstep,
helm, grpcurl and curl. Commands that go on to a kubelet (logs, exec, port-forward) are run as far as that: they must fail for that alone, or
show the empty log of a pod that no node has.
What cannot be run there at all stands in `ELSEWHERE`, with the test that covers it, and targets of make that no test makes in `BY_HAND`.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from links_test import ROOT, made, pages

IMAGES = "integration/src/image/tests.rs"
DEMO = "integration/tests/node/demo.rs"
# How a command begins, why it is not run here, and what covers it: a part of `make test`, or a function in a file.
ELSEWHERE = [
    (r"for name in lockstep-", "takes a registry; its images are those that the node tests load", "make node-test"),
    (r"(\w+=\S+ )*cargo test ", "is a part of the tests", "make unit"),
    (r"KUBECONFIG=\S+ cargo run ", "runs until it is ended", "integration/tests/jobset_api/control_plane.rs::start_with"),
    (r'(eval "\$\()?(target/debug/)?lockstep-testbed ', "takes root and a node", "make node-test"),
    (r"kubectl -n \S+ rollout status ", "waits for a kubelet", "integration/tests/support/product.rs::install"),
    (r"kubectl lockstep demo", "takes a node", f"{DEMO}::the_plugin_shows_a_restart_and_removes_what_it_made"),
    (r"git clone \. |\(cd /tmp/elsewhere|sha256sum ", "takes two release builds", f"{IMAGES}::the_same_binaries_give_the_same_archives"),
    (r"python3 examples/pytorch-gpu/measure\.py ", "takes a GPU", "make examples"),
    (
        r"kubectl (apply -f examples/kueue/|get workloads|.*\bqueued)",
        "takes Kueue",
        "integration/tests/node/kueue.rs::a_queued_jobset_restarts_in_place_and_keeps_its_admission",
    ),
    (r"kubectl apply -f examples/ray/", "takes Ray's definitions", "make ray-test"),
]
# Targets of make that `make test` does not make, and what covers what they do.
BY_HAND = {
    "archives": "make node-test",
    "bench-controller": "integration/src/harness/controller.rs::start",
    "bench-gang": "make gang-test",
    "bench-groups": "make unit",
    "bench-ray": "make ray-test",
    "bench-restart": "make node-test",
    "bench-scale": "make unit",
    "bench-system": "make unit",
    "bench-warm": "make node-test",
    "binaries": "make test-programs",
    "cli": "integration/tests/jobset_api/control_plane.rs::build",
    "cluster-down": "make node-test",
    "cluster-up": "make node-test",
    "demo": "make node-test",
    "demo-ddp": "make examples-torch",
    "help": "make docs",
    "install": "integration/tests/support/product.rs::install",
    "page-images": "make page",
    "python-client": "make python-test",
    "reference": "make docs",
    "soak": "make node-test",
    "soak-gang": "make gang-test",
    "soak-warm": "make unit",
    "soak-node": "make node-test",
    "soak-tenant": "make node-test",
    "soak-versions": "make api-test",
    "soak-neighbours": "make neighbours-test",
    "soak-cgroup2": "make node-test",
}
# Commands that end at a kubelet, and how they say so.
TO_KUBELET = r"\bkubectl (-n \S+ )?(logs|exec|port-forward) "
NO_KUBELET = ["does not have a host assigned", "pod is not running", "node-of-the-test", "timed out waiting for the condition"]
# Exit codes other than 0 that are answers, too.
CODES = {r"kubectl lockstep check\b": {0, 1, 2}, r"curl -N ": {0, 28}}
PATIENCE = 90


class Command(NamedTuple):
    page: str
    line: str
    # What the page shows of its answer.
    printed: tuple[str, ...] = ()


def is_word(text):
    """Reports if a command can begin like this, with settings before it or without."""
    return re.match(r"\(?(\w+=\S* )*[a-z][\w./-]*(\s|$)", text) is not None


def uncommented(line):
    return re.sub(r"(^|\s+)#.*", "", line).strip()


def lines(block):
    """The commands of a block: all of its lines, or those behind a prompt with what follows; none if it is something else."""
    if block.startswith("#!"):
        return [(block.strip(), ())]
    if re.search(r"^\$ ", block, re.M):
        parts = [part.splitlines() for part in re.split(r"^\$ ", block, flags=re.M) if part]
        return [(uncommented(line), tuple(answer)) for line, *answer in parts]
    block = re.sub(r"\s*\\\n\s*", " ", block)
    block = re.sub(r"^for .*?^done$", lambda loop: " ".join(loop[0].split()), block, flags=re.M | re.S)
    found = [line for line in map(uncommented, block.splitlines()) if line]
    return [(line, ()) for line in found] if found and all(map(is_word, found)) else []


def blocks(text):
    """The blocks of a page that may hold commands."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S)
    return [block for language, block in found if language in ("", "sh")]


def of_page(text):
    for block in blocks(text):
        yield from lines(block)
    for line in re.findall(r"`(grpcurl -[^`]*)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)):
        yield line, ()


def commands():
    """All commands, in an order in which they can be run: docs/install.md installs Lockstep, and the page that removes it comes last."""
    names = [str(page.relative_to(ROOT)) for page in pages()]
    names.sort(key=lambda name: (name == "docs/operations.md", name != "docs/install.md", name))
    return [Command(name, *found) for name in names for found in of_page((ROOT / name).read_text(encoding="utf-8"))]


def shape(line):
    """A line without its numbers and widths."""
    return " ".join(re.sub(r"\d+(\.\d+)?", "N", line).split())


def heads(printed):
    """The lines of an answer that are the same wherever it is given, but for their numbers: the first, and headings."""
    return {shape(line) for at, line in enumerate(printed) if line and (at == 0 or re.fullmatch(r"[A-Z ]{9,}", line))}


def elsewhere(line):
    """Why a command is not run here and what covers it; `None` if it is run here."""
    return next(((why, by) for begin, why, by in ELSEWHERE if re.match(begin, line)), None)


def targets():
    """The targets of make that the pages name."""
    return {target for page in pages() for target in made(page)}


def tested():
    """Those that `make test` makes."""
    parts = re.findall(r'^    Part\("([\w-]+)"', (ROOT / ".ci/test").read_text(encoding="utf-8"), re.M)
    return {"deps", *parts}


class Scene:
    """Where commands are run: names of the pages stand for what is there."""

    def __init__(self, folder):
        self.folder = folder
        self.namespace = os.environ["NAMESPACE"]
        self.system = f"{self.namespace}-system"
        self.bin = folder / "bin"
        self.bin.mkdir()
        (folder / "installed").mkdir()
        given = os.environ
        # Webhooks would lead nowhere, and no JobSet could be made. Other tests have left roles of the chart behind.
        more = "--set webhook.enable=false --take-ownership"
        self.program("helm", f'case $1 in install | upgrade) set -- "$@" {more} ;; esac; exec {given["HELM"]} "$@"')
        soon = 'case " $* " in *" port-forward "*) set -- "$@" --pod-running-timeout=3s ;; esac'
        self.program("kubectl", f'{soon}; exec {given["KUBECTL"]} "$@"')
        self.program("grpcurl", f'exec {given["GRPCURL"]} "$@"')
        self.program("curl", f'exec {shutil.which("curl")} --silent --show-error --fail --max-time 5 "$@"')
        server = f'--server {given["PLATFORM"]}'
        self.program(
            "kubectl-lockstep",
            f'case " $* " in *" --no-platform "*) ;; *) set -- "$@" {server} ;; esac; exec {given["PLUGIN"]} "$@"',
        )
        kubeconfig = folder / "kubeconfig"
        shutil.copy(given["KUBECONFIG"], kubeconfig)
        path = f"{self.bin}:{given['PATH']}"
        self.environment = given | {"PATH": path, "KUBECONFIG": str(kubeconfig), "LOCKSTEP_TOKEN": given["TOKEN"]}
        self.run(f"kubectl config set-context --current --namespace {self.namespace}")

    def program(self, name, text):
        file = self.bin / name
        file.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        file.chmod(0o755)

    def run(self, line, standard_input=None):
        """What a line of the shell does, which must end well."""
        ran = self.attempt(line, standard_input)
        if ran.returncode != 0:
            raise SystemExit(f"the scene: {line}: {ran.stderr}")
        return ran.stdout

    def attempt(self, line, standard_input=None):
        try:
            return subprocess.run(
                ["bash", "-uo", "pipefail", "-c", line], cwd=ROOT, env=self.environment, input=standard_input or "", text=True,
                capture_output=True, timeout=PATIENCE,
            )
        except subprocess.TimeoutExpired as over:
            return subprocess.CompletedProcess(line, 124, "", f"not done after {over.timeout} s")

    def apply(self, text):
        self.run("kubectl apply -f -", text)

    def pod(self, selector):
        """The name of such a pod, once there is one."""
        for _ in range(PATIENCE * 5):
            found = self.run(f"kubectl get pods -l {selector} -o name").split()
            if found:
                return found[0].removeprefix("pod/")
            time.sleep(0.2)
        raise SystemExit(f"the scene: no pod with {selector}")

    def set(self):
        """Makes what the pages take for granted."""
        setting = SETTING.replace("DEFINITIONS", DEFINITIONS)
        self.apply(setting.replace("UPSTREAM", f"{self.namespace}-upstream").replace("ARGOCD", f"{self.namespace}-argocd"))
        self.run("kubectl wait --for=condition=established crd/servicemonitors.monitoring.coreos.com crd/prometheusrules.monitoring.coreos.com")
        self.run("kubectl apply -f examples/ring-allreduce.yaml")
        self.ring = self.pod("jobset.sigs.k8s.io/jobset-name=ring,batch.kubernetes.io/job-completion-index=1")
        done = self.pod("jobset.sigs.k8s.io/jobset-name=done")
        self.run(f"""kubectl patch pod {done} --subresource=status --type=merge --patch '{{"status": {{"phase": "Succeeded"}}}}'""")

    def clear(self):
        """What is not of this namespace is removed: others use the API server after this."""
        for line in [
            f"helm uninstall lockstep --namespace {self.system}",
            f"kubectl delete --wait=false namespace {self.system} {self.namespace}-upstream {self.namespace}-argocd",
            "kubectl delete --wait=false node lost-node-of-the-docs",
            "kubectl delete --wait=false crd servicemonitors.monitoring.coreos.com prometheusrules.monitoring.coreos.com",
            "kubectl delete mutatingwebhookconfiguration,validatingwebhookconfiguration -l docs",
        ]:
            self.attempt(line)

    def translated(self, line):
        """The command with what is here in the place of what the page says."""
        here = os.environ
        for old, new in [
            (r"^make ", "make -n "),
            (r"(?<=\s)make ", "make -n "),
            (r" &$", ""),
            (r"jobset-(mutating|validating)-webhook-configuration", r"jobset-\1-webhook-configuration-of-the-docs"),
            (r"-n (jobset-system|TEAM\b)", f"-n {self.namespace}-upstream"),
            (r"\bwebhooks\.yaml", "/tmp/webhooks.yaml"),
            (r"--namespace argocd\b", f"--namespace {self.namespace}-argocd"),
            (r"lockstep-system", self.system),
            (r"NAMESPACE/NAME", f"{self.namespace}/js"),
            (r"-n NAMESPACE", f"-n {self.namespace}"),
            (r"\bJOBSET\b", "js"),
            (r"jobset/NAME", "jobset/done"),
            (r"\bnode NODE\b", "node lost-node-of-the-docs"),
            (r"\bpod POD\b", f"pod {self.ring}"),
            (r"ring-workers-0-1-xxxxx|\bPODNAME\b|\bPOD -c CONTAINER", self.ring),
            (r"logs POD\b", "logs deployment/lockstep-control-plane"),
            (r"localhost:8443", here["METRICS"]),
            (r"localhost:8082", here["PAGE"]),
            (r"HOST:9445", here["PLATFORM"]),
            (r"/tmp/", f"{self.folder}/"),
            (r"-cacert ca.crt", f"-cacert {here['CA']}"),
            (r"target/release/kubectl-lockstep /usr/local/bin/", f"{here['PLUGIN']} {self.folder}/installed/"),
            (r"\bREGISTRY\b", "registry.example"),
            (r"\bVERSION\b", "0.1.0"),
        ]:
            line = re.sub(old, new, line)
        return line

    def before(self, line):
        """What has happened before, as the page has it."""
        if "secret/lockstep-hub-tls" in line:
            in_system = f"kubectl -n {self.system} create"
            self.run(f"{in_system} configmap lockstep-hub-ca && {in_system} secret generic lockstep-hub-tls")
            self.run(f"{in_system} secret generic jobset-webhook-server-cert")
            self.run(f"kubectl -n {self.system} apply -f -", LEASE)

    def after(self, line):
        if re.search(r"scale deployment/lockstep-control-plane --replicas 0", line):
            self.run(f"kubectl -n {self.system} scale deployment/lockstep-control-plane --replicas 1")

    def check(self, line, printed=()):
        """Why a command of the pages does not do what it should; `None` if it does."""
        if line.startswith("#!"):
            file = self.bin / "kubectl_complete-lockstep"
            self.program(file.name, line)
            ran = self.attempt(f"{file.name} status ''")
            return None if "js\n" in ran.stdout and ran.stdout.endswith(":4\n") else f"it completes nothing: {ran}"
        self.before(line)
        ran = self.attempt(self.translated(line))
        self.after(line)
        if re.search(TO_KUBELET, line):
            # An upgrade that is never carried out leaves two.
            said = re.sub(r"^Found \d+ pods, using pod/.*\n", "", ran.stderr, flags=re.M)
            reached = any(text in said for text in NO_KUBELET) or " logs " in line and said == ""
            return None if reached else f"not for the want of a kubelet: {ran}"
        allowed = next((codes for command, codes in CODES.items() if re.search(command, line)), {0})
        if ran.returncode not in allowed or (ran.returncode and not ran.stdout):
            return str(ran)
        seen = {shape(line) for line in ran.stdout.replace(f"{self.namespace}/", "team/").splitlines()}
        missing = heads(printed) - seen
        return f"the page shows {missing}, which it does not print: {ran}" if missing else None


SETTING = """
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: UPSTREAM}}
- {apiVersion: v1, kind: Namespace, metadata: {name: ARGOCD}}
- {apiVersion: v1, kind: Node, metadata: {name: lost-node-of-the-docs}}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: argocd-cm, namespace: ARGOCD}}
- apiVersion: apps/v1
  kind: Deployment
  metadata: {name: jobset-controller-manager, namespace: UPSTREAM}
  spec:
    replicas: 1
    selector: {matchLabels: {app: upstream}}
    template: {metadata: {labels: {app: upstream}}, spec: {containers: [{name: manager, image: none}]}}
- {apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration,
   metadata: {name: jobset-mutating-webhook-configuration-of-the-docs, labels: {docs: ""}}}
- {apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration,
   metadata: {name: jobset-validating-webhook-configuration-of-the-docs, labels: {docs: ""}}}
DEFINITIONS- apiVersion: jobset.x-k8s.io/v1alpha2
  kind: JobSet
  metadata: {name: done}
  spec:
    replicatedJobs:
    - name: a
      template: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: worker, image: none}]}}}}
"""
# A definition of the Prometheus Operator, which the chart asks for.
DEFINITION = """\
- apiVersion: apiextensions.k8s.io/v1
  kind: CustomResourceDefinition
  metadata: {name: PLURAL.monitoring.coreos.com}
  spec:
    group: monitoring.coreos.com
    scope: Namespaced
    names: {kind: KIND, plural: PLURAL}
    versions:
    - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
"""
DEFINITIONS = "".join(
    DEFINITION.replace("PLURAL", f"{kind.lower()}s").replace("KIND", kind) for kind in ["ServiceMonitor", "PrometheusRule"]
)
LEASE = "{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: lockstep-control-plane}}"


def run():
    failed, ran = [], 0
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene(pathlib.Path(folder))
        try:
            scene.set()
            for page, line, printed in commands():
                if elsewhere(line):
                    continue
                begun = time.monotonic()
                why = scene.check(line, printed)
                ran += 1
                print(f"{'FAILED' if why else 'ran'} {time.monotonic() - begun:4.1f} s  {page}: {line.splitlines()[0]}", flush=True)
                if why:
                    failed.append(f"{page}: {line}\n    {scene.translated(line)}\n    {why}")
        finally:
            scene.clear()
    print(f"{ran} commands of the documentation were run, {len(failed)} failed")
    if failed:
        raise SystemExit("\n".join(failed))


if __name__ == "__main__":
    if sys.argv[1:] == ["run"]:
        run()
    else:
        for page, line, _ in commands():
            print(f"{page}: {line}\n    {elsewhere(line) or 'run by make api-test'}")
