//! One reconcile: fetch, observe, decide, then carry out the decision by the [protocol](pawl_decision::protocol) of all
//! shells: write the status, act, emit the events.

use crate::apply;
use crate::belief::Belief;
use crate::context::Context;
use crate::error::{Doing, Error, code};
use crate::facts::AttemptFacts;
use crate::key::Key;
use crate::names;
use crate::nodes::Avoided;
use crate::objects::{self, Blueprint};
use crate::observe;
use crate::reading;
use crate::repair;
use crate::telemetry;
use jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::PartialObjectMeta;
use kube::runtime::controller::Action as Next;
use kube::{Api, Resource, ResourceExt};
use pawl_api::status::{AttemptStatus, Purpose, Stage};
use pawl_api::{TrainingJob, TrainingJobStatus, Unknown};
use pawl_contract::plan::AttemptPlan;
use pawl_decision::action::{Action, Decision, Event};
use pawl_decision::observed::{AttemptState, Observed};
use pawl_decision::protocol::{CarriedOut, Shell};
use serde_json::json;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;
use tracing::{Instrument, Span};

/// Maximum number of decisions per reconcile. Each is based on what the one before changed.
const ROUNDS: usize = 6;
/// Interval between reconciles while a gang terminates, also without events: its nodes may be dead.
const WHILE_TERMINATING: Duration = Duration::from_secs(5);
/// The same while a pod of it has not ended for long.
const WHILE_STUCK: Duration = Duration::from_secs(30);
/// The same while a gang starts: an object that it needs may have been deleted.
const WHILE_STARTING: Duration = Duration::from_secs(30);
/// Minimum interval between events about one thing that a gang waits for.
const PROBLEM_EVERY: Duration = Duration::from_secs(30);

/// Advances a job as far as possible now. Returns when to reconcile again.
///
/// # Errors
/// [`Error`]: the next reconcile decides again.
pub async fn reconcile(context: &Context, cached: &reading::Job) -> Result<Next, Error> {
    let key = Key::of(&cached.job);
    if cached.job.metadata.deletion_timestamp.is_some() {
        context.jobs.token_secrets_leave(&key);
        return Ok(Next::await_change());
    }
    if !context.leadership.may_act() {
        return Ok(Next::await_change());
    }
    if let Some(again) = context.namespaces.wait(&context.client, &key.namespace).await {
        return Ok(Next::requeue(again));
    }
    let before = reported(context, &key, &cached.job);
    let result = advance(context, cached, before.as_deref()).await;
    if result.as_ref().is_err_and(|error| error.reported_after().is_none()) {
        return result;
    }
    context.jobs.refused(&key, result.as_ref().err(), before.is_some());
    let refusal = context.jobs.refusal(&key);
    if refusal == before {
        return result;
    }
    if let Some(refusal) = &refusal {
        context.events.warn(&cached.job, "AttemptRefused", refusal.clone()).await;
    }
    // Its condition reports that the refusal has begun or ended; what was refused is tried again.
    advance(context, cached, refusal.as_deref()).await
}

/// The refusal that the status reports. One that was reported by an earlier process holds until this one knows better.
fn reported(context: &Context, key: &Key, job: &TrainingJob) -> Option<String> {
    let known = context.jobs.is_known(key);
    let status = context.jobs.belief(job).newest;
    let reported = pawl_decision::obstacle(&status)?;
    // What else is reported, a pod that does not end, is observed each time.
    context.jobs.refusal(key).or_else(|| (!known).then(|| reported.to_owned()))
}

/// [`reconcile`], where what is refused is known.
async fn advance(context: &Context, cached: &reading::Job, refusal: Option<&str>) -> Result<Next, Error> {
    let key = Key::of(&cached.job);
    let mut read = Cow::Borrowed(cached);
    let mut job = with_storage(context, read.job.clone());
    let mut belief = context.jobs.belief(&job);
    for round in 0..ROUNDS {
        let now = context.clock.now();
        // What it could not read is late at worst; it stops no decision.
        let looked = repair::look(context, &key, now).await;
        let observed = fetch(context, &key, &job, &belief.newest, now);
        let obstacle = if observed.obstacle.is_empty() { refusal.unwrap_or_default() } else { &observed.obstacle };
        let (obstacle, unknown_fields) = (obstacle.to_owned(), read.unknown.ignored());
        let observed = Observed { obstacle, unknown_fields, ..observed };
        let written = &read.job.spec;
        let decision = pawl_decision::decide_under(&context.policy, written, &job, &belief.newest, &observed, now);
        let span = span(&key, &job, &belief, &decision);
        let scene = Scene { key: &key, job: &job, unknown: &read.unknown, observed: &observed, now };
        let stepped = step(context, scene, &mut belief, decision).instrument(span).await;
        match stepped.and_then(|moved| looked.map(|()| moved)) {
            Ok(Moved::Yes) => {}
            Ok(Moved::No(requeue)) => {
                context.jobs.keep(&job, belief.clone());
                return rest(context, &key, &job, &belief, requeue, now).await;
            }
            // The newest version is read once; after that, the cache catches up soon.
            Err(Error::Stale) if round == 0 => {
                read = Cow::Owned(newest(context, &key).await?);
                job = with_storage(context, read.job.clone());
                context.jobs.distrust(&key);
                belief = Belief::read(&job);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Next::requeue(Duration::ZERO))
}

/// The span of a reconcile; none when nothing changes.
fn span(key: &Key, job: &TrainingJob, belief: &Belief, decision: &Decision) -> Span {
    if decision.actions.is_empty() && decision.events.is_empty() && decision.status == *belief.newest {
        return Span::none();
    }
    let attempt = decision.status.attempt.as_ref().map(|attempt| attempt.name.as_str());
    telemetry::span(key, job.metadata.uid.as_deref().unwrap_or_default(), attempt)
}

/// Whether a step changed what the next decision is made on.
enum Moved {
    Yes,
    No(Option<Duration>),
}

/// What a decision was made on.
#[derive(Clone, Copy)]
struct Scene<'a> {
    key: &'a Key,
    job: &'a TrainingJob,
    /// Fields of the job that this version does not know.
    unknown: &'a Unknown,
    observed: &'a Observed,
    now: Timestamp,
}

/// Carries out a decision, and repairs the running attempt.
async fn step(context: &Context, scene: Scene<'_>, belief: &mut Belief, decision: Decision) -> Result<Moved, Error> {
    let moved = decision.status != *belief.newest;
    let events = decision.events.clone();
    let mut shell = ClusterShell { context, scene, belief, events, written: false };
    let CarriedOut { acted, requeue_after } = decision.carry_out(&mut shell).await?;
    let later = repair::repair(context, scene.key, scene.job, &belief.newest, scene.now).await?;
    Ok(if moved || acted { Moved::Yes } else { Moved::No(requeue_after.into_iter().chain(later).min()) })
}

/// The side effects of one decision.
struct ClusterShell<'a> {
    context: &'a Context,
    scene: Scene<'a>,
    belief: &'a mut Belief,
    /// This decision's events.
    events: Vec<Event>,
    /// This decision's status was written.
    written: bool,
}

impl Shell for ClusterShell<'_> {
    type Error = Error;

    async fn write(&mut self, status: TrainingJobStatus, urgent: bool) -> Result<(), Error> {
        let Scene { job, unknown, observed, now, .. } = self.scene;
        let before = self.belief.newest.clone();
        self.written = self.belief.worth_writing(&status, urgent);
        if self.written {
            *self.belief = save(self.context, job, unknown, &self.belief.version, &status).await?;
        } else {
            self.belief.newest = Arc::new(status);
        }
        self.context.jobs.keep(job, self.belief.clone());
        // Before the actions: an attempt that starts keeps what is decided with its start.
        self.context.jobs.happened(job, &self.events);
        self.context.metrics.job(job, &before, &self.belief.newest, observed, now);
        Ok(())
    }

    async fn act(&mut self, action: Action) -> Result<bool, Error> {
        let (context, Scene { key, job, .. }) = (self.context, self.scene);
        match action {
            Action::Start { plan, plan_hash } => {
                if !self.written {
                    apply::still(context, job, &self.belief.version).await?;
                }
                let planned = |name: &str| self.belief.newest.under_way().any(|attempt| attempt.name == name);
                let avoided = self.avoided(&plan.attempt).await;
                let plan = AttemptPlan { events: objects::events(job, context.jobs.recent(job)), ..plan };
                let record = objects::record(job, &self.belief.newest, &plan);
                let all = context.blueprint(job, &plan, &plan_hash);
                let blueprint = Blueprint { avoided: &avoided, record: record.as_deref(), ..all };
                apply::start(context, key, &blueprint, planned).await
            }
            Action::Stop { attempt, checkpoint, cause } => apply::stop(context, key, &attempt, checkpoint, cause).await,
            Action::Release { attempt } => apply::release(context, key, &attempt).await.map(|()| false),
        }
    }

    async fn emit(&mut self, event: Event) -> Result<(), Error> {
        tracing::info!(reason = event.reason, "{}", event.message);
        self.context.events.publish(&self.scene.job.object_ref(&()), &event).await;
        Ok(())
    }
}

impl ClusterShell<'_> {
    /// The nodes that the pods of a new attempt avoid, which an event says.
    async fn avoided(&self, attempt: &str) -> Vec<String> {
        let all = self.context.nodes.avoided();
        let named: Vec<String> = all.iter().map(Avoided::to_string).collect();
        if !named.is_empty() {
            let message = format!("{attempt} prefers other nodes than {}", named.join("; "));
            self.context.events.warn(self.scene.job, "NodeAvoided", message).await;
        }
        all.into_iter().map(|avoided| avoided.node).collect()
    }
}

/// The observations for a decision. Registers the running gang for polling.
fn fetch(context: &Context, key: &Key, job: &TrainingJob, status: &TrainingJobStatus, now: Timestamp) -> Observed {
    let attempts = context.facts.of(key);
    attempts.iter().flat_map(|facts| context.nodes.seen(facts)).for_each(|node| context.metrics.refused_by(&node));
    let under_way: Vec<&AttemptStatus> = status.under_way().collect();
    let wanted = |name: &str| under_way.iter().any(|attempt| attempt.name == name);
    context.live.retain(key, |name| wanted(name) && attempts.iter().any(|facts| facts.name == name));
    attempts.iter().filter(|facts| wanted(&facts.name)).for_each(|facts| listen(context, key, facts, now));
    let live: Vec<_> = under_way.iter().filter_map(|attempt| context.live.latest(key, &attempt.name)).collect();
    // Attempts that run at the same time have the same purpose.
    let gpus = |attempt: &&AttemptStatus| pawl_decision::gang(&job.spec, attempt.purpose).gpus_per_replica;
    let resources = job.spec.trainer.pod_template.resources.as_ref();
    let memory = resources.and_then(|resources| resources.limits.as_ref()?.get("memory"));
    let observed = observe::observe(&observe::Scene {
        job_uid: job.metadata.uid.as_deref().unwrap_or_default(),
        gpus: under_way.first().map_or(0, gpus),
        memory: memory.map(|quantity| quantity.0.as_str()),
        under_way: &under_way,
        attempts: &attempts,
        live: &live,
        now,
    });
    let template = |trains| objects::template_hash(job, &context.pods, trains);
    let outdated = observe::outdated(&under_way, &attempts, |attempt| template(attempt.purpose == Purpose::Train));
    Observed { outdated, ..observed }
}

/// Polls agent 0 of a running gang from now on; its last answer is kept until the attempt is over.
fn listen(context: &Context, key: &Key, facts: &AttemptFacts, now: Timestamp) {
    if observe::state(facts, now) != Some(AttemptState::Running) {
        return;
    }
    let first = facts.own_pods().find(|pod| pod.index == 0);
    if let Some(address) = first.and_then(|pod| pod.address.parse().ok()) {
        context.live.watch(key, &facts.name, address);
    }
}

/// Nothing is left to do now. Returns when to reconcile again, and deletes a job whose TTL has expired.
async fn rest(
    context: &Context,
    key: &Key,
    job: &TrainingJob,
    belief: &Belief,
    requeue: Option<Duration>,
    now: Timestamp,
) -> Result<Next, Error> {
    let status = &belief.newest;
    let over = time_to_live(job, status, now);
    if over == Some(Duration::ZERO) {
        delete(context, job).await?;
        return Ok(Next::await_change());
    }
    let known = context.facts.of(key);
    let unsettled = known.iter().filter_map(|facts| match observe::state(facts, now) {
        // No watch reports the end of a pod that lost its label.
        _ if facts.alive().any(|pod| pod.hidden) => Some(WHILE_TERMINATING),
        // It is reported, and somebody has to act.
        Some(AttemptState::Leaving(_)) if observe::is_stuck(facts, now) => Some(WHILE_STUCK),
        Some(AttemptState::Leaving(_)) if !facts.released => Some(WHILE_TERMINATING),
        Some(AttemptState::Pending { .. }) if !facts.released => Some(WHILE_STARTING),
        _ => None,
    });
    let unsettled = unsettled.min();
    for facts in &known {
        report_problem(context, key, job, facts, now).await;
    }
    if status.attempt.is_none() {
        context.jobs.rest(job);
    }
    if matches!(status.stage, Stage::Complete | Stage::Failed) {
        context.jobs.forget_recent(key);
        context.jobs.token_secrets_leave(key);
    }
    let next = [requeue, over, unsettled, belief.due()].into_iter().flatten().min();
    Ok(next.map_or_else(Next::await_change, Next::requeue))
}

/// Publishes an event about what a gang waits for, unless it is merely starting.
async fn report_problem(context: &Context, key: &Key, job: &TrainingJob, facts: &AttemptFacts, now: Timestamp) {
    if let Some(AttemptState::Pending { message, .. }) = observe::state(facts, now)
        && let Some(hindrance) = observe::hindrance(facts)
        && context.jobs.may_try(key, &format!("problem {hindrance}"), PROBLEM_EVERY)
    {
        context.events.warn(job, "GangPending", format!("{}: {message}", facts.name)).await;
    }
}

/// Remaining TTL of a finished job; `None` without a TTL, or when it is not finished.
fn time_to_live(job: &TrainingJob, status: &TrainingJobStatus, now: Timestamp) -> Option<Duration> {
    let limit = job.spec.lifecycle.ttl_after_finished.as_ref()?.get();
    if !matches!(status.stage, Stage::Complete | Stage::Failed) || status.attempt.is_some() {
        return None;
    }
    let done: Timestamp = status.completion_time.as_deref()?.parse().ok()?;
    let lived = Duration::try_from(now.duration_since(done)).unwrap_or_default();
    Some(limit.saturating_sub(lived))
}

async fn delete(context: &Context, job: &TrainingJob) -> Result<(), Error> {
    let name = job.name_any();
    let jobs: Api<TrainingJob> = Api::namespaced(context.client.clone(), &job.namespace().unwrap_or_default());
    let preconditions = Preconditions { uid: job.uid(), resource_version: None };
    let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
    tracing::info!(job = name, "lifecycle.ttlAfterFinished is over: deleted");
    match jobs.delete(&name, &parameters).await {
        Ok(_) => Ok(()),
        Err(error) if matches!(code(&error), Some(404 | 409)) => Ok(()),
        Err(error) => Err(error).doing(|| format!("delete TrainingJob {name}")),
    }
}

/// Writes the status, if the job still is the version that it was decided on. Its fields that are `unknown` are written
/// again: otherwise the API server would remove them.
async fn save(
    context: &Context,
    job: &TrainingJob,
    unknown: &Unknown,
    version: &str,
    status: &TrainingJobStatus,
) -> Result<Belief, Error> {
    let name = job.name_any();
    let mut value =
        serde_json::to_value(status).map_err(|error| Error::Local { what: "the status", why: error.to_string() })?;
    // As the API server will give it back: times without fractions, for one.
    let status = serde_json::from_value(value.clone())
        .map_err(|error| Error::Local { what: "the status", why: error.to_string() })?;
    unknown.restore(&mut value);
    let patch = Patch::Apply(json!({
        "apiVersion": TrainingJob::api_version(&()),
        "kind": TrainingJob::kind(&()),
        "metadata": {"name": name, "uid": job.metadata.uid, "resourceVersion": version},
        "status": value,
    }));
    let jobs: Api<PartialObjectMeta<TrainingJob>> =
        Api::namespaced(context.client.clone(), &job.namespace().unwrap_or_default());
    let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
    match jobs.patch_status(&name, &parameters, &patch).await {
        Ok(there) => Ok(Belief::written(there.metadata.resource_version.unwrap_or_default(), status)),
        Err(error) if matches!(code(&error), Some(404 | 409)) => Err(Error::Stale),
        Err(error) => Err(error).doing(|| format!("write the status of TrainingJob {name}")),
    }
}

/// The job as it is now.
async fn newest(context: &Context, key: &Key) -> Result<reading::Job, Error> {
    // One that cannot be read is reported when the watch has it.
    let there = reading::read(context, key).await?.and_then(|there| there.0.ok());
    there.filter(|read| read.job.metadata.deletion_timestamp.is_none()).ok_or(Error::Stale)
}

/// The job with the default storage, if it names none. All decisions and objects are made from this.
fn with_storage(context: &Context, mut job: TrainingJob) -> TrainingJob {
    pawl_decision::storage::fill(&mut job, &context.storage.default);
    job
}
