//! The Secrets with tokens of gangs, as far as this process knows them: the operator may not read any.
//!
//! A Secret has tokens for several gangs of a namespace, of which each is given to one gang and never to another. It is
//! deleted with the job of the first one, and so is what is known of it.

use super::{JobState, Jobs};
use crate::key::Key;
use crate::names;
use crate::objects::TokenRef;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use pawl_rendezvous::Token;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync;
use tokio::time::Instant;

/// Tokens in a Secret. The more, the fewer requests; but a node with a pod of one of these gangs may read all of them.
const TOKENS: usize = 32;

/// A Secret with tokens.
#[derive(Clone, Debug)]
pub(crate) struct KnownSecret {
    name: String,
    /// The `TrainingJob` with which it is deleted.
    pub(crate) owner: OwnerReference,
    /// Tokens that were given to gangs.
    taken: usize,
    /// It was created, and nothing says that it is gone.
    made: bool,
    /// The job with which it is deleted is over, or is being deleted.
    leaves: bool,
    /// When this was last doubted.
    doubted: Option<Instant>,
    /// Who creates it holds this: of many gangs that start at once, one does.
    pub(crate) creation: Arc<sync::Mutex<()>>,
}

impl KnownSecret {
    fn new(name: String, owner: OwnerReference, taken: usize) -> Self {
        Self { name, owner, taken, made: false, leaves: false, doubted: None, creation: Arc::default() }
    }

    fn take(&mut self) -> TokenRef {
        let key = self.taken.to_string();
        self.taken += 1;
        TokenRef { secret: self.name.clone(), key }
    }

    fn is_open(&self) -> bool {
        self.taken < TOKENS
    }
}

impl JobState {
    fn open_secret(&mut self) -> Option<&mut KnownSecret> {
        self.tokens.iter_mut().find(|secret| secret.is_open())
    }
}

impl Jobs {
    /// A token for a gang of a job: of a Secret of the job, or else of another job in its namespace that is not over,
    /// or else of a new one, `new`, that will be deleted with `owner`, the job.
    pub(crate) fn take_token(&self, key: &Key, owner: OwnerReference, new: String) -> TokenRef {
        let mut states = self.lock();
        if let Some(own) = states.get_mut(key) {
            // Those of an earlier job of this name went with it.
            own.tokens.retain(|secret| secret.owner.uid == owner.uid);
            // It was edited, and is not over any more.
            own.tokens.iter_mut().for_each(|secret| secret.leaves = false);
            if let Some(secret) = own.open_secret() {
                return secret.take();
            }
        }
        let others = states.iter_mut().filter(|(other, _)| other.namespace == key.namespace);
        if let Some(secret) = others.filter_map(|(_, state)| state.open_secret().filter(|secret| !secret.leaves)).next()
        {
            return secret.take();
        }
        let tokens = &mut states.entry(key.clone()).or_default().tokens;
        // The others were named for batch Jobs that could not be made.
        tokens.retain(|secret| secret.made);
        let mut secret = KnownSecret::new(new, owner, 0);
        let taken = secret.take();
        tokens.push(secret);
        taken
    }

    /// A job is over, or is being deleted: gangs of others take no more tokens of its Secrets, which may go soon.
    pub(crate) fn token_secrets_leave(&self, key: &Key) {
        self.change(key, |state| state.tokens.iter_mut().for_each(|secret| secret.leaves = true));
    }

    /// What is known of a Secret with a token of a gang of this job. Of one that this process did not name, or whose
    /// job is gone: that it will be deleted with `owner`, the job, and has no token for another gang.
    pub(crate) fn token_secret(&self, key: &Key, name: &str, owner: OwnerReference) -> KnownSecret {
        let mut states = self.lock();
        if let Some(known) = find(&mut states, key, name) {
            return known.clone();
        }
        let secret = KnownSecret::new(name.to_owned(), owner, TOKENS);
        states.entry(key.clone()).or_default().tokens.push(secret.clone());
        secret
    }

    /// The tokens of a Secret in the namespace of this job, by their keys; what an earlier version named has one. They
    /// are the same if this process creates it again: nodes with a pod that mounts an immutable Secret keep the old
    /// one. Another process makes others: pods of one gang that read both do not meet, and the gang is started again.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub(crate) fn tokens(&self, key: &Key, name: &str) -> io::Result<BTreeMap<String, Token>> {
        let origin = match self.origin.get() {
            Some(origin) => origin,
            None => {
                let new = Token::random()?;
                self.origin.get_or_init(|| new)
            }
        };
        let keys: Vec<String> = if names::is_shared_token_secret(name) {
            (0..TOKENS).map(|number| number.to_string()).collect()
        } else {
            vec![names::TOKEN_KEY.to_owned()]
        };
        let token = |of: &String| origin.derive(&format!("{}/{name}/{of}", key.namespace));
        Ok(keys.into_iter().map(|of| (of.clone(), token(&of))).collect())
    }

    /// Whether a Secret in the namespace of this job was created, as far as this process knows.
    pub(crate) fn has_token_secret(&self, key: &Key, name: &str) -> bool {
        self.change_token_secret(key, name, |secret| secret.made).unwrap_or_default()
    }

    /// Records that a Secret was created.
    pub(crate) fn token_secret_made(&self, key: &Key, name: &str) {
        self.change_token_secret(key, name, |secret| secret.made = true);
    }

    /// A Secret may be gone, although it was created: at most once in `every`, whatever number of gangs waits for it.
    /// Returns whether it now counts as gone.
    pub(crate) fn doubt_token_secret(&self, key: &Key, name: &str, every: Duration) -> bool {
        let doubt = |secret: &mut KnownSecret| {
            let may = secret.doubted.is_none_or(|when| when.elapsed() >= every);
            if may {
                (secret.made, secret.doubted) = (false, Some(Instant::now()));
            }
            may
        };
        self.change_token_secret(key, name, doubt).unwrap_or(true)
    }

    fn change_token_secret<T>(&self, key: &Key, name: &str, change: impl FnOnce(&mut KnownSecret) -> T) -> Option<T> {
        find(&mut self.lock(), key, name).map(change)
    }
}

/// The Secret of this name in the namespace of a job.
fn find<'a>(states: &'a mut BTreeMap<Key, JobState>, key: &Key, name: &str) -> Option<&'a mut KnownSecret> {
    let there = states.iter_mut().filter(|(other, _)| other.namespace == key.namespace);
    there.flat_map(|(_, state)| &mut state.tokens).find(|secret| secret.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const EVERY: Duration = Duration::from_secs(120);

    fn job(name: &str) -> (Key, OwnerReference) {
        let owner =
            OwnerReference { name: name.to_owned(), uid: format!("uid-of-{name}"), ..OwnerReference::default() };
        (Key::new("team", name), owner)
    }

    fn take(jobs: &Jobs, name: &str, new: &str) -> TokenRef {
        let (key, owner) = job(name);
        jobs.take_token(&key, owner, new.to_owned())
    }

    #[test]
    fn gangs_of_a_namespace_share_a_secret_and_no_token() {
        let jobs = Jobs::default();
        let taken: Vec<_> = (0..TOKENS + 1).map(|n| take(&jobs, &format!("job-{n}"), &format!("s{n}"))).collect();
        let (first, last) = taken.split_at(TOKENS);
        assert!(first.iter().all(|token| token.secret == "s0"));
        let keys: BTreeSet<_> = first.iter().map(|token| token.key.clone()).collect();
        assert_eq!(keys, (0..TOKENS).map(|key| key.to_string()).collect());
        let next = TokenRef { secret: format!("s{TOKENS}"), key: "0".to_owned() };
        assert_eq!(last, [next], "the tokens of the first one are used up");
        let elsewhere = jobs.take_token(&Key::new("other", "job-0"), job("job-0").1, "s".to_owned());
        assert_eq!(elsewhere.secret, "s", "a Secret is of one namespace");
    }

    #[test]
    fn no_two_gangs_have_one_token_and_a_secret_that_is_created_again_has_the_same() {
        let (jobs, later) = (Jobs::default(), Jobs::default());
        let (here, elsewhere) = (job("a").0, Key::new("other", "a"));
        let (one, other) = ("pawl-tokens-0123456789abcdef", "pawl-tokens-0123456789abcde0");
        let secrets = |jobs: &Jobs, key: &Key, name: &str| -> Vec<Vec<u8>> {
            jobs.tokens(key, name).unwrap().values().map(|token| token.secret().to_vec()).collect()
        };
        let first = secrets(&jobs, &here, one);
        assert_eq!(secrets(&jobs.clone(), &here, one), first);
        let others = [secrets(&jobs, &here, other), secrets(&jobs, &elsewhere, one), secrets(&later, &here, one)];
        let all: BTreeSet<_> = others.into_iter().flatten().chain(first).collect();
        assert_eq!(all.len(), 4 * TOKENS);
    }

    #[test]
    fn gangs_of_an_earlier_version_find_their_token_under_its_key() {
        let tokens = Jobs::default().tokens(&job("toy").0, "pawl-token-toy-1-0a1b2c3d").unwrap();
        assert_eq!(tokens.keys().collect::<Vec<_>>(), ["token"]);
    }

    #[test]
    fn attempts_of_a_job_use_its_own_secret() {
        let jobs = Jobs::default();
        take(&jobs, "a", "s0");
        let (key, owner) = job("b");
        jobs.entry(&key, |state| state.tokens.push(KnownSecret::new("s1".to_owned(), owner, 1)));
        assert_eq!(take(&jobs, "b", "s2"), TokenRef { secret: "s1".to_owned(), key: "1".to_owned() });
    }

    #[test]
    fn a_secret_of_a_job_that_is_over_is_for_its_own_gangs() {
        let jobs = Jobs::default();
        take(&jobs, "a", "s0");
        jobs.token_secrets_leave(&job("a").0);
        assert_eq!(take(&jobs, "b", "s1").secret, "s1", "the other one goes with its job");
        assert_eq!(take(&jobs, "a", "s2"), TokenRef { secret: "s0".to_owned(), key: "1".to_owned() });
        jobs.token_secrets_leave(&job("b").0);
        assert_eq!(take(&jobs, "c", "s3").secret, "s0", "its job was edited");
    }

    #[test]
    fn what_is_known_of_a_secret_goes_with_the_job_that_owns_it() {
        let jobs = Jobs::default();
        let ((a, _), (b, owner)) = (job("a"), job("b"));
        let shared = take(&jobs, "a", "s0").secret;
        assert_eq!(take(&jobs, "b", "s1").secret, shared);
        assert!(!jobs.has_token_secret(&b, &shared), "it was only named");
        jobs.token_secret_made(&b, &shared);
        assert!(jobs.has_token_secret(&a, &shared) && jobs.has_token_secret(&b, &shared));
        jobs.forget(&a);
        assert!(!jobs.has_token_secret(&b, &shared), "the garbage collector deletes it");
        let again = jobs.token_secret(&b, &shared, owner.clone());
        assert_eq!((again.owner, again.taken), (owner, TOKENS), "its new tokens are for the gangs that name it");
        assert_eq!(take(&jobs, "b", "s2").secret, "s2");
        // Another job of the name, whose deletion no watch has reported.
        let later = OwnerReference { uid: "later".to_owned(), ..job("b").1 };
        assert_eq!(jobs.take_token(&b, later, "s3".to_owned()).secret, "s3");
        jobs.forget(&b);
        assert_eq!(jobs.lock().len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn of_many_gangs_that_wait_for_a_secret_one_doubts_it() {
        let jobs = Jobs::default();
        let (a, b) = (job("a").0, job("b").0);
        let shared = take(&jobs, "a", "s0").secret;
        jobs.token_secret_made(&a, &shared);
        assert!(jobs.doubt_token_secret(&b, &shared, EVERY) && !jobs.has_token_secret(&a, &shared));
        jobs.token_secret_made(&b, &shared);
        assert!(!jobs.doubt_token_secret(&a, &shared, EVERY) && jobs.has_token_secret(&a, &shared));
        tokio::time::advance(EVERY).await;
        assert!(jobs.doubt_token_secret(&a, &shared, EVERY));
    }
}
