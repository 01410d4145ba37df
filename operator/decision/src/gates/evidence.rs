//! Which quality launches are evidence about a trained model.

use pawl_api::status::LaunchStatus;
use pawl_contract::decimal::Decimal;
use pawl_contract::measured::Measured;
use pawl_contract::plan::Budget;

/// Share of a launch that may follow its newest validation, if that is more than one step. A script may count in its
/// own way, and a model changes by less than any gate can resolve in so short a time.
const LEFT_OUT: f64 = 0.01;

/// Largest share of initial weights in a moving average that is evaluated as the result of a training.
const INITIAL_WEIGHTS: f64 = 0.01;

/// The newest validation of a launch, if it is from before the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Early {
    /// Items seen at the newest validation.
    pub validated: u64,
    /// Items at the end of the launch.
    pub end: u64,
}

/// Whether the newest validation of a complete launch is from before its end. Then it is of another model than the
/// launch has trained, of the initial one even where a script evaluates before its first step and never again, and
/// would not distinguish a phase from any other. One step is tolerated: scripts evaluate before or after they count it,
/// and number steps from 0 or from 1.
pub(crate) fn early(measured: &Measured<Decimal>, budget: &Budget) -> Option<Early> {
    let validated = measured.validation.as_ref()?.items;
    let end = measured.items.max(budget.items.unwrap_or(0));
    let step = measured.items.div_ceil(measured.steps.max(1));
    let tolerated = step.max((end as f64 * LEFT_OUT) as u64);
    (validated.saturating_add(tolerated) < end).then_some(Early { validated, end })
}

/// The share of initial weights in what the launch evaluated, if that is too large to be the result of a training.
pub(crate) fn initial_weights(launch: &LaunchStatus) -> Option<f64> {
    let share = launch.measured.initial_weights_share.as_ref()?.value();
    (share > INITIAL_WEIGHTS).then_some(share)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_contract::measured::Validation;

    #[test]
    fn a_validation_is_from_the_end_within_a_step_or_a_hundredth() {
        let found = |validated, steps, items, budget: Option<u64>| {
            let validation = Some(Validation { items: validated, ..Validation::default() });
            let measured = Measured { steps, items, validation, ..Measured::default() };
            early(&measured, &Budget { items: budget, ..Budget::default() })
        };
        assert_eq!(found(800, 100, 800, Some(800)), None);
        assert_eq!(found(792, 100, 800, Some(800)), None, "the step before the last");
        assert_eq!(found(784, 100, 800, Some(800)), Some(Early { validated: 784, end: 800 }));
        assert_eq!(found(79_300, 10_000, 80_000, None), None, "less than a hundredth is left out");
        assert_eq!(found(0, 100, 800, Some(800)), Some(Early { validated: 0, end: 800 }), "before training");
        assert_eq!(found(0, 0, 0, Some(800)), Some(Early { validated: 0, end: 800 }), "nothing was trained");
        assert_eq!(found(960, 15, 960, Some(1000)), None, "a script leaves out what is no whole batch");
        assert_eq!(early(&Measured::default(), &Budget::default()), None, "no validation is another error");
    }
}
