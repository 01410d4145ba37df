//! What a page shows of a job after a time although nothing is written of it.

use jiff::{SignedDuration, Timestamp};
use pawl_api::TrainingJobStatus;
use pawl_api::status::Stage;

/// How long the status of a training is unchanged before its job is said to be silent: it is written more often.
const SILENT: SignedDuration = SignedDuration::from_hours(1);

/// What is awaited of a job. A page is made again when any of it is overdue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Awaited {
    /// When the status was last written, if the next time is awaited.
    written: Option<Timestamp>,
    /// When the training will probably end.
    end: Option<Timestamp>,
}

impl Awaited {
    /// Of a job with this status, which was written at `written`; `None`: it is not known, or not written while the job
    /// is worked on. Nothing is awaited of a job that has `stopped`.
    ///
    /// Only a training writes all the time: a launch that measures may take hours, and a job that waits in its queue
    /// may wait for days.
    pub fn new(status: &TrainingJobStatus, stopped: bool, written: Option<Timestamp>) -> Self {
        if stopped {
            return Self::default();
        }
        let is_queued = status.under_way().any(|attempt| attempt.queued_since.is_some());
        let reports = status.stage == Stage::Training && !is_queued;
        let end = status.training.as_ref().and_then(|training| training.eta.as_deref()?.parse().ok());
        Self { written: written.filter(|_| reports), end }
    }

    /// Since when nothing was written, if that is long before `now`.
    pub fn silent_since(&self, now: Timestamp) -> Option<Timestamp> {
        self.written.filter(|written| now.duration_since(*written) > SILENT)
    }

    /// When the training will probably end, unless that is not after `now`.
    pub fn end(&self, now: Timestamp) -> Option<Timestamp> {
        self.end.filter(|end| *end > now)
    }

    /// What is overdue at `now`: the next time that the status is written, and the end.
    pub fn overdue(&self, now: Timestamp) -> [bool; 2] {
        [self.silent_since(now).is_some(), self.end.is_some() && self.end(now).is_none()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    const WRITTEN: &str = "2026-01-05T10:00:00Z";

    fn of(status: Value, stopped: bool) -> Awaited {
        Awaited::new(&serde_json::from_value(status).unwrap(), stopped, Some(time(WRITTEN)))
    }

    #[test]
    fn only_a_training_is_silent_and_only_after_an_hour() {
        let of = |status: Value, now: &str| of(status, false).silent_since(time(now));
        let (training, late) = (json!({"stage": "Training"}), "2026-01-05T11:00:01Z");
        assert_eq!(of(training.clone(), late), Some(time(WRITTEN)));
        assert_eq!(of(training.clone(), "2026-01-05T10:59:59Z"), None);
        assert_eq!(of(training, "2026-01-05T09:00:00Z"), None, "by the clock of another machine");
        for stage in ["Pending", "Preflight", "Optimizing", "Searching", "Complete", "Failed", "Suspended"] {
            assert_eq!(of(json!({"stage": stage}), late), None, "{stage}");
        }
        let queued = json!({"name": "toy-9", "purpose": "Train", "queuedSince": "2026-01-05T09:59:00Z"});
        let queued = json!({"stage": "Training", "progress": "queued", "attempt": queued});
        assert_eq!(of(queued, late), None, "it waits in its queue");
    }

    #[test]
    fn an_end_is_awaited_until_it_has_passed_and_nothing_of_a_job_that_stopped() {
        let training = || json!({"stage": "Training", "training": {"eta": "2026-01-05T10:30:00Z"}});
        let (before, after) = (time("2026-01-05T10:29:59Z"), time("2026-01-05T10:30:00Z"));
        let end = time("2026-01-05T10:30:00Z");
        assert_eq!((of(training(), false).end(before), of(training(), false).end(after)), (Some(end), None));
        assert_eq!(of(training(), false).overdue(before), [false, false]);
        assert_eq!(of(training(), false).overdue(after), [false, true]);
        assert_eq!(of(training(), false).overdue(time("2026-01-06T00:00:00Z")), [true, true]);
        assert_eq!(of(training(), true), Awaited::default());
    }
}
