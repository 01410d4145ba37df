//! Scripts measured by what they report.

use super::*;
use pawl_contract::report::LaunchResult;
use serde_json::json;

fn meter(kind: &str, budget: serde_json::Value) -> Meter {
    let plan: LaunchPlan = serde_json::from_value(json!({
        "contract": 1, "job": "j", "attempt": "j-1", "launch": "l", "kind": kind, "workload": {}, "settings": {},
        "seed": 1, "budget": budget, "hangTimeoutSeconds": 1.0,
    }))
    .unwrap();
    Meter::new(&plan, expected())
}

/// Of a script that has no pattern.
fn expected() -> Expected {
    Expected { items_per_step: 8, micro_steps: 1, is_given_steps: false, pattern: None, has_losses: false }
}

/// Reports every `every`th of `steps` steps, each of 0.5 s, with a loss.
fn trained(meter: &mut Meter, steps: std::ops::RangeInclusive<u64>, every: u64) {
    let begun = meter.begun;
    for step in steps.filter(|step| step % every == 0) {
        let at = begun + Duration::from_millis(500 * step);
        meter.observe(
            Reading::Training { step: Some(step), items: None, epoch: None, loss: Some(1.0 / step as f64) },
            at,
        );
    }
}

fn validated(meter: &mut Meter, loss: f64) {
    let metrics = BTreeMap::from([(LOSS.to_owned(), loss), ("odd".to_owned(), f64::NAN)]);
    meter.observe(Reading::Validation { step: None, items: None, metrics }, meter.begun);
}

#[test]
fn a_script_with_sampled_losses_may_tell_their_mean_after_the_last_step() {
    let mut meter = meter("Measure", json!({"warmupSteps": 4, "windowSteps": 20}));
    meter.sample();
    trained(&mut meter, 1..=24, 1);
    assert_eq!((meter.verdict.as_ref(), meter.incomplete()), (None, None));
    meter.conclude(0.25);
    assert_eq!(meter.complete(Report::bare(&plan(), 0, Outcome::Done)).measured.loss, Some(0.25));
    // One that trains on is ended.
    trained(&mut meter, 25..=25, 1);
    assert_eq!(meter.verdict, Some(Verdict::Complete));
}

#[test]
fn a_measurement_leaves_out_the_warmup_and_ends_with_its_last_step() {
    let mut meter = meter("Measure", json!({"warmupSteps": 4, "windowSteps": 20}));
    trained(&mut meter, 1..=23, 1);
    assert_eq!(meter.verdict, None);
    trained(&mut meter, 24..=24, 1);
    assert_eq!(meter.verdict, Some(Verdict::Complete));
    let report = meter.complete(Report::bare(&plan(), 0, Outcome::Done));
    assert_eq!((report.measured.steps, report.measured.items), (24, 192));
    assert_eq!(report.measured.items_per_second, Some(16.0));
    assert_eq!(report.measured.step_seconds, Some(Spread { p10: 0.5, median: 0.5, p90: 0.5 }));
    let progress = meter.progress().unwrap();
    assert_eq!((progress.windows, progress.total_steps, report.losses.len()), (2, Some(24), 24));
}

#[test]
fn losses_at_times_are_compared_by_their_mean_only() {
    let mut meter = meter("Measure", json!({"warmupSteps": 4, "windowSteps": 20}));
    meter.sample();
    trained(&mut meter, 1..=24, 7);
    let report = meter.complete(Report::bare(&plan(), 0, Outcome::Done));
    assert_eq!((report.measured.loss, report.losses.len()), (None, 0));
    meter.conclude(0.25);
    let report = meter.complete(Report::bare(&plan(), 0, Outcome::Done));
    assert_eq!((report.measured.loss, report.losses.len()), (Some(0.25), 3));
}

/// Reports steps of these seconds.
fn timed(meter: &mut Meter, seconds: impl IntoIterator<Item = f64>) {
    let mut at = meter.begun;
    for (index, seconds) in seconds.into_iter().enumerate() {
        at += Duration::from_secs_f64(seconds);
        let step = Some(1 + index as u64);
        meter.observe(Reading::Training { step, items: None, epoch: None, loss: Some(1.0) }, at);
    }
}

#[test]
fn a_measurement_that_is_not_steady_is_extended_and_says_so_where_the_script_ends() {
    let measure = || meter("Measure", json!({"warmupSteps": 4, "windowSteps": 20}));
    // A queue that is empty after 16 steps.
    let step = |index: u64| if index < 16 { 0.1 } else { 0.2 };
    let mut short = measure();
    timed(&mut short, (0..24).map(step));
    assert_eq!((short.verdict.as_ref(), short.incomplete()), (None, None), "the script may end here");
    let report = short.complete(Report::bare(&plan(), 0, Outcome::Done));
    assert_eq!(report.measured.steady, Some(false));
    let mut longer = measure();
    timed(&mut longer, (0..44).map(step));
    assert_eq!(longer.verdict, Some(Verdict::Complete));
    let report = longer.complete(Report::bare(&plan(), 0, Outcome::Done));
    assert_eq!((report.measured.steady, report.losses.len()), (None, 24), "losses of the budget only");
    assert!((report.measured.items_per_second.unwrap() - 40.0).abs() < 1e-6, "{:?}", report.measured);
    // Slower and slower.
    let mut never = measure();
    timed(&mut never, (0..150).map(|index| 0.1 + 0.01 * f64::from(index)));
    assert_eq!((never.verdict.as_ref(), never.measured.steady()), (Some(&Verdict::Complete), Some(false)));
}

#[test]
fn a_measurement_of_slow_steps_ends_by_time_and_its_losses_are_those_of_the_same_steps() {
    let limit = json!({"seconds": 20.0, "warmupSteps": 5, "windowSteps": 13});
    let measure = || meter("Measure", json!({"warmupSteps": 20, "windowSteps": 50, "windowLimit": limit}));
    let curve = |meter: &mut Meter, steps: u64, seconds: f64| {
        let mut at = meter.begun;
        for step in 1..=steps {
            at += Duration::from_secs_f64(seconds);
            let loss = Some(1.0 / step as f64);
            meter.observe(Reading::Training { step: Some(step), items: None, epoch: None, loss }, at);
            if meter.verdict.is_some() {
                break;
            }
        }
        meter.complete(Report::bare(&plan(), 0, Outcome::Done))
    };
    let mut slow = measure();
    let report = curve(&mut slow, 70, 2.0);
    assert_eq!((slow.verdict.as_ref(), report.measured.steps), (Some(&Verdict::Complete), 11 + 13));
    assert_eq!(slow.incomplete(), None, "it was ended, with all that was needed of it");
    assert!((report.measured.items_per_second.unwrap() - 4.0).abs() < 1e-9);
    let quick = curve(&mut measure(), 70, 0.1);
    assert_eq!((quick.measured.steps, quick.planned_items, report.planned_items), (70, None, Some(8 * 70)));
    let quarters = |report: &Report| LaunchResult::from(report).curve;
    assert_eq!(quarters(&report)[..], quarters(&quick)[..1]);
    // Losses of other steps in each launch cannot be compared, so that all of them are needed.
    let mut sampled = measure();
    sampled.sample();
    sampled.conclude(0.5);
    assert_eq!(curve(&mut sampled, 70, 2.0).measured.steps, 70);
    // A script that reports step 1 and then every tenth.
    let mut odd = measure();
    let begun = odd.begun;
    for step in [1, 10, 20, 30, 40, 50, 60] {
        let at = begun + Duration::from_secs(2 * step);
        odd.observe(Reading::Training { step: Some(step), items: None, epoch: None, loss: Some(1.0) }, at);
    }
    assert_eq!(odd.verdict, None);
}

fn plan() -> LaunchPlan {
    serde_json::from_value(json!({
        "contract": 1, "job": "j", "attempt": "j-1", "launch": "l", "kind": "Measure", "workload": {}, "settings": {},
        "seed": 1, "budget": {}, "hangTimeoutSeconds": 1.0,
    }))
    .unwrap()
}

#[test]
fn evaluations_are_no_training_time() {
    let mut meter = meter("Train", json!({"items": 8000}));
    trained(&mut meter, 1..=20, 1);
    validated(&mut meter, 0.5);
    let begun = meter.begun;
    // The evaluation took a minute.
    for (step, seconds) in [(21, 70.0), (22, 70.5), (23, 71.0)] {
        let at = begun + Duration::from_secs_f64(seconds);
        meter.observe(Reading::Training { step: Some(step), items: None, epoch: None, loss: None }, at);
    }
    assert_eq!(meter.rate(), Some(16.0));
    let validation = meter.validation.clone().unwrap();
    assert_eq!((validation.items, validation.metrics.len()), (160, 1), "a metric that is NaN is left out");
    assert_eq!(meter.first_validation, None);
}

#[test]
fn a_launch_is_done_only_with_all_it_was_for() {
    let measure = || meter("Measure", json!({"warmupSteps": 4, "windowSteps": 20}));
    assert!(measure().incomplete().unwrap().contains("KubeflowCallback"));
    let mut unmatched = measure();
    unmatched.output = Some(Output { pattern: "step (?<step>.+)".to_owned(), lines: 0, newest: String::new() });
    assert!(unmatched.incomplete().unwrap().contains("no line"));
    for (line, found) in
        [("epoch 1\u{1b}[A", "the line of its output"), ("epoch 2", "the 2 lines"), ("", "the 2 lines")]
    {
        unmatched.pass_over(line);
        let why = unmatched.incomplete().unwrap();
        assert!(
            why.contains("monitor.training `step (?<step>.+)` has found no step in") && why.contains(found),
            "{why}"
        );
        assert!(!why.contains('\u{1b}'), "{why}");
    }
    assert!(unmatched.incomplete().unwrap().ends_with("the last line: `epoch 2`"));
    let mut short = measure();
    trained(&mut short, 1..=12, 1);
    assert!(short.incomplete().unwrap().contains("step 12 of 24: pass $(launch.steps)"));
    let mut rare = measure();
    trained(&mut rare, 1..=24, 15);
    assert!(rare.incomplete().unwrap().contains("only once"));

    let mut quality = meter("Quality", json!({"items": 160}));
    trained(&mut quality, 1..=19, 2);
    assert!(quality.incomplete().unwrap().contains("monitor.validation"));
    validated(&mut quality, 0.5);
    assert_eq!(quality.incomplete(), None);
    quality.finish();
    assert_eq!((quality.step, quality.items), (20, 160), "the last steps were not reported");
    assert_eq!(quality.validation.unwrap().items, 160);
}

#[test]
fn a_validation_keeps_the_items_at_which_it_was_taken() {
    let at = |step: Option<u64>| Reading::Validation {
        step,
        items: None,
        metrics: BTreeMap::from([(LOSS.to_owned(), 0.5)]),
    };
    let items = |meter: &Meter| {
        let of = |validation: &Option<Validation>| validation.as_ref().map(|validation| validation.items);
        (of(&meter.first_validation), of(&meter.validation))
    };
    let quality = || meter("Quality", json!({"items": 160}));
    let mut before = quality();
    before.observe(at(None), before.begun);
    trained(&mut before, 1..=20, 1);
    before.finish();
    assert_eq!(items(&before), (Some(0), Some(0)), "before the first step only");
    let mut early = quality();
    trained(&mut early, 1..=20, 1);
    early.observe(at(Some(10)), early.begun);
    early.finish();
    assert_eq!(items(&early), (None, Some(80)), "a script that says its step is believed");
    let mut sparse = quality();
    sparse.observe(at(None), sparse.begun);
    trained(&mut sparse, 5..=20, 5);
    sparse.observe(at(None), sparse.begun);
    sparse.finish();
    assert_eq!(items(&sparse), (None, Some(160)), "the first one may be from after some steps");
}

#[test]
fn losses_that_show_a_failure_end_the_script() {
    let mut meter = meter("Measure", json!({"warmupSteps": 4, "windowSteps": 20}));
    trained(&mut meter, 1..=3, 1);
    meter.observe(Reading::Training { step: None, items: None, epoch: None, loss: Some(f64::NAN) }, meter.begun);
    let Some(Verdict::Failed(Outcome::NonFinite, message)) = &meter.verdict else { panic!("{:?}", meter.verdict) };
    assert!(message.contains("at step 3"), "{message}");
}

/// As a script that counts its steps anew in each epoch.
#[test]
fn a_loss_that_is_not_finite_is_seen_at_an_earlier_step_too() {
    let mut meter = meter("Train", json!({"epochs": 2}));
    trained(&mut meter, 1..=20, 1);
    meter.observe(Reading::Training { step: Some(3), items: None, epoch: None, loss: Some(f64::NAN) }, meter.begun);
    assert!(matches!(meter.verdict, Some(Verdict::Failed(Outcome::NonFinite, _))), "{:?}", meter.verdict);
    let failure = meter.complete(Report::bare(&plan(), 0, Outcome::NonFinite)).failure.unwrap();
    assert_eq!((failure.step, failure.items), (20, 160), "the last healthy loss");
}

#[test]
fn a_progress_bar_that_starts_again_without_a_loss_is_ignored() {
    let mut meter = by_lines("Train", json!({"epochs": 2}), true, 1);
    counted(&mut meter, 1..=20, true);
    counted(&mut meter, 1..=10, false);
    assert_eq!((meter.step, meter.steps(), meter.rate()), (20, None, Some(16.0)));
    counted(&mut meter, [21], true);
    assert_eq!(meter.step, 21);
}

/// Of a script whose pattern reads steps and, if `has_losses`, losses.
fn by_lines(kind: &str, budget: serde_json::Value, has_losses: bool, micro_steps: u64) -> Meter {
    let plan = LaunchPlan { kind: serde_json::from_value(json!(kind)).unwrap(), ..plan() };
    let plan = LaunchPlan { budget: serde_json::from_value(budget).unwrap(), ..plan };
    let pattern = Some(r"(?<step>\d+)".to_owned());
    Meter::new(&plan, Expected { micro_steps, is_given_steps: true, pattern, has_losses, ..expected() })
}

/// Reports these steps, each of 0.5 s, with or without a loss.
fn counted(meter: &mut Meter, steps: impl IntoIterator<Item = u64>, with_loss: bool) {
    for step in steps {
        let at = meter.begun + Duration::from_millis(500 * (meter.lines + 1));
        let loss = with_loss.then(|| 1.0 / (meter.lines + 1) as f64);
        meter.observe(Reading::Training { step: Some(step), items: None, epoch: None, loss }, at);
    }
}

/// As when the gang that took the last step was cut off from the network, and its report was lost.
#[test]
fn a_script_that_resumes_the_checkpoint_of_its_last_step_has_no_step_to_report() {
    let train = || by_lines("Train", json!({"items": 800}), true, 1);
    let mut whole = train();
    counted(&mut whole, 1..=100, true);
    let mut resumed = train();
    resumed.resumes(whole.standing());
    assert_eq!(resumed.incomplete(), None);
    resumed.finish();
    let report = resumed.complete(Report::bare(&plan(), 0, Outcome::Done));
    assert_eq!((report.measured.steps, report.measured.items), (100, 800));

    let mut short = train();
    counted(&mut short, 1..=99, true);
    let mut resumed = train();
    resumed.resumes(short.standing());
    assert!(resumed.incomplete().is_some_and(|why| why.starts_with("reported no step")));

    // Of epochs, their length is known once two have begun.
    for (epochs, is_end) in [(3, true), (4, false)] {
        let train = || by_lines("Train", json!({"epochs": epochs}), true, 1);
        let mut three = train();
        (0..3).for_each(|_| counted(&mut three, 1..=50, true));
        let mut resumed = train();
        resumed.resumes(three.standing());
        assert_eq!(resumed.incomplete().is_none(), is_end, "{epochs} epochs");
    }
}

fn refused(meter: &Meter) -> &str {
    match &meter.verdict {
        Some(Verdict::Failed(Outcome::Unsupported, message)) => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn steps_that_are_counted_anew_in_each_epoch_are_counted_on() {
    let mut meter = by_lines("Train", json!({"epochs": 3}), true, 1);
    for _ in 0..3 {
        counted(&mut meter, 1..=50, true);
    }
    let progress = meter.progress().unwrap();
    assert_eq!((progress.step, progress.items, progress.heartbeat), (150, 1200, 150));
    assert_eq!((meter.rate(), meter.standing().epoch_steps), (Some(16.0), Some(50)));
    // What resumes its checkpoint goes on.
    let mut resumed = by_lines("Train", json!({"epochs": 4}), true, 1);
    resumed.resumes(meter.standing());
    counted(&mut resumed, 1..=10, true);
    assert_eq!((resumed.step, resumed.items), (160, 1280));
    let mut measured = by_lines("Measure", json!({"warmupSteps": 5, "windowSteps": 80}), true, 1);
    counted(&mut measured, (1..=25).cycle().take(85), true);
    assert_eq!((measured.verdict.as_ref(), measured.step), (Some(&Verdict::Complete), 85));
}

#[test]
fn progress_bars_of_other_things_are_no_evidence() {
    let measure = |has_losses| by_lines("Measure", json!({"warmupSteps": 5, "windowSteps": 40}), has_losses, 1);
    // Weights and a tokenizer, and then a training that is slow.
    let mut meter = measure(true);
    counted(&mut meter, [28, 1000, 2000], false);
    assert_eq!((meter.verdict.as_ref(), meter.rate()), (None, None));
    let starting = meter.progress().unwrap();
    assert_eq!((starting.phase, starting.heartbeat, starting.step), (Some(RankPhase::Starting), 3, 0));
    assert!(meter.incomplete().unwrap().contains("found steps up to 2000, and no loss"), "{:?}", meter.incomplete());
    counted(&mut meter, 1..=45, true);
    assert_eq!((meter.verdict.as_ref(), meter.rate()), (Some(&Verdict::Complete), Some(16.0)));
    // All steps, and no loss of them.
    let mut silent = measure(true);
    counted(&mut silent, 1..=45, false);
    assert!(silent.verdict.is_none() && silent.incomplete().unwrap().contains("no loss"));
    counted(&mut silent, [46], true);
    assert!(refused(&silent).contains("no loss in 45 steps"), "{}", refused(&silent));
    // In a training they are seen, and withdrawn.
    let mut training = by_lines("Train", json!({"items": 3200}), true, 1);
    counted(&mut training, [28, 1000, 2000], false);
    assert_eq!(training.step, 2000);
    counted(&mut training, 0..=40, true);
    assert_eq!((training.step, training.items, training.rate()), (40, 320, Some(16.0)));
    // Without losses, what counts anew or beyond the last step may be anything.
    let mut beyond = measure(false);
    counted(&mut beyond, [28, 1000], false);
    assert!(refused(&beyond).contains("reported step 1000, and $(launch.steps) is 45"), "{}", refused(&beyond));
    let mut anew = measure(false);
    counted(&mut anew, (1..=28).chain(1..=45), false);
    assert!(refused(&anew).contains("a group `loss` nor a group `epoch`"), "{}", refused(&anew));
}

#[test]
fn micro_steps_are_not_taken_for_steps() {
    let measure = |micro| by_lines("Measure", json!({"warmupSteps": 5, "windowSteps": 40}), true, micro);
    let mut steps = measure(4);
    counted(&mut steps, 1..=45, true);
    assert_eq!(steps.verdict, None, "there may be more");
    steps.settle(steps.begun + Duration::from_millis(500 * 49));
    assert_eq!(steps.verdict, None);
    steps.settle(steps.begun + Duration::from_millis(500 * 50));
    assert_eq!(steps.verdict, Some(Verdict::Complete));
    let mut micro = measure(4);
    counted(&mut micro, 1..=47, true);
    let why = refused(&micro);
    assert!(why.contains("step 47, and $(launch.steps) is 45: an optimizer step has 4 micro-steps"), "{why}");
    let mut plain = measure(1);
    counted(&mut plain, 1..=45, true);
    assert_eq!(plain.verdict, Some(Verdict::Complete));
    for (micro, part) in [(4, "settings.accumulationSteps"), (1, "workload.monitor.training")] {
        let mut quality = by_lines("Quality", json!({"items": 200}), true, micro);
        counted(&mut quality, 1..=37, true);
        assert_eq!(quality.verdict, None, "of the last epoch");
        counted(&mut quality, 38..=100, true);
        assert!(refused(&quality).contains(part), "{}", refused(&quality));
    }
}
