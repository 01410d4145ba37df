//! One life of the operator: its caches, fed from the API server's log up to a version, and its reconciles.

use crate::api::{Api, Change, Id};
use kube::runtime::controller::Action;
use kube::runtime::watcher::Event;
use pawl_api::Policy;
use pawl_contract::live::Attempt;
use pawl_controller::clock::Clock;
use pawl_controller::context::Context;
use pawl_controller::error::Error;
use pawl_controller::events::Events;
use pawl_controller::jobs::Jobs;
use pawl_controller::jobs::{Facts, Listing};
use pawl_controller::key::Key;
use pawl_controller::leader::Leadership;
use pawl_controller::live::{Live, Pace};
use pawl_controller::metrics::Metrics;
use pawl_controller::namespaces::Namespaces;
use pawl_controller::nodes::Nodes;
use pawl_controller::objects::{Images, PodDefaults, StorageConfig};
use pawl_controller::reading::{self, Guarded};
use pawl_controller::reconcile::reconcile;
use pawl_controller::refusals::Refusals;
use pawl_controller::services::Services;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// What is watched of gangs: only what bears the operator's label.
const WATCHED: [&str; 4] = ["pods", "jobs", "configmaps", "services"];

pub struct Operator {
    context: Context,
    api: Api,
    /// The caches hold everything up to this version.
    seen: u64,
    job: Option<Guarded>,
    listings: [Listing; 4],
    /// The objects as the caches have them.
    known: BTreeMap<Id, Value>,
    /// Jobs that were named because their Service is not right.
    pub named: Vec<Key>,
}

impl Operator {
    /// Starts, with caches as of `version`.
    pub fn start(api: &Api, version: u64) -> Self {
        Self::start_at(api, version, Clock::system())
    }

    /// The same, by this clock.
    pub fn start_at(api: &Api, version: u64, clock: Clock) -> Self {
        let client = api.client();
        let jobs = Jobs::new(clock.clone());
        let metrics = Metrics::new(jobs.clone());
        let (live, _) = Live::new(jobs.clone(), Pace::default(), metrics.clone());
        let context = Context {
            events: Events::new(client.clone(), "test"),
            client,
            images: Images { trainer: "trainer:1".to_owned(), agent: "agent:1".to_owned() },
            storage: StorageConfig::default(),
            pods: PodDefaults::default(),
            policy: Policy::default(),
            facts: Facts::new(jobs.clone()),
            jobs,
            live,
            metrics: metrics.clone(),
            leadership: Leadership::alone(),
            clock,
            services: Services::default(),
            namespaces: Namespaces::new(None, metrics),
            nodes: Nodes::default(),
            refusals: Refusals::default(),
        };
        let listings = [(); 4].map(|()| Listing::new(None));
        let (known, named) = (BTreeMap::new(), Vec::new());
        let mut operator = Self { context, api: api.clone(), seen: version, job: None, listings, known, named };
        let objects = operator.api.store().at(version);
        operator.begin();
        for (id, object) in objects {
            operator.take(Change { version, id, object: Some(object) }, true);
        }
        operator.done();
        operator
    }

    /// Gives it a name among the operators of the cluster.
    pub fn named(mut self, name: &str) -> Self {
        let metrics = self.context.metrics.clone();
        self.context.namespaces = Namespaces::new(Some(name.to_owned()), metrics);
        self
    }

    /// Its metrics, as Prometheus reads them.
    pub fn metrics(&self) -> String {
        self.context.metrics.pages().collect()
    }

    fn begin(&mut self) {
        let Context { facts, services, .. } = &self.context;
        let [pods, jobs, maps, named] = &mut self.listings;
        facts.pod(Event::Init, pods);
        facts.gang(Event::Init, jobs);
        facts.plan(Event::Init, maps);
        services.watched(Event::Init, named);
    }

    fn done(&mut self) {
        let Context { facts, services, .. } = &self.context;
        let [pods, jobs, maps, named] = &mut self.listings;
        facts.pod(Event::InitDone, pods);
        facts.gang(Event::InitDone, jobs);
        facts.plan(Event::InitDone, maps);
        services.watched(Event::InitDone, named);
    }

    fn take(&mut self, Change { version, id, object }: Change, listed: bool) {
        fn event<K: serde::de::DeserializeOwned>(object: Option<Value>, listed: bool, before: Value) -> Event<K> {
            let read = |value| serde_json::from_value(value).unwrap();
            match object {
                Some(object) if listed => Event::InitApply(read(object)),
                Some(object) => Event::Apply(read(object)),
                None => Event::Delete(read(before)),
            }
        }
        let kind = id.0.as_str();
        let ours = |object: &Value| object["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "pawl";
        let object = object.filter(|object| !WATCHED.contains(&kind) || ours(object));
        let before = match &object {
            Some(object) => self.known.insert(id.clone(), object.clone()),
            None => self.known.remove(&id),
        };
        if object.is_none() && before.is_none() {
            return;
        }
        let mut before = before.unwrap_or_default();
        // Of what goes, the API server says when.
        before["metadata"]["resourceVersion"] = json!(version.to_string());
        let Context { facts, services, .. } = &self.context;
        let [pods, jobs, maps, named] = &mut self.listings;
        match kind {
            "pods" => drop(facts.pod(event(object, listed, before), pods)),
            "jobs" => drop(facts.gang(event(object, listed, before), jobs)),
            "configmaps" => drop(facts.plan(event(object, listed, before), maps)),
            "services" => {
                let broken = services.watched(event(object, listed, before), named);
                self.named.extend(broken.iter().flat_map(|namespace| facts.meeting(namespace)));
            }
            "trainingjobs" => self.job = object.map(|object| serde_json::from_value(object).unwrap()),
            _ => {}
        }
    }

    /// Brings the caches up to `version`.
    pub fn catch_up(&mut self, version: u64) {
        let changes: Vec<_> = {
            let store = self.api.store();
            let new = store.log.partition_point(|change| change.version <= self.seen);
            store.log[new..].iter().take_while(|change| change.version <= version).cloned().collect()
        };
        for change in changes {
            self.take(change, false);
        }
        self.seen = self.seen.max(version);
    }

    /// Takes in what agent 0 of a gang answers.
    pub fn hear(&self, key: &Key, answer: Attempt) {
        self.context.live.hear(key, answer);
    }

    /// Whether it may act in the namespace of the job: [`pawl_controller::namespaces::Namespaces::wait`].
    pub async fn may_not_act(&self) -> Option<Duration> {
        self.context.namespaces.wait(&self.context.client, "default").await
    }

    /// Reconciles once with what the caches hold.
    pub async fn reconcile(&self) -> Result<Action, Error> {
        match &self.job {
            Some(Guarded(Ok(job))) => reconcile(&self.context, job).await,
            Some(object @ Guarded(Err(_))) => {
                reading::report(&self.context, object).await.map(|()| Action::await_change())
            }
            None => Ok(Action::await_change()),
        }
    }
}
