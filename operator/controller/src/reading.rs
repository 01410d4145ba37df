//! How `TrainingJob`s are read: leniently, so that jobs of a later version do not stop this one, and one that cannot be
//! read does not hold up the others.

use crate::context::Context;
use crate::error::{Doing, Error, code};
use crate::key::Key;
use crate::names;
use crate::scopes::{Scopes, Unavailable};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::{Api, Resource, ResourceExt};
use pawl_api::status::Stage;
use pawl_api::{TrainingJob, Unknown};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

/// `TrainingJob`s in a page of a list: each may be as large as an object can be, and a page is held as text.
pub const JOB_PAGE: u32 = 20;

/// A `TrainingJob`, or what is wrong with one.
#[derive(Clone, Debug)]
pub struct Guarded(pub Result<Job, Unreadable>);

/// A job that was read.
#[derive(Clone, Debug)]
pub struct Job {
    /// The job, as far as this version knows its fields.
    pub job: TrainingJob,
    /// The fields that it does not know.
    pub unknown: Unknown,
}

/// A job that cannot be decided on.
#[derive(Clone, Debug)]
pub struct Unreadable {
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// The conditions in its status.
    pub conditions: Vec<Condition>,
    /// Why, with the remedy.
    pub problem: String,
}

impl<'de> Deserialize<'de> for Guarded {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut value = Value::deserialize(deserializer)?;
        let unknown = Unknown::take(&mut value);
        let blocking = unknown.blocking();
        let problem = if blocking.is_empty() {
            match TrainingJob::deserialize(&value) {
                Ok(job) => return Ok(Self(Ok(Job { job, unknown }))),
                Err(error) => format!("cannot be read: {error}: correct the field"),
            }
        } else {
            let version = env!("CARGO_PKG_VERSION");
            format!("{blocking}: not known to version {version} of the operator: upgrade it, or correct the spec")
        };
        let metadata = ObjectMeta::deserialize(&value["metadata"]).map_err(serde::de::Error::custom)?;
        let conditions = Vec::deserialize(&value["status"]["conditions"]).unwrap_or_default();
        Ok(Self(Err(Unreadable { metadata, conditions, problem })))
    }
}

impl Resource for Guarded {
    type DynamicType = ();
    type Scope = <TrainingJob as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        TrainingJob::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        TrainingJob::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        TrainingJob::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        TrainingJob::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|unreadable| &unreadable.metadata, |read| &read.job.metadata)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.as_mut().map_or_else(|unreadable| &mut unreadable.metadata, |read| &mut read.job.metadata)
    }
}

/// The job as it is now, if it exists.
///
/// # Errors
/// [`Error::Api`].
pub async fn read(context: &Context, key: &Key) -> Result<Option<Guarded>, Error> {
    let jobs: Api<Guarded> = Api::namespaced(context.client.clone(), &key.namespace);
    jobs.get_opt(&key.name).await.doing(|| format!("read TrainingJob {}", key.name))
}

/// Reports a job that cannot be decided on by its condition `Stalled` and an event; all else in its status, and its
/// pods, are left as they are.
///
/// # Errors
/// [`Error::Stale`] when the job has changed; [`Error::Api`].
pub async fn report(context: &Context, object: &Guarded) -> Result<(), Error> {
    let Err(Unreadable { metadata, conditions, problem }) = &object.0 else { return Ok(()) };
    let message = format!("{problem}; the job and its pods are left as they are");
    context.events.warn(object, "Unreadable", message.clone()).await;
    let new = pawl_decision::unreadable(conditions, metadata.generation, &message, context.clock.now());
    write_stalled(context, object, conditions, new).await
}

/// Interval between reports to jobs about which nothing is decided.
const REPORT_EVERY: Duration = Duration::from_secs(30);

/// Reports to the jobs of scopes that cannot be watched, as far as they can be listed, that nothing is decided about
/// them.
pub async fn report_unavailable(context: Arc<Context>, scopes: Scopes) {
    loop {
        tokio::time::sleep(REPORT_EVERY).await;
        for scope in scopes.unavailable(REPORT_EVERY) {
            if context.leadership.may_act()
                && let Err(error) = report_to_jobs(&context, &scope).await
            {
                tracing::debug!(%error, "cannot report to the jobs of a scope that cannot be watched");
            }
        }
    }
}

async fn report_to_jobs(context: &Context, unavailable: &Unavailable) -> Result<(), Error> {
    let Unavailable { scope, resource, error } = unavailable;
    let jobs: Api<Guarded> = match scope {
        Some(namespace) => Api::namespaced(context.client.clone(), namespace),
        None => Api::all(context.client.clone()),
    };
    let message = format!(
        "the operator decides nothing about the job: it cannot list {resource} (remedy: where that is forbidden, helm \
         upgrade restores its Role): {error}"
    );
    let mut page = ListParams::default().limit(JOB_PAGE);
    loop {
        let listed = jobs.list(&page).await.doing(|| "list TrainingJobs".to_owned())?;
        page.continue_token = listed.metadata.continue_.filter(|token| !token.is_empty());
        for job in &listed.items {
            report_obstructed(context, job, &message).await?;
        }
        if page.continue_token.is_none() {
            return Ok(());
        }
    }
}

async fn report_obstructed(context: &Context, object: &Guarded, message: &str) -> Result<(), Error> {
    let Ok(Job { job: TrainingJob { metadata, status, .. }, .. }) = &object.0 else { return Ok(()) };
    let status = status.clone().unwrap_or_default();
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let is_over = matches!(status.stage, Stage::Complete | Stage::Failed);
    if is_over || context.namespaces.wait(&context.client, namespace).await.is_some() {
        return Ok(());
    }
    let (old, now) = (&status.conditions, context.clock.now());
    let new = pawl_decision::obstructed(old, metadata.generation, message, now);
    match write_stalled(context, object, old, new).await {
        // Somebody else changed it: next time.
        Err(Error::Stale) => Ok(()),
        written => written,
    }
}

/// Writes the condition `Stalled` of `new`, and nothing else, if it differs from that of `conditions`.
async fn write_stalled(
    context: &Context,
    object: &Guarded,
    conditions: &[Condition],
    new: Vec<Condition>,
) -> Result<(), Error> {
    let metadata = object.meta();
    let told = |all: &[Condition]| {
        let stalled = all.iter().find(|condition| condition.type_ == "Stalled");
        stalled.map(|condition| (condition.status.clone(), condition.message.clone(), condition.observed_generation))
    };
    if told(conditions) == told(&new) {
        return Ok(());
    }
    let name = object.name_any();
    let stalled = new.iter().find(|condition| condition.type_ == "Stalled");
    tracing::warn!(job = name, "{}", stalled.map(|condition| condition.message.as_str()).unwrap_or_default());
    // Not by server-side apply, which would remove the fields that this version does not name.
    let patch = Patch::Merge(json!({
        "metadata": {"resourceVersion": metadata.resource_version, "uid": metadata.uid},
        "status": {"conditions": new},
    }));
    let jobs: Api<PartialObjectMeta<TrainingJob>> =
        Api::namespaced(context.client.clone(), &object.namespace().unwrap_or_default());
    let parameters = PatchParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    match jobs.patch_status(&name, &parameters, &patch).await {
        Ok(_) => Ok(()),
        Err(error) if matches!(code(&error), Some(404 | 409)) => Err(Error::Stale),
        Err(error) => Err(error).doing(|| format!("write the conditions of TrainingJob {name}")),
    }
}
