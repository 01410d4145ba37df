//! Events: what people see in `kubectl describe`.
//!
//! An event is named by a hash of what it says. Telling it again, after a crash or because nothing changed, is refused
//! by the API server as a duplicate: an event is published once, for as long as events are kept. (kube's own
//! recorder folds events of one reason into the first one's text: of three phases that were accepted only one would be
//! seen.)

use crate::error::code;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event as KubeEvent;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client, Resource};
use pawl_contract::report::truncated;
use pawl_decision::action::{Event, EventKind};
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

/// Who tells.
const CONTROLLER: &str = "pawl.dev/operator";
/// Longest note that the API takes, bytes.
const MAX_NOTE: usize = 1024;
/// Events remembered as told, so that a repeated one costs no request.
const MAX_TOLD: usize = 8192;

/// Tells people what happened.
pub struct Events {
    client: Client,
    instance: String,
    told: Mutex<HashSet<u64>>,
}

impl Events {
    /// Tells through `client` as `instance`, such as the name of the operator's pod.
    pub fn new(client: Client, instance: impl Into<String>) -> Self {
        Self { client, instance: instance.into(), told: Mutex::default() }
    }

    /// Publishes `event` about the object, unless it was published before. A failure is logged: no work waits for it.
    pub async fn tell(&self, about: &ObjectReference, event: &Event) {
        let digest = digest(about, event);
        {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            if told.len() >= MAX_TOLD {
                told.clear();
            }
            if !told.insert(u64::from_le_bytes(digest[..8].try_into().unwrap_or_default())) {
                return;
            }
        }
        let namespace = about.namespace.as_deref().unwrap_or("default");
        let events: Api<KubeEvent> = Api::namespaced(self.client.clone(), namespace);
        let made = self.event(about, event, &digest);
        match events.create(&PostParams::default(), &made).await {
            Ok(_) => {}
            Err(error) if code(&error) == Some(409) => {}
            Err(error) => tracing::warn!(%error, reason = event.reason, "cannot tell an event"),
        }
    }

    /// Warns people about an object.
    pub async fn warn<K: Resource<DynamicType = ()>>(&self, about: &K, reason: &str, message: String) {
        let event = Event { kind: EventKind::Warning, reason: reason.to_owned(), message, phase: None };
        self.tell(&about.object_ref(&()), &event).await;
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

/// Hash of what an event says, and of whom.
fn digest(about: &ObjectReference, event: &Event) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in [about.uid.as_deref().unwrap_or_default(), &event.reason, &event.message] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().into()
}
