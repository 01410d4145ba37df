//! The Secret that holds the token by which the pods of a gang trust each other.

use super::{Attempt, creation};
use crate::error::{Doing, Error, code};
use crate::facts::{AttemptFacts, GangFacts};
use crate::names;
use crate::objects::{self, Blueprint};
use crate::observe::{hindrance, state};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use pawl_decision::observed::AttemptState;
use pawl_rendezvous::{Token, hexadecimal};
use std::time::Duration;

/// A gang whose scheduled pods are not running after this time may be waiting for its Secret. Pulling an image takes
/// long as well.
const SLOW_START: SignedDuration = SignedDuration::from_secs(60);
/// Digits that distinguish the Secrets of an attempt whose batch Job is created again.
const MARK: usize = 8;
/// Cool-down before the Secret is created again.
const CREATE_EVERY: Duration = Duration::from_secs(120);

/// The Secret; only of attempts with several pods. The operator may not read Secrets, so it does not know whether it
/// exists. The garbage collector deletes it with the batch Job.
pub(crate) struct TokenSecret<'a>(pub(super) Attempt<'a>);

fn lacks_random_numbers(error: std::io::Error) -> Error {
    Error::Local { what: "a token", why: error.to_string() }
}

impl TokenSecret<'_> {
    /// Creates it. An existing one is this gang's, and its pods may have read it already.
    ///
    /// # Errors
    /// [`Error::Api`]; [`Error::Local`] when the system has no random numbers.
    pub(crate) async fn create(&self, blueprint: &Blueprint<'_>, gang: &GangFacts) -> Result<(), Error> {
        let Some(secret) = &gang.token_secret else { return Ok(()) };
        let token = Token::random().map_err(lacks_random_numbers)?;
        match self.0.api::<Secret>().create(&creation(), &objects::token(blueprint, secret, &gang.uid, &token)).await {
            Err(error) if code(&error) != Some(409) => Err(error).doing(|| format!("create Secret {secret}")),
            Ok(_) | Err(_) => {
                let Attempt { context, key, name } = self.0;
                context.facts.assume_token(key, name, &gang.uid);
                Ok(())
            }
        }
    }

    /// A name that no Secret has.
    ///
    /// # Errors
    /// [`Error::Local`] when the system has no random numbers.
    pub(crate) fn new_name(&self) -> Result<String, Error> {
        let mark = hexadecimal::random_hex().map_err(lacks_random_numbers)?;
        Ok(names::token_secret(self.0.name, &mark[..MARK]))
    }

    /// Whether a gang that does not start may be missing its Secret, which has to be created again: another process
    /// may have been stopped before it did, or it was deleted; the latter is true at most once per cool-down.
    pub(crate) fn may_be_missing(&self, facts: &AttemptFacts, gang: &GangFacts, now: Timestamp) -> bool {
        let slow = gang.since.checked_add(SLOW_START).is_ok_and(|late| late < now);
        let waits = || matches!(state(facts, now), Some(AttemptState::Pending { .. })) && hindrance(facts).is_none();
        let scheduled = || facts.alive().any(|pod| !pod.node.is_empty());
        let Attempt { context, key, .. } = self.0;
        let again = || slow && scheduled() && context.jobs.may_try(key, "token", CREATE_EVERY);
        gang.token_secret.is_some() && waits() && (!gang.token_made || again())
    }
}
