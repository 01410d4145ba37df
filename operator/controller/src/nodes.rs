//! The nodes that did not accept pods: the next gangs prefer others.
//!
//! A kubelet refuses a pod that it was given (`UnexpectedAdmissionError`, `OutOfcpu`) when its devices or what is free
//! on it are not what the scheduler believes. That may be over by the next attempt, so that one refusal says nothing; a
//! node that refuses again would be chosen again and again, because it is the one that has room. It is a preference
//! only: where no other node has room, the pod goes there all the same.
//!
//! What is known is read off the pods, which are kept until the next attempt starts: an operator that starts anew may
//! need another refusal.

use crate::facts::{AttemptFacts, Stand};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};
use std::time::Duration;
use tokio::time::Instant;

/// Refusals after which a node is avoided, each of another gang.
const AGAIN: usize = 2;
/// For how long a node is avoided after the newest one.
const AVOIDED_FOR: Duration = Duration::from_secs(30 * 60);
/// Most nodes that a gang avoids: those that refused last.
const MOST: usize = 16;

/// The nodes that did not accept pods lately.
#[derive(Default)]
pub struct Nodes {
    refusals: Mutex<BTreeMap<String, Refusals>>,
}

/// What a node refused.
struct Refusals {
    /// Uids of the batch Jobs.
    gangs: BTreeSet<String>,
    last: Instant,
    /// In the words of its kubelet.
    why: String,
}

/// A node that is avoided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Avoided {
    /// Its name.
    pub node: String,
    /// How many gangs it refused.
    pub gangs: usize,
    /// Why the last time, in the words of its kubelet.
    pub why: String,
}

impl Display for Avoided {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let Self { node, gangs, why } = self;
        write!(formatter, "{node}, which did not accept pods of {gangs} attempts: {why}")
    }
}

impl Nodes {
    /// Takes in which nodes refused pods of an attempt. Returns those for which that is new.
    pub fn seen(&self, facts: &AttemptFacts) -> Vec<String> {
        let refused = facts.pods.iter().filter_map(|pod| match &pod.stand {
            Stand::Ended(end) if end.refused_by_node() && !pod.node.is_empty() => Some((pod, end.cause.to_string())),
            Stand::Ended(_) | Stand::Waiting { .. } | Stand::Running => None,
        });
        let mut new = Vec::new();
        for (pod, why) in refused {
            let mut all = self.refusals.lock();
            let empty = || Refusals { gangs: BTreeSet::new(), last: Instant::now(), why: String::new() };
            let node = all.entry(pod.node.clone()).or_insert_with(empty);
            if node.gangs.insert(pod.gang_uid.clone()) {
                (node.last, node.why) = (Instant::now(), why);
                new.push(pod.node.clone());
            }
        }
        new
    }

    /// The nodes that gangs avoid now, the newest refusal first.
    pub fn avoided(&self) -> Vec<Avoided> {
        let mut all = self.refusals.lock();
        all.retain(|_, node| node.last.elapsed() < AVOIDED_FOR);
        let mut again: Vec<_> = all.iter().filter(|(_, node)| node.gangs.len() >= AGAIN).collect();
        again.sort_by_key(|(_, node)| std::cmp::Reverse(node.last));
        let avoided = |(name, node): (&String, &Refusals)| Avoided {
            node: name.clone(),
            gangs: node.gangs.len(),
            why: node.why.clone(),
        };
        again.into_iter().take(MOST).map(avoided).collect()
    }
}
