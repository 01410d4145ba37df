//! The decision core. [`decide`] is a pure function of (spec, status, observations, now): this crate has no dependency
//! that does I/O.
//!
//! Both shells, Kubernetes and local, call it in the same loop: observe, decide, and carry out the decision by one
//! [`protocol`]: write the status with the intended actions, then act, then emit the events.
//!
//! The status contains states and evidence (launches and their outcomes). Verdicts are computed from the evidence each
//! time, so that repeated decisions are equal, and a crash between any two writes loses nothing.
//!
//! - [`observed`]: the observations; [`action`]: the decision; [`protocol`]: the order in which a decision is carried
//!   out; [`record`]: what outlives the object of a job;
//! - `settle`: the parts of a job in order (preflight, phases, enablers, bundle, search, training);
//! - `gates/`: one file for each gate, and the chains that apply them;
//! - `attempt`: starts and stops attempts, and evaluates how they ended;
//! - `fold`: turns results into evidence.
//!
//! # Example
//! A shell without I/O, in which every launch succeeds and `compile: Graph` is 1.5 times as fast: the chain of gates
//! accepts the phase.
//!
//! ```
//! use pawl_api::status::{PhaseState, TrainingJobStatus};
//! use pawl_contract::{exit::Outcome, plan::LaunchPlan, report::LaunchResult};
//! use pawl_decision::{action::Action, decide, observed::{AttemptFacts, AttemptState, Ending, Observed}};
//!
//! let job: pawl_api::TrainingJob = serde_json::from_value(serde_json::json!({
//!     "metadata": {"name": "toy"},
//!     "spec": {
//!         "workload": {"name": "ups"},
//!         "phases": [{"name": "compile", "settings": {"compile": "Graph"}}],
//!         "analysis": {"minPairs": 1, "maxPairs": 1},
//!     },
//! }))?;
//! let run = |launch: &LaunchPlan| {
//!     let mut result = LaunchResult::bare(&launch.launch, Outcome::Done);
//!     result.measured.items_per_second = Some(if launch.settings.compile.is_some() { 150.0 } else { 100.0 });
//!     result
//! };
//! let (mut status, mut observed) = (TrainingJobStatus::default(), Observed::default());
//! for _ in 0..5 {
//!     let decision = decide(&job, &status, &observed, jiff::Timestamp::UNIX_EPOCH);
//!     status = decision.status;
//!     for action in decision.actions {
//!         if let Action::Start { plan, plan_hash } = action {
//!             let results = plan.launches.iter().map(run).collect();
//!             let (state, placement) = (AttemptState::Ended(Ending::Completed), "node-a/gpu:0".to_owned());
//!             let (trainer, progress) = ("sha256:0123abcd".to_owned(), None);
//!             let facts = AttemptFacts { name: plan.attempt, plan_hash, state, placement, trainer, results, progress };
//!             observed.attempts = vec![facts];
//!         }
//!     }
//! }
//! assert_eq!(status.phases[0].state, PhaseState::Accepted);
//! assert_eq!(status.speedup.unwrap().as_str(), "1.5");
//! # Ok::<(), serde_json::Error>(())
//! ```

#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]
#![deny(clippy::wildcard_enum_match_arm, clippy::disallowed_methods)]

pub mod action;
pub mod observed;
pub mod protocol;
pub mod record;
pub mod storage;

mod aggregate;
mod attempt;
mod budget;
mod bundle;
mod chain;
mod comparison;
mod conditions;
mod cost;
mod counted;
mod draft;
mod enabler;
mod fallback;
mod fingerprint;
mod fold;
mod gates;
mod given_up;
mod goal;
mod grace;
mod guard;
mod judging;
mod launch;
mod lifecycle;
mod phase;
mod pin;
mod plan;
mod preflight;
mod preview;
mod problems;
mod reason;
mod refuse;
mod replay;
mod requeue;
mod retry;
mod revert;
mod revision;
mod search;
mod settle;
#[cfg(test)]
mod simulation;
mod slowdown;
mod statistics;
mod step;
mod summary;
mod task;
mod train;
mod trained;
mod trainer;
mod under_way;

pub use conditions::{obstacle, obstructed, unreadable};
pub use cost::{Payback, payback};
pub use counted::{CountedPair, counted};
pub use fingerprint::fingerprint;
pub use gates::equivalence::loss_difference;
pub use gates::quality::{DEFAULT_RELATIVE_MARGIN, confidence as quality_confidence};
pub use gates::speed::{Outward, confirmation, outward};
pub use grace::stop_grace;
pub use judging::{Amount, Judging, Loss, Part, judging};
pub use launch::gang;
pub use plan::plan;
pub use preview::{checks, preview};
pub use refuse::retry;
pub use replay::{Replay, replay};
pub use revision::patch;
pub use search::{Repetitions, Searching, StageAmount, searching};
pub use statistics::disturbed::NotCounted;

use action::{Action, Decision};
use draft::Draft;
use jiff::Timestamp;
use observed::Observed;
use pawl_api::{Policy, Problem, TrainingJob, TrainingJobSpec, TrainingJobStatus};
use settle::settle;
use step::Next;

/// Maximum number of rounds of processing the observations of an attempt: each processes a new one, and there are few.
const ROUNDS: usize = 8;

/// Computes the next status of a job, the actions to take and the events to emit.
///
/// `status` must be the newest one written; `observed` may be late, incomplete or repeated, but an attempt reported as
/// ended must have ended. The shell calls [`Decision::carry_out`], and decides again after it wrote or observed a
/// change, or after [`Decision::requeue_after`].
///
/// Total, deterministic and idempotent: it never panics, equal arguments give equal decisions, and a decision on its
/// own status without new observations changes nothing.
///
/// ```
/// use pawl_decision::{action::Action, decide, observed::Observed};
///
/// let job: pawl_api::TrainingJob = serde_json::from_value(serde_json::json!({
///     "metadata": {"name": "toy"},
///     "spec": {"workload": {"name": "ups"}, "phases": [{"name": "compile", "settings": {"compile": "Graph"}}]},
/// }))?;
/// let decision = decide(&job, &Default::default(), &Observed::default(), jiff::Timestamp::UNIX_EPOCH);
/// // The first attempt checks the baseline and the phase. The status names it before it is started.
/// let [Action::Start { plan, .. }] = &decision.actions[..] else { panic!() };
/// assert_eq!((plan.attempt.as_str(), plan.launches.len()), ("toy-1", 2));
/// assert_eq!(decision.status.attempt.unwrap().name, "toy-1");
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn decide(job: &TrainingJob, status: &TrainingJobStatus, observed: &Observed, now: Timestamp) -> Decision {
    decided(job, (&job.spec, Vec::new()), status, observed, now)
}

/// [`decide`] for a shell that creates pods: a job whose pod template contains a reference that `policy` does not allow
/// fails, and its running attempt is stopped. `written` is the spec before [`storage::fill`]: a job that failed is
/// retried when its user changes that, not when what is filled in changes.
pub fn decide_under(
    policy: &Policy,
    written: &TrainingJobSpec,
    job: &TrainingJob,
    status: &TrainingJobStatus,
    observed: &Observed,
    now: Timestamp,
) -> Decision {
    decided(job, (written, policy.problems(job)), status, observed, now)
}

fn decided(
    job: &TrainingJob,
    (written, refused): (&TrainingJobSpec, Vec<Problem>),
    status: &TrainingJobStatus,
    observed: &Observed,
    now: Timestamp,
) -> Decision {
    let Observed { attempts, outdated, obstacle, unknown_fields, build } = observed;
    let new = Draft::new(job, refused, status, now);
    let mut draft = Draft { written, attempts, outdated, obstacle, unknown_fields, build, ..new };
    draft.status.start_time.get_or_insert_with(|| now.to_string());
    draft.status.observed_generation = job.metadata.generation;
    summary::align(&mut draft);
    let next = process(&mut draft, observed);
    let next = lifecycle::limited(&mut draft, next);
    let actions = attempt::schedule(&mut draft, observed, &next);
    summary::set(&mut draft, &next);
    lifecycle::keep_time(&mut draft);
    conditions::set(&mut draft);
    let requeue_after = requeue::after(&draft, observed, &next);
    let Draft { status: after, events, .. } = draft;
    let mut decision = Decision { status: after, actions, events, requeue_after };
    let name = job.metadata.name.as_deref().unwrap_or("job");
    attempt::release(&mut decision, status, name, observed);
    // After one that fails none is taken: what is not wanted any more must not wait for what cannot be created.
    decision.actions.sort_by_key(|action| match action {
        Action::Release { .. } => 0,
        Action::Stop { .. } => 1,
        Action::Start { .. } => 2,
    });
    decision
}

/// Processes the observations until none is new, and returns what should run.
fn process(draft: &mut Draft<'_>, observed: &Observed) -> Next {
    for _ in 0..ROUNDS * observed.attempts.len().max(1) {
        let next = settle(draft);
        if attempt::adopt(draft, observed, &next) {
            continue;
        }
        if !draft.under_way_names().iter().any(|name| observe(draft, observed, &next, name)) {
            return next;
        }
    }
    settle(draft)
}

/// Whether the progress of an attempt may be believed.
fn is_plausible(facts: &observed::AttemptFacts) -> bool {
    facts.progress.as_ref().is_none_or(|progress| pawl_contract::plausible::progress(progress).is_none())
}

/// Processes the observations of the attempt `name`. `true` when one was new that may change what should run.
fn observe(draft: &mut Draft<'_>, observed: &Observed, next: &Next, name: &str) -> bool {
    if let Some(facts) = attempt::facts_of(observed, name) {
        if trainer::watch(draft, facts) {
            return true;
        }
        let work = draft.attempt(name).and_then(|attempt| next.work_of(&attempt.task));
        let moved = !attempt::others_follow(facts, draft.now) && fold::results(draft, facts, work)
            || !trained::is_stale(draft, &facts.name) && is_plausible(facts) && guard::watch(draft, facts);
        trained::extend(draft, facts);
        if moved {
            return true;
        }
    }
    attempt::watch(draft, observed, next, name)
}
