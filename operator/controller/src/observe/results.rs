//! What the launches of an attempt found.

use crate::facts::{AttemptFacts, PodFacts, Stand};
use pawl_contract::exit::Outcome;
use pawl_contract::live;
use pawl_contract::report::{LaunchResult, unfold};

/// The results known of an attempt, in order: those of the first pod's termination message, and before there is one, or
/// where it had no room, those that agent 0 reported while it ran.
///
/// `launches` are those of the plan, `ended`: no pod is running any more: then a pod that ran out of memory
/// without a report counts for the launch that it was in.
pub(super) fn results(
    facts: &AttemptFacts,
    live: Option<&live::Attempt>,
    launches: &[String],
    ended: bool,
    memory: Option<&str>,
) -> Vec<LaunchResult> {
    let message = facts.own_pods().find(|pod| pod.index == 0).and_then(termination);
    let final_ = message.clone().unwrap_or_default();
    let earlier = live.map(|live| live.results.as_slice()).unwrap_or_default();
    let missing = |result: &&LaunchResult| !final_.iter().any(|known| known.launch == result.launch);
    let mut results: Vec<LaunchResult> = earlier.iter().filter(missing).cloned().collect();
    results.extend(final_);
    if ended && let Some(pod) = facts.own_pods().find(|pod| out_of_memory(pod)) {
        let launch = interrupted(&results, live, launches, message.is_some());
        results.extend(launch.map(|launch| host_out_of_memory(launch, pod, memory)));
    }
    results
}

/// The results in a pod's termination message; `None` when it left none, or it has another author.
fn termination(pod: &PodFacts) -> Option<Vec<LaunchResult>> {
    let Stand::Ended(end) = &pod.stand else { return None };
    (!end.termination.is_empty()).then(|| unfold(&end.termination).ok().map(|folded| folded.launches))?
}

fn out_of_memory(pod: &PodFacts) -> bool {
    matches!(&pod.stand, Stand::Ended(end) if end.out_of_memory())
}

/// The launch in which a pod was killed, when that is certain: the one that ran when agent 0 last answered, the one
/// after those that are known to have ended, or the only one. Evidence is never guessed.
fn interrupted<'a>(
    results: &[LaunchResult],
    live: Option<&'a live::Attempt>,
    launches: &'a [String],
    has_message: bool,
) -> Option<&'a str> {
    let ended = |launch: &str| results.iter().any(|result| result.launch == launch);
    let running = live.and_then(|live| live.progress.as_ref()).map(|progress| progress.launch.as_str());
    if let Some(running) = running.filter(|launch| !ended(launch)) {
        return Some(running);
    }
    match launches {
        [only] if !ended(only) => Some(only),
        _ if has_message => launches.iter().map(String::as_str).find(|launch| !ended(launch)),
        _ => None,
    }
}

fn host_out_of_memory(launch: &str, pod: &PodFacts, memory: Option<&str>) -> LaunchResult {
    let limit = match memory {
        Some(limit) => format!("the memory limit {limit} of its container was reached"),
        None => "the memory limit of its container, or the memory of its node, was reached".to_owned(),
    };
    let message = format!("pod {}: {limit} (OOMKilled): raise podTemplate.resources.limits.memory", pod.name);
    LaunchResult { message, ..LaunchResult::bare(launch, Outcome::HostOutOfMemory) }
}
