"""Generates the pages of our custom resources from their CRDs: a section for each object, a row for each field."""

import json
import re

from page import Page, code, link, prose, sentence, table

KUBERNETES = "https://kubernetes.io/docs/reference/kubernetes-api/"
OBJECT_META = ("ObjectMeta", KUBERNETES + "common-definitions/object-meta/#ObjectMeta")
JOB_SPEC = ("JobSpec", KUBERNETES + "workload-resources/job-v1/#JobSpec")
POD_TEMPLATE = ("PodTemplateSpec", KUBERNETES + "workload-resources/pod-template-v1/#PodTemplateSpec")
CLAIM = KUBERNETES + "config-and-storage-resources/persistent-volume-claim-v1/"

# Kubernetes' own types, by the end of the path. They are linked, not described.
FOREIGN = {
    "JobSet.metadata": OBJECT_META,
    "RayCluster.metadata": OBJECT_META,
    "RayJob.metadata": OBJECT_META,
    "RayCronJob.metadata": OBJECT_META,
    ".template.metadata": OBJECT_META,
    ".template.spec.template": POD_TEMPLATE,
    ".template.spec.podFailurePolicy": ("PodFailurePolicy", JOB_SPEC[1]),
    ".template.spec.successPolicy": ("SuccessPolicy", JOB_SPEC[1]),
    ".template.spec.selector": ("LabelSelector", KUBERNETES + "common-definitions/label-selector/#LabelSelector"),
    ".templates[].metadata": OBJECT_META,
    ".templates[].spec": ("PersistentVolumeClaimSpec", CLAIM + "#PersistentVolumeClaimSpec"),
    ".templates[].status": ("PersistentVolumeClaimStatus", CLAIM + "#PersistentVolumeClaimStatus"),
    ".headGroupSpec.template": POD_TEMPLATE,
    ".workerGroupSpecs[].template": POD_TEMPLATE,
    ".submitterPodTemplate": POD_TEMPLATE,
}
# Kubernetes' types whose fields are listed here and described there.
DESCRIBED = {
    ".template.spec": JOB_SPEC,
    ".status.conditions[]": ("Condition", "https://pkg.go.dev/k8s.io/apimachinery/pkg/apis/meta/v1#Condition"),
}
# Marks a field as ours in a CRD that is not compared with an upstream one.
ADDITION = "An addition to KubeRay's API."
RULES = "x-kubernetes-validations"
KEEPS = "x-kubernetes-preserve-unknown-fields"
LIMITS = [
    ("minimum", "At least {}."),
    ("maximum", "At most {}."),
    ("minLength", "At least {} characters."),
    ("maxLength", "At most {} characters."),
    ("minItems", "At least {} items."),
    ("maxItems", "At most {} items."),
    ("pattern", "Pattern: `{}`."),
]


def by_end(path, names):
    return next((names[end] for end in names if path.endswith(end)), None)


def schema_of(definition):
    return definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


class Resource:
    """Adds one resource to a page. `known` holds the objects of the page's earlier resources, by path."""

    def __init__(self, page, definition, upstream=None, known=None):
        self.page = page
        self.spec = definition["spec"]
        self.kind = self.spec["names"]["kind"]
        self.schema = schema_of(definition)
        self.upstream = schema_of(upstream) if upstream else None
        self.known = {} if known is None else known
        self.own = {}

    def write(self):
        version = self.spec["versions"][0]
        names = self.spec["names"]
        self.page.heading(2, self.kind)
        self.page.add(prose(sentence(self.schema["description"])))
        kubectl = f"kubectl get {names['plural']}"
        self.page.add(f"`apiVersion: {self.spec['group']}/{version['name']}`, `kind: {self.kind}`, {self.spec['scope'].lower()}, `{kubectl}`.")
        self.fields(self.kind, self.schema, self.upstream)
        if columns := version.get("additionalPrinterColumns"):
            rows = [[column["name"], code(column["jsonPath"]), "with `-o wide`" if column.get("priority") else ""] for column in columns]
            self.page.add(f"Columns of `{kubectl}`:")
            self.page.add(table(["column", "from", "shown"], rows))
        for name, field in self.schema["properties"].items():
            self.below(f"{self.kind}.{name}", field, self.upstream and self.upstream["properties"].get(name))
        self.known.update(self.own)

    def below(self, path, schema, upstream):
        """Writes the sections of the objects in a field."""
        if by_end(path, FOREIGN):
            return
        if "items" in schema:
            return self.below(path + "[]", schema["items"], upstream and upstream.get("items"))
        if isinstance(schema.get("additionalProperties"), dict):
            return self.below(path + ".*", schema["additionalProperties"], upstream and upstream.get("additionalProperties"))
        if "properties" not in schema or self.same(schema):
            return
        self.own[path] = schema
        self.page.heading(3, path)
        self.page.add(prose(sentence(described(schema)[0])))
        if there := by_end(path, DESCRIBED):
            self.page.add(f"Kubernetes' [{there[0]}]({there[1]}), which documents the fields.")
        if described(schema)[1] or self.upstream and upstream is None:
            self.page.add("*Added* by Lockstep, with all its fields.")
        self.fields(path, schema, upstream)
        if rules := self.rules(schema, upstream):
            self.page.add(table(["rule", "CEL"], rules))
        if schema.get(KEEPS):
            self.page.add("Fields that are not listed are kept.")
        for name, field in schema["properties"].items():
            self.below(f"{path}.{name}", field, upstream and upstream["properties"].get(name))

    def fields(self, path, schema, upstream):
        rows = []
        for name, field in schema["properties"].items():
            ours = described(field)[1] or bool(upstream and name not in upstream["properties"])
            required = name in schema.get("required", [])
            rows.append(
                [
                    code(name) + (" *required*" if required else "") + (" *added*" if ours else ""),
                    self.type(f"{path}.{name}", field, upstream and upstream["properties"].get(name)),
                    default_of(field),
                    self.meaning(f"{path}.{name}", field, upstream and upstream["properties"].get(name)),
                ]
            )
        self.page.add(table(["field", "type", "default", "meaning"], rows))

    def type(self, path, schema, upstream):
        if foreign := by_end(path, FOREIGN):
            return f"[{foreign[0]}]({foreign[1]})"
        if "items" in schema:
            return "list of " + self.type(path + "[]", schema["items"], upstream and upstream.get("items"))
        if isinstance(schema.get("additionalProperties"), dict):
            return "map of string to " + self.type(path + ".*", schema["additionalProperties"], None)
        if "properties" in schema:
            same = self.same(schema)
            return link(same[0] if same else path, "object")
        if "enum" in schema:
            before = schema["enum"] if upstream is None else upstream.get("enum", schema["enum"])
            return "one of " + ", ".join(code(value) + ("" if value in before else " *added*") for value in schema["enum"])
        if schema.get("x-kubernetes-int-or-string"):
            return "integer or string"
        return schema["type"] + (f" ({schema['format']})" if "format" in schema else "")

    def same(self, schema):
        """The object of an earlier resource that has the same fields, and True if that one has more rules."""
        for known, other in self.known.items():
            if unnamed(other) == unnamed(schema):
                return known, False
            if without_rules(unnamed(other)) == unnamed(schema):
                return known, True
        return None

    def meaning(self, path, schema, upstream):
        parts = [prose(sentence(described(schema)[0]))]
        parts += limits(schema)
        item = schema.get("items", {})
        if "properties" not in item:
            parts += [f"Each: {limit}" for limit in limits(item)]
        match schema.get("x-kubernetes-list-type"):
            case "map":
                parts.append(f"One item for each {' and '.join(map(code, schema['x-kubernetes-list-map-keys']))}.")
            case "set":
                parts.append("Items are unique.")
        rules = self.rules(schema, upstream)
        if "properties" in schema and len(rules) > 1:
            parts.append(f"{len(rules)} {link(path, 'rules')}.")
        else:
            parts += [f"Rule: {message}." if "properties" in schema else f"Rule: {message} ({cel})." for message, cel in rules]
        for inner in (schema, item):
            if same := "properties" in inner and self.same(inner):
                parts.append(f"As {link(same[0])}{', without its rules' if same[1] else ''}.")
        return " ".join(part for part in parts if part)

    def rules(self, schema, upstream):
        """Message and CEL of each rule of the schema. Those of an addition are not marked one by one."""
        before = schema.get(RULES, []) if upstream is None else upstream.get(RULES, [])
        return [[message_of(rule) + ("" if rule in before else " *added*"), code(rule["rule"])] for rule in schema.get(RULES, [])]


def described(schema):
    """The description on one line, and True if it says that the field is ours."""
    text = " ".join(schema.get("description", "").split())
    return text.replace(ADDITION, "").strip(), ADDITION in text


def default_of(schema):
    if "default" not in schema:
        return ""
    value = schema["default"]
    return code(value if isinstance(value, str) and value else json.dumps(value))


def limits(schema):
    texts = [text.format(schema[name]) for name, text in LIMITS if name in schema]
    return [re.sub(r"\b1 (character|item)s", r"1 \1", text) for text in texts]


def message_of(rule):
    """The API server's message, with the field that it is about if that is another one."""
    where = rule.get("fieldPath", "").removeprefix(".")
    return (f"{code(where)}: " if where else "") + prose(rule["message"])


def unnamed(schema):
    """The schema without its own description, which depends on its place."""
    return {name: value for name, value in schema.items() if name != "description"}


def without_rules(schema):
    if isinstance(schema, list):
        return [without_rules(item) for item in schema]
    if isinstance(schema, dict):
        return {name: without_rules(value) for name, value in schema.items() if name != RULES}
    return schema


def additions(ours, upstream, path=""):
    """Paths of the fields that upstream's schema does not have, and our rules' messages with the path of their object."""
    found = [(path, message_of(rule)) for rule in ours.get(RULES, []) if rule not in upstream.get(RULES, [])]
    if "items" in ours:
        found += additions(ours["items"], upstream["items"], path + "[]")
    for name, field in ours.get("properties", {}).items():
        below = f"{path}.{name}" if path else name
        if name not in upstream.get("properties", {}):
            found.append((below, None))
        else:
            found += additions(field, upstream["properties"][name], below)
    return found


def has_section(schema, path):
    """True if the field at this path is an object, or a list of objects: these have a section of their own."""
    for name in path.split("."):
        schema = schema["properties"][name]
    return "properties" in schema.get("items", schema)


def jobset_page(ours, upstream, source, intro):
    page = Page("Reference of the JobSet API", source, intro)
    found = additions(schema_of(ours), schema_of(upstream))
    added = [path for path, message in found if message is None]
    sections = {path: path if has_section(schema_of(ours), path) else path.rpartition(".")[0] for path in added}
    fields = [f"- {link(f'JobSet.{section}', code(path))}" for path, section in sections.items()]
    rules = [f"- a rule of {code(path)}: {message}" for path, message in found if message is not None]
    page.add("Additions to upstream's definition, which are marked *added* below:")
    page.add("\n".join(fields + rules))
    Resource(page, ours, upstream).write()
    return page


def ray_page(definitions, source, intro):
    page = Page("Reference of the Ray API", source, intro)
    known = {}
    for definition in definitions:
        Resource(page, definition, known=known).write()
    return page
