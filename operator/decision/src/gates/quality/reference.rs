//! The settings of the baseline's quality launches.
//!
//! An uncompiled baseline may need five times as long to learn what a compiled one learns. The phases that come before the first
//! change of the numerics were compared with the baseline by the losses of the same steps: with those whose losses agreed, the
//! baseline's quality launches learn the same, sooner.

use crate::draft::Draft;
use crate::launch::{quality as budget_of, quality_looks, quality_seeds, seed, tag, tag_of};
use crate::reason::Reason;
use crate::revision::{accepted, patch};
use pawl_api::status::PhaseStatus;
use pawl_contract::plan::LaunchKind;
use pawl_contract::settings::Settings;

/// The settings that have, or will have, the baseline's quality launches: those of launches that there are, which all phases share,
/// otherwise the quickest with the baseline's numerics.
pub(crate) fn reference_settings(draft: &Draft<'_>) -> Settings {
    let mut all = with_its_numerics(draft);
    let used = all.iter().position(|(settings, _)| has_launches(draft, settings));
    let shown = || all.iter().take_while(|(_, shown)| *shown).count() - 1;
    let index = used.unwrap_or_else(shown);
    all.swap_remove(index).0
}

/// The baseline, and it with one more of the accepted phases each that precede the first change of the numerics. `true`: equal losses
/// are in the evidence, which a large status may have dropped since.
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
            all.last().map_or_else(Settings::default, |(settings, _)| settings.with(&patch(phase, status.rung)));
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
        (0..quality_seeds(spec)).map(move |index| tag(spec, LaunchKind::Quality, settings, seed(spec, index), &budget))
    };
    let tags: Vec<String> = (0..quality_looks(spec)).flat_map(of).collect();
    let done = draft.status.baseline.iter().flat_map(|baseline| &baseline.launches).map(|launch| launch.name.as_str());
    let running = draft.under_way().flat_map(|attempt| &attempt.launches).map(String::as_str);
    done.chain(running).any(|name| tags.iter().any(|tag| tag == tag_of(name)))
}
