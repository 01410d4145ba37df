//! Whether training has saved more device time than judging cost.

use crate::numbers::{money, short};
use pawl_api::status::Purpose;
use pawl_api::{TrainingJob, TrainingJobStatus};

/// That judging has cost more than training has saved so far.
const NOT_YET: &str = "not yet paid back";

/// How much of the time that the baseline would take a job has saved, after what judging cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Saved {
    /// This share, in percent.
    Percent(f64),
    /// Nothing yet: judging has cost more than training has saved so far.
    NotYet,
    /// Nothing, however long it trains: the training takes as much time as the baseline.
    Never,
}

impl Saved {
    /// That of a job; `None` before the speeds are known.
    pub fn new(job: &TrainingJob, status: &TrainingJobStatus) -> Option<Self> {
        let percent = status.cost.as_ref()?.saved_percent.as_ref()?.value();
        let never = || balance(job, status).is_some_and(|balance| balance.gain <= 0.0);
        Some(match percent {
            percent if percent >= 0.0 => Self::Percent(percent),
            _ if never() => Self::Never,
            _ => Self::NotYet,
        })
    }

    /// It in a column: `+12 %`, or that nothing was saved.
    pub fn word(self) -> String {
        match self {
            Self::Percent(percent) => format!("{percent:+.0} %"),
            Self::NotYet => NOT_YET.to_owned(),
            Self::Never => "not paid back".to_owned(),
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
    Some(match balance(job, status) {
        Some(balance) if balance.gain <= 0.0 => "not paid back: this training saves no time".to_owned(),
        Some(Balance { judging, gain, items }) => {
            format!("{NOT_YET}: at this speed after {} items", short(items * judging / gain))
        }
        None => NOT_YET.to_owned(),
    })
}

/// What judging cost, and what training has saved.
struct Balance {
    /// Device hours that were not spent on training.
    judging: f64,
    /// Device hours that the baseline would have taken more for the trained items.
    gain: f64,
    /// Trained items.
    items: f64,
}

/// `None` before the speed of the baseline and of the training are known.
fn balance(job: &TrainingJob, status: &TrainingJobStatus) -> Option<Balance> {
    let cost = status.cost.as_ref()?;
    let judging = cost.purposes.iter().filter(|(purpose, _)| **purpose != Purpose::Train);
    let judging = judging.map(|(_, milliseconds)| *milliseconds as f64).sum::<f64>() / 3.6e6;
    let gain = saved(job, status)? + judging;
    let items = status.training.as_ref()?.measured.items as f64;
    Some(Balance { judging, gain, items }).filter(|balance| balance.items > 0.0)
}

/// The savings in device hours after what judging cost: the status has them in percent of the time that the baseline
/// takes for the same items.
pub fn saved(job: &TrainingJob, status: &TrainingJobStatus) -> Option<f64> {
    let percent = status.cost.as_ref()?.saved_percent.as_ref()?.value();
    let speed = status.baseline.as_ref()?.measured.items_per_second.as_ref()?.value();
    let items = status.training.as_ref()?.measured.items as f64;
    let baseline = items / speed * f64::from(job.spec.trainer.world_size()) / 3600.0;
    Some(baseline * percent / 100.0).filter(|hours| hours.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn job_of(percent: &str, baseline: Value) -> (TrainingJob, TrainingJobStatus) {
        // 2 processes; the baseline takes 2 hours for the items, so that 4 device hours are 100 %.
        let job = json!({"spec": {"workload": {"name": "ups"}, "trainer": {"replicas": 2, "gpusPerReplica": 0}},
            "metadata": {"name": "toy"}});
        let purposes = json!({"Speed": 6 * 3_600_000, "Search": 2 * 3_600_000, "Train": 3_600_000});
        let status = json!({"baseline": baseline, "training": {"items": 720_000},
            "cost": {"purposes": purposes, "savedPercent": percent}});
        (serde_json::from_value(job).unwrap(), serde_json::from_value(status).unwrap())
    }

    fn of(percent: &str, baseline: Value) -> Option<String> {
        let (job, status) = job_of(percent, baseline);
        words(&job, &status)
    }

    #[test]
    fn a_column_has_the_same_in_few_words() {
        let word = |percent: &str| {
            let (job, status) = job_of(percent, json!({"itemsPerSecond": "100"}));
            Saved::new(&job, &status).map(Saved::word)
        };
        let expected = [("12.3", "+12 %"), ("0", "+0 %"), ("-150", "not yet paid back"), ("-210", "not paid back")];
        for (percent, expected) in expected {
            assert_eq!(word(percent).as_deref(), Some(expected), "{percent}");
        }
    }

    #[test]
    fn judging_that_is_not_paid_back_says_after_how_many_items_it_is() {
        let speed = json!({"itemsPerSecond": "100"});
        // 8 hours of judging, and 2 hours less than the baseline's 4 for 720,000 items: four times as many are needed.
        let early = "not yet paid back: at this speed after 2.88M items";
        assert_eq!(of("-150", speed.clone()).as_deref(), Some(early));
        let slower = "not paid back: this training saves no time";
        assert_eq!(of("-210", speed.clone()).as_deref(), Some(slower));
        assert_eq!(of("-150", json!({})).as_deref(), Some("not yet paid back"), "the baseline's speed is not known");
        assert_eq!(of("12", speed).as_deref(), Some("12 % saved"));
        let lost = json!({"cost": {"saved": "-1.2", "currency": "USD"}});
        let job = serde_json::from_value(json!({"spec": {"workload": {"name": "ups"}}, "metadata": {}})).unwrap();
        assert_eq!(words(&job, &serde_json::from_value(lost).unwrap()).as_deref(), Some("not yet paid back"));
    }
}
