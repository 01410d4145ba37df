//! The Secret that holds the token by which the pods of a gang trust each other.

use super::{Attempt, creation};
use crate::error::{Doing, Error, code};
use crate::facts::{AttemptFacts, GangFacts};
use crate::names;
use crate::objects::{self, Blueprint};
use crate::observe::{hindrance, state};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::api::DeleteParams;
use pawl_decision::observed::AttemptState;
use pawl_rendezvous::Token;
use std::time::Duration;

/// A gang whose scheduled pods are not running after this time may be waiting for its Secret. Pulling an image takes
/// long as well.
const SLOW_START: SignedDuration = SignedDuration::from_secs(60);
/// Cool-down before the Secret is created again.
const CREATE_EVERY: Duration = Duration::from_secs(120);

/// The Secret; only of attempts with several pods. The operator may not read Secrets, so it does not know whether it
/// exists. The garbage collector deletes it with the batch Job.
pub(crate) struct TokenSecret<'a>(pub(super) Attempt<'a>);

impl TokenSecret<'_> {
    /// Creates it. An existing one is this gang's, and its pods may have read it already: [`Self::remove`] removed any
    /// other.
    ///
    /// # Errors
    /// [`Error::Api`]; [`Error::Local`] when the system has no random numbers.
    pub(crate) async fn create(&self, blueprint: &Blueprint<'_>, gang_uid: &str) -> Result<(), Error> {
        if !blueprint.is_gang() {
            return Ok(());
        }
        let token = Token::random().map_err(|error| Error::Local { what: "a token", why: error.to_string() })?;
        let object = objects::token(blueprint, gang_uid, &token);
        match self.0.api::<Secret>().create(&creation(), &object).await {
            Ok(_) => Ok(()),
            Err(error) if code(&error) == Some(409) => Ok(()),
            Err(error) => Err(error).doing(|| format!("create Secret {}", names::token_secret(self.0.name))),
        }
    }

    /// Removes that of an earlier batch Job.
    ///
    /// # Errors
    /// [`Error::Api`].
    pub(crate) async fn remove(&self, blueprint: &Blueprint<'_>) -> Result<(), Error> {
        if !blueprint.is_gang() {
            return Ok(());
        }
        let name = names::token_secret(self.0.name);
        match self.0.api::<Secret>().delete(&name, &DeleteParams::default()).await {
            Ok(_) => Ok(()),
            Err(error) if code(&error) == Some(404) => Ok(()),
            Err(error) => Err(error).doing(|| format!("delete Secret {name}")),
        }
    }

    /// Whether a gang that does not start may be missing its Secret, which has to be created again; true at most once
    /// per cool-down.
    pub(crate) fn may_be_missing(&self, facts: &AttemptFacts, gang: &GangFacts, now: Timestamp) -> bool {
        let slow = gang.since.checked_add(SLOW_START).is_ok_and(|late| late < now);
        let waits = || matches!(state(facts, now), Some(AttemptState::Pending { .. })) && hindrance(facts).is_none();
        let scheduled = || facts.alive().any(|pod| !pod.node.is_empty());
        let Attempt { context, key, .. } = self.0;
        gang.replicas > 1 && slow && waits() && scheduled() && context.jobs.may_try(key, "token", CREATE_EVERY)
    }
}
