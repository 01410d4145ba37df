//! Evidence of a job from the cluster: its status and its events, and what its records have besides, if they were
//! copied: loss curves, and what was measured with.

use super::error::ClusterError;
use super::session::Session;
use crate::exit;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, ListParams};
use pawl_api::TrainingJob;
use pawl_contract::record::{FOLDER, Record};
use pawl_display::event::EventRecord;
use pawl_display::provenance::MeasuredWith;
use pawl_display::report::evidence::{Evidence, FinishedLaunch};
use pawl_local::state::{StateDir, records};
use std::path::Path;

/// Reads the evidence of the job `name`, and its records in `copied`, or else in the directory of its name, where
/// `kubectl pawl fetch` puts them. Without permission to list events, the page has only those in the records.
pub async fn gather(session: &Session, name: &str, copied: Option<&Path>) -> Result<Evidence, ClusterError> {
    let job = session.job(name).await?;
    let of_cluster = match events(session, &job).await {
        Err(error @ ClusterError::Forbidden { .. }) => {
            exit::say(&format_args!("note: the page has no events other than recorded ones: {error}"));
            Vec::new()
        }
        events => events?,
    };
    let (recorded, happened) = recorded(&job, copied)?;
    Ok(joined(job, of_cluster, &recorded, happened))
}

/// The evidence of `job` from its events in the cluster, its records, and what these say happened.
pub fn joined(
    mut job: TrainingJob,
    of_cluster: Vec<EventRecord>,
    records: &[Record],
    happened: Vec<EventRecord>,
) -> Evidence {
    let mut events = happened;
    // Those of the last hour are in the cluster, too.
    for event in of_cluster {
        if !events.iter().any(|known| known.happened().is_same(&event.happened())) {
            events.push(event);
        }
    }
    events.sort_by_key(|event| event.time);
    let launches = records.iter().flat_map(FinishedLaunch::recorded).collect();
    let measured_with = records.iter().filter_map(MeasuredWith::recorded).collect();
    let status = job.status.take().unwrap_or_default();
    Evidence::new(job, status, events, launches).with(measured_with)
}

/// The events about `job`, oldest first.
pub async fn events(session: &Session, job: &TrainingJob) -> Result<Vec<EventRecord>, ClusterError> {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let events: Api<Event> = Api::namespaced(session.client.clone(), &session.namespace);
    let about = ListParams::default().fields(&format!("involvedObject.kind=TrainingJob,involvedObject.name={name}"));
    let of_name = session.ask(session.request("list", "events"), events.list(&about)).await?.items;
    let uid = job.metadata.uid.as_deref();
    // An earlier job of the same name has events too, until they expire.
    let own = of_name.iter().filter(|event| event.involved_object.uid.as_deref() == uid);
    let mut records: Vec<EventRecord> = own.filter_map(record).collect();
    records.sort_by_key(|record| record.time);
    Ok(records)
}

/// The records of `job`, and what they say happened.
fn recorded(job: &TrainingJob, copied: Option<&Path>) -> Result<(Vec<Record>, Vec<EventRecord>), ClusterError> {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let state = StateDir::found_in(copied.unwrap_or(Path::new(name)));
    if state.storage().is_none() {
        let Some(copied) = copied else { return Ok((Vec::new(), Vec::new())) };
        let problem = format!("--records {}: has no {FOLDER}: copy it with `kubectl pawl fetch`", copied.display());
        return Err(ClusterError::Nothing(problem));
    }
    let recorded = records::load(&state).map_err(|error| ClusterError::File(error.to_string()))?;
    // An earlier job of the same name may have been copied.
    let uid = job.metadata.uid.as_deref().unwrap_or_default();
    let is_own = |of: &str| of.is_empty() || of == uid;
    let (own, other): (Vec<_>, Vec<_>) = recorded.into_iter().partition(|record| is_own(&record.begun.uid));
    if !other.is_empty() {
        exit::say(&format_args!("note: {} has records of another job of this name", state.root().display()));
    }
    let happened = records::happened(&state, &own);
    Ok((own, happened))
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
