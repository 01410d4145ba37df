//! `kubectl pawl preflight` against the real API server: each obstacle is named before anything waits, and nothing is
//! created.

use crate::rights::person;
use pawl_e2e::job::toy;
use pawl_e2e::operator::account;
use pawl_e2e::programs::{built, run, succeed};
use pawl_e2e::{Scene, scene};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Name of the Deployment of the operator.
const OPERATOR: &str = "pawl-operator";

/// The operator in a pod, as the chart installs it, with the rights of its service account. It watches the scene.
fn deployment(scene: &Scene, name: &str, node_selector: &Value) -> Value {
    let labels = json!({"app.kubernetes.io/name": "pawl-operator", "app.kubernetes.io/instance": name});
    let set = |name: &str, value: &str| json!({"name": name, "value": value});
    let policy = json!({"allowedServiceAccounts": ["*"], "allowedPriorityClasses": ["*"]});
    let environment = json!([
        set("PAWL_NAMESPACES", &scene.namespace),
        set("PAWL_TRAINER_IMAGE", "localhost/pawl:test"),
        set("PAWL_AGENT_IMAGE", "localhost/pawl:test"),
        set("PAWL_POLICY", &policy.to_string()),
        set("PAWL_CLAIM_SIZE", "1Gi"),
        set("PAWL_CLAIM_CLASS", ""),
    ]);
    let container = json!({
        "name": "operator", "image": "localhost/pawl:test", "imagePullPolicy": "Never",
        "command": ["/bin/pawl", "operator"], "env": environment,
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8080}, "periodSeconds": 1},
        "resources": {"requests": {"memory": "64Mi"}, "limits": {"memory": "256Mi"}},
    });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {
                "serviceAccountName": "pawl", "nodeSelector": node_selector, "containers": [container],
            }},
        },
    })
}

/// Changes a variable of the operator.
fn set(scene: &Scene, variable: &str, value: &str) {
    let change = format!("{variable}={value}");
    succeed(&mut scene.kubectl(&["set", "env", &format!("deployment/{OPERATOR}"), &change]));
}

/// A gang of two pods with a GPU each, with `change` made to it.
fn gang(change: impl FnOnce(&mut Value)) -> Value {
    toy(|job| {
        job["spec"]["trainer"]["replicas"] = 2.into();
        job["spec"]["trainer"]["gpusPerReplica"] = 1.into();
        job["spec"]["settings"]["accumulationSteps"] = 4.into();
        job["spec"]["phases"] = json!([]);
        change(job);
    })
}

/// What a preflight of `job` found, as the user of a kubeconfig or as the administrator.
struct Found {
    code: Option<i32>,
    findings: Vec<Value>,
}

impl Found {
    fn of(scene: &Scene, job: &Value, user: Option<&Path>) -> Self {
        let file = scene.directory.path().join("preflight.json");
        std::fs::write(&file, job.to_string()).unwrap();
        let mut command = Command::new(built("pawl"));
        command.args(["kubectl", "preflight", "-o", "json"]).arg(&file);
        if job["metadata"]["namespace"].is_null() {
            command.args(["--namespace", &scene.namespace]);
        }
        if let Some(kubeconfig) = user {
            command.arg("--kubeconfig").arg(kubeconfig);
        }
        let answer = run(&mut command);
        let (out, errors) = (String::from_utf8_lossy(&answer.stdout), String::from_utf8_lossy(&answer.stderr));
        let whole: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}\n{errors}"));
        let findings = whole["jobs"][0]["findings"].as_array().unwrap().clone();
        Self { code: answer.status.code(), findings }
    }

    fn with(&self, result: &str) -> Vec<String> {
        let wanted = self.findings.iter().filter(|finding| finding["result"] == result);
        let text = |finding: &Value| {
            format!("{}: {}", finding["object"].as_str().unwrap(), finding["message"].as_str().unwrap())
        };
        wanted.map(text).collect()
    }

    /// There is exactly one problem for each of `expected`: the begin of its object, and a part of its message.
    fn problems(&self, expected: &[(&str, &str)]) {
        let problems = self.with("Problem");
        assert_eq!(problems.len(), expected.len(), "{expected:?} expected, found {problems:#?}");
        for (object, part) in expected {
            let named = |problem: &&String| problem.starts_with(object) && problem.contains(part);
            assert!(problems.iter().any(|problem| named(&problem)), "no {object}: {part} in {problems:#?}");
        }
        assert_eq!(self.code, Some(if expected.is_empty() { 0 } else { 2 }));
    }
}

/// A quota of the namespace, once the controller has counted what is used of it.
async fn quota(scene: &Scene, resource: &str, hard: &str) {
    let (metadata, spec) = (json!({"name": "team"}), json!({"hard": {resource: hard}}));
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": spec});
    scene.apply(&quota);
    let counted = async || {
        let status = succeed(&mut scene.kubectl(&["get", "resourcequota", "team", "-o", "jsonpath={.status.hard}"]));
        status.contains(resource).then_some(())
    };
    scene.until("the quota to be counted", Duration::from_secs(30), counted).await;
}

fn without_quota(scene: &Scene) {
    succeed(&mut scene.kubectl(&["delete", "resourcequota", "team"]));
}

/// What admission refuses, what pods would wait for, and what does not fit.
async fn obstacles_of_the_gang(scene: &Scene) {
    let refers = |field: &str| gang(|job| job["spec"]["trainer"]["podTemplate"] = json!({field: "nobody"}));
    Found::of(scene, &refers("serviceAccountName"), None)
        .problems(&[("Pods", "nobody"), ("ServiceAccount", "does not exist")]);
    Found::of(scene, &refers("priorityClassName"), None)
        .problems(&[("Pods", "nobody"), ("PriorityClass nobody", "does not exist")]);

    // One pod fits, and the gang does not.
    quota(scene, "requests.nvidia.com/gpu", "1").await;
    let message = "allows 1 requests.nvidia.com/gpu, the gang needs 2";
    Found::of(scene, &gang(|_| {}), None).problems(&[("ResourceQuota", message)]);
    without_quota(scene);
    quota(scene, "limits.memory", "64Gi").await;
    Found::of(scene, &gang(|_| {}), None).problems(&[
        ("Pods", "must specify limits.memory"),
        ("ResourceQuota", "demands limits.memory of every container"),
    ]);
    without_quota(scene);

    let queued = gang(|job| job["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": "nowhere"}));
    Found::of(scene, &queued, None).problems(&[("LocalQueue", "the job would stay suspended")]);
    let large = gang(|job| job["spec"]["trainer"]["gpusPerReplica"] = 64.into());
    Found::of(scene, &large, None).problems(&[("Nodes", "have capacity for 0 even when empty")]);
}

/// What is wrong with the operator, or with its configuration.
fn obstacles_of_the_operator(scene: &Scene) {
    set(scene, "PAWL_CLAIM_CLASS", "nonesuch");
    Found::of(scene, &gang(|_| {}), None)
        .problems(&[("PersistentVolumeClaim", "its StorageClass \"nonesuch\" does not exist")]);
    set(scene, "PAWL_CLAIM_CLASS", "");
    // It does not run; that it could would be enough.
    scene.apply(&deployment(scene, "second-operator", &json!({"pawl-e2e/node": "none"})));
    Found::of(scene, &gang(|_| {}), None).problems(&[("Operator", "has 2 operators")]);
    succeed(&mut scene.kubectl(&["delete", "deployment", "second-operator"]));
    set(scene, "PAWL_NAMESPACES", "elsewhere");
    Found::of(scene, &gang(|_| {}), None).problems(&[("Operator", "none watches namespace")]);
    set(scene, "PAWL_NAMESPACES", &scene.namespace);
    succeed(&mut scene.kubectl(&["delete", "rolebinding", "pawl"]));
    Found::of(scene, &gang(|_| {}), None)
        .problems(&[("Deployment", "may not list trainingjobs.pawl.dev, nor create jobs.batch there")]);
    let nowhere = gang(|job| job["metadata"]["namespace"] = format!("{}-nowhere", scene.namespace).into());
    Found::of(scene, &nowhere, None).problems(&[("TrainingJob", "its namespace does not exist")]);
}

#[test]
fn each_obstacle_is_named_before_anything_waits() {
    scene(async |scene| {
        account(scene);
        scene.apply(&deployment(scene, OPERATOR, &json!({})));
        let rollout = ["rollout", "status", &format!("deployment/{OPERATOR}"), "--timeout=120s"];
        succeed(scene.kubectl(&[]).args(rollout));

        let good = Found::of(scene, &gang(|_| {}), None);
        good.problems(&[]);
        let passed = good.with("Ok").join("\n");
        for object in ["TrainingJob", "Deployment", "Job", "Pods", "Service", "What the pods refer to", "Nodes"] {
            assert!(passed.lines().any(|line| line.starts_with(object)), "{object} is not among\n{passed}");
        }
        obstacles_of_the_gang(scene).await;
        obstacles_of_the_operator(scene);

        let kinds = "trainingjobs,jobs,configmaps,persistentvolumeclaims,services";
        let left = succeed(&mut scene.kubectl(&["get", kinds, "-o", "name"]));
        let left: Vec<&str> = left.lines().filter(|name| !name.ends_with("kube-root-ca.crt")).collect();
        assert!(left.is_empty(), "a preflight changes nothing: {left:?}");
    });
}

#[test]
fn a_user_learns_which_right_a_check_would_need() {
    scene(async |scene| {
        let editor = person(scene, "pawl-edit");
        let found = Found::of(scene, &gang(|_| {}), Some(&editor));
        found.problems(&[]);
        let unknown = found.with("Unknown").join("\n");
        for right in ["create pods", "create jobs.batch", "list nodes", "list resourcequotas", "list deployments.apps"]
        {
            assert!(unknown.contains(&format!("you may not {right}")), "{right}: {unknown}");
        }
        // With the built-in role, the objects of the gang are tried; their quota is known, nodes are not.
        scene.apply(&json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "edit"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"kind": "ServiceAccount", "name": "pawl-edit", "namespace": scene.namespace}],
        }));
        let missing = gang(|job| job["spec"]["trainer"]["podTemplate"] = json!({"serviceAccountName": "nobody"}));
        let found = Found::of(scene, &missing, Some(&editor));
        found.problems(&[("Pods", "nobody"), ("ServiceAccount", "does not exist")]);
        let passed = found.with("Ok").join("\n");
        for object in ["Job", "Service", "PersistentVolumeClaim", "ResourceQuotas"] {
            assert!(passed.lines().any(|line| line.starts_with(object)), "{object} is not among\n{passed}");
        }
        let unknown = found.with("Unknown").join("\n");
        assert!(unknown.contains("you may not list nodes") && !unknown.contains("create pods"), "{unknown}");
    });
}
