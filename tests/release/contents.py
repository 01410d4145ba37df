#!/usr/bin/env python3
"""Checks files of a release: contents.py SUBJECT OUT VERSION."""

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
BOTH = {"amd64", "arm64"}
IMAGES = {"pawl": BOTH, "pawl-trainer": BOTH}
# Of a build with --cuda.
CUDA = {"pawl-trainer-cuda": {"amd64"}}


def images(out, version):
    """The architectures of each image of the release, by name."""
    return IMAGES | {name: wanted for name, wanted in CUDA.items() if (out / f"{name}-{version}.oci.tar").exists()}


def blob(archive, descriptor):
    """The content of a descriptor, whose digest must be that of the content."""
    name = "./blobs/" + descriptor["digest"].replace(":", "/")
    content = archive.extractfile(name if name in archive.getnames() else name[2:]).read()
    assert "sha256:" + hashlib.sha256(content).hexdigest() == descriptor["digest"], name
    return content


def manifests(archive, index):
    """Yields the manifests of an index, those of nested indexes included."""
    for descriptor in index["manifests"]:
        content = json.loads(blob(archive, descriptor))
        if "manifests" in content:
            yield from manifests(archive, content)
        else:
            yield content


def certificates(archive, manifest):
    """The number of certificates in an image, whose layers must be whole."""
    found = 0
    for descriptor in manifest["layers"]:
        with tarfile.open(fileobj=io.BytesIO(blob(archive, descriptor))) as files:
            for entry in files:
                if entry.name.removeprefix("./") == "etc/ssl/certs/ca-certificates.crt":
                    found = files.extractfile(entry).read().count(b"BEGIN CERTIFICATE")
    return found


def architectures(out, version):
    """Each image is whole and has certificates, and runs on its architectures, as a user without a name."""
    for name, wanted in images(out, version).items():
        with tarfile.open(out / f"{name}-{version}.oci.tar") as archive:
            entry = next(entry for entry in archive.getnames() if entry.removeprefix("./") == "index.json")
            found = set()
            for manifest in manifests(archive, json.load(archive.extractfile(entry))):
                config = json.loads(blob(archive, manifest["config"]))
                assert config["config"]["User"] == "65532:65532", config
                assert config["config"]["Entrypoint"][0] == "/bin/pawl", config
                assert certificates(archive, manifest) > 50, name
                found.add((config["os"], config["architecture"]))
        assert found == {("linux", architecture) for architecture in wanted}, (name, found)


def bills(out, version):
    """Each image and each archive for Linux has a bill of materials, which names what Pawl is built from."""
    named = set()
    for path in out.glob("*.cdx.json"):
        bill = json.loads(path.read_text())
        assert bill["bomFormat"] == "CycloneDX", path
        crates = {each["name"] for each in bill["components"] if each.get("purl", "").startswith("pkg:cargo/")}
        assert {"tokio", "safetensors"} <= crates, (path, len(crates))
        named.add(path.name.removesuffix(".cdx.json"))
    wanted = {f"{name}-{version}-{each}" for name, architectures in images(out, version).items() for each in architectures}
    wanted |= {path.name.removesuffix(".tar.gz") for path in out.glob(f"pawl-v{version}-*-linux-*.tar.gz")}
    assert wanted <= named, wanted - named


def examples(out, version):
    """Each archive has the examples of the repository and no others; the first of them is a file of the release, too."""
    listed = subprocess.run(["git", "ls-files", "-z", "examples"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    wanted = {name: (ROOT / name).read_bytes() for name in listed.split("\0") if name}
    archives = list(out.glob(f"pawl-v{version}-*.tar.gz"))
    assert "examples/quickstart.yaml" in wanted and archives, (wanted.keys(), archives)
    for path in archives:
        with tarfile.open(path) as archive:
            entries = {entry.name.removeprefix("./"): entry for entry in archive if entry.isfile()}
            found = {name: archive.extractfile(entry).read() for name, entry in entries.items() if name.startswith("examples/")}
        assert found == wanted, (path, [name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name)])
    assert (out / "quickstart.yaml").read_bytes() == wanted["examples/quickstart.yaml"]


def packages(out, version):
    """The manifests of Krew and Homebrew name archives of the release, with their checksums."""
    krew = yaml.safe_load((out / "pawl.yaml").read_text())
    assert (krew["kind"], krew["metadata"]["name"], krew["spec"]["version"]) == ("Plugin", "pawl", f"v{version}"), krew
    formula = (out / "pawl.rb").read_text()
    pairs = [(platform["uri"], platform["sha256"]) for platform in krew["spec"]["platforms"]]
    homebrew = re.findall(r'url "([^"]+)"\s+sha256 "([0-9a-f]{64})"', formula)
    assert len(pairs) >= 2 and len(homebrew) >= 2, (pairs, homebrew)
    for address, digest in pairs + homebrew:
        archive = out / address.replace("#{version}", version).rsplit("/", 1)[1]
        assert hashlib.sha256(archive.read_bytes()).hexdigest() == digest, address


SUBJECTS = {check.__name__: check for check in (architectures, bills, examples, packages)}
SUBJECTS[sys.argv[1]](Path(sys.argv[2]), sys.argv[3])
