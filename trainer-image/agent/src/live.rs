//! State of an agent's attempt while it runs.

use crate::exposition::{Known, merged};
use crate::files::read_bounded;
use crate::gauges::Gauges;
use crate::node::Event;
use crate::ranks::METRICS;
use parking_lot::Mutex;
use pawl_contract::exit::Outcome;
use pawl_contract::live::{Attempt, MAX_ATTEMPT};
use pawl_contract::plan::AttemptPlan;
use pawl_contract::progress::Progress;
use pawl_contract::report::LaunchResult;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum size of a trainer's metrics in bytes.
const MAX_TEXT: u64 = 256 << 10;

/// The state that [`crate::serve`] serves. Clones share it.
#[derive(Clone, Debug)]
pub struct Live(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    attempt: Attempt,
    leads: bool,
    ranks: u32,
    work_dir: PathBuf,
    launch: Option<String>,
    gauges: Gauges,
    /// Series of the trainer's own metrics.
    series: Known,
}

impl Live {
    /// The state before the first event.
    ///
    /// # Errors
    /// Never in practice: a metric's name is malformed or taken.
    pub fn new(plan: &AttemptPlan, replica: u32, work_dir: &Path) -> io::Result<Self> {
        let leads = replica == 0;
        Ok(Self(Arc::new(Mutex::new(State {
            attempt: Attempt { attempt: plan.attempt.clone(), results: Vec::new(), progress: None },
            leads,
            ranks: plan.ranks_per_replica,
            work_dir: work_dir.to_owned(),
            launch: None,
            gauges: Gauges::new(leads).map_err(io::Error::other)?,
            series: Known::default(),
        }))))
    }

    /// Updates the state with an event.
    pub fn hear(&self, event: &Event) {
        let mut state = self.0.lock();
        match event {
            Event::LaunchStarted { launch, kind } => {
                let ranks = state.ranks;
                state.gauges.started(*kind, ranks);
                state.attempt.progress = None;
                state.launch = Some(launch.clone());
            }
            Event::Progress(progress) => {
                state.gauges.progress(progress);
                state.attempt.progress = Some(Progress::clone(progress));
            }
            Event::Warning { .. } => {}
            Event::LaunchEnded(report) => {
                state.gauges.ended(report.kind, report.outcome);
                // A launch that was stopped early has no result, but its progress may still matter.
                if report.outcome != Outcome::Stopped {
                    state.attempt.progress = None;
                    let result = LaunchResult::from(&**report);
                    state.attempt.results.retain(|known| known.launch != result.launch);
                    state.attempt.results.push(result);
                }
            }
        }
    }

    /// Whether this agent reports for the gang.
    pub(crate) fn leads(&self) -> bool {
        self.0.lock().leads
    }

    /// The running launch.
    pub(crate) fn progress(&self) -> Option<Progress> {
        self.0.lock().attempt.progress.clone()
    }

    /// The attempt as JSON of at most [`MAX_ATTEMPT`] bytes.
    pub(crate) fn attempt(&self) -> Vec<u8> {
        let mut attempt = self.0.lock().attempt.clone();
        loop {
            let json = serde_json::to_vec(&attempt).unwrap_or_default();
            if json.len() <= MAX_ATTEMPT {
                return json;
            }
            match attempt.results.len() {
                0 => attempt.progress = None,
                many => drop(attempt.results.drain(..many.div_ceil(2))),
            }
        }
    }

    /// This agent's metrics, with those of rank 0 when it runs here.
    pub(crate) fn metrics(&self) -> String {
        let (own, file) = {
            let state = self.0.lock();
            let file = state.launch.as_ref().map(|launch| state.work_dir.join(launch).join(METRICS));
            (state.gauges.text(), file.filter(|_| state.leads))
        };
        // Most trainers write no metrics, and none has any at its start.
        let theirs = file.and_then(|file| read_bounded(&file, MAX_TEXT).ok()).unwrap_or_default();
        merged(own, &String::from_utf8_lossy(&theirs), &mut self.0.lock().series)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_contract::plan::{LaunchKind, LaunchPlan};
    use pawl_contract::report::Report;
    use serde_json::json;

    fn plan() -> AttemptPlan {
        let launch = |index: u32| {
            json!({"contract": 1, "job": "j", "attempt": "j-1", "launch": format!("l-{index}"), "kind": "Train",
                   "workload": {}, "settings": {}, "seed": 1, "budget": {}, "hangTimeoutSeconds": 1.0})
        };
        serde_json::from_value(json!({
            "contract": 1, "job": "j", "attempt": "j-1", "replicas": 1, "ranksPerReplica": 2, "gpusPerReplica": 0,
            "launches": (0..20).map(launch).collect::<Vec<_>>(), "stopOnFailure": false,
        }))
        .unwrap()
    }

    fn live(replica: u32) -> Live {
        Live::new(&plan(), replica, Path::new("/nowhere")).unwrap()
    }

    fn started(launch: &str) -> Event {
        Event::LaunchStarted { launch: launch.to_owned(), kind: LaunchKind::Train }
    }

    fn progress(launch: &str, items: u64, saved: Option<u64>) -> Event {
        let saved = saved.map(|step| json!({"name": "c", "step": step, "items": step}));
        Event::Progress(Box::new(
            serde_json::from_value(
                json!({"launch": launch, "kind": "Train", "step": items, "items": items, "epoch": 0,
                "loss": 0.5, "validation": {"items": 1, "metrics": {"loss": 0.25}}, "lastCheckpoint": saved}),
            )
            .unwrap(),
        ))
    }

    fn ended(plan: &LaunchPlan, outcome: Outcome, message: &str) -> Event {
        Event::LaunchEnded(Box::new(Report { message: message.to_owned(), ..Report::bare(plan, 0, outcome) }))
    }

    fn value(live: &Live, series: &str) -> Option<f64> {
        live.metrics().lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    #[test]
    fn items_are_counted_over_launches_and_never_twice() {
        let live = live(0);
        live.hear(&started("l-0"));
        assert_eq!((value(&live, "pawl_train_items_total"), value(&live, "pawl_train_loss")), (Some(0.0), None));
        // It resumes at 100.
        for items in [100, 150, 150, 180] {
            live.hear(&progress("l-0", items, None));
        }
        live.hear(&started("l-1"));
        assert_eq!(value(&live, "pawl_train_loss"), None, "the last launch's loss is not this one's");
        for items in [0, 30] {
            live.hear(&progress("l-1", items, Some(3)));
        }
        assert_eq!(value(&live, "pawl_train_items_total"), Some(110.0));
        assert_eq!(value(&live, "pawl_validation{metric=\"loss\"}"), Some(0.25));
        assert_eq!(value(&live, "pawl_checkpoint_last_step"), Some(3.0));
        assert_eq!(value(&live, "pawl_launch_running{kind=\"Train\"}"), Some(1.0));
        assert_eq!(value(&live, "pawl_agent_ranks"), Some(2.0));
        live.hear(&ended(&plan().launches[1], Outcome::NonFinite, ""));
        assert_eq!(value(&live, "pawl_launches_total{kind=\"Train\",outcome=\"NonFinite\"}"), Some(1.0));
        assert_eq!(value(&live, "pawl_agent_ranks"), Some(0.0));
    }

    #[test]
    fn a_trainer_that_renames_its_metrics_adds_no_series_without_end() {
        let live = live(0);
        live.hear(&started("l-0"));
        for step in 0..200 {
            let metrics = json!({"loss": 0.5, format!("accuracy-{step}"): 0.1});
            let validation = json!({"items": step, "metrics": metrics});
            let progress = json!({"launch": "l-0", "kind": "Train", "step": step, "items": step, "epoch": 0,
                "validation": validation});
            live.hear(&Event::Progress(Box::new(serde_json::from_value(progress).unwrap())));
        }
        let series = live.metrics().lines().filter(|line| line.starts_with("pawl_validation{")).count();
        assert_eq!(series, 64);
        assert_eq!(value(&live, "pawl_validation{metric=\"loss\"}"), Some(0.5));
    }

    #[test]
    fn the_age_of_a_checkpoint_grows_until_there_is_a_newer_one() {
        let live = live(0);
        let time = || value(&live, "pawl_checkpoint_last_timestamp_seconds").unwrap();
        live.hear(&progress("l-0", 1, Some(3)));
        let first = time();
        live.hear(&progress("l-0", 2, Some(3)));
        assert_eq!(time(), first);
        std::thread::sleep(std::time::Duration::from_millis(2));
        live.hear(&progress("l-0", 3, Some(4)));
        assert!(time() > first);
    }

    #[test]
    fn one_agent_alone_speaks_for_the_gang() {
        let live = live(1);
        live.hear(&started("l-0"));
        assert!(live.metrics().lines().filter(|line| !line.starts_with('#')).eq(["pawl_agent_ranks 2"]));
    }

    #[test]
    fn an_attempt_has_results_in_order_and_no_more_than_fit() {
        let live = live(0);
        let read = || serde_json::from_slice::<Attempt>(&live.attempt()).unwrap();
        assert_eq!(read(), Attempt { attempt: "j-1".to_owned(), results: Vec::new(), progress: None });
        live.hear(&progress("l-0", 7, None));
        assert_eq!(read().progress.unwrap().items, 7);
        live.hear(&ended(&plan().launches[0], Outcome::Failed, "once"));
        live.hear(&ended(&plan().launches[1], Outcome::Done, ""));
        live.hear(&ended(&plan().launches[0], Outcome::Done, "again"));
        live.hear(&progress("l-2", 9, None));
        live.hear(&ended(&plan().launches[2], Outcome::Stopped, "asked"));
        let attempt = read();
        let results: Vec<_> = attempt.results.iter().map(|result| (&*result.launch, &*result.message)).collect();
        assert_eq!(results, [("l-1", ""), ("l-0", "again")]);
        assert_eq!(attempt.progress.unwrap().items, 9, "where a launch was that was cut short");

        let mut large = Report::bare(&plan().launches[3], 0, Outcome::Done);
        let metrics = (0..10_000).map(|i| (format!("a-metric-of-a-long-name-{i}"), 1.0)).collect();
        large.measured.validation = Some(pawl_contract::measured::Validation { items: 1, metrics });
        for index in 3..20 {
            let launch = plan().launches[index].launch.clone();
            live.hear(&Event::LaunchEnded(Box::new(Report { launch, ..large.clone() })));
        }
        assert!(live.attempt().len() <= MAX_ATTEMPT);
        assert_eq!(read().results.last().unwrap().launch, "l-19", "the newest stay");
    }
}
