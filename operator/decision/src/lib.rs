//! The decision core. [`decide`] is a pure function of (spec, status, observations, now): this crate's manifest has
//! nothing to do I/O with.
//!
//! Both shells, Kubernetes and local, call it in the same loop: observe, decide, and carry out the decision by one
//! [`protocol`]: write the status that says what will be done, then act, then emit the events.
//!
//! The status holds evidence (launches and how they ended) and states. Verdicts are worked out from the evidence each
//! time, so that a decision made twice is the same decision, and a crash between any two writes loses nothing.
//!
//! - [`action`], [`observed`]: what goes out and what comes in; [`protocol`]: the order in which it is carried out;
//! - `settle`: the parts of a job in order (preflight, phases, enablers, leave-one-out, bundle, training);
//! - `gates/`: one file for each gate, and the chains that apply them;
//! - `attempt`: what is alive, started and stopped;
//! - `fold`: how results become evidence.

#![forbid(unsafe_code)]
#![deny(clippy::wildcard_enum_match_arm, clippy::disallowed_methods)]

pub mod action;
pub mod observed;
pub mod protocol;
pub mod storage;

mod aggregate;
mod attempt;
mod bundle;
mod comparison;
mod conditions;
mod cost;
mod draft;
mod enabler;
mod fingerprint;
mod fold;
mod gates;
mod goal;
mod guard;
mod ladder;
mod launch;
mod leave_one_out;
mod lifecycle;
mod phase;
mod pin;
mod plan;
mod preflight;
mod problems;
mod reason;
mod refuse;
mod requeue;
mod retry;
mod revert;
mod revision;
mod settle;
mod step;
mod summary;
mod train;
mod trial;

pub use launch::gang;
pub use plan::plan;

use action::Decision;
use draft::Draft;
use jiff::Timestamp;
use observed::Observed;
use pawl_api::{TrainingJob, TrainingJobStatus};
use settle::settle;
use step::Next;

/// Rounds of taking in and settling; each takes in something new, and there are few things to take in.
const ROUNDS: usize = 8;

/// Decides what to do about a job.
///
/// `status` must be the newest one written; `observed` may be late, incomplete or repeated, but an attempt that was
/// seen to end has ended. The shell calls [`Decision::carry_out`], and decides again when anything was written or
/// observed, or after [`Decision::requeue_after`].
///
/// Total and deterministic: it never panics, and the same arguments give the same decision. Deciding again on its own
/// status, with nothing new observed, changes nothing.
pub fn decide(job: &TrainingJob, status: &TrainingJobStatus, observed: &Observed, now: Timestamp) -> Decision {
    let mut draft = Draft::new(job, status, now);
    draft.status.start_time.get_or_insert_with(|| now.to_string());
    draft.status.observed_generation = job.metadata.generation;
    summary::align(&mut draft);
    let next = take_in(&mut draft, observed);
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
    decision
}

/// Takes in what was observed until nothing of it is new, and says what should run.
fn take_in(draft: &mut Draft<'_>, observed: &Observed) -> Next {
    for _ in 0..ROUNDS {
        let next = settle(draft);
        if attempt::adopt(draft, observed, &next) {
            continue;
        }
        if let Some(facts) = attempt::current(draft, observed) {
            let work = match &next {
                Next::Run(work) => Some(work),
                Next::Drain | Next::Idle(_) => None,
            };
            if fold::results(draft, facts, work) || guard::watch(draft, facts) {
                continue;
            }
        }
        if !attempt::watch(draft, observed, &next) {
            return next;
        }
    }
    settle(draft)
}
