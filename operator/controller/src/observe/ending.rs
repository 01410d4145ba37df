//! How an attempt ended.

use crate::facts::{AttemptFacts, Cause, Hindrance, Kind, PodFacts, Stand};
use pawl_contract::exit::Outcome;
use pawl_decision::observed::Ending;

/// How an attempt ended, none of whose pods runs any more.
pub(super) fn ending(facts: &AttemptFacts) -> Ending {
    let pods: Vec<&PodFacts> = facts.own_pods().collect();
    if let Some(first) = pods.iter().find(|pod| pod.index == 0)
        && ran_its_plan(first)
    {
        return Ending::Completed;
    }
    let gang = facts.gang.as_ref();
    let never_whole = pods.iter().any(|pod| matches!(pod.stand, Stand::Waiting { .. }));
    let taken = gang.is_some_and(|gang| gang.taken || gang.suspended && !pods.is_empty());
    if taken && !pods.iter().any(|pod| out_of_memory(pod)) {
        let stays = |pod: &&&PodFacts| !is_unschedulable(pod) && !init_was_ended(pod);
        if let Some(problem) = pods.iter().filter(stays).find_map(|pod| problem(pod)) {
            // Its turn in the queue does not help a gang that cannot start.
            return Ending::Lost(problem);
        }
        let early = || "preempted by Kueue before all of its pods ran".to_owned();
        let why = || pods.iter().find_map(|pod| problem(pod)).unwrap_or_else(early);
        return if never_whole { Ending::Disrupted(why()) } else { Ending::Preempted };
    }
    if let Some(cause) = pods.iter().find_map(|pod| disruption(pod)) {
        return Ending::Disrupted(cause);
    }
    if let Some(cause) = pods.iter().find_map(|pod| refused(pod)) {
        return Ending::Refused(cause);
    }
    // A pod that failed on its own explains why the others were deleted, or lost their peer.
    if let Some(cause) = pods.iter().find_map(|pod| own_failure(pod)) {
        return Ending::Lost(cause);
    }
    if let Some(cause) = pods.iter().find_map(|pod| deletion(pod)) {
        return Ending::Disrupted(cause);
    }
    // The others lost their peer.
    let asked = gang.is_none_or(|gang| gang.gone || gang.deleting || gang.suspended || gang.taken);
    if let Some(pod) = pods.iter().find(|pod| !asked && exit(pod) == Some(Outcome::Stopped)) {
        let by = "a sidecar, its node or a person";
        return Ending::Disrupted(format!(
            "pod {} was stopped by SIGTERM, though nobody deleted it: {by} sent it",
            pod.name
        ));
    }
    let cause = pods.iter().find_map(|pod| problem(pod).or_else(|| failure(pod)));
    match (cause, gang) {
        (Some(cause), _) => Ending::Lost(cause),
        (None, _) if pods.iter().any(|pod| exit(pod) == Some(Outcome::Stopped)) => Ending::Stopped,
        (None, Some(gang)) if pods.len() < gang.replicas as usize && facts.refusal.is_some() => {
            let refusal = facts.refusal.as_ref().map(Hindrance::to_string).unwrap_or_default();
            let quota = facts.refusal.as_ref().is_some_and(|refusal| refusal.kind == Kind::NoQuota);
            if quota { Ending::Disrupted(refusal) } else { Ending::Lost(refusal) }
        }
        (None, Some(gang)) if gang.gone || gang.deleting => {
            let early = if never_whole || pods.is_empty() { " before all of its pods ran" } else { "" };
            Ending::Disrupted(format!("its batch Job was deleted{early}"))
        }
        (None, Some(gang)) => match &gang.finished {
            Some(finished) if finished.failed => Ending::Lost(format!("its batch Job failed: {}", finished.message)),
            Some(_) | None => Ending::Disrupted("its pods went away".to_owned()),
        },
        (None, None) => Ending::Disrupted("its batch Job is gone".to_owned()),
    }
}

/// The outcome that a pod's exit code stands for.
fn exit(pod: &PodFacts) -> Option<Outcome> {
    match &pod.stand {
        Stand::Ended(end) => end.exit.map(Outcome::from_exit_code),
        Stand::Waiting { .. } | Stand::Running => None,
    }
}

fn out_of_memory(pod: &PodFacts) -> bool {
    matches!(&pod.stand, Stand::Ended(end) if end.out_of_memory())
}

/// Whether the first pod reports a regular end of the attempt: done, or a launch failed with evidence.
fn ran_its_plan(pod: &PodFacts) -> bool {
    exit(pod).is_some_and(Outcome::is_evidence)
}

/// What the cluster, or somebody with access to it, certainly did to a pod.
fn disruption(pod: &PodFacts) -> Option<String> {
    let name = &pod.name;
    if !pod.disruption.is_empty() {
        return Some(format!("pod {name}: {}", pod.disruption));
    }
    if pod.lost {
        return Some(format!("pod {name}: its node {} does not answer", pod.node));
    }
    // Deleted while it ran, and gone before it could report anything.
    (pod.stand == Stand::Running && pod.gone).then(|| format!("pod {name} was deleted"))
}

/// A pod that the kubelet did not accept.
fn refused(pod: &PodFacts) -> Option<String> {
    let Stand::Ended(end) = &pod.stand else { return None };
    end.refused_by_node().then(|| format!("node {} did not accept pod {}: {}", pod.node, pod.name, end.cause))
}

/// A pod that failed although nobody deleted it, and not because of its peers; or that ran out of memory, or could not
/// start.
fn own_failure(pod: &PodFacts) -> Option<String> {
    let Stand::Ended(end) = &pod.stand else { return None };
    if end.is_unknown() {
        return None;
    }
    let own = end.out_of_memory() || end.over_limit();
    let not_started = end.not_started().is_some_and(|hindrance| !of_scheduler(hindrance));
    let certain = own || not_started && !init_was_ended(pod);
    if !certain && (pod.deleting.is_some() || exit(pod) == Some(Outcome::LostPeer)) {
        return None;
    }
    failure(pod)
}

/// A pod that was deleted, although it did not fail, or before it could be scheduled; or was lost with its node.
fn deletion(pod: &PodFacts) -> Option<String> {
    match &pod.stand {
        Stand::Ended(_) | Stand::Waiting { .. } if init_was_ended(pod) => Some(format!("pod {} was deleted", pod.name)),
        Stand::Ended(end) if end.not_started().is_some() => failure(pod),
        Stand::Ended(end) if pod.deleting.is_some() => {
            let stopped = end.exit.is_none_or(|code| code > 127) || exit(pod) == Some(Outcome::Stopped);
            stopped.then(|| format!("pod {} was deleted", pod.name))
        }
        Stand::Waiting { .. } if is_unschedulable(pod) => problem(pod),
        Stand::Ended(_) | Stand::Waiting { .. } | Stand::Running => None,
    }
}

/// Whether a signal ended an init container of a pod that is being deleted, which ends init containers, too. The Job
/// controller deletes pods of which one failed by itself.
fn init_was_ended(pod: &PodFacts) -> bool {
    let cause = match &pod.stand {
        Stand::Ended(end) => end.not_started(),
        Stand::Waiting { problem } => problem.as_ref(),
        Stand::Running => None,
    };
    pod.deleting.is_some() && cause.is_some_and(|cause| cause.kind == Kind::InitKilled)
}

/// Whether no node has room for the pod, or its volume.
fn is_unschedulable(pod: &PodFacts) -> bool {
    pod.waits_for().is_some_and(of_scheduler)
}

fn of_scheduler(hindrance: &Hindrance) -> bool {
    matches!(hindrance.kind, Kind::NoRoom | Kind::NoVolume)
}

/// What kept a pod from running.
fn problem(pod: &PodFacts) -> Option<String> {
    pod.waits_for().map(|problem| format!("pod {}: {problem}", pod.name))
}

/// Why a pod failed: its exit code, or the signal that killed it.
fn failure(pod: &PodFacts) -> Option<String> {
    let Stand::Ended(end) = &pod.stand else { return None };
    let code = match (end.exit, &end.cause) {
        (_, Cause::OverLimit(_)) => return Some(format!("pod {} was {}", pod.name, end.cause)),
        (Some(code), _) if code <= 127 => code,
        (Some(code), Cause::Exited) => return Some(format!("pod {} exited with {code}", pod.name)),
        _ => return Some(format!("pod {}: {}", pod.name, end.cause)),
    };
    match Outcome::from_exit_code(code) {
        Outcome::Done | Outcome::Stopped => None,
        outcome => {
            let colon = if end.cause == Cause::Exited { "" } else { ": " };
            Some(format!("pod {} exited with {code} ({outcome:?}){colon}{}", pod.name, end.cause))
        }
    }
}
