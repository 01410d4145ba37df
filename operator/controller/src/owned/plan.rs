//! The ConfigMap that holds an attempt's plan, where its pods do not carry it.

use super::{Attempt, creation, repairing};
use crate::error::{Doing, Error, code};
use crate::facts::{AttemptFacts, GangFacts, PlanFacts};
use crate::objects::{self, Blueprint};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, Preconditions};

/// The ConfigMap. The garbage collector deletes it with the batch Job.
pub(crate) struct PlanConfigMap<'a>(pub(super) Attempt<'a>);

impl PlanConfigMap<'_> {
    /// Creates it. It is immutable, so an existing one with this owner is correct.
    ///
    /// # Errors
    /// [`Error::Stale`] when an earlier batch Job's plan had to be deleted first; [`Error::Taken`] when the ConfigMap
    /// is not one of an attempt; [`Error::Api`].
    pub(crate) async fn create(&self, blueprint: &Blueprint<'_>, gang: &GangFacts) -> Result<(), Error> {
        let Attempt { context, key, name } = self.0;
        if gang.carries_plan {
            return Ok(());
        }
        let object = objects::plan(blueprint, &gang.uid)
            .map_err(|error| Error::Local { what: "the plan's ConfigMap", why: error.to_string() })?;
        match self.0.api::<ConfigMap>().create(&creation(), &object).await {
            Ok(made) => {
                context.facts.assume_plan(key, name, PlanFacts { intact: true, ..PlanFacts::new(&made.metadata) });
                Ok(())
            }
            Err(error) if code(&error) == Some(409) => match self.read().await? {
                Some(plan) if plan.gang_uid == gang.uid => Ok(()),
                // [`Self::remove`] removed any other, unless it was created late by a request of an earlier start.
                _ => self.remove().await.and(Err(Error::Stale)),
            },
            Err(error) => Err(error).doing(|| format!("create ConfigMap {name}")),
        }
    }

    /// Removes that of an earlier batch Job.
    ///
    /// # Errors
    /// [`Error::Taken`] when the ConfigMap is not one of an attempt; [`Error::Api`].
    pub(crate) async fn remove(&self) -> Result<(), Error> {
        let name = self.0.name;
        let Some(plan) = self.read().await? else { return Ok(()) };
        if plan.gang_uid.is_empty() {
            let (kind, why) = ("ConfigMap", "no batch Job owns it".to_owned());
            return Err(Error::Taken { kind, name: name.to_owned(), why });
        }
        let preconditions = Some(Preconditions { uid: Some(plan.uid), resource_version: None });
        let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
        match self.0.api::<ConfigMap>().delete(name, &parameters).await {
            Ok(_) => Ok(()),
            // It is gone, or another one since.
            Err(error) if matches!(code(&error), Some(404 | 409)) => Ok(()),
            Err(error) => Err(error).doing(|| format!("delete ConfigMap {name}")),
        }
    }

    /// Restores labels and owner. Returns whether the ConfigMap is missing and has to be created again.
    ///
    /// # Errors
    /// [`Error::Api`].
    pub(crate) async fn repair(&self, facts: &AttemptFacts, gang: &GangFacts) -> Result<bool, Error> {
        let Attempt { context, key, name } = self.0;
        if gang.carries_plan {
            return Ok(false);
        }
        let right = |plan: &PlanFacts| plan.gang_uid == gang.uid && plan.intact;
        let found = match &facts.plan {
            Some(plan) => plan.clone(),
            // Not in the watch: its label was removed, or it was deleted.
            None => match self.read().await? {
                Some(plan) => {
                    let restored = PlanFacts { uid: plan.uid.clone(), gang_uid: gang.uid.clone(), intact: true };
                    context.facts.assume_plan(key, name, restored);
                    plan
                }
                None => return Ok(true),
            },
        };
        if !right(&found) {
            tracing::warn!(attempt = name, "the ConfigMap of its plan was changed by another client: restored");
            let patch = Patch::Apply(objects::plan_repair(&key.name, name, &found.uid, &gang.uid));
            match self.0.api::<ConfigMap>().patch_metadata(name, &repairing(), &patch).await {
                Ok(_) => {}
                // It is gone, or another one since: a patch must not create one without a plan.
                Err(error) if matches!(code(&error), Some(404 | 409)) => return Err(Error::Stale),
                Err(error) => return Err(error).doing(|| format!("repair ConfigMap {name}")),
            }
        }
        Ok(false)
    }

    async fn read(&self) -> Result<Option<PlanFacts>, Error> {
        let name = self.0.name;
        let found = self.0.api::<ConfigMap>().get_metadata_opt(name).await;
        Ok(found.doing(|| format!("read ConfigMap {name}"))?.map(|found| PlanFacts::new(&found.metadata)))
    }
}
