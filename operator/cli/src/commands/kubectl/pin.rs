//! `kubectl pawl pin` and `rollback`: manual overrides of phases.

use super::error::ClusterError;
use super::session::{Session, nearest};
use crate::commands::print;
use crate::exit;
use kube::api::Patch;
use pawl_api::TrainingJob;
use pawl_api::spec::Pin;
use serde_json::{Value, json};
use std::process::ExitCode;

/// Pins the phases, or all phases, to RolledBack.
pub async fn rollback(session: &Session, name: &str, phases: &[String], all: bool) -> Result<ExitCode, ClusterError> {
    let job = session.job(name).await?;
    let phases = if all { all_phases(&job) } else { phases.to_vec() };
    change(session, &job, &phases, Some(Pin::RolledBack)).await
}

/// Names of the phases of a job.
pub fn all_phases(job: &TrainingJob) -> Vec<String> {
    job.spec.phases.iter().map(|phase| phase.name.clone()).collect()
}

/// Pins the phases, or removes their pins.
pub async fn pin(session: &Session, name: &str, phases: &[String], pin: Option<Pin>) -> Result<ExitCode, ClusterError> {
    let job = session.job(name).await?;
    change(session, &job, phases, pin).await
}

async fn change(
    session: &Session,
    job: &TrainingJob,
    phases: &[String],
    pin: Option<Pin>,
) -> Result<ExitCode, ClusterError> {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    if !set(session, job, phases, pin).await? {
        return Ok(print(&format!("trainingjob.pawl.dev/{name}: nothing to change\n")));
    }
    let change = match pin {
        Some(pin) => format!("pinned to {pin}"),
        None => "pin removed".to_owned(),
    };
    let printed = print(&format!("trainingjob.pawl.dev/{name}: {}: {change}\n", phases.join(", ")));
    if pin.is_some() {
        exit::say(&"note: set `pin:` in the manifest too, or the next kubectl apply of it removes this pin");
    }
    Ok(printed)
}

/// Pins `phases`, or removes their pins. Returns whether that changes something.
pub async fn set(
    session: &Session,
    job: &TrainingJob,
    phases: &[String],
    pin: Option<Pin>,
) -> Result<bool, ClusterError> {
    let operations = operations(job, phases, pin)?;
    if operations.is_empty() {
        return Ok(false);
    }
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let patch = serde_json::from_value(Value::Array(operations))
        .map_err(|error| ClusterError::Refused(format!("the change cannot be written as a JSON patch: {error}")))?;
    session.patch(name, &Patch::Json(patch)).await?;
    Ok(true)
}

/// The JSON patch that pins `phases`. It fails when the list of phases has changed since it was read, or the job is
/// another one of the same name.
fn operations(job: &TrainingJob, phases: &[String], pin: Option<Pin>) -> Result<Vec<Value>, ClusterError> {
    let mut operations = Vec::new();
    for wanted in phases {
        let Some(index) = job.spec.phases.iter().position(|phase| phase.name == *wanted) else {
            return Err(no_phase(job, wanted));
        };
        let path = format!("/spec/phases/{index}");
        let change = match (job.spec.phases[index].pin, pin) {
            (before, after) if before == after => continue,
            (_, Some(pin)) => json!({"op": "add", "path": format!("{path}/pin"), "value": pin}),
            (_, None) => json!({"op": "remove", "path": format!("{path}/pin")}),
        };
        operations.push(json!({"op": "test", "path": format!("{path}/name"), "value": wanted}));
        operations.push(change);
    }
    if let Some(uid) = job.metadata.uid.as_ref().filter(|_| !operations.is_empty()) {
        operations.insert(0, json!({"op": "test", "path": "/metadata/uid", "value": uid}));
    }
    Ok(operations)
}

fn no_phase(job: &TrainingJob, wanted: &str) -> ClusterError {
    let names = all_phases(job);
    let near = nearest(wanted, &names);
    ClusterError::NoPhase {
        job: job.metadata.name.clone().unwrap_or_default(),
        name: wanted.to_owned(),
        near: if near.is_empty() { names } else { near },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> TrainingJob {
        serde_json::from_value(json!({
            "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "toy", "uid": "11"},
            "spec": {"workload": {"name": "ups"}, "phases": [
                {"name": "compile", "settings": {"compile": "Graph"}},
                {"name": "batch", "settings": {"batchPerGpu": 16}, "pin": "RolledBack"},
            ]},
        }))
        .unwrap()
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn a_pin_is_set_only_where_it_changes_something_and_only_on_the_phase_that_was_read() {
        let both = names(&["compile", "batch"]);
        let set = operations(&job(), &both, Some(Pin::RolledBack)).unwrap();
        assert_eq!(
            set,
            [
                json!({"op": "test", "path": "/metadata/uid", "value": "11"}),
                json!({"op": "test", "path": "/spec/phases/0/name", "value": "compile"}),
                json!({"op": "add", "path": "/spec/phases/0/pin", "value": "RolledBack"}),
            ]
        );
        let taken = operations(&job(), &both, None).unwrap();
        assert_eq!(taken.last().unwrap(), &json!({"op": "remove", "path": "/spec/phases/1/pin"}));
        assert_eq!(taken.len(), 3);
    }

    #[test]
    fn an_unknown_phase_is_an_error_that_lists_the_known_ones() {
        let error = operations(&job(), &names(&["compil"]), None).unwrap_err().to_string();
        assert!(error.contains("\"compil\"") && error.ends_with("available: compile"), "{error}");
        let error = operations(&job(), &names(&["zzz"]), None).unwrap_err().to_string();
        assert!(error.contains("compile, batch"), "{error}");
    }
}
