//! Leave-one-out trials: a phase whose lower bound was close to its threshold must still improve the speed of the final
//! settings.

use crate::comparison::Comparison;
use crate::draft::Draft;
use crate::gates::sequential::Sequential;
use crate::gates::{safety, speed};
use crate::launch::{EvidenceTarget, Work};
use crate::reason::Reason;
use crate::revert::{revert, with_dependents};
use crate::revision::{accepted, fold};
use crate::step::{Next, Step};
use crate::trial::Trial;
use pawl_api::spec::{Pin, Role, Scope};
use pawl_api::status::Purpose;

/// A lower bound below `minSpeedup` times this factor is close to the threshold.
const MARGIN: f64 = 1.01;

/// Evaluates the first marginal phase without a leave-one-out trial. All phases are final at this point.
pub(crate) fn advance(draft: &mut Draft<'_>) -> Step {
    if !crate::bundle::open(draft) {
        return Step::Pass;
    }
    let Some(index) = marginal(draft) else { return Step::Pass };
    let name = draft.spec.phases[index].name.clone();
    let gone = with_dependents(draft, index);
    let control = fold(draft.spec, &draft.status, |i, phase| accepted(phase) && !gone.contains(&i));
    let candidate = draft.effective();
    let own = draft.status.phases[index].launches.iter();
    let evidence: Vec<_> = own.chain(draft.bundle_launches()).cloned().collect();
    let trial = Trial::LeaveOneOut { input: crate::bundle::input(draft), phase: name.clone() };
    let comparison = Comparison::new(draft, (trial.clone(), EvidenceTarget::Bundle), (control, candidate), &evidence);
    if let Some(broken) = safety::broken(&comparison) {
        let (reason, message) = (Reason::Outcome(broken.outcome), safety::description(broken));
        return crate::bundle::broken(draft, reason, &message);
    }
    let (outcome, mut launches) = speed::compare(&comparison, 1.0);
    for launch in &mut launches {
        launch.entitle(draft.spec, &format!("all together, with and without {name}"), 0);
    }
    let trial = trial.to_string();
    let spent = draft.exhausted(&trial).is_some();
    match outcome {
        Sequential::More(_) if !spent => {
            let purpose = Purpose::LeaveOneOut;
            let work = Work { purpose, phase: Some(name), trial, launches, stop_on_failure: true };
            return Step::Go(Next::Run(work.bounded()));
        }
        Sequential::Below(interval) => {
            let message = format!("with it against without it: {} is below 1", speed::shown(&interval));
            revert(draft, index, Scope::Phase, Reason::NoLongerHelps, &message);
        }
        Sequential::More(_) | Sequential::Above(_) | Sequential::Undecided(_) => {}
    }
    if let Some(bundle) = &mut draft.status.bundle {
        bundle.left_out.push(name);
        bundle.launches.clear();
    }
    Step::Moved
}

/// The first accepted phase whose lower bound is close to its threshold and that has no leave-one-out trial.
fn marginal(draft: &Draft<'_>) -> Option<usize> {
    let judged = &draft.status.bundle.as_ref()?.left_out;
    let mut phases = draft.spec.phases.iter().zip(&draft.status.phases).enumerate();
    if draft.accepted_names().len() < 2 {
        return None;
    }
    let found = phases.find(|(_, (phase, status))| {
        let lower = status.speedup.as_ref().and_then(|speedup| speedup.lower.as_ref());
        let marginal = lower.is_some_and(|lower| lower.value() < phase.min_speedup() * MARGIN);
        let eligible = phase.role == Role::Optimization && phase.pin != Some(Pin::Accepted);
        accepted(status) && eligible && marginal && !judged.contains(&phase.name)
    });
    found.map(|(index, _)| index)
}
