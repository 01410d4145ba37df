//! The test at the end of the training: the best checkpoint on the test split.

use crate::ending::Ending;
use crate::run::RunningLaunch;
use pawl_contract::checkpoint::CheckpointRef;
use pawl_contract::plan::LaunchKind;
use pawl_contract::progress::RankPhase;
use pawl_graph::array::Data;
use std::collections::BTreeMap;

/// Prefix of a metric on the test split: `testAccuracy` is that of `accuracy`.
const PREFIX: &str = "test";

impl RunningLaunch<'_> {
    /// Evaluates the test split, if the workload has one, with the weights of the best checkpoint (the current ones if
    /// there is no checkpoint), and adds its metrics to those of the newest validation, unless the test loss is not
    /// finite. The session then has the weights of that checkpoint. Only at the end of a training.
    ///
    /// # Errors
    /// When the checkpoint cannot be read; when data, device or a peer fail.
    pub fn test(&mut self) -> Result<(), Ending> {
        let Some(data) = self.data.test_split().filter(|_| self.launch.plan.kind == LaunchKind::Train) else {
            return Ok(());
        };
        self.restore_best()?;
        let metrics = self.measure(data.as_ref())?;
        tracing::info!(?metrics, "test split evaluated");
        if let Some(validation) = &mut self.validation {
            validation.metrics.extend(reported(metrics));
        }
        Ok(())
    }

    /// Gives all ranks the weights of the best checkpoint, which rank 0 reads.
    fn restore_best(&mut self) -> Result<(), Ending> {
        if self.saver.is_some() {
            self.publisher.enter(RankPhase::Resuming);
        }
        let found = self.saver.as_ref().map(|saver| saver.read_best()).transpose()?.flatten();
        let exists = self.gang.gather(&found.is_some())?.contains(&true);
        if let Some(found) = found {
            let CheckpointRef { name, items, .. } = &found.reference;
            tracing::info!(checkpoint = name, items, "testing the best checkpoint");
            self.session.restore(found.checkpoint.tensors, false)?;
        }
        if !exists || self.gang.world_size() == 1 {
            return Ok(());
        }
        let mut tensors = self.session.states()?;
        for (_, array) in &mut tensors {
            match array.data_mut() {
                Data::F32(values) => self.gang.broadcast(0, values)?,
                // Words are only copied, never computed with.
                Data::U32(values) => self.gang.broadcast(0, bytemuck::cast_slice_mut(values))?,
                _ => {}
            }
        }
        self.session.restore(tensors, false)
    }
}

/// The finite test metrics under their names in the report; none when the test loss is not finite, which does not make
/// a finished training a failed one.
fn reported(metrics: BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let loss = metrics.get("loss").copied().unwrap_or(f64::NAN);
    if !loss.is_finite() {
        tracing::warn!("the test loss is {loss}: the report contains no metrics of the test split");
        return BTreeMap::new();
    }
    let finite = metrics.into_iter().filter(|(_, value)| value.is_finite());
    finite.map(|(name, value)| (test_name(&name), value)).collect()
}

/// The name of a metric on the test split.
fn test_name(metric: &str) -> String {
    let mut letters = metric.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    PREFIX.chars().chain(first).chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::{reported, test_name};

    #[test]
    fn names_of_test_metrics_are_camel_case() {
        assert_eq!(["loss", "macroF1"].map(test_name), ["testLoss", "testMacroF1"]);
    }

    #[test]
    fn a_test_loss_that_is_not_finite_leaves_out_the_test_metrics() {
        let of = |loss: f64, accuracy: f64| {
            let metrics = [("loss", loss), ("accuracy", accuracy)].map(|(name, value)| (name.to_owned(), value));
            reported(metrics.into()).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(of(0.5, 0.9), [("testAccuracy".to_owned(), 0.9), ("testLoss".to_owned(), 0.5)]);
        assert_eq!(of(0.5, f64::NAN), [("testLoss".to_owned(), 0.5)]);
        assert!(of(f64::NAN, 0.9).is_empty() && of(f64::INFINITY, 0.9).is_empty());
    }
}
