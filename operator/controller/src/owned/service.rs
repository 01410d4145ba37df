//! The headless Service of a namespace, by which the pods of a gang find the first one.

use super::Attempt;
use crate::error::Error;
use crate::facts::GangFacts;
use crate::objects::Blueprint;
use pawl_api::TrainingJob;
use std::time::Duration;

/// Interval between looks at another owner's Service of the same name.
const TAKEN_EVERY: Duration = Duration::from_secs(60);

/// The Service; only of attempts with several pods. It serves all gangs of the namespace and is never deleted.
pub(crate) struct HeadlessService<'a>(pub(super) Attempt<'a>);

impl HeadlessService<'_> {
    /// Creates it, or restores it.
    ///
    /// # Errors
    /// [`Error::Taken`] when another owner has a Service of this name that is not headless; [`Error::Api`].
    pub(crate) async fn create(&self, blueprint: &Blueprint<'_>) -> Result<(), Error> {
        if blueprint.is_gang() {
            self.ensure().await?;
        }
        Ok(())
    }

    /// Restores it. Returns when to look again, if a cool-down has not passed. The pods of a running gang have found
    /// each other: another owner's Service is reported and delays nothing.
    ///
    /// # Errors
    /// [`Error::Api`].
    pub(crate) async fn repair(&self, job: &TrainingJob, gang: &GangFacts) -> Result<Option<Duration>, Error> {
        if gang.replicas <= 1 {
            return Ok(None);
        }
        match self.ensure().await {
            Err(error @ Error::Taken { .. }) => {
                self.0.context.events.warn(job, "ServiceTaken", error.to_string()).await;
                Ok(Some(TAKEN_EVERY))
            }
            result => result,
        }
    }

    async fn ensure(&self) -> Result<Option<Duration>, Error> {
        let Attempt { context, key, .. } = self.0;
        context.services.ensure(&context.client, &key.namespace).await
    }
}
