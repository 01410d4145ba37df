//! Progress, apart from news: what every step of the training changes need not be written at every step.

use crate::status::{TrainingJobStatus, TrainingStatus};

impl TrainingJobStatus {
    /// This status without what changes with every step of the training. Two statuses whose rests differ tell news, which
    /// is worth a write at once.
    #[must_use]
    pub fn without_progress(&self) -> Self {
        let mut news = self.clone();
        news.cost = None;
        news.progress.clear();
        for condition in news.conditions.iter_mut().filter(|condition| condition.type_ == "Reconciling") {
            condition.message.clear();
        }
        news.training = news.training.map(news_of_training);
        news
    }
}

/// Names every field, so that a new one does not compile before it is said what it is.
fn news_of_training(training: TrainingStatus) -> TrainingStatus {
    let TrainingStatus {
        step: _,
        items: _,
        epoch: _,
        items_per_second: _,
        promised_items_per_second,
        loss: _,
        first_validation,
        // What was validated last is what guards against damage.
        validation,
        eta: _,
        goodput: _,
        last_checkpoint: _,
        slow_windows: _,
        window: _,
        restarts,
        resume_not_after_items,
        revision,
        last_good_items,
        started,
        straggler,
        degraded,
        completed,
    } = training;
    TrainingStatus {
        promised_items_per_second,
        first_validation,
        validation,
        restarts,
        resume_not_after_items,
        revision,
        last_good_items,
        started,
        straggler,
        degraded,
        completed,
        ..TrainingStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_progress_and_a_restart_is_news() {
        let status = |training| TrainingJobStatus { training: Some(training), ..TrainingJobStatus::default() };
        let before = status(TrainingStatus { step: 7, items: 70, ..TrainingStatus::default() });
        let later = status(TrainingStatus { step: 8, items: 80, ..TrainingStatus::default() });
        assert_eq!(before.without_progress(), later.without_progress());
        let again = status(TrainingStatus { step: 7, items: 70, restarts: 1, ..TrainingStatus::default() });
        assert_ne!(before.without_progress(), again.without_progress());
        assert_ne!(before.without_progress(), TrainingJobStatus::default().without_progress(), "training began");
    }
}
