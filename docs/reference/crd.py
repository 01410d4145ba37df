"""The TrainingJob: every field of spec and status, from `pawl crd --documented`."""

import json
import subprocess

import yaml

from .table import table

INTRODUCTION = """# TrainingJob

API version `pawl.dev/v1alpha1`, kind `TrainingJob`, short name `tj`, namespaced. `pawl validate FILE` checks a manifest by these rules,
and by those that a schema cannot express; the API server enforces the schema and the rules.

Numbers that are not integers are written as strings (`"1.05"`), durations as in `90s`, `10m` or `1h30m`, sizes of memory as
Kubernetes quantities (`50Gi`).

"""
# Types of Kubernetes, documented there.
OF_KUBERNETES = {
    "affinity": "Affinity",
    "env": "list of EnvVar",
    "envFrom": "list of EnvFromSource",
    "imagePullSecrets": "list of LocalObjectReference",
    "resourceClaims": "list of PodResourceClaim",
    "resources": "ResourceRequirements",
    "tolerations": "list of Toleration",
    "topologySpreadConstraints": "list of TopologySpreadConstraint",
    "volumeMounts": "list of VolumeMount",
    "volumes": "list of Volume",
}
# The settings of a phase and of its fallbacks are those of the baseline, which follow.
SHOWN_ONCE = {
    "spec.phases[].settings": "spec.settings",
    "spec.phases[].fallbacks[].settings": "spec.settings",
    "status.effectiveSettings": "spec.settings",
}


def bounds(schema):
    unit = " items" if schema.get("type") == "array" else " characters" if schema.get("type") == "string" else ""
    low = schema.get("minimum", schema.get("minItems"))
    high = schema.get("maximum", schema.get("maxItems"))
    if low is not None and high is not None:
        return f", {low} to {high}{unit}"
    if high is not None:
        return f", at most {high}{unit}"
    return f", at least {low}{unit}" if low is not None else ""


def kind(name, path, schema):
    """The type of a field, with its bounds."""
    if path.startswith("spec.trainer.podTemplate") and name in OF_KUBERNETES:
        return f"{OF_KUBERNETES[name]} (Kubernetes)"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        choices = ", ".join(f"`{value}`" for value in schema["items"].get("enum", []))
        return f"list of {choices}" if choices else f"list of {schema['items'].get('type', 'value')}s{bounds(schema)}"
    if schema.get("type") == "object" and "properties" not in schema:
        inner = schema.get("additionalProperties")
        return f"map of {inner.get('type', 'value')}s" if isinstance(inner, dict) else "map"
    if schema.get("x-kubernetes-int-or-string"):
        return "integer or string"
    return schema.get("type", "value") + bounds(schema)


def inner(schema):
    """The schema below a field that has fields itself, and its suffix in paths."""
    if "properties" in schema:
        return schema, ""
    if "properties" in schema.get("items", {}):
        return schema["items"], "[]"
    if isinstance(schema.get("additionalProperties"), dict) and "properties" in schema["additionalProperties"]:
        return schema["additionalProperties"], ".*"
    return None, ""


def default(schema):
    value = schema.get("default")
    # The defaults of an object are those of its fields.
    return f"`{json.dumps(value)}`" if "default" in schema and not isinstance(value, dict) else ""


def rules(schema):
    messages = [rule["message"] for rule in schema.get("x-kubernetes-validations", []) if "message" in rule]
    return "".join(f"- {message}\n" for message in messages)


def sections(path, schema, known_objects):
    """Yields the Markdown of the object at `path`, and of the objects below it. An object whose fields equal those of one in
    `known_objects`, by its fields, refers to that one."""
    required = schema.get("required", [])
    rows, below = [], []
    for name, field in schema["properties"].items():
        where, suffix = inner(field)
        own = f"{path}.{name}{suffix}"
        shown = f"`{name}`" + (" (required)" if name in required else "")
        text = field.get("description", "")
        known = name in OF_KUBERNETES and path.startswith("spec.trainer.podTemplate")
        if own in SHOWN_ONCE:
            text += f" See [`{SHOWN_ONCE[own]}`](#{anchor(SHOWN_ONCE[own])})."
        elif where is not None and not known:
            fields = json.dumps(where["properties"], sort_keys=True)
            first = known_objects.setdefault(fields, own)
            text += f" See [`{first}`](#{anchor(first)})."
            below += [(own, where)] if first == own else []
        rows.append((shown, kind(name, path, field), default(field), text))
    text = f"## `{path}`\n\n{schema.get('description', '')}\n\n" if schema.get("description") else f"## `{path}`\n\n"
    text += table(["Field", "Type", "Default", "Description"], rows)
    refused = rules(schema)
    yield text + (f"\nRefused, with this message:\n\n{refused}" if refused else "")
    for own, where in below:
        yield from sections(own, where, known_objects)


def anchor(path):
    return path.lower().replace(".", "").replace("[]", "").replace("*", "")


def page(pawl):
    printed = subprocess.run([pawl, "crd", "--documented"], check=True, stdout=subprocess.PIPE, text=True).stdout
    crd = yaml.safe_load(printed)
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    known_objects = {}
    parts = [*sections("spec", schema["spec"], known_objects), *sections("status", schema["status"], known_objects)]
    return INTRODUCTION + "\n".join(parts)
