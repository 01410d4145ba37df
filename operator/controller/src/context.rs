//! State and clients that all reconciles share.

use crate::clock::Clock;
use crate::events::Events;
use crate::jobs::{Facts, Jobs};
use crate::leader::Leadership;
use crate::live::Live;
use crate::metrics::Metrics;
use crate::namespaces::Namespaces;
use crate::nodes::Nodes;
use crate::objects::{Blueprint, Images, PodDefaults, StorageConfig};
use crate::refusals::Refusals;
use crate::services::Services;
use kube::Client;
use pawl_api::{Policy, TrainingJob};
use pawl_contract::plan::AttemptPlan;

/// State and clients that all reconciles share.
pub struct Context {
    /// The API server: counted, with deadlines, fenced by the lease.
    pub client: Client,
    /// The operator's images.
    pub images: Images,
    /// How checkpoints of jobs that name no storage are stored.
    pub storage: StorageConfig,
    /// What the administrator sets for all pods.
    pub pods: PodDefaults,
    /// What pod templates may refer to.
    pub policy: Policy,
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
    /// The clock.
    pub clock: Clock,
    /// The headless Services of namespaces.
    pub services: Services,
    /// In which namespaces this operator acts.
    pub namespaces: Namespaces,
    /// The nodes that did not accept pods.
    pub nodes: Nodes,
    /// Why pods are refused.
    pub refusals: Refusals,
}

impl Context {
    /// What the objects of an attempt are built from.
    pub(crate) fn blueprint<'a>(
        &'a self,
        job: &'a TrainingJob,
        plan: &'a AttemptPlan,
        plan_hash: &'a str,
    ) -> Blueprint<'a> {
        Blueprint {
            job,
            plan,
            plan_hash,
            token: None,
            images: &self.images,
            pods: &self.pods,
            storage: &self.storage,
            avoided: &[],
            record: None,
        }
    }
}
