//! preflight.

use crate::api::{Answer, Api, JOBS, list};
use crate::program::{Printed, Program};
use serde_json::{Value, json};

fn node(name: &str, gpus: u32) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
           "status": {"allocatable": {"cpu": "8", "nvidia.com/gpu": gpus.to_string()}}})
}

fn manifest(storage: &str) -> Value {
    json!({"apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "toy"},
           "spec": {"workload": {"name": "ups"}, "trainer": {"replicas": 2, "gpusPerReplica": 4},
                    "train": {"items": 100, "checkpoint": {"storage": storage}}}})
}

/// A cluster with these nodes and this GPU quota, and the claim `disk`.
fn cluster(nodes: Vec<Value>, quota: Option<u32>, refuses: bool) -> Api {
    Api::start(move |asked| match asked.path.as_str() {
        "/api/v1/nodes" => list(&nodes),
        "/api/v1/namespaces/team/resourcequotas" => {
            let quota = quota.map(|hard| {
                json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"},
                       "status": {"hard": {"requests.nvidia.com/gpu": hard.to_string()}, "used": {"requests.nvidia.com/gpu": "4"}}})
            });
            list(&quota.into_iter().collect::<Vec<_>>())
        }
        "/api/v1/namespaces/team/persistentvolumeclaims/disk" => {
            Answer::Json(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "disk"}}))
        }
        path if path == format!("{JOBS}/toy") && refuses => {
            Answer::Failure(422, "Invalid", "spec.phases: too many".into(), "toy")
        }
        path if path == format!("{JOBS}/toy") => Answer::Json(asked.json()),
        _ => Answer::Failure(404, "NotFound", "not found".into(), "named"),
    })
}

fn preflight(api: &Api, manifest: &Value, more: &[&str]) -> Printed {
    let program = Program::new(api);
    std::fs::write(program.path().join("job.yaml"), manifest.to_string()).unwrap();
    let printed = program.pawl(&[&["preflight", "-f", "job.yaml"], more].concat());
    assert_eq!(api.writes().len(), 0, "a preflight changes nothing");
    printed
}

#[test]
fn a_job_that_fits_passes_and_is_sent_only_as_a_dry_run() {
    let api = cluster(vec![node("a", 8), node("b", 0)], Some(16), false);
    let printed = preflight(&api, &manifest("pvc://disk/runs"), &[]);
    assert_eq!(printed.code, Some(0), "{}\n{}", printed.out, printed.err);
    assert_eq!(printed.out.matches('✓').count(), 4, "{}", printed.out);
    let asked = api.asked();
    let tried = asked.iter().find(|asked| asked.method == "PATCH").unwrap();
    assert!(tried.query.contains("dryRun=All") && tried.kind == "application/apply-patch+yaml", "{tried:?}");
}

#[test]
fn all_obstacles_are_reported_at_once() {
    let api = cluster(vec![node("a", 4)], Some(8), true);
    let printed = preflight(&api, &manifest("pvc://missing/runs"), &["-o", "json"]);
    assert_eq!(printed.code, Some(2), "{}\n{}", printed.out, printed.err);
    let found: Value = serde_json::from_str(&printed.out).unwrap();
    assert_eq!(found["runs"], false);
    let bad: Vec<&str> = found["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|finding| finding["result"] == "Bad")
        .map(|finding| finding["message"].as_str().unwrap())
        .collect();
    assert_eq!(bad.len(), 4, "{bad:?}");
    assert!(bad[0].contains("spec.phases: too many"), "{}", bad[0]);
    assert!(bad[1].contains("2 pods of 4 nvidia.com/gpu") && bad[1].contains("capacity for 1"), "{}", bad[1]);
    assert!(bad[2].contains("quota gpus leaves 4 of 8"), "{}", bad[2]);
    assert!(bad[3].contains("no PersistentVolumeClaim \"missing\""), "{}", bad[3]);
}

#[test]
fn a_check_without_permission_is_unknown_and_does_not_fail() {
    let api = Api::start(|asked| match asked.path.as_str() {
        "/api/v1/nodes" => Answer::Failure(403, "Forbidden", "User \"jo\" cannot list nodes".into(), ""),
        path if path.ends_with("/resourcequotas") => list(&[]),
        _ => Answer::Json(asked.json()),
    });
    let printed = preflight(&api, &manifest("s3://bucket/runs"), &[]);
    assert_eq!(printed.code, Some(0), "{}\n{}", printed.out, printed.err);
    assert!(
        printed.out.contains("? capacity of the nodes: not checked, you are not allowed to list nodes"),
        "{}",
        printed.out
    );
}

#[test]
fn an_invalid_manifest_is_rejected_without_a_request() {
    let api = cluster(vec![], None, false);
    let mut wrong = manifest("pvc://disk/runs");
    wrong["spec"]["phases"] = json!([{"name": "Upper", "settings": {"compile": "Graph"}}]);
    let printed = preflight(&api, &wrong, &[]);
    assert_eq!(printed.code, Some(2));
    assert!(printed.err.contains("job.yaml:") && printed.err.contains("spec.phases[0].name"), "{}", printed.err);
    assert_eq!(api.asked().len(), 0);
}
