//! Attempts: adopts, observes, stops and starts them. At most one attempt is alive, except in a search that runs
//! several trials at the same time: see `under_way`.
//!
//! The number of the attempt is incremented only after the previous one was observed to have ended. Until then every
//! start uses the same name, and names are unique: however late or incomplete the observations are, two attempts cannot
//! be alive at the same time.

use crate::action::{Action, Decision};
use crate::draft::Draft;
use crate::fingerprint::fingerprint;
use crate::fold::evidence;
use crate::launch::{MAX_ATTEMPT_LAUNCHES, Work};
use crate::lifecycle::leave_queue;
use crate::observed::{AttemptFacts, AttemptState, Ending, Leaving, Observed, WaitsFor};
use crate::reason::Reason;
use crate::retry::{MissingEvidence, after, time};
use crate::step::Next;
use crate::storage::{outlives_pods, settle};
use crate::task::Task;
use crate::under_way::is_mistaken;
use jiff::Timestamp;
use pawl_api::status::{AttemptStatus, Purpose, RetryStatus, Stage, StopCause};
use pawl_contract::attempt::AttemptName;
use pawl_contract::exit::Outcome;

/// An attempt that waits longer than this in its queue is reported as queued, seconds.
const QUEUED: u64 = 2;
/// Seconds in which ranks usually start. An attempt whose pods are not created, for an unknown reason, is reported as
/// queued after this time: the Job controller creates those of many batch Jobs one after another, and a report that is
/// taken back costs two writes.
const STARTING: u64 = 60;
/// Seconds in which the ranks of an attempt end after one another.
const ENDING: u64 = 30;

impl Draft<'_> {
    fn attempt_name(&self, number: u32) -> String {
        AttemptName { job: self.name(), number }.to_string()
    }
}

/// The observations of an attempt. Of several, the one that reports the end is used, because it is final.
pub(crate) fn facts_of<'a>(observed: &'a Observed, name: &str) -> Option<&'a AttemptFacts> {
    let ended = |facts: &&AttemptFacts| matches!(facts.state, AttemptState::Ended(_));
    let mut all = observed.attempts.iter().filter(|facts| facts.name == name);
    all.clone().find(ended).or_else(|| all.next())
}

fn attempt_status(work: &Work, name: String, plan_hash: String, started: String) -> AttemptStatus {
    AttemptStatus {
        name,
        purpose: work.purpose,
        phase: work.phase.clone(),
        plan_hash,
        started,
        seen: false,
        queued_since: None,
        task: work.task.clone(),
        launches: work.launches.iter().map(|launch| launch.plan.launch.clone()).collect(),
        folded: Vec::new(),
        resumes: None,
        discards_after_items: None,
        stop: None,
    }
}

/// The limit with which a training is started.
fn discards(draft: &Draft<'_>, work: &Work) -> Option<u64> {
    let training = draft.status.training.as_ref().filter(|_| work.purpose == Purpose::Train)?;
    training.resume_not_after_items
}

/// Adopts an attempt that exists although the status does not name it: the status must have been restored from an older
/// copy, because it is written before an attempt is started. The attempt is stopped unless its plan is the desired one.
pub(crate) fn adopt(draft: &mut Draft<'_>, observed: &Observed, next: &Next) -> bool {
    if draft.under_way().next().is_some() && next.most() < 2 {
        return false;
    }
    let Some(mut number) = draft.status.attempts.checked_add(1) else { return false };
    if next.most() > 1 {
        // Of several, those between may be gone already.
        let known = observed.attempts.iter().map(|facts| AttemptName::number_of(&facts.name));
        number = known.filter(|known| *known >= number).min().unwrap_or(number);
    }
    let name = draft.attempt_name(number);
    let Some(facts) = facts_of(observed, &name) else { return false };
    let started = draft.now.to_string();
    let has_none = |work: &&Work| draft.under_way().all(|attempt| attempt.task != work.task);
    let planned = |work: &&Work| fingerprint(&draft.attempt_plan(&name, work), 16) == facts.plan_hash;
    let wanted = next.works().iter().filter(has_none).find(planned).map(|work| AttemptStatus {
        resumes: draft.newest_checkpoint(),
        discards_after_items: discards(draft, work),
        ..attempt_status(work, name.clone(), facts.plan_hash.clone(), started.clone())
    });
    let unknown = || AttemptStatus {
        name,
        plan_hash: facts.plan_hash.clone(),
        started,
        stop: Some(StopCause::NotWanted),
        ..AttemptStatus::default()
    };
    let adopted = AttemptStatus { seen: true, ..wanted.unwrap_or_else(unknown) };
    draft.status.attempts = number;
    draft.set_attempt(adopted);
    true
}

/// Updates the status from the observed state of the attempt `name`. `true` when the attempt has ended or was lost.
pub(crate) fn watch(draft: &mut Draft<'_>, observed: &Observed, next: &Next, name: &str) -> bool {
    let Some(facts) = facts_of(observed, name) else { return vanished(draft, name) };
    if !facts.state.waits_in_turn() {
        leave_queue(draft, name);
    }
    let timeout = draft.spec.lifecycle.scheduling_timeout.get().as_secs();
    let now = draft.now;
    let Some(attempt) = draft.attempt_mut(name) else { return false };
    attempt.seen = true;
    match &facts.state {
        state if state.waits_in_turn() => {
            if queued_until(attempt, state).is_some_and(|until| until <= now) {
                attempt.queued_since.get_or_insert_with(|| attempt.started.clone());
            }
            false
        }
        AttemptState::Pending { since, waits_for, .. } => {
            if after(pending_since(attempt, *since), timeout) <= now {
                let partly = *waits_for == WaitsFor::MoreDevices;
                let cause = if partly { StopCause::Unschedulable } else { StopCause::SchedulingTimeout };
                attempt.stop.get_or_insert(cause);
            }
            false
        }
        AttemptState::Leaving(Leaving::Preempted) => {
            // Stopping the remaining pods of a broken gang is not enough: Kueue would run the whole gang again.
            if matches!(attempt.stop, None | Some(StopCause::GangBroken)) {
                attempt.stop = Some(StopCause::Preempted);
            }
            false
        }
        AttemptState::Leaving(Leaving::Broken) => {
            attempt.stop.get_or_insert(StopCause::GangBroken);
            false
        }
        AttemptState::Queued
        | AttemptState::Running
        | AttemptState::Leaving(Leaving::Ending { .. } | Leaving::Draining) => false,
        AttemptState::Ended(ending) => {
            if *ending == Ending::Preempted && matches!(attempt.stop, None | Some(StopCause::Preempted)) {
                let message = format!("{name}: preempted by Kueue; requeued");
                draft.normal(Reason::Preempted, message, None);
            }
            if let Some(failure) = failure(draft, facts, ending, next) {
                count(draft, name, &failure);
            }
            not_queued_before_now(draft, name);
            draft.end_attempt(name);
            true
        }
    }
}

/// While an attempt ran, the others did not hold the job up: that they are queued counts from its end on.
fn not_queued_before_now(draft: &mut Draft<'_>, name: &str) {
    if draft.attempt(name).is_some_and(|attempt| attempt.queued_since.is_none()) {
        let now = draft.now.to_string();
        let queued = draft.status.under_way_mut().filter_map(|other| other.queued_since.as_mut());
        queued.for_each(|since| since.clone_from(&now));
    }
}

/// Start of the time in which all ranks of an attempt must start: its time in a queue does not count.
pub(crate) fn pending_since(attempt: &AttemptStatus, created: Timestamp) -> Timestamp {
    time(&attempt.started).map_or(created, |started| started.max(created))
}

/// Time from which it is reported that the ranks of an attempt do not start, although nothing is known to keep them
/// from it.
pub(crate) fn starting_until(attempt: &AttemptStatus, created: Timestamp) -> Timestamp {
    after(pending_since(attempt, created), STARTING)
}

/// Time from which an attempt in this state is reported as queued: a queue with free quota, or a cluster with free
/// devices, admits it immediately.
pub(crate) fn queued_until(attempt: &AttemptStatus, state: &AttemptState) -> Option<Timestamp> {
    let uncreated = matches!(state, AttemptState::Pending { waits_for: WaitsFor::Pods, .. });
    time(&attempt.started).map(|started| after(started, if uncreated { STARTING } else { QUEUED }))
}

/// Time until which the other ranks of an attempt may follow those that ended at `since`.
pub(crate) fn ending_until(since: Timestamp) -> Timestamp {
    after(since, ENDING)
}

/// The attempt was observed and no longer exists: it was lost, and is created again under its name. An attempt that was
/// deleted because Kueue preempted it does not count as a failure.
fn vanished(draft: &mut Draft<'_>, name: &str) -> bool {
    if draft.attempt(name).is_none_or(|attempt| !attempt.seen) {
        return false;
    }
    leave_queue(draft, name);
    let Some(attempt) = draft.attempt_mut(name) else { return false };
    attempt.seen = false;
    let stopped = attempt.stop.take();
    let message = format!("attempt {name} no longer exists");
    match stopped {
        Some(StopCause::NotWanted) => {}
        Some(StopCause::Preempted) => draft.normal(Reason::Preempted, message, None),
        Some(StopCause::SchedulingTimeout) => count(draft, name, &MissingEvidence::because(message)),
        Some(StopCause::Unschedulable | StopCause::GangBroken) | None => {
            count(draft, name, &MissingEvidence::disrupted(message));
        }
    }
    crate::fold::part(draft, name);
    expect_what_it_wrote(draft, name);
    true
}

/// The training that is created again under its name must find the checkpoints that the status learnt of while it ran.
fn expect_what_it_wrote(draft: &mut Draft<'_>, name: &str) {
    let newest = draft.newest_checkpoint();
    if let Some(attempt) = draft.attempt_mut(name).filter(|attempt| attempt.purpose == Purpose::Train) {
        attempt.resumes = newest;
    }
}

fn count(draft: &mut Draft<'_>, name: &str, missing: &MissingEvidence) {
    let Some(attempt) = draft.attempt(name) else { return };
    let (task, purpose) = (attempt.task.clone(), attempt.purpose);
    if purpose == Purpose::Train && has_progressed(draft, attempt) {
        draft.status.retry = None;
    }
    draft.count_failure(&task, missing);
    if let (Purpose::Train, Some(training)) = (purpose, draft.status.training.as_mut()) {
        training.restarts = training.restarts.saturating_add(1);
    }
}

/// Whether the attempt wrote a checkpoint that is further than the one from which it started, and outlives it.
fn has_progressed(draft: &Draft<'_>, attempt: &AttemptStatus) -> bool {
    let start = attempt.resumes.as_ref().map_or(0, |checkpoint| checkpoint.items);
    outlives_pods(draft.job) && draft.newest_checkpoint().is_some_and(|newest| newest.items > start)
}

/// The infrastructure failure of an attempt that ended before all desired launches had results.
fn failure(draft: &Draft<'_>, facts: &AttemptFacts, ending: &Ending, next: &Next) -> Option<MissingEvidence> {
    let attempt = draft.attempt(&facts.name)?;
    let missing = |message: String| Some(MissingEvidence::because(message));
    match attempt.stop {
        Some(cause @ (StopCause::SchedulingTimeout | StopCause::Unschedulable)) => {
            let limit = draft.spec.lifecycle.scheduling_timeout.as_str();
            let why = match ending {
                Ending::Lost(message) | Ending::Disrupted(message) | Ending::Refused(message) => format!(": {message}"),
                Ending::Completed | Ending::Stopped | Ending::Preempted => String::new(),
            };
            let message = format!("not all ranks were running within lifecycle.schedulingTimeout {limit}{why}");
            let disrupted = cause == StopCause::Unschedulable;
            return Some(MissingEvidence { disrupted, ..MissingEvidence::because(message) });
        }
        Some(StopCause::NotWanted) => return None,
        Some(StopCause::Preempted | StopCause::GangBroken) | None => {}
    }
    let work = next.work_of(&attempt.task)?;
    let mut open = work.launches.iter().filter(|launch| attempt.launches.contains(&launch.plan.launch)).peekable();
    let first = open.peek()?.plan.launch.clone();
    let result = |name: &str| facts.results.iter().find(|result| result.launch == name);
    let failed = open.find_map(|launch| {
        let result = result(&launch.plan.launch)?;
        Some((result.outcome, evidence(draft, launch, result).err()?))
    });
    match (ending, failed) {
        (Ending::Stopped | Ending::Preempted, _) => None,
        (Ending::Completed, Some((_, failed))) => Some(failed),
        // The launch was stopped, or lost its peer, because of what befell a pod.
        (Ending::Lost(cause), Some((Outcome::Stopped | Outcome::LostPeer, failed))) => {
            let message = format!("attempt {} was lost: {cause}; {}", attempt.name, failed.message);
            Some(MissingEvidence { message, ranks_lost: true, ..failed })
        }
        (Ending::Lost(_), Some((_, failed))) => Some(MissingEvidence { ranks_lost: true, ..failed }),
        (Ending::Disrupted(message), _) => {
            Some(MissingEvidence::disrupted(format!("attempt {} was disrupted: {message}", attempt.name)))
        }
        (Ending::Refused(message), _) => {
            let message = format!("attempt {} was disrupted: {message}", attempt.name);
            Some(MissingEvidence { ranks_lost: false, ..MissingEvidence::disrupted(message) })
        }
        (Ending::Lost(message), None) => {
            let message = format!("attempt {} was lost: {message}", attempt.name);
            Some(MissingEvidence { ranks_lost: true, ..MissingEvidence::because(message) })
        }
        (Ending::Completed, None) => missing(format!("attempt {} ended without a report of {first}", attempt.name)),
    }
}

/// The actions that lead to the desired state: starts and stops attempts, or none while waiting.
pub(crate) fn schedule(draft: &mut Draft<'_>, observed: &Observed, next: &Next) -> Vec<Action> {
    let mut actions = Vec::new();
    let known = |facts: &&AttemptFacts| draft.under_way().any(|attempt| attempt.name == facts.name);
    let alive = observed.attempts.iter().filter(|facts| !matches!(facts.state, AttemptState::Ended(_)));
    let others = alive.filter(|facts| !known(facts));
    actions.extend(others.map(|facts| stop(&facts.name, Purpose::default(), StopCause::NotWanted)));
    let blocked = !actions.is_empty() || is_mistaken(draft, observed);
    let (taken, left) = assign(draft, next);
    for (name, work) in draft.under_way_names().iter().zip(taken) {
        actions.extend(match work {
            Some(work) if draft.attempt(name).is_some_and(|attempt| !attempt.seen) => {
                // Nothing runs beside trials of a search but such trials.
                let alone = draft.under_way().all(|other| other.name == *name || other.purpose == work.purpose);
                let may = !blocked && alone && draft.backoff(&work.task).is_none();
                may.then(|| start(draft, work, Some(name))).flatten()
            }
            work => keep_or_stop(draft, observed, name, work),
        });
    }
    let beside = |purpose| draft.under_way().all(|attempt| attempt.purpose == purpose);
    let settled = draft.under_way().all(|attempt| attempt.seen) && next.works().iter().all(|work| beside(work.purpose));
    if !blocked && settled && draft.under_way().count() < next.most() {
        let ready = left.into_iter().find(|work| draft.backoff(&work.task).is_none());
        actions.extend(ready.and_then(|work| start(draft, work, None)));
    }
    forget_failures(draft, next);
    actions
}

/// Drops the failures of tasks that have their verdict. Those of the training last until it is complete: launches in
/// between look for the cause of a slow-down.
fn forget_failures(draft: &mut Draft<'_>, next: &Next) {
    let is_open = |retry: &RetryStatus| next.works().iter().any(|work| work.task == retry.task);
    let train = Task::Train.to_string();
    let complete = matches!(next, Next::Idle(Stage::Complete));
    if complete || !next.works().is_empty() {
        draft.status.retries.retain(is_open);
        draft.status.retry.take_if(|retry| !is_open(retry) && (complete || retry.task != train));
    }
}

/// The work of each attempt, in order, and the works that have none. One that was never observed may be given another
/// work than it had: its name is used first, and for works that may start.
fn assign<'a>(draft: &Draft<'_>, next: &'a Next) -> (Vec<Option<&'a Work>>, Vec<&'a Work>) {
    let mut left: Vec<&Work> = next.works().iter().collect();
    let own = |attempt: &AttemptStatus, left: &mut Vec<&'a Work>| {
        left.iter().position(|work| work.task == attempt.task).map(|index| left.remove(index))
    };
    let mut taken: Vec<Option<&Work>> = draft.under_way().map(|attempt| own(attempt, &mut left)).collect();
    left.sort_by_key(|work| draft.backoff(&work.task).is_some());
    for (attempt, taken) in draft.under_way().zip(&mut taken).filter(|(_, taken)| taken.is_none()) {
        // One that runs is kept if it runs the first.
        *taken = if attempt.seen { next.works().first() } else { (!left.is_empty()).then(|| left.remove(0)) };
    }
    (taken, left)
}

/// Stops the attempt unless it runs the desired launches: all of them, or the first of them if it is full.
fn keep_or_stop(draft: &mut Draft<'_>, observed: &Observed, name: &str, work: Option<&Work>) -> Option<Action> {
    let facts = facts_of(observed, name);
    let again = facts.and_then(|facts| again(draft, facts));
    let follow = facts.is_some_and(|facts| others_follow(facts, draft.now));
    let attempt = draft.attempt_mut(name)?;
    let outstanding = |name: &String| attempt.launches.contains(name) && !attempt.folded.contains(name);
    // What did not fit into a full attempt is run by the next one.
    let full = attempt.launches.len() >= MAX_ATTEMPT_LAUNCHES;
    let runs = |work: &Work, good: &dyn Fn(&String) -> bool| {
        let first = work.launches.iter().take_while(|launch| good(&launch.plan.launch)).count();
        first == work.launches.len() || full && first > 0
    };
    let covers = work.is_some_and(|work| runs(work, &outstanding));
    // After a failed launch the attempt ends by itself: stopping it would hide how it ended.
    let ending =
        work.is_some_and(|work| work.task == attempt.task && runs(work, &|name| attempt.launches.contains(name)));
    // One whose launches have all ended has nothing left to stop.
    let over = follow && attempt.launches.iter().all(|launch| attempt.folded.contains(launch));
    let as_planned = facts.is_none_or(|facts| facts.plan_hash == attempt.plan_hash);
    if attempt.stop.is_none() && as_planned && (covers || ending || over) && again.is_none() {
        return None;
    }
    let first = attempt.stop.is_none();
    let cause = attempt.stop.unwrap_or(StopCause::NotWanted);
    if attempt.seen {
        attempt.stop = Some(cause);
    }
    let purpose = attempt.purpose;
    if let Some((reason, why)) = again.filter(|_| first) {
        draft.normal(reason, format!("{name}: {why}"), None);
    }
    Some(stop(name, purpose, cause))
}

/// Whether some of its ranks have ended by themselves, and the others may be about to. Its last results are evaluated
/// with its end then, as those of an attempt whose ranks end at once.
pub(crate) fn others_follow(facts: &AttemptFacts, now: Timestamp) -> bool {
    matches!(facts.state, AttemptState::Leaving(Leaving::Ending { since }) if now < ending_until(since))
}

/// Why an attempt is replaced by one that does the same: one that waits could wait for ever for what was corrected
/// meanwhile.
fn again(draft: &Draft<'_>, facts: &AttemptFacts) -> Option<(Reason, &'static str)> {
    if is_restarted(draft, &facts.name) {
        return Some((Reason::Restarted, "restarted by a user"));
    }
    let waits = matches!(facts.state, AttemptState::Queued | AttemptState::Pending { .. });
    let outdated = waits && draft.outdated.contains(&facts.name);
    outdated.then_some((Reason::TemplateChanged, "it waited with an earlier pod template: replaced"))
}

/// Whether the user wants this attempt to be replaced. The annotation stays, and an attempt that is lost is created
/// again under its name: the time of its start tells them apart.
fn is_restarted(draft: &Draft<'_>, name: &str) -> bool {
    let annotations = draft.job.metadata.annotations.as_ref();
    let named = annotations.and_then(|annotations| annotations.get(pawl_api::RESTART));
    let attempt = named.and_then(|_| draft.attempt(name)).map(pawl_api::restart_of);
    named.zip(attempt).is_some_and(|(named, attempt)| named.split(',').any(|named| named == attempt))
}

fn stop(attempt: &str, purpose: Purpose, cause: StopCause) -> Action {
    // The cluster is already terminating such a gang: its grace period is not shortened.
    let already_ending = matches!(cause, StopCause::Preempted | StopCause::GangBroken);
    Action::Stop { attempt: attempt.to_owned(), checkpoint: purpose == Purpose::Train || already_ending, cause }
}

/// Starts an attempt under the next number, or `again` under the name of one that was never observed.
fn start(draft: &mut Draft<'_>, work: &Work, again: Option<&str>) -> Option<Action> {
    let (name, number) = match again {
        Some(name) => (name.to_owned(), draft.status.attempts),
        None => {
            let number = draft.status.attempts.checked_add(1)?;
            (draft.attempt_name(number), number)
        }
    };
    if work.purpose == Purpose::Train && again.is_none() {
        settle(draft);
    }
    let plan = draft.attempt_plan(&name, work);
    let plan_hash = fingerprint(&plan, 16);
    let known = draft.attempt(&name).is_some_and(|attempt| attempt.plan_hash == plan_hash && attempt.stop.is_none());
    if !known {
        draft.status.attempts = number;
        let resumes = draft.resumes(&name);
        let new = attempt_status(work, name.clone(), plan_hash.clone(), draft.now.to_string());
        let discards_after_items = discards(draft, work);
        draft.set_attempt(AttemptStatus { resumes, discards_after_items, ..new });
        let about = work.phase.as_deref().map(|phase| format!(" for phase {phase}")).unwrap_or_default();
        let message = format!("{name}: {}{about}, {} launches", work.purpose, work.launches.len());
        draft.normal(Reason::AttemptStarted, message, work.phase.as_deref());
        if work.purpose == Purpose::Train {
            crate::guard::restart(draft);
            crate::trained::begin(draft);
        }
    }
    Some(Action::Start { plan, plan_hash })
}

/// Releases the attempts that had ended before the status `before` was written. The newest one of a job that failed, or
/// that waits to try again, is kept: it holds no devices, and its logs say more than a status has room for.
pub(crate) fn release(decision: &mut Decision, before: &pawl_api::TrainingJobStatus, job: &str, observed: &Observed) {
    let status = &decision.status;
    let explains = match status.stage {
        Stage::Failed => true,
        Stage::Complete | Stage::Suspended => false,
        Stage::Pending | Stage::Preflight | Stage::Optimizing | Stage::Searching | Stage::Training => {
            status.retry.is_some() && status.under_way().next().is_none()
        }
    };
    let newest = before.attempts;
    for facts in &observed.attempts {
        let name = AttemptName::parse(&facts.name).filter(|name| name.job == job);
        let past = name.is_some_and(|name| name.number < newest || name.number == newest && !explains);
        let current = before.under_way().any(|attempt| attempt.name == facts.name);
        if past && !current && matches!(facts.state, AttemptState::Ended(_)) {
            decision.actions.push(Action::Release { attempt: facts.name.clone() });
        }
    }
}
