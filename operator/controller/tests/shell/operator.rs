//! One life of the operator: its caches, fed from the API server's log up to a version, and its reconciles.

use crate::api::{Api, Id};
use kube::runtime::watcher::Event;
use pawl_api::TrainingJob;
use pawl_controller::belief::Beliefs;
use pawl_controller::build::Images;
use pawl_controller::context::{Context, Failures, Services, Tried};
use pawl_controller::error::Error;
use pawl_controller::events::Events;
use pawl_controller::facts::{Facts, Listing};
use pawl_controller::leader::Leadership;
use pawl_controller::live::{Live, Pace};
use pawl_controller::metrics::Metrics;
use pawl_controller::reconcile::reconcile;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

pub struct Operator {
    context: Context,
    api: Api,
    /// The caches hold everything up to this version.
    seen: u64,
    job: Option<TrainingJob>,
    listings: [Listing; 3],
    /// The objects as the caches have them.
    known: BTreeMap<Id, Value>,
}

impl Operator {
    /// Starts, with caches as of `version`.
    pub fn start(api: &Api, version: u64) -> Self {
        let client = api.client();
        let metrics = Metrics::new();
        let (live, _) = Live::new(Pace::default(), metrics.clone());
        let context = Context {
            events: Events::new(client.clone(), "test"),
            client,
            images: Images { trainer: "trainer:1".to_owned(), agent: "agent:1".to_owned() },
            facts: Arc::new(Facts::default()),
            beliefs: Beliefs::default(),
            live,
            metrics,
            leadership: Leadership::alone(),
            services: Services::default(),
            failures: Failures::default(),
            tried: Tried::default(),
        };
        let listings = [(); 3].map(|()| Listing::new(None));
        let mut operator =
            Self { context, api: api.clone(), seen: version, job: None, listings, known: BTreeMap::new() };
        let objects = operator.api.store().at(version);
        operator.known.clone_from(&objects);
        for kind in ["pods", "jobs", "configmaps"] {
            operator.begin(kind);
        }
        for (id, object) in objects {
            operator.take(&id, Some(object), true);
        }
        for kind in ["pods", "jobs", "configmaps"] {
            operator.done(kind);
        }
        operator
    }

    fn begin(&mut self, kind: &str) {
        let facts = &self.context.facts;
        let [pods, jobs, maps] = &mut self.listings;
        match kind {
            "pods" => facts.pod(Event::Init, pods),
            "jobs" => facts.gang(Event::Init, jobs),
            _ => facts.plan(Event::Init, maps),
        };
    }

    fn done(&mut self, kind: &str) {
        let facts = &self.context.facts;
        let [pods, jobs, maps] = &mut self.listings;
        match kind {
            "pods" => facts.pod(Event::InitDone, pods),
            "jobs" => facts.gang(Event::InitDone, jobs),
            _ => facts.plan(Event::InitDone, maps),
        };
    }

    fn take(&mut self, id: &Id, object: Option<Value>, listed: bool) {
        fn event<K: serde::de::DeserializeOwned>(object: Option<Value>, listed: bool, before: Value) -> Event<K> {
            let read = |value| serde_json::from_value(value).unwrap();
            match object {
                Some(object) if listed => Event::InitApply(read(object)),
                Some(object) => Event::Apply(read(object)),
                None => Event::Delete(read(before)),
            }
        }
        let before = match &object {
            Some(object) => self.known.insert(id.clone(), object.clone()),
            None => self.known.remove(id),
        };
        let before = before.unwrap_or_default();
        let (kind, ..) = id;
        let facts = &self.context.facts;
        let [pods, jobs, maps] = &mut self.listings;
        match kind.as_str() {
            "pods" => drop(facts.pod(event(object, listed, before), pods)),
            "jobs" => drop(facts.gang(event(object, listed, before), jobs)),
            "configmaps" => drop(facts.plan(event(object, listed, before), maps)),
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
            self.take(&change.id, change.object, false);
        }
        self.seen = self.seen.max(version);
    }

    /// Reconciles once with what the caches hold.
    pub async fn reconcile(&self) -> Result<(), Error> {
        match &self.job {
            Some(job) => reconcile(&self.context, job).await.map(|_| ()),
            None => Ok(()),
        }
    }
}
