//! The launches of trials that the median rule may stop: with a trainer that lists the evaluations in the course of a
//! launch, fewer of them lead to the same trials.

use crate::search::{of_trials, rate, spec, stage, states, trained, trials};
use crate::world::{Trainer, World};
use pawl_api::status::{Purpose, Stage};
use pawl_contract::plan::{Evaluations, LaunchPlan};
use pawl_contract::report::LaunchResult;
use serde_json::{Value, json};

/// The loss after `epochs`: better near a learning rate of 1e-3, falling with training, and on the way up and down, so
/// that trials overtake one another.
fn loss(plan: &LaunchPlan, epochs: u32) -> f64 {
    let distance = (rate(plan) / 1e-3).ln();
    let phase = f64::from(epochs * (1 + plan.settings.batch_per_gpu() % 7));
    1.0 + 0.01 * distance * distance + 1.0 / f64::from(epochs) + 0.2 * phase.sin()
}

/// A launch with a value at its end alone.
fn at_the_end(plan: &LaunchPlan, value: f64) -> LaunchResult {
    let mut result = trained(plan);
    if let Some(validation) = &mut result.measured.validation {
        validation.metrics.insert("loss".to_owned(), value);
    }
    result
}

fn ending() -> Trainer {
    Box::new(|plan, _| at_the_end(plan, loss(plan, plan.budget.epochs.unwrap_or(9))))
}

/// A launch that lists its evaluations, and ends where its plan says so.
fn listed(plan: &LaunchPlan, value: impl Fn(u32) -> Option<f64>) -> LaunchResult {
    let (Some(planned), Some(epochs)) = (&plan.budget.evaluations, plan.budget.epochs) else {
        return at_the_end(plan, loss(plan, plan.budget.epochs.unwrap_or(9)));
    };
    let mut values = Vec::new();
    for epoch in (1..=epochs).filter(|epoch| epoch.is_multiple_of(planned.every) || *epoch == epochs) {
        Evaluations::add(&mut values, epoch, value(epoch));
        if planned.end_after(&values) {
            break;
        }
    }
    let mut result = at_the_end(plan, 0.0);
    if let Some(validation) = &mut result.measured.validation {
        validation.metrics.remove("loss");
        validation.metrics.extend(values.last().and_then(|(_, value)| Some(("loss".to_owned(), (*value)?))));
    }
    LaunchResult { evaluations: values, ..result }
}

fn listing() -> Trainer {
    Box::new(|plan, _| listed(plan, |epoch| Some(loss(plan, epoch))))
}

fn searched(stages: Value, trainer: Trainer) -> World {
    let mut world = World::new(spec(stages), trainer);
    world.run();
    assert_eq!(world.status.stage, Stage::Complete, "{:#?}", world.status.failure);
    world
}

/// The trials without the sign by which they are known to have been listed.
fn unsigned(world: &World, stage: usize) -> Vec<String> {
    world.status.search[stage].trials.iter().map(|line| line.replace(";+", ";")).collect()
}

fn median(changes: Value, pruning: Value) -> Value {
    let mut stage = stage(changes);
    let more = json!({"pruner": "Median", "pruning": pruning, "finalists": 1});
    stage.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    stage
}

#[test]
fn the_same_trials_are_stopped_at_the_same_reports_in_fewer_launches() {
    let mut stopped = std::collections::BTreeSet::new();
    for (first, warmup, least, seed, sampler) in
        [(1, 0, 1, 1, "Random"), (1, 2, 2, 2, "TPE"), (2, 0, 3, 3, "TPE"), (3, 4, 2, 4, "Random"), (4, 0, 4, 5, "TPE")]
    {
        let pruning = json!({"first": first, "warmup": warmup, "least": least});
        let changes = json!({"trials": 14, "epochs": 11, "seed": seed, "sampler": sampler});
        let stages = json!([median(changes, pruning.clone())]);
        let (one_by_one, at_once) = (searched(stages.clone(), ending()), searched(stages, listing()));
        assert_eq!(unsigned(&at_once, 0), unsigned(&one_by_one, 0), "{pruning}");
        assert_eq!(at_once.status.effective_settings, one_by_one.status.effective_settings);
        // The first launch shows that the trainer lists evaluations.
        assert_eq!(of_trials(&at_once).len(), 14 + 1, "{pruning}: a launch for each trial");
        assert!(of_trials(&one_by_one).len() > 20, "{pruning}");
        let lines = trials(&at_once).iter().filter(|line| line.starts_with('S'));
        stopped.extend(lines.map(|line| line.split(';').nth(3).unwrap().split(',').count()));
        let cost = |world: &World| world.status.cost.as_ref().unwrap().purposes[&Purpose::Search];
        assert!(cost(&at_once) < cost(&one_by_one));
    }
    assert!(stopped.len() > 2, "trials were stopped at few reports: {stopped:?}");
}

/// Stages as those of `examples/atft-search.yaml`.
#[test]
fn a_search_in_three_stages_needs_a_launch_for_each_trial() {
    let stages: Vec<Value> = [("quick", 5), ("medium", 10), ("full", 20)]
        .into_iter()
        .map(|(name, count)| {
            let changes = json!({"name": name, "trials": count, "epochs": count, "sampler": "TPE", "handOn": 2});
            median(changes, json!({"first": 1, "warmup": 5, "least": 5}))
        })
        .collect();
    let launches = |world: &World| {
        let of = |index: usize| move |plan: &&&LaunchPlan| plan.launch.starts_with(&format!("search-{index}-"));
        [0, 1, 2].map(|index| of_trials(world).iter().filter(of(index)).count())
    };
    let (one_by_one, at_once) = (searched(json!(stages), ending()), searched(json!(stages), listing()));
    assert_eq!(launches(&at_once), [5 + 1, 10, 20]);
    let said = pawl_decision::searching(&at_once.job);
    let said: Vec<u64> = said.stages.iter().map(|stage| stage.of_trials.launches).collect();
    assert_eq!(said, [5 + 1, 10 + 1, 20 + 1], "at most: a stage may be the first to show that evaluations are listed");
    let before = launches(&one_by_one);
    assert_eq!(before[0], 25, "nothing can be stopped within five epochs, and each is a launch");
    assert!(before[1] > 50 && before[2] > 150, "{before:?}");
    for index in 0..3 {
        assert_eq!(unsigned(&at_once, index), unsigned(&one_by_one, index));
    }
}

#[test]
fn a_search_that_began_with_a_launch_for_each_report_goes_on() {
    let stages = json!([median(json!({"trials": 8, "epochs": 9}), json!({"first": 1, "warmup": 2, "least": 2}))]);
    let mut world = World::new(spec(stages.clone()), ending());
    // The second trial has four of its nine reports.
    world.run_until(|world| {
        let trials = world.status.search.first().map(|search| search.trials.as_slice()).unwrap_or_default();
        trials.len() == 2 && trials[1].contains("4:")
    });
    let (done, known) = (of_trials(&world).len(), trials(&world).to_vec());
    world.trainer = listing();
    world.run();
    assert_eq!(world.status.stage, Stage::Complete);
    assert_eq!(unsigned(&world, 0), unsigned(&searched(stages, ending()), 0));
    assert_eq!(trials(&world)[0], known[0], "what has ended keeps its values");
    let after = of_trials(&world).len() - done;
    assert_eq!(after, 2 + 6, "the running trial has one more launch until the trainer is known to list");
}

#[test]
fn trials_side_by_side_end_a_launch_where_others_decide() {
    let stages = |parallelism: u32| {
        let changes = json!({"trials": 12, "epochs": 9, "parallelism": parallelism});
        json!([median(changes, json!({"first": 1, "warmup": 3, "least": 2}))])
    };
    let world = searched(stages(3), listing());
    let names: std::collections::BTreeSet<_> = world.ran.iter().map(|plan| &plan.launch).collect();
    assert_eq!(names.len(), world.ran.len(), "a launch was repeated");
    let ran = of_trials(&world);
    let bounds = |plan: &&LaunchPlan| plan.budget.evaluations.as_ref().is_some_and(|it| !it.bounds.is_empty());
    assert!(!ran.iter().any(bounds), "values of trials that run may come before the report");
    assert!(ran.iter().all(|plan| !(1..=3).contains(&plan.budget.epochs.unwrap()) || plan.budget.epochs == Some(1)));
    assert!(states(&world).contains('S') && ran.len() < of_trials(&searched(stages(3), ending())).len());
}

#[test]
fn a_launch_that_resumes_beyond_its_end_has_the_value_of_its_end() {
    let beyond: Trainer = Box::new(|plan, _| {
        let mut result = listed(plan, |epoch| Some(loss(plan, epoch)));
        let later = plan.budget.epochs.map(|epochs| epochs + 1).filter(|later| *later <= 9);
        if let (Some(later), false) = (later, result.evaluations.is_empty()) {
            Evaluations::add(&mut result.evaluations, later, Some(loss(plan, later)));
            let validation = result.measured.validation.as_mut().unwrap();
            validation.metrics.insert("loss".to_owned(), loss(plan, later));
        }
        result
    });
    let changes = json!({"trials": 9, "epochs": 9, "parallelism": 3});
    let stages = json!([median(changes, json!({"first": 1, "warmup": 3, "least": 2}))]);
    assert_eq!(unsigned(&searched(stages.clone(), beyond), 0), unsigned(&searched(stages, listing()), 0));
}

#[test]
fn a_report_without_the_metric_ends_the_trial_as_a_launch_without_it_does() {
    let pruning = json!({"first": 1, "warmup": 0, "least": 8});
    let stages = json!([median(json!({"trials": 6, "epochs": 5}), pruning)]);
    let absent = |plan: &LaunchPlan, epoch: u32| plan.launch.contains("-t4-") && epoch == 3;
    let world = searched(
        stages.clone(),
        Box::new(move |plan, _| listed(plan, |epoch| (!absent(plan, epoch)).then(|| loss(plan, epoch)))),
    );
    let one_by_one = searched(
        stages,
        Box::new(move |plan, _| {
            let mut result = at_the_end(plan, loss(plan, plan.budget.epochs.unwrap_or(9)));
            if absent(plan, plan.budget.epochs.unwrap_or(9)) {
                result.measured.validation.as_mut().unwrap().metrics.remove("loss");
            }
            result
        }),
    );
    assert_eq!(states(&world), "CCCCNC");
    let reports = |world: &World| trials(world)[4].split(';').nth(3).map(str::to_owned);
    assert_eq!((reports(&world), states(&one_by_one)), (reports(&one_by_one), states(&world)));
    assert!(reports(&world).unwrap().contains("2:"), "values before are kept");
    let others =
        |world: &World| unsigned(world, 0).into_iter().filter(|line| !line.starts_with('N')).collect::<Vec<_>>();
    assert_eq!(others(&world), others(&one_by_one));
}

#[test]
fn what_no_evaluation_reports_is_compared_after_each_launch() {
    let objectives = json!([{"metric": "itemsPerSecond", "goal": "Maximize"}]);
    let changes = json!({"trials": 3, "epochs": 4, "objectives": objectives});
    let world = searched(json!([median(changes, json!({"first": 1, "warmup": 0, "least": 5}))]), listing());
    let ran = of_trials(&world);
    assert_eq!(ran.len(), 3 * 4);
    assert!(ran.iter().all(|plan| plan.budget.evaluations.is_none()));
}
