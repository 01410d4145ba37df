"""Checks of the rendered chart, in addition to helm, kubeconform and kube-score. The last line is 'N passed, N failed'."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts/pawl"
TESTS = []

EVERYTHING = [
    "replicas=2", "trainerImage=ghcr.io/pawl-dev/pawl-trainer-cuda:0.1.0", "networkPolicy.create=true",
    "networkPolicy.trainerNamespaces={team-a,team-b}", "monitoring.serviceMonitor.create=true",
    "monitoring.podMonitor.create=true", "monitoring.rules.create=true", "monitoring.dashboards.create=true",
    "priorityClassName=system-cluster-critical", "imagePullSecrets[0].name=pull",
]


def test(function):
    TESTS.append(function)
    return function


def helm(*arguments):
    return subprocess.run(["helm", *arguments], capture_output=True, text=True, check=False)


def template(*values):
    sets = [part for value in values for part in ("--set", value)]
    done = helm("template", "pawl", str(CHART), "--namespace", "pawl-system", "--kube-version", "1.31.0", *sets)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def rejected(*values):
    sets = [part for value in values for part in ("--set", value)]
    done = helm("template", "pawl", str(CHART), *sets)
    assert done.returncode != 0, f"{values} is not rejected"
    return done.stderr


def of_kind(objects, kind):
    return [each for each in objects if each["kind"] == kind]


def rules(role):
    """The triples (group, resource, verb) that a role allows."""
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def called():
    """The triples (group, resource, verb) of the API calls in the controller's documentation."""
    text = (ROOT / "operator/controller/src/lib.rs").read_text()
    table = set()
    for line in text.splitlines():
        row = re.match(r"//! \| (?:`([a-z.0-9]+)`)? ?\| `([a-z/]+)` \| ([a-z ]+) \|", line)
        if row:
            group, resource, verbs = row.groups()
            table |= {(group or group_of(resource), resource, verb) for verb in verbs.split()}
    assert len(table) > 20, "operator/controller/src/lib.rs has no table of API calls"
    return table


def group_of(resource):
    assert resource in {"pods", "configmaps", "secrets", "services", "nodes", "persistentvolumeclaims", "events"}, resource
    return ""


@test
def rbac_allows_exactly_the_api_calls_of_the_operator():
    objects = template()
    allowed = set()
    for role in of_kind(objects, "Role") + of_kind(objects, "ClusterRole"):
        if not role["metadata"]["name"].startswith("pawl-operator"):
            continue
        allowed |= rules(role)
    expected = called()
    assert allowed == expected, f"not needed: {sorted(allowed - expected)}; missing: {sorted(expected - allowed)}"


@test
def no_role_has_a_wildcard_or_reads_secrets():
    for objects in (template(), template("namespaces={team-a}")):
        for role in of_kind(objects, "Role") + of_kind(objects, "ClusterRole"):
            for group, resource, verb in rules(role):
                assert "*" not in (group, resource, verb), role["metadata"]["name"]
                assert resource != "secrets" or verb == "create", role["metadata"]["name"]
                assert verb not in {"escalate", "bind", "impersonate"}, role["metadata"]["name"]


@test
def a_list_of_namespaces_gives_no_permissions_elsewhere():
    objects = template("namespaces={team-a,team-b}")
    assert not of_kind(objects, "ClusterRoleBinding")
    roles = {each["metadata"]["namespace"] for each in of_kind(objects, "Role")}
    assert roles == {"pawl-system", "team-a", "team-b"}
    whole = next(each for each in of_kind(template(), "ClusterRole") if each["metadata"]["name"] == "pawl-operator.pawl-system")
    for role in of_kind(objects, "Role"):
        if role["metadata"]["namespace"] != "pawl-system":
            assert rules(role) == rules(whole) - {("", "nodes", "get")}
    with_nodes = template("namespaces={team-a}", "rbac.nodes=true")
    (binding,) = of_kind(with_nodes, "ClusterRoleBinding")
    (role,) = [each for each in of_kind(with_nodes, "ClusterRole") if each["metadata"]["name"] == binding["roleRef"]["name"]]
    assert rules(role) == {("", "nodes", "get")}


@test
def the_default_storage_is_passed_to_the_operator():
    def storage(*values):
        (deployment,) = of_kind(template(*values), "Deployment")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        variables = {each["name"]: each.get("value") for each in container["env"]}
        names = ("DEFAULT_STORAGE", "CLAIM_SIZE", "CLAIM_CLASS", "CLAIM_ACCESS_MODE", "CLAIM_RETENTION")
        return [variables[f"PAWL_{name}"] for name in names]

    assert storage() == ["Claim", "50Gi", "", "", "Retain"]
    claim = "checkpoints.claim"
    changed = storage(f"{claim}.size=2Ti", f"{claim}.storageClassName=nfs", f"{claim}.accessMode=ReadWriteMany",
                      f"{claim}.retention=Delete")
    assert changed == ["Claim", "2Ti", "nfs", "ReadWriteMany", "Delete"]
    assert storage("checkpoints.defaultStorage=s3://models/runs")[0] == "s3://models/runs"
    assert storage("checkpoints.defaultStorage=az://models/runs")[0] == "az://models/runs"
    assert "defaultStorage" in rejected("checkpoints.defaultStorage=/models")


@test
def user_roles_allow_trainingjobs_only():
    for role in of_kind(template(), "ClusterRole"):
        if role["metadata"]["name"] in {"pawl-edit", "pawl-view"}:
            assert {group for group, _, _ in rules(role)} == {"pawl.dev"}
            writes = {(what, verb) for _, what, verb in rules(role) if verb not in {"get", "list", "watch"}}
            assert all(what == "trainingjobs" for what, _ in writes), "only the operator may write the status"
            assert bool(writes) == (role["metadata"]["name"] == "pawl-edit")


@test
def the_crd_is_the_generated_one_and_is_kept_on_uninstall():
    (crd,) = of_kind(template(), "CustomResourceDefinition")
    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    source = yaml.safe_load((ROOT / "crds/trainingjobs.yaml").read_text())
    assert crd["spec"] == source["spec"], "the installed CRD differs from crds/trainingjobs.yaml"
    assert not of_kind(template("crd.install=false"), "CustomResourceDefinition")


@test
def every_object_has_the_standard_labels():
    for each in template(*EVERYTHING):
        if each["kind"] == "CustomResourceDefinition":
            continue
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "pawl", each["metadata"]["name"]
        assert labels["app.kubernetes.io/managed-by"] == "Helm", each["metadata"]["name"]


@test
def pods_are_restricted():
    (deployment,) = of_kind(template(), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not pod.get("volumes")
    (account,) = of_kind(template(), "ServiceAccount")
    assert account["automountServiceAccountToken"] is False


@test
def environment_variables_match_the_operator_s():
    source = (ROOT / "operator/cli/src/args/operator.rs").read_text()
    known = set(re.findall(r'env = "([A-Z_]+)"', source))
    (deployment,) = of_kind(template(), "Deployment")
    given = {each["name"] for each in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert given == known, f"unknown: {given - known}; missing: {known - given}"


@test
def the_digest_takes_precedence_over_the_tag():
    digest = "sha256:" + "a" * 64
    (deployment,) = of_kind(template("image.tag=v9", f"image.digest={digest}"), "Deployment")
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == f"ghcr.io/pawl-dev/pawl@{digest}"


@test
def all_images_come_from_the_registry_that_is_set():
    def images(*values):
        pod, variables = operator_environment(*values)
        return [pod["containers"][0]["image"], variables["PAWL_AGENT_IMAGE"], variables["PAWL_TRAINER_IMAGE"]]

    (operator, agent, trainer) = images()
    assert operator == agent == trainer and operator.startswith("ghcr.io/pawl-dev/pawl:")
    tag = operator.split(":")[1]
    digest = "sha256:" + "a" * 64
    cuda = f"trainerImage=ghcr.io/pawl-dev/pawl-trainer-cuda:{tag}"
    own, mirror = "registry.example.com:5000", "registry.example.com/team/mirror"
    assert images(f"global.imageRegistry={own}") == [f"{own}/pawl-dev/pawl:{tag}"] * 3
    mirrored = images(f"global.imageRegistry={mirror}", cuda, f"image.digest={digest}")
    assert mirrored == [f"{mirror}/pawl-dev/pawl@{digest}"] * 2 + [f"{mirror}/pawl-dev/pawl-trainer-cuda:{tag}"]
    # Only what is a registry is replaced.
    for name, expected in [
        ("pawl", "pawl"), ("team/pawl", "team/pawl"), ("localhost/pawl", "pawl"), ("localhost:5000/a/pawl", "a/pawl"),
    ]:
        assert images(f"global.imageRegistry={own}", f"image.repository={name}")[0] == f"{own}/{expected}:{tag}", name
    for wrong in ("https://registry.example.com", "registry.example.com/"):
        assert "/global/imageRegistry" in rejected(f"global.imageRegistry={wrong}")
    # The values of a parent chart for its other charts.
    template("global.storageClass=fast")


@test
def invalid_values_are_rejected_with_a_remedy():
    assert "leaderElection=true or replicas=1" in rejected("replicas=2", "leaderElection=false")
    assert "networkPolicy.trainerNamespaces" in rejected("networkPolicy.create=true")
    assert "/replicas" in rejected("replicas=0")
    assert "/image/digest" in rejected("image.digest=latest")
    assert "replica" in rejected("replica=2"), "unknown values must be rejected"
    assert "/logs/format" in rejected("logs.format=xml")


@test
def values_and_schema_have_the_same_keys():
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def compare(where, schema, values):
        if "default" in schema:
            assert values == schema["default"], where
            return
        assert schema["additionalProperties"] is False, f"{where}: allows unknown keys"
        assert set(schema["properties"]) == set(values), where
        for name, each in schema["properties"].items():
            compare(f"{where}.{name}", each, values[name])

    compare("values", schema, values)
    text = "".join(path.read_text() for path in (CHART / "templates").iterdir())

    def used(path, schema):
        if "default" not in schema:
            for name, each in schema["properties"].items():
                used((*path, name), each)
            return
        # A value is used with its whole path, with its last component inside `with` or after `$image :=`, or with all
        # values of its object, which the operator reads as JSON.
        uses = (f".Values.{'.'.join(path)}", f".{path[-1]}", f".Values.{path[0]} | toJson")
        assert any(use in text for use in uses), f"{'.'.join(path)} is not used in any template"

    used((), schema)


@test
def a_pod_disruption_budget_exists_only_with_two_replicas():
    assert not of_kind(template(), "PodDisruptionBudget")
    assert len(of_kind(template("replicas=2"), "PodDisruptionBudget")) == 1


@test
def every_dashboard_and_alert_is_shipped():
    objects = template(*EVERYTHING)
    shipped = {name: text for each in of_kind(objects, "ConfigMap") for name, text in each["data"].items()}
    files = {path.name: path.read_text() for path in (CHART / "dashboards").glob("*.json")}
    assert set(shipped) == set(files)
    for name, text in files.items():
        assert json.loads(shipped[name]) == json.loads(text), name
    groups = [group for each in of_kind(objects, "PrometheusRule") for group in each["spec"]["groups"]]
    sources = [path for path in (CHART / "alerts").glob("*.yaml") if not path.name.endswith(".test.yaml")]
    expected = [group for path in sorted(sources) for group in yaml.safe_load(path.read_text())["groups"]]
    assert groups == expected and expected, "an alert is missing or changed"


@test
def network_policies_allow_the_expected_ingress():
    policies = {each["metadata"]["namespace"]: each["spec"] for each in of_kind(template(*EVERYTHING), "NetworkPolicy")}
    assert set(policies) == {"pawl-system", "team-a", "team-b"}
    for namespace in ("team-a", "team-b"):
        gang, readers = policies[namespace]["ingress"]
        (peer,) = gang["from"]
        assert "namespaceSelector" not in peer, "pods of other namespaces must not have access"
        assert "ports" not in gang, "NCCL uses dynamic ports"
        assert readers["ports"] == [{"port": 9470}]
        assert all("namespaceSelector" in peer for peer in readers["from"])


@test
def the_pages_have_no_power_of_their_own():
    assert not [each for each in template() if each["metadata"]["name"].endswith("-ui")], "they are an option"
    objects = template("ui.enabled=true")
    own = {each["kind"]: each for each in objects if each["metadata"]["name"] == "pawl-ui"}
    assert set(own) == {"ServiceAccount", "Deployment", "Service", "NetworkPolicy"}
    for binding in of_kind(objects, "RoleBinding") + of_kind(objects, "ClusterRoleBinding"):
        assert all(subject["name"] != "pawl-ui" for subject in binding["subjects"]), "users' own tokens are used"
    pod = own["Deployment"]["spec"]["template"]["spec"]
    assert own["ServiceAccount"]["automountServiceAccountToken"] is False
    assert pod["automountServiceAccountToken"] is False and pod["serviceAccountName"] == "pawl-ui"
    (volume,) = pod["volumes"]
    assert [set(source) for source in volume["projected"]["sources"]] == [{"configMap"}, {"downwardAPI"}], "there is no token"
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True and pod["securityContext"]["runAsNonRoot"] is True
    assert {"--cluster", "--login"} <= set(container["args"]) and "--allow-actions" not in container["args"]


@test
def the_pages_are_reached_by_whom_the_values_name():
    def of(kind, *values):
        (found,) = [each for each in of_kind(template("ui.enabled=true", *values), kind) if each["metadata"]["name"] == "pawl-ui"]
        return found["spec"]

    def arguments(*values):
        return of("Deployment", *values)["template"]["spec"]["containers"][0]["args"]

    assert of("NetworkPolicy")["ingress"] == []
    peer = "ui.from[0].namespaceSelector.matchLabels.team=ingress"
    (rule,) = of("NetworkPolicy", peer)["ingress"]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"team": "ingress"}}}] and rule["ports"] == [{"port": "http"}]
    labels = of("Deployment")["template"]["metadata"]["labels"]
    for selected in (of("Service")["selector"], of("NetworkPolicy")["podSelector"]["matchLabels"]):
        assert selected.items() <= labels.items()
    (operator,) = [each for each in of_kind(template("ui.enabled=true"), "Service") if each["metadata"]["name"] == "pawl-operator"]
    assert not operator["spec"]["selector"].items() <= labels.items(), "the operator's Service selects the operator alone"
    given = arguments("ui.allowActions=true", "ui.hosts={jobs.example.org}", "namespaces={team-a}")
    assert {"--allow-actions", "--host=jobs.example.org", "--namespace=team-a"} <= set(given)
    assert "--namespace=team-b" in arguments("ui.namespaces={team-b}") and "/ui/hosts" in rejected("ui.hosts={a b}")
    assert {each.split("=")[0] for each in given} <= options("operator/cli/src/args/ui.rs"), given


def options(path):
    """The long options that the fields of a Rust source declare."""
    fields = re.findall(r"((?:^ +#\[.+\]\n)+) +pub (\w+):", (ROOT / path).read_text(), re.MULTILINE)
    declared = [(re.search(r'\blong(?: = "([a-z-]+)")?[,)]', attributes), field) for attributes, field in fields]
    return {f"--{found[1] or field.replace('_', '-')}" for found, field in declared if found}


def constant(path, name):
    """The value of a constant of a Rust source."""
    return re.search(rf'const {name}: [^=]+= "?([^";]+)"?;', (ROOT / path).read_text())[1]


@test
def network_policies_allow_what_operator_and_agents_connect_to():
    """Ports and labels are those of the code, and nothing is said of egress. tests/chart/policies enforces them."""
    names = "operator/controller/src/names.rs"
    trainers = {"app.kubernetes.io/name": constant(names, "TRAINER_NAME"), "app.kubernetes.io/managed-by": constant(names, "MANAGER")}
    port = int(constant("crds/contract/src/pod.rs", "AGENT_HTTP_PORT"))
    objects = template(*EVERYTHING, "namespaces={team-a,team-b}")
    (deployment,) = of_kind(objects, "Deployment")
    pod = deployment["spec"]["template"]
    served = {each["name"]: each["containerPort"] for each in pod["spec"]["containers"][0]["ports"]}
    for policy in of_kind(objects, "NetworkPolicy"):
        spec = policy["spec"]
        # Pods ask DNS and the API server, and the rank 0 of the rendezvous: with egress in the list, all of these would be cut off.
        assert spec["policyTypes"] == ["Ingress"]
        selected = spec["podSelector"]["matchLabels"]
        if policy["metadata"]["namespace"] == "pawl-system":
            assert selected.items() <= pod["metadata"]["labels"].items(), "it selects the operator"
            assert [each["port"] for rule in spec["ingress"] for each in rule["ports"]] == ["http"] and "http" in served
            continue
        assert selected == trainers
        gang, readers = spec["ingress"]
        # The rendezvous, the collectives of NCCL, and the agents: any port, among the trainers of the namespace.
        assert gang == {"from": [{"podSelector": {"matchLabels": trainers}}]}
        assert readers["ports"] == [{"port": port}]
        operator = readers["from"][0]
        assert operator["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "pawl-system"}
        assert operator["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items(), "the operator may ask the agents"


@test
def network_policies_exist_by_default_where_namespaces_are_listed():
    assert not of_kind(template(), "NetworkPolicy")
    listed = of_kind(template("namespaces={team-a,team-b}"), "NetworkPolicy")
    assert {each["metadata"]["namespace"] for each in listed} == {"pawl-system", "team-a", "team-b"}
    assert not of_kind(template("namespaces={team-a}", "networkPolicy.create=false"), "NetworkPolicy")


@test
def the_admission_policy_has_every_list_of_the_policy():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    (policy,) = of_kind(template("policy.allowedSecrets={db,team-a/s3}"), "ValidatingAdmissionPolicy")
    variables = {each["name"]: each["expression"] for each in policy["spec"]["variables"]}
    assert set(values["policy"]) <= set(variables), "a list is missing"
    assert policy["spec"]["matchConditions"][0]["name"] == "spec-changed"
    assert json.loads(variables["allowedSecrets"]) == ["db", "team-a/s3"]
    for name in values["policy"]:
        assert any(f"variables.{name}" in text for text in yaml.dump(policy["spec"]).split("\n")), f"{name} is not checked"
    assert policy["spec"]["failurePolicy"] == "Fail"
    (binding,) = of_kind(template("namespaces={team-a}"), "ValidatingAdmissionPolicyBinding")
    assert binding["spec"]["validationActions"] == ["Deny"]
    (expression,) = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert expression["values"] == ["team-a"]
    kinds = {each["kind"] for each in template("admissionPolicy.create=false")}
    assert not any(kind.startswith("ValidatingAdmission") for kind in kinds)


def operator_environment(*values):
    (deployment,) = of_kind(template(*values), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    return pod, {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}


@test
def the_operator_gets_the_policy_and_the_defaults_of_pods():
    _, variables = operator_environment("policy.allowedIds[0].min=1000", "policy.allowedIds[0].max=1000650000")
    assert json.loads(variables["PAWL_POLICY"])["allowedIds"] == [{"min": 1000, "max": 1000650000}]
    pods = json.loads(variables["PAWL_PODS"])
    assert pods["securityContext"] == {"runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532}
    assert all(pods["emptyDirs"][name] for name in ("work", "data", "tmp"))


@test
def defaults_of_trainer_pods_reach_the_operator_and_need_no_policy():
    defaults = {
        "imagePullSecrets": [{"name": "registry"}], "runtimeClassName": "nvidia", "priorityClassName": "research",
        "nodeSelector": {"example.com/pool": "gpus"},
        "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
        "labels": {"cost-center": "ml"}, "annotations": {"note": "x"},
        "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    }
    pod, variables = operator_environment(
        "pods.imagePullSecrets[0].name=registry", "pods.runtimeClassName=nvidia", "pods.priorityClassName=research",
        r"pods.nodeSelector.example\.com/pool=gpus",
        "pods.tolerations[0].key=spot,pods.tolerations[0].operator=Exists,pods.tolerations[0].effect=NoSchedule",
        "pods.labels.cost-center=ml", "pods.annotations.note=x",
        "pods.env[0].name=HTTPS_PROXY,pods.env[0].value=http://proxy:3128",
    )
    pods = json.loads(variables["PAWL_PODS"])
    assert {name: pods[name] for name in defaults} == defaults
    for name in defaults:
        assert name not in pod, f"{name} of the operator's own pods is another value"
    assert not any(json.loads(variables["PAWL_POLICY"]).values())
    # The operator refuses a field that it does not know: all that the chart passes on are its own.
    source = (ROOT / "operator/controller/src/objects/defaults.rs").read_text()
    fields = re.findall(r"^    pub (\w+):", source.split("pub struct PodDefaults {")[1].split("\n}")[0], re.M)
    known = {re.sub(r"_(\w)", lambda found: found[1].upper(), field) for field in fields}
    assert set(pods) == known, f"{set(pods) ^ known}"


@test
def ids_can_be_left_to_openshift():
    pod, variables = operator_environment("pods.securityContext=null", "securityContext=null")
    assert "securityContext" not in json.loads(variables["PAWL_PODS"])
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


@test
def null_is_rejected_or_means_the_default():
    """Helm removes a value that is null: what a template cannot do without is required by the schema."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    optional = []

    def compare(path, schema):
        if "properties" not in schema or "default" in schema:
            return
        required = set(schema.get("required", []))
        for name, each in schema["properties"].items():
            nullable = "null" in each.get("type", []) if isinstance(each.get("type"), list) else False
            empty = each.get("type") in ("array", "object") and "default" in each and path != ("policy",)
            where = (*path, name)
            assert (name in required) != (nullable or empty), f"{'.'.join(where)} is not required, or cannot be left out"
            if name not in required:
                optional.append(".".join(where))
            compare(where, each)

    compare((), schema)
    assert len(optional) > 8, optional
    template(*[f"{path}=null" for path in optional])
    for value in ("policy", "policy.allowedSecrets", "checkpoints.claim", "image.tag", "live"):
        assert value.split(".")[-1] in rejected(f"{value}=null"), value


@test
def defaults_of_the_chart_are_those_of_the_operator():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    claim = (ROOT / "operator/controller/src/objects/claim.rs").read_text()
    (size,) = re.findall(r'DEFAULT_CLAIM_SIZE: &str = "(.+)"', claim)
    retention = re.search(r"#\[default\]\s+([A-Z]\w+),", claim.split("pub enum Retention")[1]).group(1)
    storage = (ROOT / "operator/decision/src/storage.rs").read_text()
    kind = re.search(r"#\[default\]\s+([A-Z]\w+),", storage.split("pub enum DefaultStorage")[1]).group(1)
    found = values["checkpoints"]
    assert (found["defaultStorage"], found["claim"]["size"], found["claim"]["retention"]) == (kind, size, retention)
    pods = (ROOT / "operator/controller/src/objects/defaults.rs").read_text()
    sizes = dict(re.findall(r'(\w+): size\("(.+?)"\)', pods))
    assert sizes == values["pods"]["emptyDirs"]
    (user,) = re.findall(r"const USER: i64 = (\d+);", pods)
    assert set(values["pods"]["securityContext"].values()) == {int(user)}


@test
def invalid_policies_are_rejected():
    assert "/policy/allowedVolumeTypes" in rejected("policy.allowedVolumeTypes={secret}")
    assert "/policy/allowedHostPaths" in rejected("policy.allowedHostPaths={data}")
    assert "/policy/allowedSecrets" in rejected("policy.allowedSecrets={a/b/c}")
    assert "/pods/emptyDirs" in rejected("pods.emptyDirs.tmp=much")
    assert "/pods/tolerations" in rejected("pods.tolerations[0].effect=NoSchedul")
    assert "/pods/imagePullSecrets" in rejected("pods.imagePullSecrets={registry}")
    assert "/pods/env" in rejected("pods.env[0].name=HTTPS_PROXY")


@test
def the_notes_contain_the_next_steps():
    done = helm("install", "pawl", str(CHART), "--dry-run=client", "--namespace", "pawl-system")
    assert done.returncode == 0, done.stderr
    notes = done.stdout.split("NOTES:")[1]
    assert "kubectl rollout status deployment/pawl-operator --namespace pawl-system" in notes
    # Who installs the chart has no clone: a file of the release (tests/lint/release checks that it is one).
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]
    release = f"{workspace['repository']}/releases/download/v{workspace['version']}"
    assert f"kubectl apply -f {release}/quickstart.yaml\n" in notes, notes
    assert "examples/" not in notes, notes


def main():
    failed = 0
    for each in TESTS:
        try:
            each()
            print(f"ok    {each.__name__}")
        except Exception as error:  # an error in a test is a failure
            failed += 1
            print(f"FAIL  {each.__name__}: {type(error).__name__}: {error}")
    print(f"{len(TESTS) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


os.environ.setdefault("HELM_CACHE_HOME", str(ROOT / "target/tools/helm"))
main()
