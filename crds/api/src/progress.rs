//! Separates the progress of a training, which changes with every step, from the changes that must be written at once.

use crate::status::{CheckpointStatus, TrainingJobStatus, TrainingStatus};
use pawl_contract::measured::Measured;

impl TrainingJobStatus {
    /// This status without the fields that change with every step of the training. If two statuses differ in the
    /// remaining fields, the newer one should be written at once.
    #[must_use]
    pub fn without_progress(mut self) -> Self {
        self.cost = None;
        self.progress.clear();
        for condition in self.conditions.iter_mut().filter(|condition| condition.type_ == "Reconciling") {
            condition.message.clear();
        }
        self.training.iter_mut().for_each(clear_progress);
        self
    }
}

/// Destructures every field, so that a new field does not compile until it is classified.
#[expect(clippy::too_many_lines, reason = "a line for each field")]
fn clear_progress(training: &mut TrainingStatus) {
    let TrainingStatus {
        measured:
            Measured {
                steps,
                items,
                items_per_second,
                step_seconds,
                loss,
                wall_seconds,
                peak_memory_bytes,
                loader_wait_share,
                collective_wait_share,
                offload_share,
                utilization,
                float8_overflow_share,
                float8_underflow_share,
                // The guard depends on the newest validation.
                validation: _,
                first_validation: _,
                predicted_memory_bytes: _,
                initial_weights_share: _,
                // Of a measurement only.
                steady: _,
                disturbance: _,
            },
        epoch,
        eta,
        goodput,
        storage: _,
        directory: _,
        last_checkpoint,
        // It changes with evaluations, as `validation` does.
        best_checkpoint: _,
        stop_seconds,
        slow_windows,
        window,
        promised_items_per_second: _,
        restarts: _,
        resume_not_after_items: _,
        revision: _,
        last_good_items: _,
        started: _,
        straggler: _,
        degraded: _,
        worse: _,
        violated_at_items: _,
        cusum,
        gate_windows,
        good_windows,
        replaced,
        slowdown: _,
        slow_machine: _,
        slowdowns: _,
        quiet_windows,
        completed: _,
        wanted: _,
        segments,
        earlier: _,
        unseen: _,
        quarantined: _,
    } = training;
    (*steps, *items, *epoch, *slow_windows, *quiet_windows) = Default::default();
    (*cusum, *gate_windows, *good_windows) = Default::default();
    if let Some(replaced) = replaced {
        replaced.items = 0;
    }
    (*items_per_second, *step_seconds, *loss, *wall_seconds) = Default::default();
    (*peak_memory_bytes, *utilization) = Default::default();
    (*loader_wait_share, *collective_wait_share, *offload_share) = Default::default();
    (*float8_overflow_share, *float8_underflow_share) = Default::default();
    (*eta, *goodput, *window, *stop_seconds) = Default::default();
    segments.iter_mut().for_each(|segment| segment.to_items = 0);
    // That there is a first checkpoint at all is news: no later attempt may start from the beginning.
    if let Some(checkpoint) = last_checkpoint {
        *checkpoint = CheckpointStatus::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_progress_and_a_restart_is_news() {
        let status = |training| TrainingJobStatus { training: Some(training), ..TrainingJobStatus::default() };
        let at = |steps| TrainingStatus {
            measured: Measured { steps, items: steps * 10, ..Measured::default() },
            ..TrainingStatus::default()
        };
        let (before, later) = (status(at(7)), status(at(8)));
        assert_eq!(before.clone().without_progress(), later.without_progress());
        let saved = |items| {
            let last_checkpoint = Some(CheckpointStatus { items, ..CheckpointStatus::default() });
            status(TrainingStatus { last_checkpoint, ..at(7) }).without_progress()
        };
        assert_eq!(saved(10), saved(20));
        assert_ne!(saved(10), status(at(7)).without_progress(), "the first checkpoint");
        let again = status(TrainingStatus { restarts: 1, ..at(7) });
        assert_ne!(before.clone().without_progress(), again.without_progress());
        assert_ne!(before.without_progress(), TrainingJobStatus::default().without_progress(), "training began");
    }
}
