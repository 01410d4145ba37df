//! Which pods there are, since when and until when, as a watch tells it.

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource, ResourceExt};
use pawl_controller::watched::WatchedPod;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// A pod that was seen.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Name.
    pub name: String,
    /// When it was first seen.
    pub made: Instant,
    /// When it was first seen to run.
    pub runs: Option<Instant>,
    /// When its deletion was first seen.
    pub told: Option<Instant>,
    /// When it was first seen to have ended.
    pub ended: Option<Instant>,
    /// When it was seen to be no longer there.
    pub gone: Option<Instant>,
}

/// The pods of a namespace, while this lives.
pub struct Census {
    seen: Arc<Mutex<HashMap<String, Seen>>>,
    changed: Arc<Notify>,
    task: JoinHandle<()>,
}

/// Of a pod: whether it runs, and whether it ended.
pub trait Phase {
    /// It runs.
    fn runs(&self) -> bool;
    /// It ended.
    fn ended(&self) -> bool;
}

impl Phase for WatchedPod {
    fn runs(&self) -> bool {
        self.status.phase.as_deref() == Some("Running")
    }

    fn ended(&self) -> bool {
        matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed"))
    }
}

/// Metadata alone tells only that a pod is there.
impl<K> Phase for PartialObjectMeta<K> {
    fn runs(&self) -> bool {
        false
    }

    fn ended(&self) -> bool {
        false
    }
}

impl Census {
    /// Watches the pods of a namespace. Call it while there are none.
    pub fn of_pods(client: &Client, namespace: &str) -> Self {
        let pods = Api::<WatchedPod>::namespaced(client.clone(), namespace);
        Self::begin(watcher::watcher(pods, watcher::Config::default()))
    }

    /// Watches the metadata of pods: only that they are there. It costs the API server the least.
    pub fn of_metadata(client: &Client, namespace: &str) -> Self {
        let pods = Api::<PartialObjectMeta<Pod>>::namespaced(client.clone(), namespace);
        Self::begin(watcher::watcher(pods, watcher::Config::default()))
    }

    fn begin<K>(events: impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static) -> Self
    where
        K: Phase + Resource<DynamicType = ()> + Send,
    {
        let (seen, changed) = (Arc::<Mutex<HashMap<_, _>>>::default(), Arc::new(Notify::new()));
        let task = tokio::spawn({
            let (seen, changed) = (seen.clone(), changed.clone());
            async move {
                let mut events = std::pin::pin!(events.default_backoff());
                while let Some(event) = events.next().await {
                    if let Ok(event) = event {
                        take(&mut seen.lock().unwrap(), event);
                        changed.notify_waiters();
                    }
                }
            }
        });
        Self { seen, changed, task }
    }

    /// Waits until `look` finds something in the pods seen.
    ///
    /// # Panics
    /// At the deadline.
    pub async fn until<T>(
        &self,
        what: &str,
        deadline: Duration,
        look: impl Fn(&HashMap<String, Seen>) -> Option<T>,
    ) -> T {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                if let Some(found) = look(&self.seen.lock().unwrap()) {
                    return found;
                }
                changed.await;
            }
        };
        match tokio::time::timeout(deadline, wait).await {
            Ok(found) => found,
            Err(_) => panic!("waited {deadline:?} in vain: {what}; pods seen: {}", self.seen.lock().unwrap().len()),
        }
    }

    /// When n pods were first there.
    pub async fn count(&self, pods: usize, deadline: Duration) -> Instant {
        let last = |seen: &HashMap<String, Seen>| seen.values().map(|pod| pod.made).max();
        self.until(&format!("{pods} pods"), deadline, |seen| last(seen).filter(|_| seen.len() >= pods)).await
    }
}

impl Drop for Census {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn take<K: Phase + Resource<DynamicType = ()>>(seen: &mut HashMap<String, Seen>, event: Event<K>) {
    let now = Instant::now();
    match event {
        Event::Apply(pod) | Event::InitApply(pod) => {
            let (uid, name) = (pod.uid().unwrap_or_default(), pod.name_any());
            let fresh = Seen { name, made: now, runs: None, told: None, ended: None, gone: None };
            let entry = seen.entry(uid).or_insert(fresh);
            let first = |when: &mut Option<Instant>, holds: bool| *when = when.or(holds.then_some(now));
            first(&mut entry.runs, pod.runs());
            first(&mut entry.told, pod.meta().deletion_timestamp.is_some());
            first(&mut entry.ended, pod.ended());
        }
        Event::Delete(pod) => {
            if let Some(entry) = seen.get_mut(&pod.uid().unwrap_or_default()) {
                entry.gone.get_or_insert(now);
            }
        }
        Event::Init | Event::InitDone => {}
    }
}
