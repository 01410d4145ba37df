//! The PersistentVolumeClaim of a job that names no storage.

use super::{Attempt, creation};
use crate::error::{Doing, Error, code};
use crate::names;
use crate::objects::{self, Blueprint};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use std::collections::BTreeMap;

/// The claim; only of jobs whose storage is the operator's default `Claim`. It outlives every attempt, and, unless
/// `checkpoints.claim.retention` of the chart is `Delete`, the job.
pub(crate) struct StorageClaim<'a>(pub(super) Attempt<'a>);

impl StorageClaim<'_> {
    /// Creates it. One that was created for a job of this name is used as it is: it may hold checkpoints.
    ///
    /// # Errors
    /// [`Error::Taken`] when somebody else has a claim of its name; [`Error::Leaving`] while one is being deleted, or
    /// will be with an earlier job of this name; [`Error::Api`].
    pub(crate) async fn create(&self, blueprint: &Blueprint<'_>) -> Result<(), Error> {
        let Some(object) = objects::claim(blueprint) else { return Ok(()) };
        let name = object.metadata.name.clone().unwrap_or_default();
        let claims = self.0.api::<PersistentVolumeClaim>();
        match claims.create(&creation(), &object).await {
            Ok(_) => Ok(()),
            Err(error) if code(&error) == Some(409) => {
                let there = claims.get_metadata_opt(&name).await;
                let there = there.doing(|| format!("read PersistentVolumeClaim {name}"))?.ok_or(Error::Stale)?;
                let wanted = object.metadata.labels.unwrap_or_default();
                usable(&blueprint.job.metadata, &wanted, &there.metadata)
            }
            Err(error) => Err(error).doing(|| format!("create PersistentVolumeClaim {name}")),
        }
    }
}

/// Whether the claim that is `there` can be used as the storage of `job`.
fn usable(job: &ObjectMeta, wanted: &BTreeMap<String, String>, there: &ObjectMeta) -> Result<(), Error> {
    let (kind, name) = ("PersistentVolumeClaim", there.name.clone().unwrap_or_default());
    let leaving = |why: String| Err(Error::Leaving { kind, name: name.clone(), why });
    let taken = |why: String| Err(Error::Taken { kind, name: name.clone(), why });
    if there.deletion_timestamp.is_some() {
        return leaving(format!(
            "is being deleted, and is created again once no pod mounts it: `kubectl describe pvc {name}` lists the pods, which \
             have to end"
        ));
    }
    let none = BTreeMap::new();
    let labels = there.labels.as_ref().unwrap_or(&none);
    if [names::MANAGED_BY, names::JOB].iter().any(|label| labels.get(*label) != wanted.get(*label)) {
        let job = job.name.as_deref().unwrap_or_default();
        let labels = format!("{}={} {}={job}", names::MANAGED_BY, names::MANAGER, names::JOB);
        return taken(format!(
            "it has not the labels {labels} (to store checkpoints in it, kubectl label pvc {name} {labels}, or set \
             spec.train.checkpoint.storage)"
        ));
    }
    let mut owners = there.owner_references.iter().flatten();
    match owners.find(|owner| Some(&owner.uid) != job.uid.as_ref()) {
        None => Ok(()),
        Some(owner) if owner.kind == "TrainingJob" && Some(&owner.name) == job.name.as_ref() => {
            leaving("is deleted with an earlier TrainingJob of this name, and created again after that".to_owned())
        }
        Some(OwnerReference { kind: of, name: owner, .. }) => taken(format!(
            "it is deleted with {of} {owner}, which owns it (to store checkpoints in it, remove that owner reference, or set \
             spec.train.checkpoint.storage)"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    /// How a claim with these changes is refused.
    fn refused(change: Value) -> Option<Error> {
        let labels = json!({"app.kubernetes.io/managed-by": "pawl", "pawl.dev/job": "toy"});
        let mut there = json!({"name": "toy-storage", "labels": labels});
        there.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let job: ObjectMeta = serde_json::from_value(json!({"name": "toy", "uid": "u"})).unwrap();
        let wanted: BTreeMap<String, String> = serde_json::from_value(labels).unwrap();
        usable(&job, &wanted, &serde_json::from_value(there).unwrap()).err()
    }

    fn owner(kind: &str, name: &str, uid: &str) -> Value {
        json!({"ownerReferences": [{"apiVersion": "v1", "kind": kind, "name": name, "uid": uid}]})
    }

    #[rstest]
    #[case::kept(json!({}), None)]
    #[case::own(owner("TrainingJob", "toy", "u"), None)]
    #[case::in_use(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), Some(("leaving", "kubectl describe pvc toy-storage")))]
    #[case::of_an_earlier_job(owner("TrainingJob", "toy", "old"), Some(("leaving", "earlier TrainingJob")))]
    #[case::of_another_job(owner("TrainingJob", "other", "v"), Some(("taken", "TrainingJob other")))]
    #[case::of_something_else(owner("ConfigMap", "owner", "v"), Some(("taken", "ConfigMap owner")))]
    fn a_claim_that_cannot_be_used_is_refused_with_what_has_to_go(
        #[case] change: Value,
        #[case] expected: Option<(&str, &str)>,
    ) {
        let error = refused(change);
        assert_eq!(error.as_ref().map(Error::kind), expected.map(|(kind, _)| kind));
        let text = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(text.contains(expected.map_or("", |(_, part)| part)), "{text}");
    }
}
