//! The pairs of a page that count are those of the verdict, whatever was measured.

use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_contract::report::LaunchResult;
use pawl_decision::action::Action;
use pawl_decision::decide;
use pawl_decision::observed::{AttemptFacts, AttemptState, Ending, Observed};
use pawl_display::report::evidence::Evidence;
use pawl_display::report::render;
use serde_json::json;

/// Numbers from 0 to 1 that are the same in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as f64 / f64::from(1_u32 << 31)
    }

    fn one_in(&mut self, count: f64) -> bool {
        self.next() < 1.0 / count
    }

    /// A launch that may be slow, disturbed, under pressure, or not steady, or of which that is not known.
    fn run(&mut self, plan: &LaunchPlan) -> LaunchResult {
        let mut result = LaunchResult::bare(&plan.launch, Outcome::Done);
        if plan.kind != LaunchKind::Measure {
            return result;
        }
        let speed = if plan.settings.compile.is_some() { 115.0 } else { 100.0 };
        let slow = if self.one_in(12.0) { 0.4 } else { 1.0 };
        let measured = &mut result.measured;
        measured.items_per_second = Some(speed * slow * (1.0 + 0.03 * self.next()));
        let is_disturbed = self.one_in(8.0);
        let share = if is_disturbed { 0.6 } else { 0.01 };
        measured.disturbance.other_cpu_share = (!self.one_in(4.0)).then_some(share);
        measured.disturbance.cpu_pressure = Some(if self.one_in(8.0) { 0.7 } else { 0.1 });
        measured.steady = Some(!self.one_in(12.0));
        result
    }
}

fn job() -> TrainingJob {
    let phase = json!({"name": "compile", "settings": {"compile": "Graph"}});
    let spec = json!({"workload": {"name": "ups"}, "phases": [phase]});
    serde_json::from_value(json!({"metadata": {"name": "toy"}, "spec": spec})).expect("a job")
}

/// How many marks the page of a job has: filled and hollow dots, and disturbed pairs that count.
fn marks(job: &TrainingJob, status: &TrainingJobStatus) -> [usize; 3] {
    let page = render(&Evidence::new(job.clone(), status.clone(), Vec::new(), Vec::new()));
    let dots = |class: &str| page.matches(&format!("<circle class=\"{class}\"")).count();
    [dots("point b"), dots("point left"), page.matches("*</td>").count()]
}

#[test]
fn the_page_counts_the_pairs_of_the_verdict() {
    let job = job();
    let mut hollow_and_disturbed = [0; 2];
    for seed in 0..200 {
        let mut random = Random(seed);
        let (mut status, mut observed) = (TrainingJobStatus::default(), Observed::default());
        for _ in 0..60 {
            let decision = decide(&job, &status, &observed, jiff::Timestamp::UNIX_EPOCH);
            status = decision.status;
            let phase = &status.phases[0];
            if let Some(speedup) = &phase.speedup {
                let [filled, hollow, disturbed] = marks(&job, &status);
                let expected = [speedup.pairs as usize, speedup.disturbed as usize];
                assert_eq!([filled, disturbed], expected, "seed {seed}: {}", phase.message);
                hollow_and_disturbed[0] += hollow;
                hollow_and_disturbed[1] += disturbed;
            }
            if phase.state.is_final() {
                break;
            }
            for action in decision.actions {
                if let Action::Start { plan, plan_hash } = action {
                    let results = plan.launches.iter().map(|launch| random.run(launch)).collect();
                    let (state, placement) = (AttemptState::Ended(Ending::Completed), "node-a/gpu:0".to_owned());
                    let (trainer, progress) = ("sha256:0123abcd".to_owned(), None);
                    let name = plan.attempt;
                    observed.attempts =
                        vec![AttemptFacts { name, plan_hash, state, placement, trainer, results, progress }];
                }
            }
        }
        assert!(status.phases[0].state.is_final(), "seed {seed}");
    }
    assert!(hollow_and_disturbed.into_iter().all(|count| count > 20), "{hollow_and_disturbed:?}");
}

#[test]
fn no_pair_is_drawn_as_counted_where_the_verdict_is_that_of_others() {
    let launch = |arm: &str, speed: &str| {
        json!({"name": format!("compile-p0-{arm}"), "kind": "Measure", "arm": arm, "pair": 0, "seed": 1,
               "outcome": "Done", "itemsPerSecond": speed})
    };
    let phase = json!({"name": "compile", "state": "Accepted", "speedup": {"estimate": "1.2", "pairs": 3},
                       "launches": [launch("Control", "100"), launch("Candidate", "150")]});
    let status: TrainingJobStatus = serde_json::from_value(json!({"phases": [phase]})).unwrap();
    assert_eq!(marks(&job(), &status), [0, 1, 0]);
}
