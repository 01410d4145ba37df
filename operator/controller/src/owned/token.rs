//! The Secret with the token by which the pods of a gang trust each other.

use super::{Attempt, creation};
use crate::error::{Doing, Error, code};
use crate::facts::{AttemptFacts, GangFacts, PodFacts, Stand};
use crate::names;
use crate::objects::{self, Blueprint, TokenRef};
use crate::observe::{hindrance, state};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use pawl_api::TrainingJob;
use pawl_decision::observed::AttemptState;
use pawl_rendezvous::hexadecimal;
use std::time::Duration;

/// A pod that is not running so long after it got its node may be waiting for its Secret. Pulling an image takes long
/// as well.
const SLOW_START: SignedDuration = SignedDuration::from_secs(60);
/// Cool-down before a Secret is created again.
const CREATE_EVERY: Duration = Duration::from_secs(120);

/// The Secret; only of attempts with several pods. It has tokens of other gangs too, of which each mounts its own. The
/// operator may not read Secrets, so it does not know whether it exists. The garbage collector deletes it with the job
/// whose gang was the first one to take a token of it.
pub(crate) struct TokenSecret<'a>(pub(super) Attempt<'a>);

fn lacks_random_numbers(error: std::io::Error) -> Error {
    Error::Local { what: "a token", why: error.to_string() }
}

impl TokenSecret<'_> {
    /// A token that no gang has had, for a batch Job that is made; `None` for a single pod. A Secret that is new is
    /// created after the batch Job that names it: what is lost when the operator dies between the two is in the batch
    /// Job.
    ///
    /// # Errors
    /// [`Error::Local`] when the system has no random numbers.
    pub(crate) fn take(&self, blueprint: &Blueprint<'_>) -> Result<Option<TokenRef>, Error> {
        if !blueprint.is_gang() {
            return Ok(None);
        }
        let mark = hexadecimal::random_hex().map_err(lacks_random_numbers)?;
        let new = names::token_secret(&mark[..names::TOKEN_MARK]);
        let Attempt { context, key, .. } = self.0;
        Ok(Some(context.jobs.take_token(key, objects::job_owner(blueprint.job), new)))
    }

    /// Creates that of a gang that exists, unless this process knows that it exists. One that exists is taken for the
    /// operator's: nobody can change it, and pods may have read it already.
    ///
    /// # Errors
    /// [`Error::Api`]; [`Error::Local`] when the system has no random numbers.
    pub(crate) async fn create(&self, job: &TrainingJob, gang: &GangFacts) -> Result<(), Error> {
        let Some(name) = &gang.token_secret else { return Ok(()) };
        let Attempt { context, key, .. } = self.0;
        let known = context.jobs.token_secret(key, name, objects::job_owner(job));
        // Another gang is seeing to it; should it fail, this one does so when it is next looked at.
        let Ok(_one) = known.creation.try_lock() else { return Ok(()) };
        if context.jobs.has_token_secret(key, name) {
            return Ok(());
        }
        let tokens = context.jobs.tokens(key, name).map_err(lacks_random_numbers)?;
        let object = objects::tokens(&key.namespace, name, &known.owner, &tokens);
        match self.0.api::<Secret>().create(&creation(), &object).await {
            Err(error) if code(&error) != Some(409) => Err(error).doing(|| format!("create Secret {name}")),
            Ok(_) | Err(_) => {
                context.jobs.token_secret_made(key, name);
                Ok(())
            }
        }
    }

    /// Whether a gang that does not start may be missing its Secret, which has to be created again: another process
    /// may have been stopped before it did, or it was deleted; the latter is true at most once per cool-down.
    pub(crate) fn may_be_missing(&self, facts: &AttemptFacts, gang: &GangFacts, now: Timestamp) -> bool {
        let Some(name) = &gang.token_secret else { return false };
        let waits = matches!(state(facts, now), Some(AttemptState::Pending { .. })) && hindrance(facts).is_none();
        let Attempt { context, key, .. } = self.0;
        let unmade = || !context.jobs.has_token_secret(key, name);
        let gone = || is_slow(facts, now) && context.jobs.doubt_token_secret(key, name, CREATE_EVERY);
        waits && (unmade() || gone())
    }
}

/// Whether a pod takes long to start on its node. While pods have none, they mount nothing: where many gangs start at
/// once, that alone takes minutes.
fn is_slow(facts: &AttemptFacts, now: Timestamp) -> bool {
    let long_ago = |placed: Timestamp| placed.checked_add(SLOW_START).is_ok_and(|late| late < now);
    let waits = |pod: &&PodFacts| matches!(pod.stand, Stand::Waiting { .. });
    facts.alive().filter(waits).any(|pod| pod.placed.is_some_and(long_ago))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn pod(status: Value) -> PodFacts {
        let pod = json!({
            "metadata": {"name": "toy-1-0-x", "uid": "p", "labels": {
                "batch.kubernetes.io/job-completion-index": "0", "batch.kubernetes.io/controller-uid": "g"}},
            "status": status,
        });
        PodFacts::new(&serde_json::from_value(pod).unwrap()).unwrap()
    }

    fn placed(when: &str) -> Value {
        let condition = json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": when});
        json!({"phase": "Pending", "conditions": [condition]})
    }

    /// Of 1,000 gangs that start at once, the last pods get their nodes after minutes.
    #[rstest]
    #[case::without_a_node(json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]}), false)]
    #[case::with_one_since_a_minute(placed("2026-01-01T00:04:00Z"), false)]
    #[case::with_one_for_longer(placed("2026-01-01T00:03:59Z"), true)]
    fn a_start_is_slow_by_the_time_on_the_node(#[case] status: Value, #[case] slow: bool) {
        let facts = AttemptFacts { pods: vec![pod(status)], ..AttemptFacts::default() };
        assert_eq!(is_slow(&facts, "2026-01-01T00:05:00Z".parse().unwrap()), slow);
    }

    #[test]
    fn a_pod_that_runs_is_not_slow() {
        let mut status = placed("2026-01-01T00:00:00Z");
        status["containerStatuses"] = json!([{"name": "trainer", "state": {"running": {}}}]);
        let facts = AttemptFacts { pods: vec![pod(status)], ..AttemptFacts::default() };
        assert!(!is_slow(&facts, "2026-01-01T00:05:00Z".parse().unwrap()));
    }
}
