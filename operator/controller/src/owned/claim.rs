//! The PersistentVolumeClaim of a job that names no storage.

use super::{Attempt, creation};
use crate::error::{Doing, Error, code};
use crate::names;
use crate::objects::{self, Blueprint};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

/// The claim; only of jobs whose storage is the operator's default `Claim`. It outlives every attempt, and, unless
/// `checkpoints.claim.retention` of the chart is `Delete`, the job.
pub(crate) struct StorageClaim<'a>(pub(super) Attempt<'a>);

impl StorageClaim<'_> {
    /// Creates it. One that was created for a job of this name is used as it is: it may hold checkpoints.
    ///
    /// # Errors
    /// [`Error::Taken`] when somebody else has a claim of its name; [`Error::Stale`] while one is being deleted, or will be with an earlier job of this name; [`Error::Api`].
    pub(crate) async fn create(&self, blueprint: &Blueprint<'_>) -> Result<(), Error> {
        let Some(object) = objects::claim(blueprint) else { return Ok(()) };
        let name = object.metadata.name.clone().unwrap_or_default();
        let claims = self.0.api::<PersistentVolumeClaim>();
        match claims.create(&creation(), &object).await {
            Ok(_) => Ok(()),
            Err(error) if code(&error) == Some(409) => {
                let there = claims.get_metadata_opt(&name).await;
                let there = there.doing(|| format!("read PersistentVolumeClaim {name}"))?.ok_or(Error::Stale)?;
                if there.metadata.deletion_timestamp.is_some() {
                    return Err(Error::Stale);
                }
                let wanted = object.metadata.labels.unwrap_or_default();
                let labels = there.metadata.labels.unwrap_or_default();
                if [names::MANAGED_BY, names::JOB].iter().any(|label| labels.get(*label) != wanted.get(*label)) {
                    return Err(taken(name, &blueprint.job.name_any()));
                }
                let owners = there.metadata.owner_references.unwrap_or_default();
                let own = owners.iter().all(|owner| Some(&owner.uid) == blueprint.job.metadata.uid.as_ref());
                if own { Ok(()) } else { Err(Error::Stale) }
            }
            Err(error) => Err(error).doing(|| format!("create PersistentVolumeClaim {name}")),
        }
    }
}

fn taken(name: String, job: &str) -> Error {
    let labels = format!("{}={} {}={job}", names::MANAGED_BY, names::MANAGER, names::JOB);
    let why = format!(
        "it has not the labels {labels} (to store checkpoints in it, kubectl label pvc {name} {labels}, or set \
         spec.train.checkpoint.storage)"
    );
    Error::Taken { kind: "PersistentVolumeClaim", name, why }
}
