//! State and clients that all reconciles share.

use crate::build::Images;
use crate::events::Events;
use crate::facts::Facts;
use crate::jobs::Jobs;
use crate::leader::Leadership;
use crate::live::Live;
use crate::metrics::Metrics;
use crate::services::Services;
use kube::Client;

/// State and clients that all reconciles share.
pub struct Context {
    /// The API server: counted, with deadlines, fenced by the lease.
    pub client: Client,
    /// The operator's images.
    pub images: Images,
    /// The state of each job between reconciles.
    pub jobs: Jobs,
    /// What the watches report: a view of `jobs`.
    pub facts: Facts,
    /// What the agents of running gangs report: a view of `jobs`.
    pub live: Live,
    /// Counters, and the samples in `jobs`.
    pub metrics: Metrics,
    /// Whether this replica leads.
    pub leadership: Leadership,
    /// Publishes events.
    pub events: Events,
    /// The headless Services of namespaces.
    pub services: Services,
}
