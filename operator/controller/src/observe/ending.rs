//! How an attempt ended.

use crate::facts::{AttemptFacts, PodFacts, Stand};
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
        // A gang that cannot come up must not come again for ever.
        let early = || "preempted by Kueue before all of its pods ran".to_owned();
        let why = || pods.iter().find_map(|pod| problem(pod)).unwrap_or_else(early);
        return if never_whole { Ending::Lost(why()) } else { Ending::Preempted };
    }
    // What the cluster did explains what the other pods say of it.
    let cause = pods.iter().find_map(|pod| infrastructure(pod)).or_else(|| pods.iter().find_map(|pod| failure(pod)));
    match (cause, gang) {
        (Some(cause), _) => Ending::Lost(cause),
        (None, _) if pods.iter().any(|pod| exit(pod) == Some(Outcome::Stopped)) => Ending::Stopped,
        (None, Some(gang)) if gang.gone || gang.deleting => {
            let early = if never_whole || pods.is_empty() { " before all of its pods ran" } else { "" };
            Ending::Lost(format!("its batch Job was deleted{early}"))
        }
        (None, Some(gang)) => match &gang.finished {
            Some(finished) if finished.failed => Ending::Lost(format!("its batch Job failed: {}", finished.message)),
            Some(_) | None => Ending::Lost("its pods went away".to_owned()),
        },
        (None, None) => Ending::Lost("its batch Job is gone".to_owned()),
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
    matches!(&pod.stand, Stand::Ended(end) if end.out_of_memory)
}

/// Whether the first pod reports a regular end of the attempt: done, or a launch failed with evidence.
fn ran_its_plan(pod: &PodFacts) -> bool {
    exit(pod).is_some_and(Outcome::is_evidence)
}

/// What the cluster did to a pod.
fn infrastructure(pod: &PodFacts) -> Option<String> {
    let name = &pod.name;
    if !pod.disruption.is_empty() {
        return Some(format!("pod {name}: {}", pod.disruption));
    }
    if pod.lost {
        return Some(format!("pod {name}: its node {} does not answer", pod.node));
    }
    match &pod.stand {
        Stand::Ended(end) if end.exit.is_none() || end.exit.is_some_and(|code| code > 127) => {
            Some(format!("pod {name}: {}", end.cause))
        }
        // Deleted while it ran, and gone before it could say anything.
        Stand::Running if pod.gone => Some(format!("pod {name} was deleted")),
        Stand::Waiting { .. } => problem(pod),
        Stand::Ended(_) | Stand::Running => None,
    }
}

/// What kept a pod from running.
fn problem(pod: &PodFacts) -> Option<String> {
    match &pod.stand {
        Stand::Waiting { problem } if !problem.is_empty() => Some(format!("pod {}: {problem}", pod.name)),
        Stand::Waiting { .. } | Stand::Running | Stand::Ended(_) => None,
    }
}

/// The reason that a pod itself reports.
fn failure(pod: &PodFacts) -> Option<String> {
    let Stand::Ended(end) = &pod.stand else { return None };
    let code = end.exit?;
    match Outcome::from_exit_code(code) {
        Outcome::Done => None,
        Outcome::Stopped if pod.deleting.is_none() => None,
        Outcome::Stopped => Some(format!("pod {} was deleted", pod.name)),
        outcome => {
            let colon = if end.cause.is_empty() { "" } else { ": " };
            Some(format!("pod {} exited with {code} ({outcome:?}){colon}{}", pod.name, end.cause))
        }
    }
}
