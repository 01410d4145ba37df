//! Where an attempt is.

use crate::facts::{AttemptFacts, PodFacts, Stand};

/// Where an attempt is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing of it is there, nor was seen to end.
    Absent,
    /// Its batch Job is suspended: a queue decides when its pods are made.
    Queued,
    /// Not all of its pods run yet.
    Pending {
        /// How many pods run and how many there are to be; why the others do not, when there is more to say.
        message: String,
        /// Something other than time is missing.
        problem: bool,
    },
    /// All of its pods run.
    Running,
    /// Some of its pods ended or are about to.
    Ending,
    /// None of its pods runs, and none will be made.
    Ended,
}

/// Where the attempt of `facts` is.
///
/// It has ended only when no pod of its name is alive and none will be made: the batch Job is gone, is being deleted, or
/// is final, or all pods that it makes have ended (it replaces none but those that its queue took away: see [`taken`]). A
/// pod counts as alive until it was seen to end or to be gone, or its node was found dead.
pub fn standing(facts: &AttemptFacts) -> Standing {
    let alive = facts.alive().count();
    let Some(gang) = facts.live_gang() else {
        return match (alive, facts.gang.is_some() || !facts.pods.is_empty()) {
            (0, true) => Standing::Ended,
            (0, false) => Standing::Absent,
            _ => Standing::Ending,
        };
    };
    if taken(facts) {
        return Standing::Ending;
    }
    let replicas = gang.replicas as usize;
    let over = |pod: &&PodFacts| !pod.alive();
    let ended = facts.own_pods().filter(over).count();
    if alive == 0 {
        let final_ = gang.deleting || gang.finished.is_some() || ended >= replicas;
        return match (final_, gang.suspended, ended) {
            (true, ..) => Standing::Ended,
            (false, true, _) => Standing::Queued,
            (false, false, 0) => pending(facts, replicas),
            (false, false, _) => Standing::Ending,
        };
    }
    let leaving = facts.alive().any(|pod| pod.deleting.is_some() || pod.gang_uid != gang.uid);
    if ended > 0 || leaving || gang.deleting || gang.finished.is_some() {
        return Standing::Ending;
    }
    let running = facts.alive().filter(|pod| pod.stand == Stand::Running).count();
    if running >= replicas { Standing::Running } else { pending(facts, replicas) }
}

/// Whether its queue took the gang's devices back while it ran or was about to. Its batch Job would make pods again when
/// its turn comes: it has to be deleted before the attempt is over.
pub fn taken(facts: &AttemptFacts) -> bool {
    let going = || facts.own_pods().any(|pod| !pod.alive() || pod.deleting.is_some());
    facts.working_gang().is_some_and(|gang| gang.taken || gang.suspended && going())
}

fn pending(facts: &AttemptFacts, replicas: usize) -> Standing {
    let running = facts.alive().filter(|pod| pod.stand == Stand::Running).count();
    let count = format!("{running} of {replicas} pods run");
    match problem(facts) {
        Some((pod, problem)) => {
            Standing::Pending { message: format!("{count}; pod {}: {problem}", pod.name), problem: true }
        }
        None => Standing::Pending { message: count, problem: false },
    }
}

fn problem(facts: &AttemptFacts) -> Option<(&PodFacts, &str)> {
    facts.alive().find_map(|pod| match &pod.stand {
        Stand::Waiting { problem } if !problem.is_empty() => Some((pod, problem.as_str())),
        Stand::Waiting { .. } | Stand::Running | Stand::Ended(_) => None,
    })
}

/// What keeps a gang from running, in one word, such as `Unschedulable` or `ErrImagePull`; `None` when only time does.
pub fn hindrance(facts: &AttemptFacts) -> Option<&str> {
    problem(facts).and_then(|(_, problem)| problem.split(':').next())
}

/// How a gang is broken: a partial gang deadlocks, so the rest of it is to be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// A pod went away or was killed: the others wait for it in vain.
    Hurt,
    /// A pod ended by itself and not well: the others are about to, for agents end together.
    Ending,
}

/// Whether the gang is broken while some of it is alive.
pub fn broken(facts: &AttemptFacts) -> Option<Broken> {
    facts.alive().next()?;
    facts.own_pods().filter_map(hurt).min_by_key(|broken| match broken {
        Broken::Hurt => 0,
        Broken::Ending => 1,
    })
}

fn hurt(pod: &PodFacts) -> Option<Broken> {
    let torn = pod.gone || pod.lost || pod.deleting.is_some() || !pod.disruption.is_empty();
    match &pod.stand {
        Stand::Ended(end) => match end.exit {
            Some(0) => None,
            // The contract's exit codes: the agent had time to say why.
            Some(1..=127) if !end.out_of_memory => Some(Broken::Ending),
            Some(_) | None => Some(Broken::Hurt),
        },
        Stand::Waiting { .. } | Stand::Running if torn => Some(Broken::Hurt),
        Stand::Waiting { .. } | Stand::Running => None,
    }
}

/// What decisions depend on: when it stays the same, there is nothing to decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    standing: Standing,
    broken: Option<Broken>,
    taken: bool,
    gang: Option<(String, bool)>,
    plan: Option<(String, bool)>,
    deleting: usize,
    hidden: usize,
}

/// What decisions depend on.
pub fn signature(facts: &AttemptFacts) -> Signature {
    let standing = match standing(facts) {
        // How many run is of no account, only whether all do.
        Standing::Pending { problem: false, .. } => Standing::Pending { message: String::new(), problem: false },
        other => other,
    };
    Signature {
        standing,
        broken: broken(facts),
        taken: taken(facts),
        gang: facts.live_gang().map(|gang| (gang.uid.clone(), gang.intact)),
        plan: facts.plan.as_ref().map(|plan| (plan.gang_uid.clone(), plan.intact)),
        deleting: facts.alive().filter(|pod| pod.deleting.is_some()).count(),
        hidden: facts.alive().filter(|pod| pod.hidden).count(),
    }
}
