//! The manifest and the status of a job, as its records keep them ([`pawl_contract::record`]).

use crate::action::Decision;
use crate::decide;
use crate::observed::{AttemptFacts, AttemptState, Ending, Observed};
use jiff::Timestamp;
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::attempt::AttemptEnd;
use pawl_contract::happened::Happened;
use pawl_contract::record::Record;
use pawl_contract::report::LaunchResult;
use serde::Serialize;

/// The format of the manifest and the status of a job that this version writes, here and in the state directory of
/// `pawl run`.
pub const DOCUMENT_FORMAT: u32 = 1;

/// Decisions after which the end of an attempt is evaluated.
const ROUNDS: usize = 8;

#[derive(Serialize)]
struct Document<'a> {
    format: u32,
    job: &'a TrainingJob,
    status: &'a TrainingJobStatus,
}

/// The document of a job, as JSON. Whoever may read the storage reads it: it has no values of environment variables and
/// no annotations, neither of the job, which may repeat the manifest, nor of its pods.
///
/// ```
/// let job: pawl_api::TrainingJob = serde_json::from_value(serde_json::json!({
///     "metadata": {"name": "toy"},
///     "spec": {
///         "workload": {"name": "ups"},
///         "trainer": {"podTemplate": {
///             "env": [{"name": "TOKEN", "value": "secret-$(settings.batchPerGpu)"}],
///             "annotations": {"example.com/key": "secret"},
///             "initContainers": [{"name": "fetch", "image": "fetch", "env": [{"name": "KEY", "value": "secret"}]}],
///         }},
///     },
/// }))?;
/// let text = pawl_decision::record::document(&job, &Default::default());
/// assert!(text.contains("TOKEN") && text.contains("KEY") && !text.contains("secret"), "{text}");
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn document(job: &TrainingJob, status: &TrainingJobStatus) -> String {
    let mut job = job.clone();
    job.status = None;
    redact(&mut job);
    // Its parts are read from JSON, so that they can be written.
    serde_json::to_string(&Document { format: DOCUMENT_FORMAT, job: &job, status }).unwrap_or_default()
}

/// Leaves out of a job what its storage is not to have ([`document`]).
pub fn redact(job: &mut TrainingJob) {
    (job.metadata.managed_fields, job.metadata.annotations) = (None, None);
    let template = &mut job.spec.trainer.pod_template;
    template.annotations.clear();
    let containers = template.init_containers.iter_mut().flat_map(|container| &mut container.env);
    template.env.iter_mut().chain(containers).for_each(|variable| variable.value = None);
}

/// What became of a job after its status was recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct Completed {
    /// Its status.
    pub status: TrainingJobStatus,
    /// What happened since then, oldest first.
    pub happened: Vec<Happened>,
}

/// The status of a job after the ends of those attempts that had not ended when it was recorded: what the operator has
/// written then, and the events that it has published. An attempt that was stopped or lost has no end here: another one
/// followed. Records of another job of this name say nothing about this one.
pub fn completed(job: &TrainingJob, recorded: &TrainingJobStatus, records: &[Record]) -> Completed {
    let (mut status, mut happened) = (recorded.clone(), Vec::new());
    for record in records.iter().filter(|record| may_be_of(record, job)) {
        let Some(end) = &record.end else { continue };
        let under_way = status.under_way().find(|attempt| attempt.name == record.begun.attempt);
        let Some(plan_hash) = under_way.map(|attempt| attempt.plan_hash.clone()) else { continue };
        if matches!(end.end, AttemptEnd::Stopped | AttemptEnd::LostPeer) {
            continue;
        }
        let facts = AttemptFacts {
            name: record.begun.attempt.clone(),
            plan_hash,
            state: AttemptState::Ended(Ending::Completed),
            placement: String::new(),
            trainer: String::new(),
            results: record.launches.iter().map(|launch| LaunchResult::from(&launch.report)).collect(),
            progress: None,
        };
        let observed = Observed { attempts: vec![facts], ..Observed::default() };
        let time = i64::try_from(end.time).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
        let now = time.unwrap_or(Timestamp::UNIX_EPOCH);
        for _ in 0..ROUNDS {
            let Decision { status: next, events, .. } = decide(job, &status, &observed, now);
            happened.extend(events.into_iter().map(|event| event.at(now)));
            if std::mem::replace(&mut status, next) == status {
                break;
            }
        }
    }
    Completed { status, happened }
}

/// Whether a record is of `job`, as far as both are known: a job of `pawl run` has no unique identifier.
fn may_be_of(record: &Record, job: &TrainingJob) -> bool {
    let uid = &record.begun.uid;
    uid.is_empty() || job.metadata.uid.as_ref().is_none_or(|of| of == uid)
}
