//! The pairs on which the verdict of a phase rests.

use crate::comparison::{Pair, excluded};
use crate::gates::speed::{self, weighed};
use crate::statistics::disturbed::NotCounted;
use crate::trainer::comparable;
use pawl_api::spec::Analysis;
use pawl_api::status::{Arm, LaunchStatus, Speedup};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::LaunchKind;
use std::collections::BTreeMap;

/// A measured pair of launches, and whether a verdict rests on it.
#[derive(Clone, Copy, Debug)]
pub struct CountedPair<'a> {
    /// Its launch with the settings accepted so far.
    pub control: &'a LaunchStatus,
    /// Its launch with the phase.
    pub candidate: &'a LaunchStatus,
    /// Why it does not count; `None` if it does.
    pub not_counted: Option<NotCounted>,
}

/// The pairs among the `launches` of a phase, in order. Those that count are the ones of which `speedup` was computed,
/// by the same rule: against the speedup that the phase requires, if one is. No pair is said to count where the rule
/// finds another speedup, as after a change of the job.
///
/// ```
/// use pawl_api::{spec::Analysis, status::LaunchStatus};
///
/// let launch = |arm: &str, speed: &str| serde_json::json!({"name": format!("compile-p0-{arm}"), "kind": "Measure",
///     "arm": arm, "pair": 0, "seed": 1, "outcome": "Done", "itemsPerSecond": speed});
/// let launches = serde_json::json!([launch("Control", "100"), launch("Candidate", "150")]);
/// let launches: Vec<LaunchStatus> = serde_json::from_value(launches)?;
/// let pairs = pawl_decision::counted(&launches, None, Some(1.02), &Analysis::default());
/// assert!(pairs.len() == 1 && pairs[0].not_counted.is_none());
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn counted<'a>(
    launches: &'a [LaunchStatus],
    speedup: Option<&Speedup>,
    required: Option<f64>,
    analysis: &Analysis,
) -> Vec<CountedPair<'a>> {
    let mut complete = complete(launches);
    let valid = complete.iter().filter(|pair| pair.not_counted.is_none());
    let valid: Vec<Pair<'_>> = valid.map(|pair| Pair { control: pair.control, candidate: pair.candidate }).collect();
    let found = weighed(&valid, required, analysis);
    let known = found.filter(|(interval, _)| {
        let found = speed::status(interval);
        let is_same = |found: &Speedup, known: &Speedup| found.estimate == known.estimate && found.pairs == known.pairs;
        speedup.is_none_or(|known| found.is_some_and(|found| is_same(&found, known)))
    });
    let mut of_valid = 0..valid.len();
    for pair in complete.iter_mut().filter(|pair| pair.not_counted.is_none()) {
        let place = of_valid.next().unwrap_or_default();
        pair.not_counted = match &known {
            Some((_, weighed)) => weighed.get(place).copied().unwrap_or(Some(NotCounted::Late)),
            None => Some(NotCounted::Unknown),
        };
    }
    complete
}

/// The pairs with both launches, without what depends on other pairs. Of several launches in the same place, the newest
/// one of the current build that has ended as planned is taken.
fn complete(launches: &[LaunchStatus]) -> Vec<CountedPair<'_>> {
    let mut measured: Vec<_> = launches.iter().filter(|launch| launch.kind == LaunchKind::Measure).collect();
    measured.sort_by_key(|launch| (comparable(launch), launch.outcome == Outcome::Done));
    let mut found: BTreeMap<u32, [Option<&LaunchStatus>; 2]> = BTreeMap::new();
    for launch in measured {
        found.entry(launch.pair).or_default()[usize::from(launch.arm == Arm::Candidate)] = Some(launch);
    }
    let pairs = found.into_values().filter_map(|[control, candidate]| {
        let (control, candidate) = (control?, candidate?);
        Some(CountedPair { control, candidate, not_counted: excluded(control, candidate) })
    });
    pairs.collect()
}
