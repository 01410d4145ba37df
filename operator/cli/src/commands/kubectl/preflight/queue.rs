//! The queue that the job names: Kueue's.

use super::finding::{Finding, Seen};
use serde::Deserialize;

/// What is read of a LocalQueue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LocalQueue {
    spec: Spec,
    status: Status,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    cluster_queue: String,
    stop_policy: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Status {
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    message: String,
}

/// The queue, as it was found.
#[derive(Clone, Debug, PartialEq)]
pub enum Queue {
    /// The cluster has no Kueue.
    NotInstalled,
    /// The LocalQueue.
    Looked(Seen<LocalQueue>),
}

/// Whether the queue `name` takes jobs.
pub fn queue(namespace: &str, name: &str, queue: &Queue) -> Finding {
    let object = format!("LocalQueue {namespace}/{name}");
    let label = "correct the label kueue.x-k8s.io/queue-name of the job, or remove it";
    match queue {
        Queue::NotInstalled => {
            let message = "the cluster has no Kueue: the job would stay suspended";
            Finding::problem(object, message, format!("install Kueue, or {label}"))
        }
        Queue::Looked(Seen::Absent) => Finding::problem(object, "does not exist: the job would stay suspended", label),
        Queue::Looked(Seen::Unseen(why)) => Finding::unknown(object, format!("not checked: {why}")),
        Queue::Looked(Seen::Found(LocalQueue { spec, status })) => {
            let stopped = spec.stop_policy.as_deref().filter(|policy| *policy != "None");
            let active = status.conditions.iter().find(|condition| condition.kind == "Active");
            let administrator = "ask the administrator of the queue, or name another one";
            match (stopped, active) {
                (Some(policy), _) => {
                    Finding::problem(object, format!("admits no jobs: its stopPolicy is {policy}"), administrator)
                }
                (None, Some(Condition { status, message, .. })) if status != "True" => {
                    Finding::problem(object, format!("is not active: {message}"), administrator)
                }
                (None, None) => Finding::unknown(object, "Kueue has not reported yet whether it is active"),
                (None, Some(_)) => Finding::ok(
                    object,
                    format!("is active, in ClusterQueue {}; its quota is not checked", spec.cluster_queue),
                ),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::kubectl::preflight::finding::CheckResult::{Ok as Active, Problem, Unknown};
    use serde_json::{Value, json};

    #[test]
    fn only_an_active_queue_takes_jobs() {
        let found = |queue: &Queue| super::queue("team", "gpus", queue).result;
        let looked = |queue: Value| Queue::Looked(Seen::Found(serde_json::from_value(queue).unwrap()));
        let active = |status: &str| json!({"conditions": [{"type": "Active", "status": status, "message": "m"}]});
        assert_eq!(found(&looked(json!({"spec": {"clusterQueue": "c"}, "status": active("True")}))), Active);
        assert_eq!(found(&looked(json!({"spec": {"stopPolicy": "None"}, "status": active("True")}))), Active);
        assert_eq!(found(&looked(json!({"status": active("False")}))), Problem);
        assert_eq!(found(&looked(json!({"spec": {"stopPolicy": "Hold"}, "status": active("True")}))), Problem);
        assert_eq!(found(&looked(json!({}))), Unknown);
        assert_eq!(found(&Queue::NotInstalled), Problem);
        assert_eq!(found(&Queue::Looked(Seen::Absent)), Problem);
        assert_eq!(found(&Queue::Looked(Seen::Unseen("you may not".to_owned()))), Unknown);
    }
}
