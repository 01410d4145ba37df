"""Enforces the NetworkPolicies of the test cluster, whose CNI does not, by nftables rules in the networks of its nodes:
'enforce.py NETNS...'. Runs until it is killed. Of the API it knows what the chart uses: ingress, matchLabels, ports.
"""

import json
import subprocess
import sys
import time


def objects(*arguments):
    done = subprocess.run(["kubectl", "get", *arguments, "-o", "json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["items"]


def selects(selector, labels):
    assert set(selector) <= {"matchLabels"}, selector
    return selector.get("matchLabels", {}).items() <= labels.items()


def peers(rule, namespace, pods, namespaces):
    """The addresses from which a rule allows connections."""
    def allowed(peer, pod):
        its = pod["metadata"]["namespace"]
        near = selects(peer["namespaceSelector"], namespaces[its]) if "namespaceSelector" in peer else its == namespace
        return near and selects(peer.get("podSelector", {}), pod["metadata"].get("labels", {}))

    return {pod["status"]["podIP"] for pod in pods for peer in rule["from"] if allowed(peer, pod)}


def number(port, pod):
    ports = [each for container in pod["spec"]["containers"] for each in container.get("ports", [])]
    return port if isinstance(port, int) else next(each["containerPort"] for each in ports if each.get("name") == port)


def ruleset(policies, pods, namespaces):
    rules, isolated = ["ct state established,related accept"], set()
    for policy in policies:
        namespace, spec = policy["metadata"]["namespace"], policy["spec"]
        assert spec["policyTypes"] == ["Ingress"], spec
        own = [pod for pod in pods if pod["metadata"]["namespace"] == namespace]
        for pod in own:
            if not selects(spec["podSelector"], pod["metadata"].get("labels", {})):
                continue
            address = pod["status"]["podIP"]
            isolated.add(address)
            for rule in spec.get("ingress", []):
                sources = ", ".join(sorted(peers(rule, namespace, pods, namespaces)))
                ports = ", ".join(str(number(each["port"], pod)) for each in rule.get("ports", []))
                only = f"tcp dport {{ {ports} }} " if ports else ""
                if sources:
                    rules.append(f"ip daddr {address} ip saddr {{ {sources} }} {only}accept")
    rules += [f"ip daddr {address} counter drop" for address in sorted(isolated)]
    chain = "type filter hook forward priority 0; policy accept;"
    return f"table ip policies\ndelete table ip policies\ntable ip policies {{\n chain f {{\n  {chain}\n  " + "\n  ".join(rules) + "\n }\n}\n"


def main():
    for network in sys.argv[1:]:
        # Pods of one node are on a bridge, which passes no rule otherwise.
        setting = "echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables"
        subprocess.run(["nsenter", f"--net=/run/netns/{network}", "sh", "-c", setting], check=True)
    before = None
    while True:
        pods = [pod for pod in objects("pods", "-A") if pod["status"].get("podIP") and pod["status"]["phase"] in ("Pending", "Running")]
        namespaces = {each["metadata"]["name"]: each["metadata"].get("labels", {}) for each in objects("namespaces")}
        text = ruleset(objects("networkpolicies", "-A"), pods, namespaces)
        if text != before:
            for network in sys.argv[1:]:
                subprocess.run(["nsenter", f"--net=/run/netns/{network}", "nft", "-f", "-"], input=text, text=True, check=True)
            before = text
        time.sleep(0.3)


main()
