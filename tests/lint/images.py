#!/usr/bin/env python3
"""Checks that an OCI archive contains all of its image, for these architectures: 'images.py ARCHIVE ARCH...'."""

import hashlib
import json
import sys
import tarfile


def main():
    path, *wanted = sys.argv[1:]
    with tarfile.open(path) as archive:

        def blob(descriptor):
            data = archive.extractfile("./blobs/" + descriptor["digest"].replace(":", "/")).read()
            assert "sha256:" + hashlib.sha256(data).hexdigest() == descriptor["digest"], descriptor
            assert len(data) == descriptor["size"], descriptor
            return data

        # One entry: what copies an image from a layout asks which if there are several.
        [top] = json.load(archive.extractfile("./index.json"))["manifests"]
        manifests = json.loads(blob(top))["manifests"] if top["mediaType"].endswith(".index.v1+json") else [top]
        found = []
        for descriptor in manifests:
            manifest = json.loads(blob(descriptor))
            config = json.loads(blob(manifest["config"]))
            assert config["architecture"] == descriptor["platform"]["architecture"], descriptor
            assert config["config"]["User"] == "65532:65532", config
            assert config["config"]["Entrypoint"][0] == "/bin/pawl", config
            layers = ["sha256:" + hashlib.sha256(blob(layer)).hexdigest() for layer in manifest["layers"]]
            assert layers == config["rootfs"]["diff_ids"], descriptor
            found.append(config["architecture"])
    assert sorted(found) == sorted(wanted), f"{path}: {found}, not {wanted}"


main()
