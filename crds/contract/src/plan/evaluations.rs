//! The evaluations in the course of a launch of a search: values of a trial after amounts of training, in one launch
//! instead of a launch for each.

use super::{Budget, Criterion};
use crate::measured::rounded;
use serde::{Deserialize, Serialize};

/// Most evaluations that a report lists, and most with which a launch is planned.
pub const MAX_LISTED: usize = 32;

/// The value of a metric after an amount of training: epochs, or items where the length of the launch is in items,
/// since the start of the trial. `None`: the metric was absent, or not finite.
pub type Evaluated = (u32, Option<f64>);

/// Evaluations in the course of a launch, which its report lists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Evaluations {
    /// Epochs between them, or items where the length of the launch is in items.
    pub every: u32,
    /// The metric that is listed, and its direction; the fields are inlined in the JSON.
    #[serde(flatten)]
    pub criterion: Criterion,
    /// Amounts of training, ascending, each with a value of the metric: the launch ends after the evaluation there if
    /// all values so far are worse, since the trial is stopped then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bounds: Vec<(u32, f64)>,
}

impl Evaluations {
    /// Items between the evaluations, where an epoch has `epoch_items`.
    pub fn every_items(&self, budget: &Budget, epoch_items: u64) -> u64 {
        let unit = if budget.items.is_some() { 1 } else { epoch_items };
        (u64::from(self.every) * unit).max(1)
    }

    /// The amounts of training that a step from `before` to `items` items reaches. The end of the launch is one of
    /// them; nothing is beyond it, where a checkpoint may be from which the launch resumes.
    ///
    /// ```
    /// use pawl_contract::plan::{Budget, Criterion, Evaluations};
    ///
    /// let two = Evaluations { every: 2, criterion: Criterion::default(), bounds: vec![] };
    /// let budget = Budget { epochs: Some(5), ..Budget::default() };
    /// assert_eq!(two.reached(&budget, 100, (190, 200)), [2]);
    /// assert_eq!(two.reached(&budget, 100, (490, 500)), [5]);
    /// assert!(two.reached(&budget, 100, (200, 210)).is_empty());
    /// assert!(two.reached(&budget, 100, (590, 600)).is_empty());
    /// ```
    pub fn reached(&self, budget: &Budget, epoch_items: u64, (before, items): (u64, u64)) -> Vec<u32> {
        let end = budget.items.or(budget.epochs.map(u64::from)).and_then(|end| u32::try_from(end).ok());
        let end_items = budget.items.or(budget.epochs.map(|epochs| u64::from(epochs) * epoch_items));
        let every = self.every_items(budget, epoch_items);
        let counts = before / every + 1..=items / every;
        let amounts = counts.filter_map(|count| u32::try_from(count * u64::from(self.every)).ok());
        let mut amounts: Vec<u32> = amounts.filter(|amount| end.is_none_or(|end| *amount < end)).collect();
        amounts.extend(end.filter(|_| end_items.is_some_and(|end| before < end && end <= items)));
        amounts
    }

    /// Whether the launch ends after the last of `values`: it is worse than its bound, as all before it are, or there
    /// is none.
    pub fn end_after(&self, values: &[Evaluated]) -> bool {
        let Some((newest, value)) = values.last() else { return false };
        // As results contain them, by which the trial is stopped.
        let worse = |bound: f64| {
            let mut known = values.iter().filter_map(|(_, value)| rounded((*value)?));
            known.all(|value| self.criterion.better.regression(value, bound) > 0.0)
        };
        value.is_none() || self.bounds.iter().any(|(amount, bound)| amount == newest && worse(*bound))
    }

    /// Adds a value after `amount`; those after as much, or more, are of a run that was resumed before them.
    pub fn add(values: &mut Vec<Evaluated>, amount: u32, value: Option<f64>) {
        values.retain(|(before, _)| *before < amount);
        values.push((amount, value));
        values.drain(..values.len().saturating_sub(MAX_LISTED));
    }
}

#[cfg(test)]
mod tests {
    use super::super::Better;
    use super::*;

    #[test]
    fn a_launch_ends_when_all_values_are_worse_than_the_bound_of_the_newest() {
        let criterion = Criterion { metric: "rankIC".to_owned(), better: Better::Larger };
        let planned = Evaluations { every: 1, criterion, bounds: vec![(2, 0.5), (3, 0.6)] };
        let ends = |values: &[f64]| {
            let values: Vec<Evaluated> = (1..).zip(values.iter().map(|value| Some(*value))).collect();
            planned.end_after(&values)
        };
        assert!(!ends(&[]) && !ends(&[0.1]), "no bound there");
        assert!(ends(&[0.1, 0.4]) && !ends(&[0.5, 0.4]), "the best value counts");
        assert!(ends(&[0.5, 0.4, 0.3]) && !ends(&[0.5, 0.4, 0.599_999_9]), "it is rounded as in the result");
        assert!(!ends(&[0.1, 0.1, 0.1, 0.1]), "beyond the last bound");
        assert!(planned.end_after(&[(1, None)]), "the trial has no value");
        let text = r#"{"every":1,"metric":"rankIC","better":"Larger","bounds":[[2,0.5],[3,0.6]]}"#;
        assert_eq!(serde_json::to_string(&planned).unwrap(), text);
        assert_eq!(serde_json::from_str::<Evaluations>(text).unwrap(), planned);
    }

    #[test]
    fn amounts_are_those_of_single_launches_whatever_the_size_of_a_step() {
        let planned = Evaluations { every: 30, criterion: Criterion::default(), bounds: vec![] };
        let budget = Budget { items: Some(100), ..Budget::default() };
        assert_eq!(planned.reached(&budget, 7, (56, 64)), [60]);
        assert_eq!(planned.reached(&budget, 7, (0, 64)), [30, 60]);
        assert_eq!(planned.reached(&budget, 7, (64, 128)), [90, 100], "no amount beyond the end");
    }

    #[test]
    fn a_run_that_was_resumed_replaces_what_came_after() {
        let mut values = vec![(1, Some(0.5)), (2, Some(0.4)), (3, None)];
        Evaluations::add(&mut values, 2, Some(0.3));
        assert_eq!(values, [(1, Some(0.5)), (2, Some(0.3))]);
        (3..100).for_each(|amount| Evaluations::add(&mut values, amount, None));
        assert_eq!((values.len(), values.last()), (MAX_LISTED, Some(&(99, None))));
    }
}
