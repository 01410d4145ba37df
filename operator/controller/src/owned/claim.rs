//! The PersistentVolumeClaim of a job that names no storage.

use super::{Attempt, creation};
use crate::build::{self, Blueprint};
use crate::error::{Doing, Error, code};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;

/// The claim; only of jobs whose storage is the operator's default `Claim`. It outlives every attempt, and, unless
/// `checkpoints.claim.retention` of the chart is `Delete`, the job.
pub(crate) struct StorageClaim<'a>(pub(super) Attempt<'a>);

impl StorageClaim<'_> {
    /// Creates it. An existing one is used as it is: it may hold checkpoints.
    ///
    /// # Errors
    /// [`Error::Stale`] while one is being deleted, or will be with an earlier job of this name; [`Error::Api`].
    pub(crate) async fn create(&self, blueprint: &Blueprint<'_>) -> Result<(), Error> {
        let Some(object) = build::claim(blueprint) else { return Ok(()) };
        let name = object.metadata.name.clone().unwrap_or_default();
        let claims = self.0.api::<PersistentVolumeClaim>();
        match claims.create(&creation(), &object).await {
            Ok(_) => Ok(()),
            Err(error) if code(&error) == Some(409) => {
                let there = claims.get_metadata_opt(&name).await;
                let there = there.doing(|| format!("read PersistentVolumeClaim {name}"))?.ok_or(Error::Stale)?;
                let owners = there.metadata.owner_references.unwrap_or_default();
                let own = owners.iter().all(|owner| Some(&owner.uid) == blueprint.job.metadata.uid.as_ref());
                if there.metadata.deletion_timestamp.is_none() && own { Ok(()) } else { Err(Error::Stale) }
            }
            Err(error) => Err(error).doing(|| format!("create PersistentVolumeClaim {name}")),
        }
    }
}
