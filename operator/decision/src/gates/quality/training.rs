//! Quality of a running training: its validation, compared with that of the original baseline at equal items.

use super::super::band::significant;
use super::super::{RunningTraining, evidence};
use super::{Measure, Requirement, budget_of, criteria, quality_looks, quality_seeds};
use crate::launch;
use crate::statistics::sequential::{Interval, alpha, interval};
use crate::trainer;
use pawl_api::spec::TrainingJobSpec;
use pawl_api::status::LaunchStatus;
use pawl_contract::exit::Outcome;
use pawl_contract::measured::Validation;
use pawl_contract::plan::{Budget, LaunchKind};

/// What of the newest evaluation of a training looks worse than the gates allow.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Concern {
    /// Human-readable: what is compared with what, and why that is no evidence if it is none.
    pub message: String,
    /// Whether it is evidence against the settings: the baseline's launches are comparable, and the deviation exceeds
    /// the gate by more than the interval.
    pub comparable: bool,
}

/// The quality launches of the baseline for one look, and the items that they saw.
struct Reference<'a> {
    items: u64,
    launches: Vec<&'a LaunchStatus>,
}

/// Evaluations at numbers of items that differ by less than this share are compared.
const SAME_ITEMS: f64 = 0.02;

/// The quality launches of the baseline at the newest point of its curve that the newest evaluation of a training has
/// reached, with the budget that the spec has now.
fn reference<'a>(watched: &RunningTraining<'a>) -> Option<Reference<'a>> {
    let (spec, at) = (watched.spec, watched.progress.validation.as_ref()?.items);
    let launches = watched.baseline.map_or(&[][..], |baseline| &baseline.launches);
    let reached = (1.0 + SAME_ITEMS) * at as f64;
    (0..quality_looks(spec)).rev().find_map(|look| {
        let budget = budget_of(spec, look);
        let tags: Vec<String> = (0..quality_seeds(spec))
            .map(|index| launch::tag(spec, LaunchKind::Quality, &watched.reference, launch::seed(spec, index), &budget))
            .collect();
        let fits = |launch: &&LaunchStatus| {
            let named = tags.iter().any(|tag| tag == launch::tag_of(&launch.name));
            let trained = evidence::early(&launch.measured, &Budget::default()).is_none()
                && evidence::initial_weights(launch).is_none();
            named && trained && launch.outcome == Outcome::Done && trainer::comparable(launch)
        };
        let found: Vec<&LaunchStatus> = launches.iter().filter(fits).collect();
        let items = found.iter().map(|launch| launch.measured.items).max()?;
        (items as f64 <= reached).then_some(Reference { items, launches: found })
    })
}

/// Whether there are launches of the baseline with which the newest evaluation of a training is compared.
pub(crate) fn has_reference(watched: &RunningTraining<'_>) -> bool {
    reference(watched).is_some()
}

/// Items, or epochs, over which the schedules of the baseline's quality launches and of the training extend.
fn horizons(spec: &TrainingJobSpec, items_per_epoch: Option<u64>) -> (Option<u64>, Option<u64>) {
    let in_items = |items: Option<u64>, epochs: Option<u32>| {
        items.or_else(|| Some(items_per_epoch?.saturating_mul(u64::from(epochs?))))
    };
    let full = budget_of(spec, quality_looks(spec) - 1);
    (in_items(full.items, full.epochs), in_items(spec.train.items, spec.train.epochs))
}

/// The validation of a training that looks worse than a gate allows, compared with the baseline's launches. It is
/// evidence only at the same items of the same schedule: later, the training has seen the data more often, and in a
/// longer schedule its learning rate is another one. A better value than a two-sided gate allows is not worse.
pub(crate) fn in_training(watched: &RunningTraining<'_>) -> Option<Concern> {
    let (validation, known) = (watched.progress.validation.as_ref()?, reference(watched)?);
    let found: Vec<Concern> = criteria(&watched.spec.gates)
        .iter()
        .filter_map(|criterion| concern(watched, criterion, validation, &known))
        .collect();
    found.iter().find(|concern| concern.comparable).or(found.first()).cloned()
}

fn concern(
    watched: &RunningTraining<'_>,
    criterion: &Requirement<'_>,
    validation: &Validation,
    known: &Reference<'_>,
) -> Option<Concern> {
    let Measure::Validation(name) = criterion.measure else { return None };
    let value = *validation.metrics.get(name)?;
    let values: Vec<f64> = known.launches.iter().map(|launch| criterion.of_launch(launch)).collect();
    let values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    let mean = (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)?;
    let (found, allowed) = (criterion.scaled(mean, value), criterion.worse_end());
    if allowed.contains(found) {
        return None;
    }
    let spec = watched.spec;
    let looks = quality_looks(spec);
    let seeds: Vec<f64> = values.iter().map(|value| criterion.scaled(mean, *value)).collect();
    let beyond = interval(&seeds, alpha(&spec.analysis) / f64::from(looks)).and_then(|seeds| {
        // That of one more launch of the baseline, around the value of the training.
        let (lower, upper) = seeds.bounds?;
        let reach = (upper - lower) / 2.0 * f64::sqrt(seeds.count as f64 + 1.0);
        let bounds = Some((found - reach, found + reach));
        Some(Interval { mean: found, bounds, ..seeds })
    });
    let apart = validation.items.abs_diff(known.items) as f64 > SAME_ITEMS * known.items as f64;
    let (horizon, trained) = horizons(spec, watched.baseline.and_then(|baseline| baseline.items_per_epoch));
    let why = if apart {
        Some("the numbers of items differ".to_owned())
    } else if horizon.is_none() || horizon != trained {
        let shown = |items: Option<u64>| items.map_or("an unknown number of".to_owned(), |items| items.to_string());
        Some(format!("its schedule extends over {} items, the baseline's over {}", shown(trained), shown(horizon)))
    } else if !allowed.contains(criterion.scaled(mean, mean)) {
        Some("so is the baseline".to_owned())
    } else {
        match beyond {
            None => Some("the baseline has no interval with one seed".to_owned()),
            Some(beyond) if allowed.excludes(&beyond) => None,
            Some(_) => Some("that is within the interval of the baseline's seeds".to_owned()),
        }
    };
    let message = format!(
        "{}: {} at {} items, allowed: {allowed}, as validation {name} is {value:.5} and the baseline's {mean:.5} \
         after {} items",
        criterion.what,
        significant(found),
        validation.items,
        known.items
    );
    Some(Concern {
        comparable: why.is_none(),
        message: why.map_or(message.clone(), |why| format!("{message}; no phase is rolled back for it, as {why}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_api::spec::Gates;

    fn gates(json: serde_json::Value) -> Gates {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn only_the_worse_end_counts_in_training() {
        let within = gates(serde_json::json!({"validationLossWithin": "0.01"}));
        let band = criteria(&within)[0].worse_end();
        assert!(band.contains(-0.5) && !band.contains(0.02));
        let metric = serde_json::json!([{"name": "accuracy", "better": "Larger", "min": "0.5", "max": "0.9"}]);
        let range = gates(serde_json::json!({"validationMetrics": metric}));
        let band = criteria(&range)[0].worse_end();
        assert!(band.contains(0.95) && !band.contains(0.4));
    }
}
