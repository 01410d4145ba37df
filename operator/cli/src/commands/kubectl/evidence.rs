//! Evidence of a job from the cluster: its status and its events. Loss curves are not stored in the cluster.

use super::error::ClusterError;
use super::session::Session;
use crate::exit;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, ListParams};
use pawl_display::event::EventRecord;
use pawl_display::report::evidence::Evidence;

/// Reads the evidence of the job `name`. Without permission to list events, the page has none.
pub async fn gather(session: &Session, name: &str) -> Result<Evidence, ClusterError> {
    let mut job = session.job(name).await?;
    let status = job.status.take().unwrap_or_default();
    let events: Api<Event> = Api::namespaced(session.client.clone(), &session.namespace);
    let about = ListParams::default().fields(&format!("involvedObject.kind=TrainingJob,involvedObject.name={name}"));
    let events_of_name = match session.ask(session.request("list", "events"), events.list(&about)).await {
        Ok(list) => list.items,
        Err(error @ ClusterError::Forbidden { .. }) => {
            exit::say(&format_args!("note: the page has no events: {error}"));
            Vec::new()
        }
        Err(error) => return Err(error),
    };
    let uid = job.metadata.uid.as_deref();
    // An earlier job of the same name has events too, until they expire.
    let mut records: Vec<EventRecord> =
        events_of_name.iter().filter(|event| event.involved_object.uid.as_deref() == uid).filter_map(record).collect();
    records.sort_by_key(|record| record.time);
    Ok(Evidence::new(job, status, records, Vec::new()))
}

/// The event for the report; `None` without a timestamp.
fn record(event: &Event) -> Option<EventRecord> {
    let time: Timestamp = match (&event.event_time, &event.first_timestamp, &event.last_timestamp) {
        (Some(time), _, _) => time.0,
        (None, Some(time), _) | (None, None, Some(time)) => time.0,
        (None, None, None) => event.metadata.creation_timestamp.as_ref()?.0,
    };
    Some(EventRecord {
        time,
        warning: event.type_.as_deref() == Some("Warning"),
        reason: event.reason.clone().unwrap_or_default(),
        message: event.message.clone().unwrap_or_default(),
        phase: None,
    })
}
