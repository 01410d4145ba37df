//! The same settings at another speed: the settings accepted so far are measured several times, as the candidate of one
//! phase and as the control of later ones, and those of the baseline again beside all accepted phases together.

use super::pairs::{Comparison, Pair};
use crate::numbers::short;
use crate::together::{TOGETHER, is_current};
use pawl_api::TrainingJobStatus;
use pawl_api::spec::TrainingJobSpec;
use pawl_api::status::{PhaseState, PhaseStatus};
use pawl_contract::settings::Settings;
use pawl_decision::patch;
use std::collections::BTreeMap;

/// Larger relative differences of the medians of the same settings are reported.
const TOLERANCE: f64 = 0.1;

/// The items per second of settings in the pairs of a comparison that count.
#[derive(Clone, Debug, PartialEq)]
struct Measured<'a> {
    /// Name of the comparison.
    of: &'a str,
    settings: Settings,
    median: f64,
}

/// The same settings at another speed in another comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct OtherSpeed<'a> {
    /// Median items per second in this comparison.
    pub here: f64,
    /// The same in the other one.
    pub there: f64,
    /// Name of the other one.
    pub of: &'a str,
}

impl OtherSpeed<'_> {
    /// The relative difference from the other one.
    fn change(&self) -> f64 {
        self.here / self.there - 1.0
    }

    /// The difference, for people.
    pub fn text(&self) -> String {
        format!(
            "The same settings ran {} items/s here and {} in {} ({:+.0} %): the machine or its load differed. Both \
             launches of a pair ran in turn; where the machine is as it was in {}, the ratio may be another.",
            short(self.here),
            short(self.there),
            self.of,
            self.change() * 100.0,
            self.of
        )
    }
}

/// Of each comparison in which settings ran at another speed than in an earlier or a later one, by more than 10 %: the
/// largest such difference, by the name of the comparison.
pub fn other_speeds<'a>(
    spec: &TrainingJobSpec,
    status: &TrainingJobStatus,
    comparisons: &[Comparison<'a>],
) -> BTreeMap<&'a str, OtherSpeed<'a>> {
    let all = measured(spec, status, comparisons);
    let name = |here: &Vec<Measured<'a>>| Some(here.first()?.of);
    all.iter().filter_map(|here| Some((name(here)?, largest(&all, here)?))).collect()
}

/// The largest difference from equal settings in another comparison, if it is reported.
fn largest<'a>(all: &[Vec<Measured<'a>>], here: &[Measured<'a>]) -> Option<OtherSpeed<'a>> {
    let both = here.iter().flat_map(|here| all.iter().flatten().map(move |there| (here, there)));
    let equal = both.filter(|(here, there)| here.of != there.of && here.settings == there.settings);
    let differences = equal.map(|(here, there)| OtherSpeed { here: here.median, there: there.median, of: there.of });
    let reported = differences.filter(|it| it.change().abs() > TOLERANCE);
    reported.max_by(|one, other| one.change().abs().total_cmp(&other.change().abs()))
}

/// What each comparison measured with which settings, in order: those of each phase with the settings accepted before
/// it and with its own on top, and last those of the baseline and of all accepted phases.
///
/// Of a phase after one that is open, was reverted later, or got another fallback in training, it is not known what was
/// accepted when it was measured: such phases are left out, and so is then the comparison of all together.
fn measured<'a>(
    spec: &TrainingJobSpec,
    status: &TrainingJobStatus,
    comparisons: &[Comparison<'a>],
) -> Vec<Vec<Measured<'a>>> {
    let mut found = Vec::new();
    let mut accepted = spec.settings.clone();
    // The comparisons begin with those of the phases.
    for (phase, comparison) in status.phases.iter().zip(comparisons) {
        let Some(written) = spec.phases.iter().find(|written| written.name == phase.name) else { return found };
        let with_phase = accepted.with(&patch(written, phase.fallback));
        found.push(of_both(comparison, [&accepted, &with_phase]));
        if !is_settled(phase) {
            break;
        }
        if phase.state == PhaseState::Accepted {
            accepted = with_phase;
        }
    }
    let is_current = status.bundle.as_ref().is_some_and(|bundle| is_current(bundle, status));
    if is_current && status.phases.iter().all(is_settled) {
        let together = comparisons.iter().find(|comparison| comparison.name == TOGETHER);
        found.extend(together.map(|together| of_both(together, [&spec.settings, &accepted])));
    }
    found
}

/// Whether what is in effect of the phase is what was in effect when later ones were measured.
fn is_settled(phase: &PhaseStatus) -> bool {
    phase.state.is_final() && !phase.held && phase.training_fallback.is_none()
}

/// The speeds of control and candidate, which have these settings.
fn of_both<'a>(comparison: &Comparison<'a>, settings: [&Settings; 2]) -> Vec<Measured<'a>> {
    let speeds: [fn(&Pair) -> f64; 2] = [|pair| pair.control, |pair| pair.candidate];
    let both = speeds.into_iter().zip(settings).filter_map(|(speed, settings)| {
        let median = median(comparison.counted().map(speed).collect())?;
        Some(Measured { of: comparison.name, settings: settings.clone(), median })
    });
    both.collect()
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        _ if values.is_empty() => None,
        0 => Some((values[middle - 1] + values[middle]) / 2.0),
        _ => Some(values[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::pairs::comparisons;
    use serde_json::{Value, json};

    /// A phase with three pairs of these speeds.
    fn phase(name: &str, state: &str, control: f64, candidate: f64) -> Value {
        let launch = |pair: u32, arm: &str, speed: f64| {
            json!({"name": format!("{name}-{pair}-{arm}"), "kind": "Measure", "arm": arm, "pair": pair, "seed": pair,
                   "outcome": "Done", "itemsPerSecond": speed.to_string()})
        };
        let launches = (0..3).flat_map(|pair| [launch(pair, "Control", control), launch(pair, "Candidate", candidate)]);
        json!({"name": name, "state": state, "launches": launches.collect::<Vec<_>>()})
    }

    /// The names of the comparisons with other speeds, and where these were.
    fn found(phases: &[Value]) -> Vec<(String, String)> {
        let spec = json!({"workload": {"name": "ups"}, "settings": {"batchPerGpu": 8}, "phases": [
            {"name": "graph", "settings": {"compile": "Graph"}},
            {"name": "batch", "settings": {"batchPerGpu": 32},
             "fallbacks": [{"when": ["OutOfMemory"], "settings": {"batchPerGpu": 8, "precision": "bf16"}}]},
            {"name": "bf16", "settings": {"precision": "bf16"}},
        ]});
        let spec: TrainingJobSpec = serde_json::from_value(spec).unwrap();
        let status: TrainingJobStatus = serde_json::from_value(json!({"phases": phases})).unwrap();
        let found = other_speeds(&spec, &status, &comparisons(&spec, &status));
        found.iter().map(|(name, other)| ((*name).to_owned(), other.of.to_owned())).collect()
    }

    /// Each of two comparisons names the other one.
    fn both(one: &str, other: &str) -> [(String, String); 2] {
        [(one, other), (other, one)].map(|(name, other)| (name.to_owned(), other.to_owned()))
    }

    #[test]
    fn the_candidate_of_an_accepted_phase_is_the_control_of_the_next() {
        let next =
            |control| found(&[phase("graph", "Accepted", 100.0, 150.0), phase("batch", "RolledBack", control, 160.0)]);
        assert_eq!(next(163.0), []);
        assert_eq!(next(170.0), both("batch", "graph"));
        assert_eq!(next(130.0), both("batch", "graph"), "slower, too");
    }

    #[test]
    fn the_control_after_a_rollback_is_the_control_before_it() {
        let next = |control| {
            found(&[phase("graph", "RolledBack", 100.0, 150.0), phase("batch", "Inconclusive", control, 160.0)])
        };
        assert_eq!(next(101.0), []);
        assert_eq!(next(150.0), both("batch", "graph"));
    }

    #[test]
    fn other_settings_are_not_compared() {
        // A batch that was accepted is in the control of the next phase.
        let phases = [phase("graph", "RolledBack", 100.0, 90.0), phase("batch", "Accepted", 100.0, 200.0)];
        assert_eq!(found(&[&phases[..], &[phase("bf16", "Accepted", 203.0, 400.0)]].concat()), []);
        // The fallback in effect, and not the phase, was measured.
        let mut fallback = phase("batch", "RolledBack", 100.0, 200.0);
        fallback["rung"] = json!(1);
        let rest = [phase("graph", "RolledBack", 100.0, 90.0), fallback, phase("bf16", "Accepted", 100.0, 300.0)];
        assert_eq!(found(&rest), both("batch", "bf16"));
    }

    #[test]
    fn nothing_is_compared_after_a_phase_that_is_open_or_changed_after_its_verdict() {
        let last = || [phase("batch", "Accepted", 300.0, 160.0), phase("bf16", "Accepted", 400.0, 160.0)];
        let mut held = phase("graph", "RolledBack", 100.0, 150.0);
        held["held"] = json!(true);
        let mut fell_back = phase("graph", "Accepted", 100.0, 150.0);
        fell_back["trainingRung"] = json!(1);
        for first in [phase("graph", "Measuring", 100.0, 150.0), held, fell_back] {
            assert_eq!(found(&[&[first][..], &last()].concat()), []);
        }
    }
}
