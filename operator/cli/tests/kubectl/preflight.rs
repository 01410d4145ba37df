//! preflight.

use crate::api::{Answer, Api, Asked, JOBS, list};
use crate::program::{Printed, Program};
use serde_json::{Value, json};

/// The team's namespace of an API.
const TEAM: &str = "/api/v1/namespaces/team";

fn node(gpus: u32) -> Value {
    let allocatable = json!({"cpu": "8", "pods": "110", "nvidia.com/gpu": gpus.to_string()});
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": allocatable}})
}

fn manifest(change: impl FnOnce(&mut Value)) -> Value {
    let mut job = json!({
        "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "toy"},
        "spec": {"workload": {"name": "ups"}, "trainer": {"replicas": 2, "gpusPerReplica": 4}, "train": {"items": 100}},
    });
    change(&mut job);
    job
}

/// A Deployment of the chart.
fn operator(namespace: &str, env: &[(&str, &str)]) -> Value {
    let env: Vec<Value> = env.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    let container = json!({"name": "operator", "command": ["/bin/pawl", "operator"], "env": env});
    let template = json!({"spec": {"serviceAccountName": "pawl-operator", "containers": [container]}});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "pawl-operator", "namespace": namespace},
        "spec": {"selector": {}, "template": template},
        "status": {"availableReplicas": 1},
    })
}

fn class(name: &str) -> Value {
    json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name,
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}, "provisioner": "csi"})
}

fn quota(hard: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"},
           "status": {"hard": {"requests.nvidia.com/gpu": hard}, "used": {"requests.nvidia.com/gpu": "4"}}})
}

fn forbidden(what: &str) -> Answer {
    Answer::Failure(403, "Forbidden", format!("User \"jo\" cannot {what}"), "")
}

/// A cluster in which everything is in order: what a test does not answer itself.
fn healthy(asked: &Asked) -> Answer {
    let path = asked.path.as_str();
    match path {
        "/api/v1/nodes" => list(&[node(8), node(0)]),
        "/apis/apps/v1/deployments" => list(&[operator("pawl-system", &[("PAWL_NAMESPACES", "team")])]),
        "/apis/storage.k8s.io/v1/storageclasses" => list(&[class("fast")]),
        _ if path.starts_with("/apis/authorization.k8s.io/") => {
            let mut review = asked.json();
            review["status"] = json!({"allowed": true});
            Answer::Json(review)
        }
        // What would be created.
        _ if asked.method == "POST" || asked.method == "PATCH" => {
            let mut made = asked.json();
            made["metadata"]["namespace"] = "team".into();
            made["metadata"]["uid"] = "11".into();
            Answer::Json(made)
        }
        "/api/v1/namespaces/team/serviceaccounts/default" => {
            Answer::Json(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}))
        }
        _ if ["resourcequotas", "limitranges", "trainingjobs"].iter().any(|kind| path.ends_with(kind)) => list(&[]),
        _ => Answer::Failure(404, "NotFound", "not found".into(), "named"),
    }
}

fn preflight(api: &Api, manifest: &Value, more: &[&str]) -> Printed {
    let program = Program::new(api);
    std::fs::write(program.path().join("job.yaml"), manifest.to_string()).unwrap();
    let printed = program.pawl(&[&["preflight", "job.yaml"], more].concat());
    assert_eq!(api.writes().len(), 0, "a preflight changes nothing");
    printed
}

/// What was found of one job, by its result: object and message.
fn findings(printed: &Printed, result: &str) -> Vec<String> {
    let whole: Value =
        serde_json::from_str(&printed.out).unwrap_or_else(|_| panic!("{}\n{}", printed.out, printed.err));
    let all = whole["jobs"][0]["findings"].as_array().unwrap().iter();
    let wanted = all.filter(|finding| finding["result"] == result);
    wanted.map(|finding| format!("{}: {}", finding["object"], finding["message"]).replace('"', "")).collect()
}

#[test]
fn a_job_that_fits_passes_and_its_objects_are_sent_only_as_dry_runs() {
    let api = Api::start(healthy);
    let printed = preflight(&api, &manifest(|_| {}), &[]);
    assert_eq!(printed.code, Some(0), "{}\n{}", printed.out, printed.err);
    assert!(printed.out.contains("no problem found, 2 unknown"), "images, and access modes: {}", printed.out);
    // The image may contain another trainer.
    let refused = "warning: spec.settings.batchPerGpu: 1 must be a multiple of 2";
    assert!(printed.out.contains(refused), "{}", printed.out);
    assert!(printed.out.contains("ok      Deployment pawl-system/pawl-operator: runs the jobs"), "{}", printed.out);
    let asked = api.asked();
    let tried = |path: &str| {
        let of = |asked: &&Asked| asked.method == "POST" && asked.path == path && asked.query.contains("dryRun=All");
        asked.iter().find(of).unwrap_or_else(|| panic!("no dry run of {path}")).json()
    };
    tried(JOBS);
    let batch = tried("/apis/batch/v1/namespaces/team/jobs");
    assert_eq!((&batch["metadata"]["name"], &batch["spec"]["parallelism"]), (&json!("toy-1"), &json!(2)));
    let pod = tried(&format!("{TEAM}/pods"));
    assert_eq!(pod["metadata"]["labels"]["batch.kubernetes.io/job-name"], "toy-1");
    assert_eq!(pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"], "4");
    assert_eq!(tried(&format!("{TEAM}/persistentvolumeclaims"))["metadata"]["name"], "toy-storage");
    assert_eq!(tried(&format!("{TEAM}/services"))["metadata"]["name"], "pawl-trainers");
}

#[test]
fn all_obstacles_are_reported_at_once() {
    let api = Api::start(|asked| match (asked.method.as_str(), asked.path.as_str()) {
        ("POST", JOBS) => Answer::Failure(422, "Invalid", "spec.phases: too many".into(), "toy"),
        ("POST", "/api/v1/namespaces/team/pods") => {
            Answer::Failure(403, "Forbidden", "no PriorityClass with name high was found".into(), "toy-1-0-")
        }
        (_, "/api/v1/nodes") => list(&[node(4)]),
        (_, "/apis/apps/v1/deployments") => {
            let env = [("PAWL_NAMESPACES", "team"), ("PAWL_CLAIM_CLASS", "slow"), ("PAWL_POLICY", "{}")];
            list(&[operator("pawl-system", &env), operator("second", &[])])
        }
        (_, "/api/v1/namespaces/team/resourcequotas") => list(&[quota("8")]),
        _ => healthy(asked),
    });
    let job = manifest(|job| job["spec"]["trainer"]["podTemplate"] = json!({"priorityClassName": "high"}));
    let printed = preflight(&api, &job, &["-o", "json"]);
    assert_eq!(printed.code, Some(2), "{}\n{}", printed.out, printed.err);
    let problems = findings(&printed, "Problem");
    let expected = [
        "TrainingJob team/toy: the API server rejects the manifest: spec.phases: too many",
        "Policy of the operator: spec.trainer.podTemplate.priorityClassName",
        "Operator: namespace \\team\\ has 2 operators",
        "Pods team/toy-1-*: would be refused: no PriorityClass with name high was found",
        "PriorityClass high: does not exist",
        "PersistentVolumeClaim team/toy-storage: its StorageClass \\slow\\ does not exist",
        "ResourceQuota team/gpus: leaves 4 of 8 requests.nvidia.com/gpu, the gang needs 8",
        "Nodes: 1 of 1 nodes accept these pods, and have capacity for 1 even when empty",
    ];
    assert_eq!(problems.len(), expected.len(), "{problems:#?}");
    for (found, expected) in problems.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found}\nnot {expected}");
    }
    let whole: Value = serde_json::from_str(&printed.out).unwrap();
    assert_eq!((&whole["runs"], &whole["jobs"][0]["runs"]), (&json!(false), &json!(false)));
    let remedies =
        whole["jobs"][0]["findings"].as_array().unwrap().iter().filter(|finding| finding["result"] == "Problem");
    assert!(remedies.into_iter().all(|finding| finding["remedy"].is_string()), "each problem has a remedy");
}

#[test]
fn what_the_user_may_not_see_or_try_is_unknown_and_names_the_right() {
    // What pawl-edit allows, and what anybody may ask.
    let api = Api::start(|asked| match asked.path.as_str() {
        path if path.starts_with("/apis/pawl.dev/") => healthy(asked),
        path if path.starts_with("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews") => {
            let mut review = asked.json();
            let allowed = review["spec"]["resourceAttributes"]["group"] == "pawl.dev";
            review["status"] = json!({"allowed": allowed});
            Answer::Json(review)
        }
        _ => forbidden("do this"),
    });
    let printed = preflight(&api, &manifest(|_| {}), &["-o", "json"]);
    assert_eq!(printed.code, Some(0), "{}\n{}", printed.out, printed.err);
    assert_eq!(findings(&printed, "Problem"), [""; 0]);
    assert_eq!(findings(&printed, "Ok"), ["TrainingJob team/toy: the API server accepts the manifest (dry run)"]);
    let unknown = findings(&printed, "Unknown").join("\n");
    for right in [
        "list deployments.apps",
        "create jobs.batch",
        "create pods",
        "create services",
        "create persistentvolumeclaims",
        "get serviceaccounts",
        "list storageclasses.storage.k8s.io",
        "list resourcequotas",
        "list nodes",
    ] {
        assert!(unknown.contains(&format!("you may not {right}")), "{right}: {unknown}");
    }
    let notes = findings(&printed, "Note").join("\n");
    assert!(notes.contains("the chart's defaults"), "{notes}");
    let tried: Vec<_> = api.asked().into_iter().filter(|asked| asked.query.contains("dryRun=All")).collect();
    assert!(tried.iter().all(|asked| asked.path == JOBS), "nothing is tried without the right: {tried:?}");
}

#[test]
fn a_job_that_exists_is_applied_and_what_it_holds_of_a_quota_is_no_problem() {
    let api = Api::start(|asked| match (asked.method.as_str(), asked.path.as_str()) {
        ("GET", path) if path == format!("{JOBS}/toy") => Answer::Json(
            json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "toy"}}),
        ),
        ("PATCH", _) => {
            let mut job = asked.json();
            job["metadata"]["namespace"] = "team".into();
            job["status"] = json!({"attempts": 7, "attempt": {"name": "toy-7", "started": "2026-01-01T00:00:00Z"}});
            Answer::Json(job)
        }
        (_, "/api/v1/namespaces/team/resourcequotas") => list(&[quota("8")]),
        _ => healthy(asked),
    });
    let printed = preflight(&api, &manifest(|_| {}), &["-o", "json"]);
    assert_eq!(printed.code, Some(0), "{}\n{}", printed.out, printed.err);
    let unknown = findings(&printed, "Unknown").join("\n");
    assert!(
        unknown.contains("leaves 4 of 8 requests.nvidia.com/gpu") && unknown.contains("this job holds"),
        "{unknown}"
    );
    let asked = api.asked();
    let applied = asked.iter().find(|asked| asked.method == "PATCH").unwrap();
    assert!(applied.query.contains("dryRun=All") && applied.kind == "application/apply-patch+yaml", "{applied:?}");
    let batch = asked.iter().find(|asked| asked.path.starts_with("/apis/batch/") && asked.method == "POST").unwrap();
    assert_eq!(batch.json()["metadata"]["name"], "toy-8", "the next attempt");
}

#[test]
fn a_queue_is_looked_for_in_the_version_that_kueue_serves() {
    let queue = |active: &str| {
        let condition = json!({"type": "Active", "status": active, "message": "its ClusterQueue does not exist"});
        json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": {"name": "gpus"},
               "spec": {"clusterQueue": "all"}, "status": {"conditions": [condition]}})
    };
    let group = || {
        let version = json!({"groupVersion": "kueue.x-k8s.io/v1beta2", "version": "v1beta2"});
        json!({"name": "kueue.x-k8s.io", "versions": [version], "preferredVersion": version})
    };
    let cluster = |installed: bool, active: Option<&'static str>| {
        Api::start(move |asked| match asked.path.as_str() {
            "/apis" => {
                let groups = if installed { vec![group()] } else { Vec::new() };
                Answer::Json(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
            }
            "/apis/kueue.x-k8s.io/v1beta2" => {
                let resource = json!({"name": "localqueues", "singularName": "localqueue", "namespaced": true,
                                      "kind": "LocalQueue", "verbs": ["get", "list"]});
                Answer::Json(
                    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "kueue.x-k8s.io/v1beta2",
                                    "resources": [resource]}),
                )
            }
            "/apis/kueue.x-k8s.io/v1beta2/namespaces/team/localqueues/gpus" => match active {
                Some(active) => Answer::Json(queue(active)),
                None => Answer::Failure(404, "NotFound", "localqueues \"gpus\" not found".into(), "gpus"),
            },
            _ => healthy(asked),
        })
    };
    let job = manifest(|job| job["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": "gpus"}));
    let found = |api: &Api| {
        let printed = preflight(api, &job, &[]);
        let line = printed.out.lines().find(|line| line.contains("LocalQueue team/gpus")).unwrap_or_default();
        (printed.code.unwrap(), line.to_owned())
    };
    let (code, line) = found(&cluster(true, Some("True")));
    assert!(code == 0 && line.contains("is active, in ClusterQueue all"), "{line}");
    for (api, expected) in [
        (cluster(true, Some("False")), "is not active: its ClusterQueue does not exist"),
        (cluster(true, None), "does not exist"),
        (cluster(false, None), "the cluster has no Kueue"),
    ] {
        let (code, line) = found(&api);
        assert!(code == 2 && line.contains(expected), "{code}: {line}");
    }
}

#[test]
fn every_training_job_of_every_file_is_checked_and_other_documents_count_as_applied_before() {
    let api = Api::start(healthy);
    let program = Program::new(&api);
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "models"}});
    let stored = manifest(|job| job["spec"]["train"]["checkpoint"] = json!({"storage": "pvc://models/runs"}));
    let missing = manifest(|job| {
        job["metadata"]["name"] = "other".into();
        job["spec"]["train"]["checkpoint"] = json!({"storage": "pvc://nowhere/runs"});
    });
    std::fs::write(program.path().join("two.yaml"), format!("{claim}\n---\n{stored}\n---\n{missing}\n")).unwrap();
    let third = manifest(|job| job["metadata"]["name"] = "third".into());
    std::fs::write(program.path().join("one.json"), third.to_string()).unwrap();
    let printed = program.pawl(&["preflight", "two.yaml", "-f", "one.json"]);
    assert_eq!(printed.code, Some(2), "{}\n{}", printed.out, printed.err);
    let headings: Vec<&str> = printed.out.lines().filter(|line| line.starts_with("TrainingJob ")).collect();
    assert_eq!(headings, ["TrainingJob team/toy", "TrainingJob team/other", "TrainingJob team/third"]);
    assert!(printed.out.contains("note    PersistentVolumeClaim team/models: does not exist yet"), "{}", printed.out);
    assert!(
        printed.out.contains("✗ problem PersistentVolumeClaim team/nowhere: does not exist\n            remedy: "),
        "{}",
        printed.out
    );
    assert_eq!(printed.out.matches("✗ problem").count(), 1, "{}", printed.out);
    let none = program.pawl(&["preflight"]);
    assert!(none.code == Some(2) && none.err.contains("FILE"), "{}", none.err);
}

#[test]
fn an_invalid_manifest_is_rejected_without_a_request() {
    let api = Api::start(healthy);
    let wrong = manifest(|job| job["spec"]["phases"] = json!([{"name": "Upper", "settings": {"compile": "Graph"}}]));
    let printed = preflight(&api, &wrong, &[]);
    assert_eq!(printed.code, Some(2));
    assert!(printed.err.contains("job.yaml:") && printed.err.contains("spec.phases[0].name"), "{}", printed.err);
    assert_eq!(api.asked().len(), 0);
}

#[test]
fn a_ladder_that_cannot_pay_for_itself_is_noted_with_what_to_do() {
    let api = Api::start(healthy);
    let job = manifest(|job| {
        job["spec"]["settings"] = json!({"batchPerGpu": 8});
        job["spec"]["phases"] =
            json!([{"name": "compile", "expectedSpeedup": "1.1", "settings": {"compile": "Graph"}}]);
    });
    let notes = findings(&preflight(&api, &job, &["-o", "json"]), "Note");
    let warned = |note: &&String| note.contains("warning: spec.phases: judging would probably take");
    let [warning] = notes.iter().filter(warned).collect::<Vec<_>>()[..] else { panic!("{notes:?}") };
    for part in ["spec.train.items of at least", "budgetPercent: Unlimited"] {
        assert!(warning.contains(part), "{warning}");
    }
}
