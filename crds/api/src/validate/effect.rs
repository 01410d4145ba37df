//! Phases that cannot have an effect.

use super::Problem;
use super::batch::bases;
use crate::spec::{Role, TrainingJobSpec};
use pawl_contract::effect::{Missing, NoEffect, no_effect};
use pawl_contract::settings::Settings;

/// The phases whose settings have no effect, whichever earlier phases are accepted, and which are therefore not
/// measured.
pub(super) fn check(spec: &TrainingJobSpec) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (i, phase) in spec.phases.iter().enumerate().filter(|(_, phase)| phase.role != Role::Enabler) {
        let on = |settings: Settings| no_effect(&settings, &phase.settings, spec.effect_trainer());
        let [required, all] = bases(spec, i).map(on);
        let at = format!("spec.phases[{i}].settings");
        match required.and(all) {
            None => {}
            Some(NoEffect::Unchanged) => problems.push(Problem::new(
                at,
                "",
                "has no effect, so that the phase is not measured: all settings have these values already",
                "change a value, or remove the phase",
            )),
            Some(NoEffect::Without(missing)) => {
                problems.extend(missing.into_iter().map(|Missing { setting, cause, remedy }| {
                    let message = format!("has no effect {cause}, so that the phase is not measured");
                    Problem::new(
                        format!("{at}.{setting}"),
                        "",
                        message,
                        format!("{remedy} in this phase or an earlier one"),
                    )
                }));
            }
        }
    }
    problems
}
