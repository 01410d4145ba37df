//! The watches: `TrainingJob`s into a store, pods, batch Jobs and ConfigMaps of gangs into facts, and the Services that
//! name their pods.
//!
//! Lists come in pages, so that filling the caches takes little memory, on every API server that is supported. A watch
//! that fails begins anew, after a backoff; what is gone by then is found out by comparison.

use crate::context::Context;
use crate::jobs::Listing;
use crate::key::Key;
use crate::names;
use crate::packed::Packed;
use crate::reading::JOB_PAGE;
use crate::scopes::{GANG_RESOURCES, Scope, Scopes};
use crate::waits::Waits;
use crate::watched::{WatchedJob, WatchedPod, WatchedService};
use futures::channel::mpsc;
use futures::future::{BoxFuture, ready};
use futures::stream::{self, BoxStream, SelectAll};
use futures::{FutureExt, Stream, StreamExt};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Arc;

/// Objects in a page of a list.
const PAGE: u32 = 250;

/// The controller's sources of events.
pub struct Watches {
    /// `TrainingJob`s whose spec, labels or annotations changed.
    pub jobs: BoxStream<'static, ObjectRef<Packed>>,
    /// All `TrainingJob`s.
    pub store: Store<Packed>,
    /// Jobs whose pods, batch Jobs or plans changed, or whose gang lost its Service.
    pub changed: mpsc::UnboundedReceiver<Key>,
}

/// The watches on the gangs of `scopes`, to be run for as long as the operator runs. Changed jobs are sent to
/// `changed`.
pub fn gangs(
    context: &Arc<Context>,
    scopes: &Scopes,
    changed: &mpsc::UnboundedSender<Key>,
) -> Vec<BoxFuture<'static, ()>> {
    let client = &context.client;
    let mut tasks = Vec::new();
    for scope in scopes.all() {
        let ours = watcher::Config::default().labels(names::SELECTOR).page_size(PAGE);
        let watched = |resource| Watched { scopes: scopes.clone(), scope: scope.clone(), resource };
        let sink = |resource| Sink { changed: changed.clone(), watched: watched(resource) };
        let [pods, jobs, maps, services] = GANG_RESOURCES;
        let listing = || Listing::new(scope.clone());
        let events = objects(api::<WatchedPod>(client, scope.as_deref()), ours.clone(), watched(pods));
        tasks.push(taken(events, context, listing(), sink(pods), |to, event, listing| to.facts.pod(event, listing)));
        let events = objects(api::<WatchedJob>(client, scope.as_deref()), ours.clone(), watched(jobs));
        tasks.push(taken(events, context, listing(), sink(jobs), |to, event, listing| to.facts.gang(event, listing)));
        let api_of_maps = api::<PartialObjectMeta<ConfigMap>>(client, scope.as_deref());
        let events = objects(api_of_maps, ours.clone(), watched(maps));
        tasks.push(taken(events, context, listing(), sink(maps), |to, event, listing| to.facts.plan(event, listing)));
        let events = objects(api::<WatchedService>(client, scope.as_deref()), ours, watched(services));
        tasks.push(taken(events, context, listing(), sink(services), |to, event, listing| {
            let broken = to.services.watched(event, listing);
            broken.iter().flat_map(|namespace| to.facts.meeting(namespace)).collect()
        }));
    }
    tasks
}

/// Watches the `TrainingJob`s of `scopes`, of each once its gangs are known: without all facts, existing objects would
/// seem to be missing. Jobs that are gone are forgotten everywhere.
///
/// Of a relisting only what changed is passed on, so that one store holds the result of several watches.
pub fn jobs(context: &Arc<Context>, scopes: &Scopes) -> (BoxStream<'static, ObjectRef<Packed>>, Store<Packed>) {
    let (store, writer) = reflector::store::<Packed>();
    let mut all = SelectAll::new();
    for scope in scopes.all() {
        let config = watcher::Config::default().page_size(JOB_PAGE);
        let watched = Watched { scopes: scopes.clone(), scope: scope.clone(), resource: "TrainingJobs" };
        let (api, known) = (api::<Packed>(&context.client, scope.as_deref()), watched.clone());
        let events = async move {
            known.scopes.known(&known.scope).await;
            objects(api, config, watched)
        };
        let mut tracker = Tracker { context: context.clone(), store: store.clone(), scope, seen: HashSet::new() };
        all.push(events.flatten_stream().flat_map(move |event| stream::iter(tracker.track(event))).boxed());
    }
    // An initial empty list makes the store ready; `Scopes` shows what is known.
    let start = stream::iter([Event::Init, Event::InitDone]);
    let jobs = start.chain(all).map(Ok).reflect(writer).applied_objects();
    // The store has it by now.
    let cached = context.jobs.clone();
    let jobs = jobs.inspect(move |job| job.iter().for_each(|job| cached.cached(job)));
    let changed = jobs.predicate_filter(|job: &Packed| Some(job.edition()), Default::default());
    (changed.filter_map(|job| async { job.ok().map(|job| ObjectRef::from_obj(&job)) }).boxed(), store)
}

/// Follows one watch of `TrainingJob`s.
struct Tracker {
    context: Arc<Context>,
    store: Store<Packed>,
    scope: Option<String>,
    seen: HashSet<Key>,
}

impl Tracker {
    /// The changes that an event stands for.
    fn track(&mut self, event: Event<Packed>) -> Vec<Event<Packed>> {
        match event {
            Event::Apply(job) => {
                self.context.facts.adopt(&Key::of(&job));
                vec![Event::Apply(job)]
            }
            Event::InitApply(job) => {
                self.seen.insert(Key::of(&job));
                self.context.facts.adopt(&Key::of(&job));
                vec![Event::Apply(job)]
            }
            Event::Delete(job) => {
                self.gone(&job);
                vec![Event::Delete(job)]
            }
            Event::Init => {
                self.seen.clear();
                Vec::new()
            }
            Event::InitDone => {
                let seen = std::mem::take(&mut self.seen);
                let covered =
                    |job: &Packed| self.scope.as_ref().is_none_or(|scope| job.namespace().as_ref() == Some(scope));
                let gone = self.store.state_filter(|job| covered(job) && !seen.contains(&Key::of(job)));
                gone.iter().for_each(|job| self.gone(job));
                self.context.facts.orphan_others(self.scope.as_deref(), &seen);
                gone.into_iter().map(|job| Event::Delete((*job).clone())).collect()
            }
        }
    }

    /// A job was deleted: its state is dropped.
    fn gone(&self, job: &Packed) {
        self.context.jobs.forget(&Key::of(job));
    }
}

/// One watch.
#[derive(Clone)]
struct Watched {
    scopes: Scopes,
    scope: Scope,
    resource: &'static str,
}

fn api<K>(client: &Client, scope: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match scope {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

/// A watch that never ends: errors are reported, then it is restarted after a backoff.
fn objects<K>(api: Api<K>, config: watcher::Config, watched: Watched) -> impl Stream<Item = Event<K>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    watcher::watcher(api, config).backoff(Waits::default()).filter_map(move |event| {
        let event = event.inspect_err(|error| {
            watched.scopes.failed(&watched.scope, watched.resource, &error.to_string());
        });
        ready(event.ok())
    })
}

/// Where events go.
struct Sink {
    changed: mpsc::UnboundedSender<Key>,
    watched: Watched,
}

/// Takes in the events of a watch, and names the jobs that changed.
fn taken<K: Send + 'static>(
    events: impl Stream<Item = Event<K>> + Send + 'static,
    context: &Arc<Context>,
    mut listing: Listing,
    sink: Sink,
    take: impl Fn(&Context, Event<K>, &mut Listing) -> Vec<Key> + Send + 'static,
) -> BoxFuture<'static, ()> {
    let context = context.clone();
    Box::pin(async move {
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            let full = matches!(event, Event::InitDone);
            for key in take(&context, event, &mut listing) {
                // Nobody listens when the controller has stopped.
                let _ = sink.changed.unbounded_send(key);
            }
            if full {
                sink.watched.scopes.filled(&sink.watched.scope, sink.watched.resource);
            }
        }
    })
}
