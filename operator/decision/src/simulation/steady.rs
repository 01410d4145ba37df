//! Speeds that change within a launch, through `decide`, with a trainer that measures as all trainers do.

use super::noise::Random;
use super::shell::{Shell, active, done};
use super::{AtLeast, AtMost, Bound, Rows, Shown};
use pawl_contract::plan::LaunchPlan;
use pawl_contract::report::LaunchResult;
use pawl_contract::steady::{EXTENSIONS, is_drained, is_steady};
use serde_json::{Value, json};

/// Seconds of a step, and of the loaders for its batch.
const STEP: f64 = 0.01;
const BATCH: f64 = 0.02;

/// Steps of a launch, one after the other: the seconds of the next one, and the prepared batches after it.
type Steps<'a> = Box<dyn FnMut() -> (f64, u64) + 'a>;

/// Steps that take `1 + 2 e^(-n / slow_steps)` times as long at first, with noise of 2 %.
fn warming_up(slow_steps: f64, speed: f64, random: &mut Random) -> Steps<'_> {
    let (launch, mut step) = ((0.005 * random.normal()).exp(), 0.0);
    Box::new(move || {
        let warm = if slow_steps > 0.0 { 1.0 + 2.0 * f64::exp(-step / slow_steps) } else { 1.0 };
        step += 1.0;
        (STEP / speed * launch * warm * (0.02 * random.normal()).exp(), 0)
    })
}

/// Steps that wait for loaders half as fast as themselves, behind a queue that is full at the first step.
fn behind_a_queue(queue: u64, random: &mut Random) -> Steps<'_> {
    let (most, mut ready) = (queue as f64, queue as f64);
    Box::new(move || {
        let wait = BATCH * (1.0 - ready).max(0.0);
        let seconds = (wait + STEP) * (0.02 * random.normal()).exp();
        ready = (ready + seconds / BATCH - 1.0).clamp(0.0, most);
        (seconds, ready as u64)
    })
}

/// A measurement: its window is replaced by the next one while it is not steady. `counted`: whether the trainer knows
/// the queue.
fn measured(plan: &LaunchPlan, mut steps: Steps<'_>, counted: bool) -> LaunchResult {
    let (warmup, window) = (plan.budget.warmup_steps.unwrap_or(20), plan.budget.window_steps.unwrap_or(50));
    let mut before = (0..warmup).map(|_| steps().1).last().unwrap_or_default();
    let (mut seconds, mut steady) = (0.0, false);
    for _ in 0..=EXTENSIONS {
        let spans: Vec<(f64, u64)> = (0..window).map(|_| steps()).collect();
        let after = spans.last().map_or(0, |span| span.1);
        let even = is_steady(&spans.iter().map(|(seconds, _)| (1, *seconds)).collect::<Vec<_>>());
        steady = even != Some(false) && !(counted && is_drained(before, after, window));
        seconds = spans.iter().map(|(seconds, _)| seconds).sum();
        before = after;
        if steady {
            break;
        }
    }
    let mut result = done(plan, 8.0 * window as f64 / seconds, 1.0);
    result.measured.steady = (!steady).then_some(false);
    result
}

/// A phase with a speed of its own, and slow first steps of the control and of the candidate.
struct Case {
    name: &'static str,
    effect: f64,
    slow_steps: (f64, f64),
    /// The queue of the candidate, if loaders limit the speed, and whether it is a setting that Pawl knows.
    queue: Option<(u64, bool)>,
    counted: &'static str,
    holds: Bound,
}

const ALIKE: Case = Case {
    name: "no warm-up; true 1.10",
    effect: 1.1,
    slow_steps: (0.0, 0.0),
    queue: None,
    counted: "accepted",
    holds: AtLeast(99.0),
};

const CASES: [Case; 9] = [
    ALIKE,
    Case { name: "both warm up for 20 steps; true 1.10", slow_steps: (20.0, 20.0), ..ALIKE },
    Case { name: "the candidate warms up for 20 steps; true 1.10", slow_steps: (0.0, 20.0), ..ALIKE },
    Case {
        name: "the candidate warms up for 40 steps; true 1.10",
        slow_steps: (0.0, 40.0),
        holds: AtLeast(90.0),
        ..ALIKE
    },
    Case {
        name: "the control warms up for 20 steps; without effect",
        effect: 1.0,
        slow_steps: (20.0, 0.0),
        holds: AtMost(5.0),
        ..ALIKE
    },
    Case {
        name: "the control warms up for 40 steps; true 0.95",
        effect: 0.95,
        slow_steps: (40.0, 0.0),
        holds: AtMost(5.0),
        ..ALIKE
    },
    Case {
        name: "loaderPrefetch 64 without effect, a trainer that counts its batches",
        queue: Some((64, true)),
        holds: AtMost(5.0),
        ..ALIKE
    },
    Case {
        name: "a queue of 16 that nobody counts, without effect",
        queue: Some((16, false)),
        holds: AtMost(5.0),
        ..ALIKE
    },
    Case { name: "a queue of 64 that nobody counts, without effect", queue: Some((64, false)), holds: Shown, ..ALIKE },
];

fn verdict(case: &Case, sample: u64) -> &'static str {
    let mut random = Random::seeded(sample);
    let &Case { effect, slow_steps, queue, .. } = case;
    let trainer = move |plan: &LaunchPlan| {
        let changed = active(plan).next().is_some() || plan.settings.loader_prefetch.is_some_and(|queue| queue > 1);
        let steps = match queue {
            Some((queue, _)) => behind_a_queue(if changed { queue } else { 1 }, &mut random),
            None if changed => warming_up(slow_steps.1, effect, &mut random),
            None => warming_up(slow_steps.0, 1.0, &mut random),
        };
        measured(plan, steps, queue.is_some_and(|(_, counted)| counted))
    };
    let (baseline, settings): (Value, Value) = match queue {
        Some((queue, true)) => (json!({"loaderPrefetch": 1}), json!({"loaderPrefetch": queue})),
        Some(_) | None => (json!({"batchPerGpu": 8}), json!({"workload": {"p0": 1}})),
    };
    let spec = json!({"settings": baseline, "phases": [{"name": "p0", "settings": settings}]});
    Shell::new(spec, Box::new(trainer)).run().verdict()
}

pub(super) fn rows(rows: &mut Rows) {
    for case in &CASES {
        let tally = rows.tally(150, |sample| verdict(case, sample));
        rows.add(tally.row(case.name, case.counted, case.holds));
    }
}
