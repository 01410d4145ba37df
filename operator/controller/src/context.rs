//! What every reconcile shares.

use crate::build::Images;
use crate::events::Events;
use crate::facts::{Facts, Key};
use crate::jobs::Jobs;
use crate::leader::Leadership;
use crate::live::Live;
use crate::metrics::Metrics;
use crate::services::Services;
use kube::Client;
use std::sync::Arc;

/// What every reconcile shares.
pub struct Context {
    /// The API server: counted, with deadlines, fenced by the lease.
    pub client: Client,
    /// The operator's images.
    pub images: Images,
    /// What the watches say.
    pub facts: Arc<Facts>,
    /// What is kept of each job between reconciles.
    pub jobs: Jobs,
    /// What running gangs say.
    pub live: Live,
    /// Counts and samples.
    pub metrics: Metrics,
    /// Whether this replica acts.
    pub leadership: Leadership,
    /// Tells people.
    pub events: Events,
    /// The Services of namespaces.
    pub services: Services,
}

impl Context {
    /// The job is gone: nothing is kept of it but what is alive of its attempts.
    pub fn forget(&self, key: &Key) {
        self.jobs.forget(key);
        self.facts.orphan(key);
        self.live.forget(&key.namespace, &key.name);
        self.metrics.forget(&key.namespace, &key.name);
    }

    /// This replica does not lead any more: another one may write. The facts come from watches, which go on.
    pub fn forget_all(&self) {
        self.jobs.forget_all();
        self.live.forget_all();
        self.metrics.forget_all();
    }
}
