//! Why pods of batch Jobs are refused: nothing but events says so, and the API server reads all events of a namespace
//! to find some of them. So all jobs of a namespace read them together, at most once in [`FRESH`].

use crate::error::{Doing, Error, code};
use crate::facts::{FAILED_CREATE, Hindrance};
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// For so long what was read holds for all jobs of a namespace: it is asked about batch Jobs that are as old at least,
/// so that it is not from before their pods were refused.
pub(crate) const FRESH: Duration = Duration::from_secs(2);

/// What was last read of each namespace.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<HashMap<String, Arc<tokio::sync::Mutex<Known>>>>);

/// The events of a namespace that tell of refused pods, newest last.
#[derive(Debug, Default)]
struct Known {
    read: Option<Instant>,
    events: Vec<Event>,
}

impl Refusals {
    /// Why the API server refuses pods of the batch Job with this uid. `None` when there is no such event, or the
    /// operator may not read events.
    ///
    /// # Errors
    /// [`Error::Api`].
    pub async fn of(&self, client: &Client, namespace: &str, uid: &str) -> Result<Option<Hindrance>, Error> {
        let known = {
            let mut all = self.0.lock();
            all.retain(|other, known| other == namespace || is_fresh(known));
            all.entry(namespace.to_owned()).or_default().clone()
        };
        // One of them reads, the others wait for it.
        let mut known = known.lock().await;
        if known.read.is_none_or(|read| read.elapsed() >= FRESH) {
            known.events = read(client, namespace).await?;
            known.read = Some(Instant::now());
        }
        let about = |event: &&Event| event.involved_object.uid.as_deref() == Some(uid);
        let newest = known.events.iter().rfind(about).and_then(|event| event.message.as_deref());
        Ok(newest.map(Hindrance::of_creation))
    }
}

fn is_fresh(known: &Arc<tokio::sync::Mutex<Known>>) -> bool {
    // One that is locked is being read.
    known.try_lock().map_or(true, |known| known.read.is_some_and(|read| read.elapsed() < FRESH))
}

/// The events that tell of refused pods in a namespace; none when the operator may not read events.
async fn read(client: &Client, namespace: &str) -> Result<Vec<Event>, Error> {
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let told = ListParams::default().fields(&format!("involvedObject.kind=Job,reason={FAILED_CREATE}"));
    let mut found = match events.list(&told).await {
        Err(error) if code(&error) == Some(403) => return Ok(Vec::new()),
        found => found.doing(|| "list the events of batch Jobs".to_owned())?.items,
    };
    found.retain(|event| event.reason.as_deref() == Some(FAILED_CREATE));
    found.sort_by_key(|event| {
        let seen = event.last_timestamp.as_ref().or(event.metadata.creation_timestamp.as_ref());
        seen.map(|time| time.0)
    });
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// An API server with these events, which counts requests for them.
    fn server(events: Value, requests: &Arc<AtomicUsize>) -> Client {
        let requests = requests.clone();
        let service = tower::service_fn(move |_: Request<Body>| {
            requests.fetch_add(1, Ordering::Relaxed);
            let list = json!({"apiVersion": "v1", "kind": "EventList", "metadata": {}, "items": events});
            async move {
                tokio::time::sleep(Duration::from_millis(100)).await;
                Ok::<_, std::io::Error>(Response::new(Body::from(list.to_string().into_bytes())))
            }
        });
        Client::new(service, "default")
    }

    fn event(uid: &str, message: &str, second: u32) -> Value {
        json!({"metadata": {"name": message}, "reason": "FailedCreate", "message": message,
            "lastTimestamp": format!("2026-01-01T00:00:{second:02}Z"),
            "involvedObject": {"kind": "Job", "uid": uid}})
    }

    /// With 1,000 gangs at once the API server read thousands of events for each.
    #[tokio::test(start_paused = true)]
    async fn the_jobs_of_a_namespace_read_them_together() {
        let requests = Arc::new(AtomicUsize::new(0));
        let client = server(json!([event("a", "newer", 9), event("a", "older", 1), event("b", "other", 5)]), &requests);
        let refusals = Refusals::default();
        let of = async |namespace: &str, uid: &str| refusals.of(&client, namespace, uid).await.unwrap();
        let all = futures::future::join_all((0..300).map(|_| of("team", "a"))).await;
        assert!(all.iter().all(|refusal| refusal.as_ref().is_some_and(|it| it.text.contains("newer"))), "{:?}", all[0]);
        assert_eq!(of("team", "none").await, None);
        assert_eq!(requests.load(Ordering::Relaxed), 1);
        of("others", "a").await;
        tokio::time::advance(FRESH).await;
        of("team", "a").await;
        assert_eq!(requests.load(Ordering::Relaxed), 3, "another namespace, and what is no longer fresh");
    }
}
