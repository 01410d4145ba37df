//! Where an attempt is, from the facts of its batch Job and pods.

use super::ending::ending;
use crate::facts::{AttemptFacts, GangFacts, Hindrance, Kind, NodeSeen, PodFacts, Stand};
use jiff::Timestamp;
use pawl_decision::observed::{AttemptState, Ending, Leaving, WaitsFor};

/// Where the attempt of `facts` is; `None` when nothing of it is there, nor was seen to end.
///
/// It has ended only when no pod of its name is alive and none will be made: the batch Job is gone, is being deleted,
/// or is final, or all pods that it makes have ended (it replaces none but those that its queue preempted). A pod
/// counts as alive until it was seen to end or to be gone, or its node was found dead.
pub fn state(facts: &AttemptFacts, now: Timestamp) -> Option<AttemptState> {
    let state = undisturbed(facts, now)?;
    Some(match state {
        AttemptState::Ended(_) => state,
        _ if preempted(facts) => AttemptState::Leaving(Leaving::Preempted),
        _ if broken(facts) => AttemptState::Leaving(Leaving::Broken),
        _ => state,
    })
}

/// Where it is as far as it keeps to its plan.
fn undisturbed(facts: &AttemptFacts, now: Timestamp) -> Option<AttemptState> {
    let alive = facts.alive().count();
    let ended = || Some(AttemptState::Ended(ending(facts)));
    let draining = Some(AttemptState::Leaving(Leaving::Draining));
    let Some(gang) = facts.live_gang() else {
        return match (alive, facts.gang.is_some() || !facts.pods.is_empty()) {
            (0, true) => ended(),
            (0, false) => None,
            _ => draining,
        };
    };
    if preempted(facts) {
        return draining;
    }
    let replicas = gang.replicas as usize;
    let over = facts.own_pods().filter(|pod| !pod.alive()).count();
    if alive == 0 {
        let final_ = gang.deleting || gang.finished.is_some() || over >= replicas;
        return match (final_, gang.suspended, over) {
            (true, ..) => ended(),
            (false, true, _) => Some(AttemptState::Queued),
            (false, false, 0) => Some(pending(facts, gang, now)),
            (false, false, _) => draining,
        };
    }
    let leaving = facts.alive().any(|pod| pod.deleting.is_some() || pod.gang_uid != gang.uid);
    if leaving || gang.deleting || gang.finished.is_some() {
        return draining;
    }
    if over > 0 {
        return Some(AttemptState::Leaving(Leaving::Ending { since: facts.changed.unwrap_or(now) }));
    }
    let runs = running(facts) >= replicas;
    Some(if runs { AttemptState::Running } else { pending(facts, gang, now) })
}

/// Whether its queue preempted the gang while it ran or was about to. Its batch Job would make pods again in its turn:
/// it has to be deleted before the attempt is over.
fn preempted(facts: &AttemptFacts) -> bool {
    let going = || facts.own_pods().any(|pod| !pod.alive() || pod.deleting.is_some());
    facts.working_gang().is_some_and(|gang| gang.taken || gang.suspended && going())
}

fn running(facts: &AttemptFacts) -> usize {
    facts.alive().filter(|pod| pod.stand == Stand::Running).count()
}

fn pending(facts: &AttemptFacts, gang: &GangFacts, now: Timestamp) -> AttemptState {
    let count = format!("{} of {} pods run", running(facts), gang.replicas);
    let message = match (problem(facts), refusal(facts)) {
        (Some((pod, problem)), _) => format!("{count}; pod {}: {problem}", pod.name),
        (None, Some(refusal)) => format!("{count}; {refusal}"),
        (None, None) => String::new(),
    };
    // One that its queue has just let go has no start yet.
    let since = if gang.suspended { facts.changed.unwrap_or(now) } else { gang.since };
    AttemptState::Pending { since, message, waits_for: waits_for(facts, gang) }
}

/// What keeps the gang from running: that no node has room for its pods, or for some of them, or something else, such
/// as a volume. Pods that are not made wait for devices as well, unless it is known that something has to be corrected:
/// a quota that other jobs use up refuses them.
fn waits_for(facts: &AttemptFacts, gang: &GangFacts) -> WaitsFor {
    let no_room = |pod: &PodFacts| pod.waits_for().is_some_and(|problem| problem.kind == Kind::NoRoom);
    let unmade = problem(facts).is_none() && facts.alive().count() < gang.replicas as usize;
    let holds = facts.alive().any(|pod| !pod.node.is_empty());
    match (unmade, refusal(facts).map(|refusal| refusal.kind)) {
        (true, Some(Kind::Refused)) => WaitsFor::Admission,
        (true, _) if holds => WaitsFor::MoreDevices,
        (true, Some(Kind::NoQuota)) => WaitsFor::Quota,
        (true, _) => WaitsFor::Pods,
        (false, _) if !facts.alive().any(no_room) => WaitsFor::Containers,
        (false, _) if holds => WaitsFor::MoreDevices,
        (false, _) => WaitsFor::Devices,
    }
}

/// Why pods of the gang are not made.
fn refusal(facts: &AttemptFacts) -> Option<&Hindrance> {
    facts.incomplete_gang().and(facts.refusal.as_ref())
}

/// What keeps a pod of the gang from running, other than time.
fn problem(facts: &AttemptFacts) -> Option<(&PodFacts, &Hindrance)> {
    facts.alive().find_map(|pod| Some((pod, pod.waits_for()?)))
}

/// Why a gang does not start, such as `Unschedulable` or `ErrImagePull`; `None` when it is merely starting.
pub fn hindrance(facts: &AttemptFacts) -> Option<&str> {
    problem(facts).map(|(_, problem)| problem).or_else(|| refusal(facts)).map(|problem| problem.reason.as_str())
}

/// Whether a pod of the gang was lost while others are alive: a partial gang deadlocks, so the rest of it is to be
/// stopped. Pods that ended by themselves are not lost, also when they failed: agents end together.
fn broken(facts: &AttemptFacts) -> bool {
    facts.alive().next().is_some() && facts.own_pods().any(lost)
}

fn lost(pod: &PodFacts) -> bool {
    match &pod.stand {
        // The contract's exit codes: the agent had time to report why.
        Stand::Ended(end) => end.out_of_memory() && end.exit != Some(0) || !matches!(end.exit, Some(0..=127)),
        Stand::Waiting { .. } | Stand::Running => {
            pod.gone || pod.lost || pod.deleting.is_some() || !pod.disruption.is_empty() || pod.cannot_start()
        }
    }
}

/// What decisions depend on: when it stays the same, there is nothing to decide.
#[derive(Clone, Debug, PartialEq)]
pub struct Signature {
    state: Option<AttemptState>,
    gang: Option<(String, bool, String)>,
    plan: Option<(String, bool)>,
    deleting: usize,
    hidden: usize,
    nodes: Vec<NodeSeen>,
}

/// What decisions depend on.
pub fn signature(facts: &AttemptFacts) -> Signature {
    let state = state(facts, Timestamp::UNIX_EPOCH).map(|state| match state {
        // How many run is of no account, only whether all do.
        AttemptState::Pending { since, waits_for, .. } if hindrance(facts).is_none() => {
            AttemptState::Pending { since, message: String::new(), waits_for }
        }
        // How it ended is known by what ended it.
        AttemptState::Ended(_) => AttemptState::Ended(Ending::Completed),
        AttemptState::Queued | AttemptState::Pending { .. } | AttemptState::Running | AttemptState::Leaving(_) => state,
    });
    Signature {
        state,
        gang: facts.live_gang().map(|gang| (gang.uid.clone(), gang.intact, gang.manager.clone())),
        plan: facts.plan.as_ref().map(|plan| (plan.gang_uid.clone(), plan.intact)),
        deleting: facts.alive().filter(|pod| pod.deleting.is_some()).count(),
        hidden: facts.alive().filter(|pod| pod.hidden).count(),
        nodes: facts.alive().map(|pod| pod.node_seen.clone()).filter(|seen| *seen != NodeSeen::Unknown).collect(),
    }
}
