//! What can be watched: a namespace that was deleted or misspelled, or in which a right is missing, holds up no other.
//!
//! Each namespace of the configuration is a scope, and so is the whole cluster. Jobs of a scope are decided about once
//! all of its gangs are known: without that, objects that exist would seem to be missing.

use crate::metrics::Metrics;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// What is watched of the gangs of a scope.
pub const GANG_RESOURCES: [&str; 4] = ["pods", "batch Jobs", "ConfigMaps", "Services"];

/// A scope: a namespace, or `None` for all of them.
pub type Scope = Option<String>;

/// The watch on a resource of a scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Watch {
    /// Its first list is complete.
    filled: bool,
    /// Why it failed when it was tried last, unless it succeeded since.
    error: Option<String>,
    /// When it failed first, as far as it has not succeeded since.
    since: Option<Instant>,
}

/// A scope of which nothing can be decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// The scope.
    pub scope: Scope,
    /// What cannot be listed.
    pub resource: &'static str,
    /// Why not.
    pub error: String,
}

/// The watches of all scopes. Clones share them.
#[derive(Clone)]
pub struct Scopes {
    watches: Arc<watch::Sender<BTreeMap<(Scope, &'static str), Watch>>>,
    metrics: Metrics,
}

impl Scopes {
    /// Those of `namespaces`, or of the whole cluster when there are none. No watch has succeeded yet.
    pub fn new(namespaces: &[String], metrics: Metrics) -> Self {
        let scopes = if namespaces.is_empty() { vec![None] } else { namespaces.iter().cloned().map(Some).collect() };
        let watches =
            scopes.into_iter().flat_map(|scope: Scope| GANG_RESOURCES.map(|resource| (scope.clone(), resource)));
        let watches = watches.map(|watch| (watch, Watch::default())).collect();
        Self { watches: Arc::new(watch::Sender::new(watches)), metrics }
    }

    /// The scopes.
    pub fn all(&self) -> Vec<Scope> {
        let mut all: Vec<Scope> = self.watches.borrow().keys().map(|(scope, _)| scope.clone()).collect();
        all.dedup();
        all
    }

    /// A list is complete.
    pub fn filled(&self, scope: &Scope, resource: &'static str) {
        self.change(scope, resource, |watch| *watch = Watch { filled: true, error: None, since: None });
    }

    /// A request of a watch failed: it is repeated.
    pub fn failed(&self, scope: &Scope, resource: &'static str, error: &str) {
        let namespace = scope.as_deref().unwrap_or_default();
        tracing::warn!(namespace, error, "watch of {resource} failed: restarting");
        self.metrics.watch_failed(namespace, resource);
        self.change(scope, resource, |watch| {
            // Of one that was filled nobody can say when it is well again: a watch without news is silent.
            if !watch.filled {
                watch.error = Some(error.to_owned());
                watch.since.get_or_insert_with(Instant::now);
            }
        });
    }

    fn change(&self, scope: &Scope, resource: &'static str, change: impl FnOnce(&mut Watch)) {
        self.watches.send_if_modified(|watches| {
            let Some(watch) = watches.get_mut(&(scope.clone(), resource)) else { return false };
            let before = watch.clone();
            change(watch);
            *watch != before
        });
    }

    /// Waits until all gangs of a scope are known.
    pub async fn known(&self, scope: &Scope) {
        let filled = |watches: &BTreeMap<(Scope, &'static str), Watch>| {
            watches.iter().filter(|((of, _), _)| of == scope).all(|(_, watch)| watch.filled)
        };
        // The sender is this value's own: it is not closed before.
        let _ = self.watches.subscribe().wait_for(filled).await;
    }

    /// Waits until a scope is known, and of each other one either that or why not.
    pub async fn settled(&self) {
        let settled = |watches: &BTreeMap<(Scope, &'static str), Watch>| {
            let mut by_scope: BTreeMap<&Scope, Vec<&Watch>> = BTreeMap::new();
            watches.iter().for_each(|((scope, _), watch)| by_scope.entry(scope).or_default().push(watch));
            let known = |all: &[&Watch]| all.iter().all(|watch| watch.filled);
            let fails = |all: &[&Watch]| all.iter().any(|watch| watch.error.is_some());
            by_scope.values().any(|all| known(all)) && by_scope.values().all(|all| known(all) || fails(all))
        };
        let _ = self.watches.subscribe().wait_for(settled).await;
    }

    /// The scopes that are not known because a list has failed for at least this time, with the first such list of
    /// each.
    pub fn unavailable(&self, least: Duration) -> Vec<Unavailable> {
        let watches = self.watches.borrow();
        let failing = watches.iter().filter_map(|((scope, resource), watch)| {
            watch.since.filter(|since| since.elapsed() >= least)?;
            let error = watch.error.clone()?;
            Some(Unavailable { scope: scope.clone(), resource, error })
        });
        let mut unavailable: Vec<Unavailable> = failing.collect();
        unavailable.dedup_by(|later, first| later.scope == first.scope);
        unavailable
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::Jobs;
    use futures::FutureExt;

    fn scopes(namespaces: &[&str]) -> Scopes {
        let namespaces: Vec<String> = namespaces.iter().map(|&name| name.to_owned()).collect();
        Scopes::new(&namespaces, Metrics::new(Jobs::default()))
    }

    fn fill(scopes: &Scopes, scope: &Scope) {
        GANG_RESOURCES.into_iter().for_each(|resource| scopes.filled(scope, resource));
    }

    /// With a namespace that was deleted, the operator was never ready, and decided nothing in the others.
    #[test]
    fn a_scope_that_cannot_be_listed_holds_up_no_other() {
        let (alpha, beta) = (Some("alpha".to_owned()), Some("beta".to_owned()));
        let scopes = scopes(&["alpha", "beta"]);
        let is = |scope: &Scope| scopes.known(scope).now_or_never().is_some();
        let settled = || scopes.settled().now_or_never().is_some();
        assert!(!is(&alpha) && !settled());
        fill(&scopes, &alpha);
        assert!(is(&alpha) && !is(&beta) && !settled(), "the other one may only take longer");
        scopes.filled(&beta, "pods");
        scopes.failed(&beta, "Services", "services is forbidden");
        assert!(settled() && !is(&beta));
        assert_eq!(scopes.unavailable(Duration::from_secs(9)), [], "a request may fail once");
        let unavailable = scopes.unavailable(Duration::ZERO);
        let [Unavailable { scope, resource, error }] = &unavailable[..] else { panic!("{unavailable:?}") };
        assert_eq!((scope, *resource, error.as_str()), (&beta, "Services", "services is forbidden"));
        // Its Role is created again.
        fill(&scopes, &beta);
        assert!(is(&beta) && scopes.unavailable(Duration::ZERO).is_empty());
        // A watch that is interrupted later is no reason to stop.
        scopes.failed(&beta, "pods", "connection reset");
        assert!(is(&beta) && scopes.unavailable(Duration::ZERO).is_empty());
    }

    #[test]
    fn an_operator_that_can_watch_nothing_is_not_ready() {
        let scopes = scopes(&[]);
        assert_eq!(scopes.all(), [None]);
        scopes.failed(&None, "pods", "forbidden");
        assert!(scopes.settled().now_or_never().is_none());
        fill(&scopes, &None);
        assert!(scopes.settled().now_or_never().is_some());
    }
}
