//! Which faults happen when: an endless sequence that a seed determines.

use std::fmt;
use std::time::Duration;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A pod is deleted, with its grace period.
    PodDeleted,
    /// A pod is deleted without grace.
    PodKilled,
    /// A pod is evicted.
    PodEvicted,
    /// The agent of a pod receives SIGKILL: its container ends.
    ContainerKilled,
    /// One rank receives SIGKILL.
    RankKilled,
    /// All processes of a pod are stopped for a while (SIGSTOP, SIGCONT).
    PodFrozen,
    /// The batch Job of an attempt is deleted.
    JobDeleted,
    /// A node loses its power, and starts again later.
    NodeCut,
    /// A node is disconnected for a while.
    NodeUnplugged,
    /// An operator receives SIGKILL; another process replaces it later.
    OperatorKilled,
    /// An operator is stopped for a while (SIGSTOP, SIGCONT).
    OperatorFrozen,
    /// The API server, the controllers and the scheduler are killed, and start again later.
    ApiKilled,
    /// The API server is stopped for a while: requests hang.
    ApiFrozen,
    /// The checkpoint storage of some jobs has no space left for a while.
    DiskFull,
    /// Writes to the checkpoint storage of some jobs block for a while.
    DiskFrozen,
    /// The clock of an operator jumps, and back later.
    ClockJump,
}

impl Kind {
    /// All kinds, how often each happens in relation to the others, and the seconds for which it lasts.
    const ALL: [(Self, u32, [f64; 2]); 16] = [
        (Self::PodDeleted, 10, [0.0, 0.0]),
        (Self::PodKilled, 8, [0.0, 0.0]),
        (Self::PodEvicted, 5, [0.0, 0.0]),
        (Self::ContainerKilled, 8, [0.0, 0.0]),
        (Self::RankKilled, 10, [0.0, 0.0]),
        (Self::PodFrozen, 6, [2.0, 15.0]),
        (Self::JobDeleted, 5, [0.0, 0.0]),
        (Self::NodeCut, 4, [2.0, 40.0]),
        (Self::NodeUnplugged, 4, [2.0, 40.0]),
        (Self::OperatorKilled, 8, [0.0, 15.0]),
        (Self::OperatorFrozen, 4, [2.0, 30.0]),
        (Self::ApiKilled, 3, [2.0, 25.0]),
        (Self::ApiFrozen, 3, [2.0, 9.0]),
        (Self::DiskFull, 5, [2.0, 20.0]),
        (Self::DiskFrozen, 5, [2.0, 15.0]),
        (Self::ClockJump, 5, [5.0, 30.0]),
    ];

    /// The names of all kinds.
    pub fn names() -> Vec<String> {
        Self::ALL.iter().map(|(kind, ..)| kind.to_string()).collect()
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, letter) in format!("{self:?}").char_indices() {
            if index > 0 && letter.is_uppercase() {
                out.write_str("-")?;
            }
            write!(out, "{}", letter.to_ascii_lowercase())?;
        }
        Ok(())
    }
}

/// A fault of the sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    /// Time since the previous fault.
    pub after: Duration,
    /// What goes wrong.
    pub kind: Kind,
    /// Chooses the victim: the `pick`-th of the sorted candidates, counted round.
    pub pick: usize,
    /// How long it lasts.
    pub lasts: Duration,
}

/// The faults of a seed.
pub struct Faults {
    random: fastrand::Rng,
    kinds: Vec<(Kind, u32, [f64; 2])>,
}

/// Seconds between two faults.
const GAP: [f64; 2] = [2.0, 12.0];

impl Faults {
    /// The faults of a seed; of the given kinds only, if any are given.
    ///
    /// # Errors
    /// A kind does not exist.
    pub fn of(seed: u64, only: &[String]) -> Result<Self, String> {
        let names = Kind::names();
        if let Some(unknown) = only.iter().find(|name| !names.contains(name)) {
            return Err(format!("--faults {unknown}: no such fault; choose from {}", names.join(", ")));
        }
        let wanted = |kind: Kind| only.is_empty() || only.contains(&kind.to_string());
        let kinds = Kind::ALL.into_iter().filter(|(kind, ..)| wanted(*kind)).collect();
        Ok(Self { random: fastrand::Rng::with_seed(seed), kinds })
    }

    fn between(&mut self, [least, most]: [f64; 2]) -> Duration {
        Duration::from_secs_f64(least + (most - least) * self.random.f64())
    }
}

impl Iterator for Faults {
    type Item = Fault;

    fn next(&mut self) -> Option<Fault> {
        let after = self.between(GAP);
        let total: u32 = self.kinds.iter().map(|(_, weight, _)| weight).sum();
        let mut draw = self.random.u32(..total);
        let (kind, _, lasts) = *self.kinds.iter().find(|(_, weight, _)| {
            let here = draw < *weight;
            draw = draw.saturating_sub(*weight);
            here
        })?;
        let pick = self.random.usize(..);
        Some(Fault { after, kind, pick, lasts: self.between(lasts) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn first(seed: u64, count: usize) -> Vec<Fault> {
        Faults::of(seed, &[]).unwrap().take(count).collect()
    }

    #[test]
    fn a_seed_repeats_its_faults_and_another_one_has_others() {
        assert_eq!(first(7, 200), first(7, 200));
        assert_ne!(first(7, 20), first(8, 20));
    }

    #[test]
    fn every_kind_happens_as_often_as_its_weight_says() {
        let mut counts = BTreeMap::<Kind, u32>::new();
        first(1, 10_000).iter().for_each(|fault| *counts.entry(fault.kind).or_default() += 1);
        let total: u32 = Kind::ALL.iter().map(|(_, weight, _)| weight).sum();
        for (kind, weight, lasts) in Kind::ALL {
            let (expected, found) = (f64::from(10_000 * weight / total), f64::from(counts[&kind]));
            assert!((found / expected - 1.0).abs() < 0.25, "{kind}: {found} of {expected}");
            let of_kind = |fault: &&Fault| fault.kind == kind;
            let within = |fault: &Fault| (lasts[0]..=lasts[1]).contains(&fault.lasts.as_secs_f64());
            assert!(first(1, 10_000).iter().filter(of_kind).all(within), "{kind}");
        }
    }

    #[test]
    fn kinds_are_chosen_by_their_names() {
        let only = ["node-cut".to_owned(), "api-frozen".to_owned()];
        let kinds: Vec<_> = Faults::of(1, &only).unwrap().take(100).map(|fault| fault.kind).collect();
        assert!(kinds.contains(&Kind::NodeCut) && kinds.contains(&Kind::ApiFrozen));
        assert!(kinds.iter().all(|kind| matches!(kind, Kind::NodeCut | Kind::ApiFrozen)));
        let refused = Faults::of(1, &["rain".to_owned()]).err().unwrap();
        assert!(refused.starts_with("--faults rain: no such fault; choose from pod-deleted, "), "{refused}");
    }
}
