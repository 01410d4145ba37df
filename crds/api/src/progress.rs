//! Progress, apart from news: what every step of the training changes need not be written at every step.

use crate::status::{TrainingJobStatus, TrainingStatus};

impl TrainingJobStatus {
    /// This status without what changes with every step of the training. Two statuses whose rests differ tell news, which
    /// is worth a write at once.
    #[must_use]
    pub fn without_progress(mut self) -> Self {
        self.cost = None;
        self.progress.clear();
        for condition in self.conditions.iter_mut().filter(|condition| condition.type_ == "Reconciling") {
            condition.message.clear();
        }
        self.training.iter_mut().for_each(forget_progress);
        self
    }
}

/// Names every field, so that a new one does not compile before it is said what it is.
fn forget_progress(training: &mut TrainingStatus) {
    let TrainingStatus {
        step,
        items,
        epoch,
        items_per_second,
        loss,
        eta,
        goodput,
        last_checkpoint,
        // It changes with evaluations, as what was validated last.
        best_checkpoint: _,
        slow_windows,
        window,
        // What was validated last is what guards against damage.
        validation: _,
        first_validation: _,
        promised_items_per_second: _,
        restarts: _,
        resume_not_after_items: _,
        revision: _,
        last_good_items: _,
        started: _,
        straggler: _,
        degraded: _,
        completed: _,
    } = training;
    (*step, *items, *epoch, *slow_windows) = Default::default();
    (*items_per_second, *loss, *eta, *goodput) = Default::default();
    (*last_checkpoint, *window) = Default::default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_progress_and_a_restart_is_news() {
        let status = |training| TrainingJobStatus { training: Some(training), ..TrainingJobStatus::default() };
        let before = status(TrainingStatus { step: 7, items: 70, ..TrainingStatus::default() });
        let later = status(TrainingStatus { step: 8, items: 80, ..TrainingStatus::default() });
        assert_eq!(before.clone().without_progress(), later.without_progress());
        let again = status(TrainingStatus { step: 7, items: 70, restarts: 1, ..TrainingStatus::default() });
        assert_ne!(before.clone().without_progress(), again.without_progress());
        assert_ne!(before.without_progress(), TrainingJobStatus::default().without_progress(), "training began");
    }
}
