//! Kubernetes events, as `kubectl describe` shows them.
//!
//! The name of an event is a hash of its contents. Publishing it again, after a crash or because nothing changed, is
//! rejected by the API server as a duplicate: an event is published once, for as long as events are kept. (kube's own
//! recorder aggregates events of one reason under the first one's text: of three accepted phases only one would be
//! shown.)

use crate::error::code;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event as KubeEvent;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client, Resource};
use parking_lot::Mutex;
use pawl_contract::report::truncated;
use pawl_decision::action::{Event, EventKind};
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::fmt::Write;

/// The reporting controller.
const CONTROLLER: &str = "pawl.dev/operator";
/// Maximum length of a note in the API, bytes.
const MAX_NOTE: usize = 1024;
/// Number of published events that are remembered, so that a repeated one costs no request.
const MAX_PUBLISHED: usize = 8192;

/// Publishes events.
pub struct Events {
    client: Client,
    instance: String,
    published: Mutex<HashSet<u64>>,
}

impl Events {
    /// Publishes through `client` as `instance`, such as the name of the operator's pod.
    pub fn new(client: Client, instance: impl Into<String>) -> Self {
        Self { client, instance: instance.into(), published: Mutex::default() }
    }

    /// Publishes `event` about the object, unless it was published before. A failure is logged: no work waits for it.
    pub async fn publish(&self, about: &ObjectReference, event: &Event) {
        let digest = digest(about, event);
        {
            let mut published = self.published.lock();
            if published.len() >= MAX_PUBLISHED {
                published.clear();
            }
            if !published.insert(u64::from_le_bytes(digest[..8].try_into().unwrap_or_default())) {
                return;
            }
        }
        let namespace = about.namespace.as_deref().unwrap_or("default");
        let events: Api<KubeEvent> = Api::namespaced(self.client.clone(), namespace);
        let made = self.event(about, event, &digest);
        match events.create(&PostParams::default(), &made).await {
            Ok(_) => {}
            Err(error) if code(&error) == Some(409) => {}
            Err(error) => tracing::warn!(%error, reason = event.reason, "cannot publish an event"),
        }
    }

    /// Publishes a warning about an object.
    pub async fn warn<K: Resource<DynamicType = ()>>(&self, about: &K, reason: &str, message: String) {
        let event = Event { kind: EventKind::Warning, reason: reason.to_owned(), message, phase: None };
        self.publish(&about.object_ref(&()), &event).await;
    }

    fn event(&self, about: &ObjectReference, event: &Event, digest: &[u8]) -> KubeEvent {
        let mut name = about.name.clone().unwrap_or_default();
        name.push('.');
        for byte in &digest[..8] {
            let _ = write!(name, "{byte:02x}");
        }
        KubeEvent {
            metadata: ObjectMeta { name: Some(name), namespace: about.namespace.clone(), ..ObjectMeta::default() },
            event_time: Some(MicroTime(Timestamp::now())),
            type_: Some(match event.kind {
                EventKind::Normal => "Normal".to_owned(),
                EventKind::Warning => "Warning".to_owned(),
            }),
            reason: Some(event.reason.clone()),
            action: Some("Reconcile".to_owned()),
            note: Some(truncated(&event.message, MAX_NOTE).to_owned()),
            regarding: Some(about.clone()),
            reporting_controller: Some(CONTROLLER.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            ..KubeEvent::default()
        }
    }
}

/// Hash of an event and its object.
fn digest(about: &ObjectReference, event: &Event) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in [about.uid.as_deref().unwrap_or_default(), &event.reason, &event.message] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().into()
}
