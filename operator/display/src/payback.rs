//! Whether training has saved more device time than judging cost.

use crate::numbers::{money, short};
use crate::verdict::is_ended;
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_decision::payback;

/// That judging has cost more than training has saved so far.
const NOT_YET: &str = "not yet paid back";
/// That it has, and that nothing more is saved.
const NOT: &str = "not paid back";

/// How much of the time that the baseline would take a job has saved, after what judging cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Saved {
    /// This share, in percent.
    Percent(f64),
    /// Nothing yet: judging has cost more than training has saved so far.
    NotYet,
    /// Nothing, and that does not change: the job has ended, its training takes as much time as the baseline, or ends
    /// before what judging cost is paid back.
    Never,
}

impl Saved {
    /// That of a job; `None` before the speeds are known.
    pub fn new(job: &TrainingJob, status: &TrainingJobStatus) -> Option<Self> {
        let percent = status.cost.as_ref()?.saved_percent.as_ref()?.value();
        Some(match percent {
            percent if percent >= 0.0 => Self::Percent(percent),
            _ if Outlook::of(job, status).is_final(status) => Self::Never,
            _ => Self::NotYet,
        })
    }

    /// It in a column: `+12 %`, or that nothing was saved.
    pub fn word(self) -> String {
        match self {
            Self::Percent(percent) => format!("{percent:+.0} %"),
            Self::NotYet => NOT_YET.to_owned(),
            Self::Never => NOT.to_owned(),
        }
    }
}

/// The savings of a job compared with training with the baseline: `1.20 USD saved (34 %)`, or only the percentage
/// without a price. Until the savings exceed what judging cost: after how many items they would.
pub fn words(job: &TrainingJob, status: &TrainingJobStatus) -> Option<String> {
    let cost = status.cost.as_ref()?;
    let negative = [&cost.saved, &cost.saved_percent].into_iter().flatten().any(|number| number.value() < 0.0);
    if !negative {
        return money(cost);
    }
    let outlook = Outlook::of(job, status);
    let items = |items: u64| short(items as f64);
    Some(match outlook {
        Outlook::SavesNoTime => format!("{NOT}: this training saves no time"),
        Outlook::TooShort(after) => format!("{NOT}: that would take {} items, more than it trains", items(after)),
        Outlook::After(after) if outlook.is_final(status) => format!("{NOT}: that would take {} items", items(after)),
        Outlook::After(after) => format!("{NOT_YET}: at this speed after {} items", items(after)),
        Outlook::Unknown if outlook.is_final(status) => NOT.to_owned(),
        Outlook::Unknown => NOT_YET.to_owned(),
    })
}

/// The savings in device hours after what judging cost; `None` before the speeds of the baseline and of the training
/// are known.
pub fn saved(job: &TrainingJob, status: &TrainingJobStatus) -> Option<f64> {
    payback(&job.spec, status).map(|payback| payback.saved_hours()).filter(|hours| hours.is_finite())
}

/// Whether a job whose judging is not paid back would pay it back by training more.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outlook {
    /// The speeds of the baseline and of the training are not known.
    Unknown,
    /// No: it trains as the baseline does, or no faster.
    SavesNoTime,
    /// No: only after this number of items, which is more than it trains.
    TooShort(u64),
    /// Once it has trained this number of items.
    After(u64),
}

impl Outlook {
    fn of(job: &TrainingJob, status: &TrainingJobStatus) -> Self {
        // Without an accepted change, a difference between the speeds is that between two measurements.
        if status.effective_settings.as_ref() == Some(&job.spec.settings) {
            return Self::SavesNoTime;
        }
        let Some(payback) = payback(&job.spec, status) else { return Self::Unknown };
        match (payback.items, job.spec.train.items) {
            (None, _) => Self::SavesNoTime,
            (Some(after), Some(trains)) if after > trains => Self::TooShort(after),
            (Some(after), _) => Self::After(after),
        }
    }

    /// Whether nothing will be paid back.
    const fn is_final(self, status: &TrainingJobStatus) -> bool {
        is_ended(status.stage) || matches!(self, Self::SavesNoTime | Self::TooShort(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A job of 2 processes, 8 hours of judging, and this status besides. Its baseline takes 2 hours for the items that
    /// were trained, which are 4 device hours.
    fn job_of(train: Value, more: Value) -> (TrainingJob, TrainingJobStatus) {
        let spec = json!({"workload": {"name": "ups"}, "trainer": {"replicas": 2, "gpusPerReplica": 0},
            "train": train});
        let purposes = json!({"Speed": 6 * 3_600_000, "Search": 2 * 3_600_000, "Train": 3_600_000});
        let mut status = json!({"stage": "Training", "baseline": {"itemsPerSecond": "100"},
            "effectiveSettings": {"compile": "Graph"}, "training": {"items": 720_000, "itemsPerSecond": "200"},
            "cost": {"purposes": purposes, "savedPercent": "-150"}});
        status.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let job = json!({"metadata": {"name": "toy"}, "spec": spec});
        (serde_json::from_value(job).unwrap(), serde_json::from_value(status).unwrap())
    }

    /// What is said of it, and the word in a column.
    fn said(train: Value, more: Value) -> (String, String) {
        let (job, status) = job_of(train, more);
        (words(&job, &status).unwrap(), Saved::new(&job, &status).unwrap().word())
    }

    fn pair(words: &str, word: &str) -> (String, String) {
        (words.to_owned(), word.to_owned())
    }

    #[test]
    fn a_column_has_the_same_in_few_words() {
        let word = |percent: &str, speed: &str| {
            let training = json!({"items": 720_000, "itemsPerSecond": speed});
            let (job, status) = job_of(json!({}), json!({"training": training, "cost": {"savedPercent": percent}}));
            Saved::new(&job, &status).map(Saved::word)
        };
        let expected = [
            ("12.3", "200", "+12 %"),
            ("0", "200", "+0 %"),
            ("-150", "200", "not yet paid back"),
            ("-210", "95", "not paid back"),
        ];
        for (percent, speed, expected) in expected {
            assert_eq!(word(percent, speed).as_deref(), Some(expected), "{percent}");
        }
    }

    #[test]
    fn judging_that_is_not_paid_back_says_after_how_many_items_it_is() {
        // 8 hours of judging, and 2 hours less than the baseline's 4 for 720,000 items: four times as many are needed.
        let early = pair("not yet paid back: at this speed after 2.88M items", "not yet paid back");
        assert_eq!(said(json!({}), json!({})), early);
        assert_eq!(said(json!({"items": 2_880_000}), json!({})), early, "it trains enough");
        let slower = json!({"training": {"items": 720_000, "itemsPerSecond": "95"}});
        let never = pair("not paid back: this training saves no time", "not paid back");
        assert_eq!(said(json!({}), slower), never);
        let unknown = pair("not yet paid back", "not yet paid back");
        assert_eq!(said(json!({}), json!({"baseline": {}})), unknown, "the baseline's speed is not known");
        let (job, status) = job_of(json!({}), json!({"cost": {"savedPercent": "12"}}));
        assert_eq!(words(&job, &status).as_deref(), Some("12 % saved"));
        let lost = json!({"cost": {"saved": "-1.2", "currency": "USD"}});
        let job = serde_json::from_value(json!({"spec": {"workload": {"name": "ups"}}, "metadata": {}})).unwrap();
        assert_eq!(words(&job, &serde_json::from_value(lost).unwrap()).as_deref(), Some("not yet paid back"));
    }

    #[test]
    fn a_job_that_has_ended_promises_nothing() {
        for stage in ["Complete", "Failed"] {
            let ended = pair("not paid back: that would take 2.88M items", "not paid back");
            assert_eq!(said(json!({}), json!({"stage": stage})), ended, "{stage}");
            let unknown = json!({"stage": stage, "baseline": {}});
            assert_eq!(said(json!({}), unknown), pair("not paid back", "not paid back"), "{stage}");
        }
        let suspended = said(json!({}), json!({"stage": "Suspended"}));
        assert_eq!(suspended.1, "not yet paid back", "it is resumed");
    }

    #[test]
    fn a_training_that_ends_before_judging_is_paid_back_says_so_from_the_beginning() {
        let short = pair("not paid back: that would take 2.88M items, more than it trains", "not paid back");
        for stage in ["Training", "Complete"] {
            assert_eq!(said(json!({"items": 2_879_999}), json!({"stage": stage})), short, "{stage}");
        }
    }

    #[test]
    fn without_an_accepted_change_a_faster_training_is_chance() {
        let never = pair("not paid back: this training saves no time", "not paid back");
        for stage in ["Training", "Complete"] {
            assert_eq!(said(json!({}), json!({"stage": stage, "effectiveSettings": {}})), never, "{stage}");
        }
    }
}
