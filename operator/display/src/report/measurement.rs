//! How good the measurement of a speedup is, in one line.
//!
//! - good: at least three pairs count, it was observed of all of them that nothing disturbed them, and the upper bound
//!   of the speedup is at most 1.25 times the lower one;
//! - weak: fewer than three pairs count, a bound is missing, or the upper one is more than twice the lower one;
//! - with care: everything else, and where the same settings ran at another speed in an earlier comparison.
//!
//! The level is that of the worst cause, and the line says all of them.

use super::evidence::Evidence;
use super::pairs::{Comparison, Pair, comparisons};
use super::speeds::{OtherSpeed, other_speeds};
use crate::numbers::{at_least, bounds, factor, interval};
use maud::{Markup, html};
use pawl_api::status::Speedup;
use pawl_contract::plan::LaunchKind;
use std::collections::{BTreeMap, BTreeSet};

/// Pairs below which a measurement is weak.
const FEWEST: u32 = 3;
/// Ratio of the bounds of a speedup, upper over lower, above which its interval is wide.
const WIDE: f64 = 1.25;
/// The same, above which the measurement is weak.
const VERY_WIDE: f64 = 2.0;

/// How good a measurement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing speaks against it.
    Good,
    /// To be used with care.
    Care,
    /// Hardly any.
    Weak,
}

impl Level {
    /// All levels, the best first.
    pub const ALL: [Self; 3] = [Self::Good, Self::Care, Self::Weak];

    /// The level in words.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Care => "with care",
            Self::Weak => "weak",
        }
    }

    /// Its symbol: a filled, a half and an empty circle.
    pub const fn symbol(self) -> &'static str {
        match self {
            Self::Good => "●",
            Self::Care => "◐",
            Self::Weak => "○",
        }
    }

    /// Its class in the style sheet.
    pub const fn class(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Care => "unclear",
            Self::Weak => "bad",
        }
    }
}

/// Why a measurement is not good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Fewer than three pairs count.
    FewPairs,
    /// A bound of the speedup is missing.
    NoInterval,
    /// The upper bound is more than twice the lower one.
    VeryWide,
    /// The upper bound is more than 1.25 times the lower one.
    Wide,
    /// Pairs count although other programs disturbed them.
    Disturbed,
    /// Of pairs it is not known whether they were disturbed.
    Unobserved,
    /// The launches of the pairs are no longer in the status.
    Gone,
    /// The same settings ran at another speed in another comparison.
    OtherSpeed,
}

impl Cause {
    /// The cause in two or three words.
    pub const fn brief(self) -> &'static str {
        match self {
            Self::FewPairs => "few pairs",
            Self::NoInterval => "no interval",
            Self::VeryWide => "very wide interval",
            Self::Wide => "wide interval",
            Self::Disturbed => "disturbed pairs",
            Self::Unobserved => "disturbance not known",
            Self::Gone => "launches no longer kept",
            Self::OtherSpeed => "speed differs elsewhere",
        }
    }

    const fn level(self) -> Level {
        match self {
            Self::FewPairs | Self::NoInterval | Self::VeryWide => Level::Weak,
            Self::Wide | Self::Disturbed | Self::Unobserved | Self::Gone | Self::OtherSpeed => Level::Care,
        }
    }
}

/// How good the measurement of a speedup is, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// The level.
    pub level: Level,
    /// Why it is not good, in the order of [`Cause`], which is that of their weight.
    pub causes: Vec<Cause>,
    /// `Speed measurement: good.`
    head: String,
    /// The facts.
    facts: String,
}

impl Measurement {
    /// All of it in one line of text.
    pub fn text(&self) -> String {
        format!("{} {}", self.head, self.facts)
    }

    /// The causes in a few words each; empty for a good measurement.
    pub fn brief(&self) -> String {
        self.causes.iter().map(|cause| cause.brief()).collect::<Vec<_>>().join(", ")
    }

    /// The level, and in a few words why it is not good.
    pub fn mark(&self) -> Markup {
        html! {
            span.level.(self.level.class()) aria-hidden="true" { (self.level.symbol()) } " " (self.level.word())
            @if !self.causes.is_empty() { ": " (self.brief()) }
        }
    }

    /// All of it in one line of a page.
    pub fn line(&self) -> Markup {
        html! {
            div.measurement {
                span.level.(self.level.class()) aria-hidden="true" { (self.level.symbol()) } " "
                b { (self.head) } " " (self.facts)
            }
        }
    }
}

/// The measurements by the names of their comparisons.
pub type Measurements<'a> = BTreeMap<&'a str, Measurement>;

/// How good the measurement of each comparison of a job is.
pub fn measurements(evidence: &Evidence) -> Measurements<'_> {
    all(evidence, &comparisons(&evidence.job.spec, &evidence.status))
}

/// How good the measurement of each of these comparisons with a speedup is.
pub fn all<'a>(evidence: &Evidence, comparisons: &[Comparison<'a>]) -> Measurements<'a> {
    let speeds = other_speeds(&evidence.job.spec, &evidence.status, comparisons);
    let each = comparisons.iter().filter_map(|it| Some((it.name, measurement(it, speeds.get(it.name))?)));
    each.collect()
}

/// How good the measurement of a comparison is; `None` without a speedup.
fn measurement(comparison: &Comparison<'_>, other: Option<&OtherSpeed<'_>>) -> Option<Measurement> {
    let speedup = comparison.speedup?;
    let mut causes = BTreeSet::new();
    let mut facts = of_pairs(comparison, speedup, &mut causes);
    facts.push(of_interval(speedup, &mut causes));
    causes.extend(other.map(|_| Cause::OtherSpeed));
    let level = causes.iter().map(|cause| cause.level()).max().unwrap_or(Level::Good);
    let so_far = if comparison.is_final { "" } else { " so far" };
    let mut facts = facts.join("; ") + ".";
    facts.extend(of_requirement(comparison, speedup, &causes));
    if let Some(other) = other {
        facts = format!("{facts} {}", other.text());
    }
    Some(Measurement {
        level,
        causes: causes.into_iter().collect(),
        head: format!("Speed measurement{so_far}: {}.", level.word()),
        facts,
    })
}

/// How many of the measured pairs count, and whether they were disturbed.
fn of_pairs(comparison: &Comparison<'_>, speedup: &Speedup, causes: &mut BTreeSet<Cause>) -> Vec<String> {
    let &Speedup { pairs: known, disturbed, .. } = speedup;
    let few = if known < FEWEST { ", fewer than 3" } else { "" };
    causes.extend((known < FEWEST).then_some(Cause::FewPairs));
    let of = comparison.pairs.len() + comparison.half_pairs.len();
    let counted: Vec<&Pair> = comparison.counted().collect();
    if counted.len() == known as usize {
        let seeds: BTreeSet<u32> = counted.iter().map(|pair| pair.seed).collect();
        let plural = if seeds.len() == 1 { "" } else { "s" };
        let seeds: Vec<String> = seeds.iter().map(u32::to_string).collect();
        let counts = format!("{known} of {of} pairs {}{few}, seed{plural} {}", verb(known, "count"), seeds.join(", "));
        return [vec![counts], of_disturbance(&counted, causes)].concat();
    }
    // The status does not have the launches of the verdict.
    causes.insert(Cause::Gone);
    causes.extend((disturbed > 0).then_some(Cause::Disturbed));
    let is_gone = !comparison.launches.iter().any(|launch| launch.kind == LaunchKind::Measure);
    let plural = if known == 1 { "" } else { "s" };
    let launches = if is_gone {
        format!(
            "The launches of its {known} pair{plural}{few} are no longer in the status, which keeps the newest \
             evidence only"
        )
    } else {
        format!(
            "{known} pair{plural} {}{few}, and the launches in the status are not those of the verdict",
            verb(known, "count")
        )
    };
    let what = match disturbed {
        0 => "none of them is known to have been disturbed".to_owned(),
        _ => format!("{disturbed} of {known} were disturbed"),
    };
    vec![launches, what]
}

/// Whether the pairs that count were disturbed, as far as that is known.
fn of_disturbance(counted: &[&Pair], causes: &mut BTreeSet<Cause>) -> Vec<String> {
    let disturbed = counted.iter().filter(|pair| pair.disturbed.is_some()).count();
    let unknown = counted.iter().filter(|pair| pair.disturbed.is_none() && !pair.observed).count();
    causes.extend((disturbed > 0).then_some(Cause::Disturbed));
    causes.extend((unknown > 0).then_some(Cause::Unobserved));
    let were = if disturbed == 1 { "was" } else { "were" };
    let found = (disturbed > 0).then(|| format!("{disturbed} of these {were} disturbed (*)"));
    let of = if unknown == counted.len() { String::new() } else { format!("{unknown} of ") };
    let open = (unknown > 0).then(|| {
        format!("of {of}these it is not known whether other programs disturbed them, as their launches did not report it (?)")
    });
    let facts: Vec<String> = found.into_iter().chain(open).collect();
    if facts.is_empty() { vec!["none was seen to be disturbed".to_owned()] } else { facts }
}

fn of_interval(speedup: &Speedup, causes: &mut BTreeSet<Cause>) -> String {
    let (lower, upper) = match bounds(speedup) {
        (Some(lower), Some(upper)) => (lower, upper),
        (None, None) => {
            causes.insert(Cause::NoInterval);
            return "no interval".to_owned();
        }
        (Some(_), None) | (None, Some(_)) => {
            causes.insert(Cause::NoInterval);
            return "an end of the interval is open".to_owned();
        }
    };
    let (cause, note) = match upper / lower {
        ratio if ratio > VERY_WIDE => (Some(Cause::VeryWide), ", its upper bound more than twice the lower one"),
        ratio if ratio > WIDE => (Some(Cause::Wide), ", which is wide"),
        _ => (None, ""),
    };
    causes.extend(cause);
    format!("interval {}{note}", interval(speedup).unwrap_or_default())
}

/// Where the required speedup is: outside of the interval, a verdict holds however uncertain the number is. Which
/// number to count on, where the estimate is not certain.
fn of_requirement(comparison: &Comparison<'_>, speedup: &Speedup, causes: &BTreeSet<Cause>) -> Option<String> {
    let required = comparison.needed?;
    let (place, so) = match bounds(speedup) {
        (Some(lower), _) if required <= lower && comparison.is_accepted => {
            ("below the whole interval", met(speedup, causes))
        }
        (Some(lower), _) if required <= lower => ("below the whole interval", String::new()),
        (_, Some(upper)) if required > upper => ("above the whole interval", String::new()),
        (Some(_), Some(_)) => ("inside the interval", String::new()),
        _ => return None,
    };
    Some(format!(" The required {} is {place}{so}.", factor(required)))
}

/// What the speedup of accepted settings is good for of which the lower bound is more than required.
fn met(speedup: &Speedup, causes: &BTreeSet<Cause>) -> String {
    if causes.iter().any(|cause| *cause == Cause::OtherSpeed) {
        ": it is met, but by how much is not certain".to_owned()
    } else if causes.is_empty() {
        String::new()
    } else {
        let least = at_least(speedup).unwrap_or_default();
        format!(": it is met, but count on {least}× rather than on the estimate")
    }
}

/// The verb of a number of things.
fn verb(count: u32, verb: &str) -> String {
    if count == 1 { format!("{verb}s") } else { verb.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::pairs::comparisons;
    use pawl_contract::disturbance::DisturbanceKind;
    use serde_json::json;

    const CALM: Pair = Pair {
        loss: None,
        number: 0,
        seed: 42,
        control: 100.0,
        candidate: 130.0,
        disturbed: None,
        observed: true,
        not_counted: None,
    };

    fn bounded(lower: &str, upper: &str, pairs: usize) -> Speedup {
        serde_json::from_value(json!({"estimate": "1.3", "lower": lower, "upper": upper, "pairs": pairs})).unwrap()
    }

    /// The measurement of a phase that has this speedup and these pairs.
    fn of(speedup: &Speedup, pairs: &[Pair]) -> Measurement {
        let phase = json!({"name": "graph", "state": "Accepted", "speedup": speedup});
        let status = serde_json::from_value(json!({"phases": [phase]})).unwrap();
        let spec = serde_json::from_value(json!({"workload": {"name": "ups"}})).unwrap();
        let mut comparison = comparisons(&spec, &status).remove(0);
        comparison.pairs = pairs.to_vec();
        measurement(&comparison, None).unwrap()
    }

    fn level(speedup: &Speedup, pairs: &[Pair]) -> (Level, Vec<Cause>) {
        let found = of(speedup, pairs);
        (found.level, found.causes)
    }

    #[test]
    fn the_bounds_decide_at_their_limits() {
        let of = |lower, upper| level(&bounded(lower, upper, 3), &[CALM; 3]);
        assert_eq!(of("1.2", "1.5"), (Level::Good, vec![]));
        assert_eq!(of("1.2", "1.501"), (Level::Care, vec![Cause::Wide]));
        assert_eq!(of("1.0", "2.0"), (Level::Care, vec![Cause::Wide]));
        assert_eq!(of("1.0", "2.001"), (Level::Weak, vec![Cause::VeryWide]));
        // A bound that says nothing is none.
        assert_eq!(of("1.2", "1e30"), (Level::Weak, vec![Cause::NoInterval]));
    }

    #[test]
    fn fewer_than_three_pairs_or_one_without_bounds_are_weak() {
        assert_eq!(level(&bounded("1.2", "1.3", 2), &[CALM; 2]), (Level::Weak, vec![Cause::FewPairs]));
        let single: Speedup = serde_json::from_value(json!({"estimate": "1.3", "pairs": 1})).unwrap();
        assert_eq!(level(&single, &[CALM]), (Level::Weak, vec![Cause::FewPairs, Cause::NoInterval]));
    }

    #[test]
    fn disturbed_or_unobserved_pairs_are_with_care_if_they_count() {
        let speedup = bounded("1.2", "1.3", 3);
        let of = |last: Pair| level(&speedup, &[CALM, CALM, CALM, last]);
        let disturbed = Pair { disturbed: Some((DisturbanceKind::OtherCpu, 0.4)), ..CALM };
        let unobserved = Pair { observed: false, ..CALM };
        for (pair, cause) in [(disturbed, Cause::Disturbed), (unobserved, Cause::Unobserved)] {
            assert_eq!(level(&speedup, &[CALM, CALM, pair]), (Level::Care, vec![cause]));
            let left_out = Pair { not_counted: Some(pawl_decision::NotCounted::Late), ..pair };
            assert_eq!(of(left_out), (Level::Good, vec![]), "it does not count");
        }
    }

    #[test]
    fn what_the_status_does_not_have_is_taken_from_the_speedup() {
        let speedup = Speedup { disturbed: 2, ..bounded("1.2", "1.3", 5) };
        let found = of(&speedup, &[]);
        assert_eq!(found.causes, [Cause::Disturbed, Cause::Gone]);
        assert!(found.text().contains("The launches of its 5 pairs") && found.text().contains("2 of 5 were disturbed"));
    }
}
