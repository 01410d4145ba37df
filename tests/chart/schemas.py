"""Writes JSON schemas of all objects that the chart can render, for offline use by kubeconform.

    schemas.py SWAGGER OUT CRD...

SWAGGER is the OpenAPI document of the Kubernetes Go module, each CRD is a YAML file. Writes one self-contained file
GROUP_KIND_VERSION.json per kind to the directory OUT. The schemas disallow unknown fields.
"""

import json
import sys
from pathlib import Path

import yaml

DEFINITION = "#/definitions/"


def strict(node):
    """Converts an OpenAPI schema to JSON Schema, and disallows unknown fields wherever properties are listed."""
    if isinstance(node, list):
        return [strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {key: strict(value) for key, value in node.items()}
    if isinstance(node.get("properties"), dict) and not node.get("x-kubernetes-preserve-unknown-fields"):
        node.setdefault("additionalProperties", False)
    if node.get("format") == "int-or-string" or node.get("x-kubernetes-int-or-string") is True:
        node.pop("type", None)
        node["type"] = ["string", "integer"]
    return node


def referred(node, found):
    if isinstance(node, dict):
        target = node.get("$ref")
        if isinstance(target, str):
            found.add(target.removeprefix(DEFINITION))
        for value in node.values():
            referred(value, found)
    elif isinstance(node, list):
        for item in node:
            referred(item, found)
    return found


def closure(definitions, name):
    """A definition with all definitions that it references."""
    todo, done = {name}, set()
    while todo:
        each = todo.pop()
        done.add(each)
        todo |= referred(definitions[each], set()) - done
    return {each: definitions[each] for each in sorted(done)}


def write(out, group, kind, version, schema):
    # For the core group, kubeconform uses the version as the group.
    (out / f"{group or version}_{kind.lower()}_{version}.json").write_text(json.dumps(schema))


def main(swagger, out, *crds):
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    definitions = {name: strict(each) for name, each in json.loads(Path(swagger).read_text())["definitions"].items()}
    # A quantity may be a number.
    definitions["io.k8s.apimachinery.pkg.api.resource.Quantity"] = {"type": ["string", "number"]}
    for name, definition in definitions.items():
        for kind in definition.get("x-kubernetes-group-version-kind", []):
            schema = {"$ref": DEFINITION + name, "definitions": closure(definitions, name)}
            write(out, kind["group"], kind["kind"], kind["version"], schema)
    for path in crds:
        spec = yaml.safe_load(Path(path).read_text())["spec"]
        for version in spec["versions"]:
            schema = version["schema"]["openAPIV3Schema"]
            schema["properties"].update(apiVersion={"type": "string"}, kind={"type": "string"}, metadata={"type": "object"})
            write(out, spec["group"], spec["names"]["kind"], version["name"], strict(schema))


main(*sys.argv[1:])
