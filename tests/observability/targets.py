#!/usr/bin/env python3
"""Updates a Prometheus file_sd file with the trainer pods of a namespace, labelled as by the chart's PodMonitor.

    targets.py NAMESPACE FILE
"""

import json
import os
import subprocess
import sys
import time

SELECTOR = "app.kubernetes.io/name=pawl-trainer,app.kubernetes.io/managed-by=pawl"


def targets(namespace):
    found = subprocess.run(["kubectl", "-n", namespace, "get", "pods", "-l", SELECTOR, "-o", "json"], capture_output=True)
    if found.returncode:
        return
    for pod in json.loads(found.stdout)["items"]:
        ports = [port for container in pod["spec"]["containers"] for port in container.get("ports", [])]
        metrics = [port["containerPort"] for port in ports if port.get("name") == "metrics"]
        address, labels = pod["status"].get("podIP"), pod["metadata"]["labels"]
        if address and metrics:
            yield {"targets": [f"{address}:{metrics[0]}"],
                   "labels": {"namespace": namespace, "pod": pod["metadata"]["name"], "job": labels["pawl.dev/job"],
                              "attempt": labels["pawl.dev/attempt"]}}


def main():
    namespace, path = sys.argv[1:]
    while True:
        now = list(targets(namespace))
        with open(f"{path}.new", "w") as out:
            json.dump(now, out)
        os.replace(f"{path}.new", path)
        time.sleep(1)


if __name__ == "__main__":
    main()
