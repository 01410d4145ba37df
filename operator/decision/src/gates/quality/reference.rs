//! The settings of the baseline's quality launches.
//!
//! An uncompiled baseline may need five times as long to learn what a compiled one learns. The phases that come before
//! the first change of the numerics were compared with the baseline by the losses of the same steps: with those whose
//! losses agreed, the baseline's quality launches learn the same, sooner.

use crate::comparison::stem;
use crate::draft::Draft;
use crate::launch::{quality as budget_of, quality_looks, quality_seeds, seed, tag, tag_of};
use crate::reason::Reason;
use crate::revision::{accepted, patch};
use crate::task::Task;
use pawl_api::status::{Arm, PhaseStatus};
use pawl_contract::plan::LaunchKind;
use pawl_contract::settings::Settings;

/// The settings that have, or will have, the baseline's quality launches: those of launches that there are, which all
/// phases share, otherwise the quickest with the baseline's numerics.
pub(crate) fn reference_settings(draft: &Draft<'_>) -> Settings {
    let mut all = with_its_numerics(draft);
    let used = all.iter().position(|(settings, _)| has_launches(draft, settings));
    let shown = || all.iter().take_while(|(_, shown)| *shown).count() - 1;
    let index = used.unwrap_or_else(shown);
    all.swap_remove(index).0
}

/// The baseline, and it with one more of the accepted phases each that precede the first change of the numerics.
/// `true`: equal losses are in the evidence, which a large status may have dropped since.
fn with_its_numerics(draft: &Draft<'_>) -> Vec<(Settings, bool)> {
    let mut all = vec![(draft.spec.settings.clone(), true)];
    for (index, (phase, status)) in draft.spec.phases.iter().zip(&draft.status.phases).enumerate() {
        // A rollback by the guard does not undo what was compared before.
        if !accepted(status) && (!status.held || Reason::Pinned.is(&status.reason)) {
            continue;
        }
        if draft.is_judged_as_changed(index) {
            break;
        }
        let settings =
            all.last().map_or_else(Settings::default, |(settings, _)| settings.with(&patch(phase, status.fallback)));
        all.push((settings, compares_losses(status)));
    }
    all
}

fn compares_losses(phase: &PhaseStatus) -> bool {
    phase.launches.iter().any(|launch| launch.kind == LaunchKind::Measure && launch.measured.loss.is_some())
}

/// Whether the baseline has, or is running, quality launches with these settings.
fn has_launches(draft: &Draft<'_>, settings: &Settings) -> bool {
    let spec = draft.spec;
    let of = |look: u32| {
        let budget = budget_of(spec, look);
        (0..quality_seeds(spec)).map(move |index| {
            let stem = stem(&Task::Baseline, LaunchKind::Quality, Arm::Control, index);
            format!("{stem}-{}", tag(spec, LaunchKind::Quality, settings, seed(spec, index), &budget))
        })
    };
    let names: Vec<String> = (0..quality_looks(spec)).flat_map(of).collect();
    let mut done = draft.status.baseline.iter().flat_map(|baseline| &baseline.launches);
    // By their names: a candidate that runs may have the same settings, and is none of the baseline's.
    let mut running = draft.under_way().flat_map(|attempt| &attempt.launches);
    done.any(|launch| names.iter().any(|name| tag_of(name) == tag_of(&launch.name)))
        || running.any(|launch| names.contains(launch))
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use pawl_api::status::{AttemptStatus, TrainingJobStatus};
    use serde_json::json;

    #[test]
    fn a_candidate_that_runs_with_settings_of_the_baseline_is_no_reference() {
        let job = serde_json::from_value(json!({
            "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "job"},
            "spec": {"workload": {"name": "ups"}, "gates": {"validationLossDelta": "0.1"}},
        }));
        let job = job.unwrap();
        let has = |task: &Task, arm: Arm| {
            let settings = Settings::default();
            let mut draft = Draft::new(&job, Vec::new(), &TrainingJobStatus::default(), Timestamp::UNIX_EPOCH);
            let budget = budget_of(draft.spec, quality_looks(draft.spec) - 1);
            let tag = tag(draft.spec, LaunchKind::Quality, &settings, seed(draft.spec, 0), &budget);
            let launches = vec![format!("{}-{tag}", stem(task, LaunchKind::Quality, arm, 0))];
            draft.set_attempt(AttemptStatus { name: "job-1".to_owned(), launches, ..AttemptStatus::default() });
            has_launches(&draft, &settings)
        };
        assert!(has(&Task::Baseline, Arm::Control));
        assert!(!has(&Task::Bundle { input: "4e9a".to_owned() }, Arm::Candidate));
    }
}
