//! What goes with the batch Job: plan, tokens, and the namespace's Service.

use super::{Blueprint, gang_owner, labels};
use crate::names;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt;
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::happened::Happened;
use pawl_contract::plan::{AttemptPlan, LaunchKind};
use pawl_contract::record::STATUS;
use pawl_rendezvous::Token;
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn metadata(blueprint: &Blueprint<'_>, gang_uid: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(blueprint.name().to_owned()),
        namespace: blueprint.job.namespace(),
        labels: Some(labels(&blueprint.job.name_any(), blueprint.name())),
        owner_references: Some(vec![gang_owner(blueprint.name(), gang_uid)]),
        ..ObjectMeta::default()
    }
}

/// Longest plan that the pods of a gang carry as an annotation, bytes. Each pod has it in the API server and in every
/// client that watches pods, so that a long one costs less as an object of its own.
const MAX_CARRIED: usize = 4 * 1024;

/// Longest record that is given to an attempt, bytes: a ConfigMap takes 1 MiB, the plan included.
const MAX_GIVEN: usize = 256 * 1024;

/// The plan, if the pods of its gang carry it: where there is no record, which is longer. Its events, which are few,
/// don't count.
pub fn carries_plan(blueprint: &Blueprint<'_>) -> Option<String> {
    let events = serde_json::to_string(&blueprint.plan.events).ok()?;
    let text = serde_json::to_string(blueprint.plan).ok()?;
    (blueprint.record.is_none() && text.len().saturating_sub(events.len()) <= MAX_CARRIED).then_some(text)
}

/// Those of `recent` that an attempt of the job keeps: none where it has no storage to do so.
pub fn events(job: &TrainingJob, recent: Vec<Happened>) -> Vec<Happened> {
    if pawl_decision::storage::location(job).is_some() { recent } else { Vec::new() }
}

/// The manifest and the status of a job, for an attempt that puts them into the job's storage, where they outlive the
/// job: one that trains, as the last one of a job does, and each that measures of a job that does not train. Others
/// would need a ConfigMap for it alone.
pub fn record(job: &TrainingJob, status: &TrainingJobStatus, plan: &AttemptPlan) -> Option<String> {
    let has = |kind| plan.launches.iter().any(|launch| launch.kind == kind);
    let last = if job.spec.train.is_asked_for() { has(LaunchKind::Train) } else { !has(LaunchKind::Preflight) };
    if !last || pawl_decision::storage::location(job).is_none() {
        return None;
    }
    let text = pawl_decision::record::document(job, status);
    if text.len() > MAX_GIVEN {
        let (attempt, bytes) = (&plan.attempt, text.len());
        tracing::warn!(attempt, bytes, "manifest and status are too long for the records: at most {MAX_GIVEN} bytes");
        return None;
    }
    Some(text)
}

/// The ConfigMap that holds the plan, and the record if there is one: immutable, like what an attempt runs.
///
/// # Errors
/// The plan cannot be written as JSON.
pub fn plan(blueprint: &Blueprint<'_>, gang_uid: &str) -> serde_json::Result<ConfigMap> {
    let text = serde_json::to_string(blueprint.plan)?;
    let record = blueprint.record.map(|record| (STATUS.to_owned(), record.to_owned()));
    Ok(ConfigMap {
        metadata: metadata(blueprint, gang_uid),
        data: Some(BTreeMap::from_iter(std::iter::once((names::PLAN_KEY.to_owned(), text)).chain(record))),
        immutable: Some(true),
        ..ConfigMap::default()
    })
}

/// A patch that restores the mutable part of the plan's ConfigMap with this uid: labels and owner.
pub fn plan_repair(job: &str, attempt: &str, uid: &str, gang_uid: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": attempt, "uid": uid, "labels": labels(job, attempt), "ownerReferences": [gang_owner(attempt, gang_uid)],
        },
    })
}

/// The Secret `name` that holds tokens of gangs, by their keys. It is deleted with its owner, a `TrainingJob`.
pub fn tokens(namespace: &str, name: &str, owner: &OwnerReference, tokens: &BTreeMap<String, Token>) -> Secret {
    let labels =
        [(names::NAME, names::TRAINER_NAME), (names::MANAGED_BY, names::MANAGER), (names::JOB, owner.name.as_str())];
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels.into_iter().map(|(label, value)| (label.to_owned(), value.to_owned())).collect()),
            owner_references: Some(vec![owner.clone()]),
            ..ObjectMeta::default()
        },
        data: Some(tokens.iter().map(|(key, token)| (key.clone(), ByteString(token.secret().to_vec()))).collect()),
        immutable: Some(true),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

/// The headless Service of a namespace: it gives the first pod of every gang its name, before it is ready. The others
/// learn each other's addresses there; the cluster need not write an endpoint for each of them.
pub fn service(namespace: &str) -> Service {
    let labels = BTreeMap::from([
        (names::MANAGED_BY.to_owned(), names::MANAGER.to_owned()),
        (names::NAME.to_owned(), names::TRAINER_NAME.to_owned()),
    ]);
    let mut selector = labels.clone();
    selector.insert(names::BATCH_INDEX.to_owned(), "0".to_owned());
    Service {
        metadata: ObjectMeta {
            name: Some(names::SERVICE.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            publish_not_ready_addresses: Some(true),
            selector: Some(selector),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}
