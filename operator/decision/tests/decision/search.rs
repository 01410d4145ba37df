//! The search: trials, what they learn, pruning, finalists, stages, limits.

use crate::world::{Trainer, World, done, ended};
use pawl_api::search::{Recorded, encode};
use pawl_api::status::{AttemptStatus, Purpose, RetryStatus, SearchState, SearchStatus, Stage};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_contract::report::LaunchResult;
use pawl_decision::observed::Ending;
use pawl_search::history::{Report, State, Trial};
use pawl_search::space::{Domain, Parameter, Point, Scale, Space, Value as Setting};
use serde_json::{Value, json};

/// A stage over the learning rate and the batch size, with `changes`.
pub fn stage(changes: Value) -> Value {
    let mut stage = json!({
        "name": "rates", "trials": 8, "epochs": 9, "sampler": "Random",
        "objectives": [{"metric": "loss", "goal": "Minimize"}],
        "parameters": [
            {"name": "learningRate", "min": "1e-5", "max": "1e-1", "scale": "Log"},
            {"name": "batchPerGpu", "min": "1", "max": "64"},
        ],
    });
    stage.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    stage
}

pub fn spec(stages: Value) -> Value {
    json!({"settings": {"batchPerGpu": 8, "learningRate": "1e-1"}, "search": stages, "train": {"items": 1000},
           "lifecycle": {"maxRestarts": 2}})
}

pub fn rate(plan: &LaunchPlan) -> f64 {
    plan.settings.learning_rate.as_ref().unwrap().value()
}

/// A launch whose loss is smallest at a learning rate of 1e-3, falls with training and depends a little on the seed.
pub fn trained(plan: &LaunchPlan) -> LaunchResult {
    let mut result = done(plan, 100.0);
    let epochs = f64::from(plan.budget.epochs.unwrap_or(9));
    let distance = (rate(plan) / 1e-3).ln();
    let loss = 1.0 + 0.1 * distance * distance + 1.0 / epochs + plan.seed as f64 * 1e-4;
    if let Some(validation) = &mut result.measured.validation {
        validation.metrics.insert("loss".to_owned(), loss);
    }
    result
}

pub fn trainer() -> Trainer {
    Box::new(|plan, _| trained(plan))
}

/// Runs the job to its end.
pub fn searched(stages: Value, trainer: Trainer) -> World {
    let mut world = World::new(spec(stages), trainer);
    world.run();
    world
}

pub fn trials(world: &World) -> &[String] {
    &world.status.search[0].trials
}

/// First letters of the trials: their states.
pub fn states(world: &World) -> String {
    trials(world).iter().filter_map(|line| line.chars().next()).collect()
}

pub fn of_search(world: &World) -> Vec<&LaunchPlan> {
    world.ran.iter().filter(|plan| plan.kind == LaunchKind::Search).collect()
}

/// The launches of trials, without repetitions.
pub fn of_trials(world: &World) -> Vec<&LaunchPlan> {
    of_search(world).into_iter().filter(|plan| plan.launch.contains("-t")).collect()
}

#[test]
fn training_uses_the_winner_of_the_trials() {
    let world = searched(json!([stage(json!({"sampler": "TPE", "trials": 12}))]), trainer());
    assert_eq!(world.status.stage, Stage::Complete, "{:#?}", world.status);
    assert_eq!(states(&world), "CCCCCCCCCCCC");
    let search = &world.status.search[0];
    let winner = search.winner.as_ref().unwrap();
    assert_eq!((search.state, search.reason.as_str()), (SearchState::Done, "AllTrialsEnded"));
    assert_eq!(rate(of_search(&world)[0]), 0.1, "trial 0 has the settings accepted before");
    let best = of_search(&world).into_iter().min_by(|a, b| {
        let loss = |plan: &LaunchPlan| trained(plan).measured.metric("loss").copied().unwrap();
        loss(a).total_cmp(&loss(b))
    });
    let training = world.ran.last().unwrap();
    assert_eq!((training.kind, rate(training)), (LaunchKind::Train, rate(best.unwrap())));
    assert_eq!(winner.parameters["learningRate"].parse::<f64>().unwrap(), rate(training));
    assert_eq!(world.status.effective_settings.as_ref(), Some(&training.settings));
    assert!(
        search.message.contains("; accepted settings: loss 3.2") && search.message.contains("from 3 fresh seeds"),
        "{}",
        search.message
    );
    // 12 trials, three finalists with two further seeds each, and the best of them and the accepted settings with three
    // fresh ones.
    assert_eq!(of_search(&world).len(), 12 + 3 * 2 + 2 * 3);
    let seeds = |kind: &str| {
        let plans = of_search(&world).into_iter().filter(|plan| plan.launch.contains(kind));
        plans.map(|plan| plan.seed).collect::<std::collections::BTreeSet<_>>()
    };
    assert!(seeds("-compared-").is_disjoint(&seeds("-f")), "what chose the trial does not judge it");
    let compared = search.comparison.as_ref().unwrap();
    let mean = compared.candidate.values.iter().map(|value| value.value()).sum::<f64>() / 3.0;
    assert!((winner.values[0].value() - mean).abs() < 1e-9, "what is reported is of fresh seeds");
    let names: std::collections::BTreeSet<_> = world.ran.iter().map(|plan| &plan.launch).collect();
    assert_eq!(names.len(), world.ran.len(), "a launch was repeated");
    assert!(world.status.cost.as_ref().unwrap().purposes[&Purpose::Search] > 0);
}

/// What the search of a job was said to take at most, and the number of launches that it took.
fn planned(stages: Value, of: Trainer) -> (pawl_decision::Searching, World) {
    let world = searched(stages, of);
    (pawl_decision::searching(&world.job), world)
}

#[test]
fn a_search_takes_what_was_said_before() {
    let first = stage(json!({"name": "first", "trials": 4, "dryRun": true}));
    let last = stage(json!({"name": "last", "sampler": "TPE", "trials": 12, "patience": 12}));
    let (plan, world) = planned(json!([first, last]), trainer());
    let total = plan.total();
    let trained = of_search(&world).len() as u64;
    assert_eq!((total.launches, total.epochs), (trained + 1, 9 * trained), "and a dry run");
    let lines = plan.lines();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[0].starts_with("search: at most 16 trials: 29 launches, ") && lines[0].ends_with(", 252 epochs"));
    assert!(lines[1].starts_with("search: first: at most a dry run (1 launch, "), "{}", lines[1]);
    let expected = "search: last: at most 12 trials (12 launches, 108 epochs), the best 3 trials with 2 further seeds \
                    (6 launches, 54 epochs), the best one and the accepted settings with 3 fresh seeds (6 launches, 54 \
                    epochs); less where patience ends it earlier";
    assert_eq!(lines[2], expected);
}

#[test]
fn a_search_with_a_pruner_takes_no_more_than_was_said() {
    for (pruner, of_trials) in [("Median", 8 * 9), ("ASHA", 8 * 3)] {
        // A script need not list its evaluations.
        let mut job = spec(json!([stage(json!({"pruner": pruner}))]));
        job["workload"] = json!({"command": ["train"]});
        let mut world = World::new(job, trainer());
        world.run();
        let plan = pawl_decision::searching(&world.job);
        let total = plan.total();
        assert_eq!(total.launches, of_trials + 6 + 6, "{pruner}");
        assert!(of_search(&world).len() as u64 <= total.launches, "{pruner}");
        assert_eq!(total.epochs, (8 + 6 + 6) * 9, "what was trained once is not trained again");
        assert!(plan.lines()[1].ends_with("; less where pruner ends it earlier"), "{:?}", plan.lines());
    }
    let hyperband =
        pawl_decision::searching(&World::new(spec(json!([stage(json!({"pruner": "Hyperband"}))])), trainer()).job);
    assert!((8 + 12..8 * 3 + 12).contains(&hyperband.total().launches), "its brackets begin at later rungs");
    let several = json!([{"metric": "loss", "goal": "Minimize"}, {"metric": "itemsPerSecond", "goal": "Maximize"}]);
    let job = World::new(spec(json!([stage(json!({"objectives": several}))])), trainer()).job;
    assert_eq!(pawl_decision::searching(&job).total().launches, 8, "the set of the best ones is not repeated");
}

#[test]
fn what_cannot_run_is_infeasible_and_is_not_trained() {
    let world = searched(
        json!([stage(json!({"trials": 16}))]),
        Box::new(|plan, _| match (plan.kind, plan.settings.batch_per_gpu()) {
            (LaunchKind::Preflight, 33..) => ended(plan, Outcome::OutOfMemory),
            (LaunchKind::Preflight, 30..=32) => ended(plan, Outcome::InvalidPlan),
            (LaunchKind::Search, _) if rate(plan) > 1e-4 && rate(plan) != 0.1 => ended(plan, Outcome::NonFinite),
            _ => trained(plan),
        }),
    );
    assert_eq!(world.status.stage, Stage::Complete);
    let states = states(&world);
    assert!(states.contains('O') && states.contains('N') && states.starts_with('C'), "{states}");
    assert!(of_search(&world).iter().all(|plan| plan.settings.batch_per_gpu() < 30), "it was known not to fit");
    assert_eq!(world.count_events("TrialInfeasible"), states.chars().filter(|state| "ONU".contains(*state)).count());
}

#[test]
fn a_tie_goes_to_the_settings_that_change_least() {
    let flat = |plan: &LaunchPlan, _| {
        let mut result = done(plan, 100.0);
        let noise = (plan.seed + u64::from(plan.settings.batch_per_gpu())) % 5;
        result.measured.validation.as_mut().unwrap().metrics.insert("loss".to_owned(), 1.0 + noise as f64 * 1e-3);
        result
    };
    let world = searched(json!([stage(json!({}))]), Box::new(flat));
    assert_eq!(world.status.search[0].winner.as_ref().unwrap().trial, 0, "{}", world.status.search[0].message);
    assert_eq!(world.status.effective_settings.as_ref(), Some(&world.job.spec.settings));
}

#[test]
fn of_tied_trials_the_faster_wins() {
    let faster = |plan: &LaunchPlan, _| done(plan, if plan.settings.batch_per_gpu() >= 32 { 300.0 } else { 100.0 });
    let world = searched(json!([stage(json!({"finalists": 8}))]), Box::new(faster));
    let batch = world.status.effective_settings.as_ref().unwrap().batch_per_gpu();
    assert!(batch >= 32, "{batch}: {}", world.status.search[0].message);
}

#[test]
fn halving_pauses_trials_and_continues_the_best_from_their_checkpoints() {
    let world = searched(json!([stage(json!({"trials": 9, "pruner": "ASHA", "finalists": 1}))]), trainer());
    assert_eq!(world.status.stage, Stage::Complete, "{:#?}", world.status.failure);
    let ran = of_trials(&world);
    let epochs = |plan: &&LaunchPlan| plan.budget.epochs.unwrap();
    let count = |wanted: u32| ran.iter().filter(|plan| epochs(plan) == wanted).count();
    assert_eq!(count(1), 9, "each trial reaches the first rung");
    assert!(count(3) < 9 && count(9) < count(3) && count(9) > 0, "{} {}", count(3), count(9));
    for plan in &ran {
        let policy = plan.checkpoint.as_ref().expect("it may be continued");
        assert!(policy.resume && policy.keep == 1 && policy.expected.is_none());
        assert_eq!(
            plan.budget.horizon_epochs,
            (epochs(plan) < 9).then_some(9),
            "schedules are those of the whole trial"
        );
    }
    let places: std::collections::BTreeSet<_> =
        ran.iter().map(|plan| plan.checkpoint.clone().unwrap().directory).collect();
    assert_eq!(places.len(), 9, "a directory per trial");
    let training = world.ran.last().unwrap();
    assert_eq!(training.checkpoint.as_ref().unwrap().directory, None);
    let states = states(&world);
    assert!(states.chars().all(|state| "CS".contains(state)) && states.contains('C'), "{states}");
    // The winner was trained in full, and is the best of all.
    let best = ran
        .iter()
        .filter(|plan| epochs(plan) == 1)
        .min_by(|a, b| rate_distance(a).total_cmp(&rate_distance(b)))
        .unwrap();
    assert_eq!(rate(training), rate(best));
}

fn rate_distance(plan: &LaunchPlan) -> f64 {
    (rate(plan) / 1e-3).ln().abs()
}

#[test]
fn the_median_rule_compares_after_each_part_of_a_trial() {
    let pruning = json!({"first": 3, "warmup": 0, "least": 2});
    let world = searched(json!([stage(json!({"pruner": "Median", "pruning": pruning, "finalists": 1}))]), trainer());
    let states = states(&world);
    assert!(states.contains('S') && states.contains('C'), "{states}");
    let epochs: Vec<u32> = of_trials(&world).iter().map(|plan| plan.budget.epochs.unwrap()).collect();
    assert_eq!(epochs[..3], [3, 6, 9], "the first trial is never stopped");
    assert!(epochs.len() < 8 * 3, "{epochs:?}");
}

#[test]
fn the_next_stage_begins_with_the_best_trials_of_the_one_before() {
    let second = json!({"name": "batches", "trials": 5, "handOn": 1, "parameters": [
        {"name": "learningRate", "min": "1e-5", "max": "1e-1", "scale": "Log"},
        {"name": "workload.hidden", "values": ["64", "128", "wide"]},
    ]});
    let mut job = spec(json!([stage(json!({"handOn": 3})), stage(second)]));
    job["settings"]["workload"] = json!({"hidden": 128});
    let mut world = World::new(job, trainer());
    world.run();
    assert_eq!(world.status.stage, Stage::Complete, "{:#?}", world.status.failure);
    let [first, second] = world.status.search.as_slice() else { panic!() };
    let winner = first.winner.as_ref().unwrap();
    assert!(first.message.contains("one seed") && second.message.contains("fresh seeds"));
    let of_second: Vec<_> = of_search(&world).into_iter().filter(|plan| plan.launch.starts_with("search-1-")).collect();
    assert_eq!(rate(of_second[0]), winner.parameters["learningRate"].parse::<f64>().unwrap());
    assert_eq!(
        of_second[0].settings.batch_per_gpu().to_string(),
        winner.parameters["batchPerGpu"],
        "the winner is the base"
    );
    assert_eq!(of_second[0].settings.workload, world.job.spec.settings.workload);
    let mut rates: Vec<f64> =
        of_search(&world).iter().filter(|plan| plan.launch.starts_with("search-0-")).map(|p| rate(p)).collect();
    rates.sort_by(|a, b| (a / 1e-3).ln().abs().total_cmp(&(b / 1e-3).ln().abs()));
    assert_eq!(of_second[..3].iter().map(|plan| rate(plan)).collect::<Vec<_>>(), rates[..3]);
    let hidden = |plan: &LaunchPlan| plan.settings.workload.as_ref().unwrap()["hidden"].clone();
    let kinds: Vec<Value> = of_second.iter().map(|plan| hidden(plan)).collect();
    assert!(kinds.iter().all(|hidden| [json!(64), json!(128), json!("wide")].contains(hidden)), "{kinds:?}");
}

#[test]
fn raising_the_number_of_trials_continues_and_another_length_begins_anew() {
    let mut world = World::new(spec(json!([stage(json!({}))])), trainer());
    world.run();
    let before = trials(&world).to_vec();
    world.edit(|spec| {
        spec["search"][0]["trials"] = 11.into();
        spec["train"]["items"] = 2000.into();
    });
    world.run();
    assert_eq!((trials(&world).len(), &trials(&world)[..8]), (11, &before[..]));
    let count = of_search(&world).len();
    world.edit(|spec| spec["search"][0]["epochs"] = 8.into());
    world.run();
    assert_eq!(trials(&world).len(), 11);
    assert!(of_search(&world).len() >= count + 11, "trials of another length are no evidence");
}

#[test]
fn a_lost_attempt_is_repeated_and_a_trial_that_never_ends_is_given_up() {
    let undisturbed = searched(json!([stage(json!({}))]), trainer());
    let mut world = World::new(spec(json!([stage(json!({}))])), trainer());
    for _ in 0..4 {
        // After the check of a trial, and before its result.
        world.run_until(|world| {
            world
                .alive()
                .first()
                .is_some_and(|attempt| attempt.plan.launches.len() == 2 && attempt.facts.results.len() == 1)
        });
        world.end_alive(Ending::Lost("node went away".to_owned()));
    }
    world.run();
    assert_eq!(trials(&world), trials(&undisturbed));
    assert_eq!(world.status.effective_settings, undisturbed.status.effective_settings);

    let crashing = |plan: &LaunchPlan, _| {
        let crashes = plan.kind == LaunchKind::Search && plan.launch.contains("-t3-");
        if crashes { ended(plan, Outcome::Failed) } else { trained(plan) }
    };
    let world = searched(json!([stage(json!({}))]), Box::new(crashing));
    assert_eq!((states(&world).as_str(), world.status.stage), ("CCCACCCC", Stage::Complete));
}

#[test]
fn an_objective_that_is_not_reported_fails_the_job_at_the_first_trial() {
    let objectives = json!([{"metric": "rankIC", "goal": "Maximize"}]);
    let world = searched(json!([stage(json!({"objectives": objectives}))]), trainer());
    assert_eq!(of_search(&world).len(), 1);
    let (reason, message) = world.failure();
    assert_eq!(reason, "ObjectiveUnmeasured");
    assert!(message.contains("rankIC") && message.contains("loss, nrmse, itemsPerSecond"), "{message}");
}

#[test]
fn several_objectives_have_a_pareto_set() {
    let objectives = json!([{"metric": "loss", "goal": "Minimize"}, {"metric": "itemsPerSecond", "goal": "Maximize"}]);
    let traded = |plan: &LaunchPlan, _| {
        let mut result = trained(plan);
        result.measured.items_per_second = Some(100.0 * f64::from(plan.settings.batch_per_gpu()));
        result
    };
    let world = searched(json!([stage(json!({"objectives": objectives, "trials": 12}))]), Box::new(traded));
    let search = &world.status.search[0];
    let winner = search.winner.as_ref().unwrap();
    assert!(search.pareto.len() > 1 && search.pareto.contains(&winner.trial), "{:?}", search.pareto);
    assert_eq!(winner.values.len(), 2);
    assert_eq!(of_search(&world).len(), 12, "nothing is repeated");
}

#[test]
fn a_failed_dry_run_fails_the_job_before_any_trial() {
    let broken = |plan: &LaunchPlan, _| {
        if plan.kind == LaunchKind::Measure { ended(plan, Outcome::OutOfMemory) } else { trained(plan) }
    };
    let world = searched(json!([stage(json!({"dryRun": true}))]), Box::new(broken));
    assert_eq!((world.failure().0, of_search(&world).len()), ("DryRunFailed", 0));
    let world = searched(json!([stage(json!({"dryRun": true}))]), trainer());
    assert_eq!((world.status.stage, world.launches(LaunchKind::Measure, "search-0-")), (Stage::Complete, 1));
}

/// 100 items/s, epochs of 10,000 items, utilization 0.9, a peak of 10 GiB, and a validation nrmse of 0.1.
#[test]
fn a_dry_run_that_misses_a_gate_fails_the_job_before_what_follows() {
    let stages = json!([stage(json!({"name": "dry", "trials": 1, "dryRun": true})), stage(json!({"name": "full"}))]);
    let run = |gates: Value, trainer: Trainer| {
        let mut job = spec(stages.clone());
        job["gates"] = gates;
        let mut world = World::new(job, trainer);
        world.run();
        world
    };
    let kept = json!({
        "gpuMemory": "10Gi", "minGpuUtilization": "0.9", "minItemsPerSecond": "100", "maxEpochSeconds": "100",
        "validationMetrics": [{"name": "nrmse", "max": "0.11", "min": "0.09"}],
    });
    assert_eq!(run(kept, trainer()).status.stage, Stage::Complete, "the limits themselves are allowed");
    for (gates, trials, expected) in [
        (json!({"gpuMemory": "9Gi"}), 0, "peak memory 10.00Gi is above gates.gpuMemory 9Gi"),
        (json!({"minGpuUtilization": "0.91"}), 0, "device utilization 0.900 is below gates.minGpuUtilization 0.91"),
        (json!({"minItemsPerSecond": "101"}), 0, "100.0 items/s are below gates.minItemsPerSecond 101"),
        (json!({"maxEpochSeconds": "99"}), 0, "takes 100.0 s at 100.0 items/s, longer than gates.maxEpochSeconds 99"),
        (json!({"validationMetrics": [{"name": "nrmse", "max": "0.09"}]}), 1, "allowed: at most 0.09"),
        (json!({"validationMetrics": [{"name": "crps", "max": "0.09"}]}), 1, "no validation metric crps"),
        // There is no baseline to compare with.
        (
            json!({"validationMetrics": [{"name": "nrmse", "maxRegression": "0"}], "minItemsPerSecond": "101"}),
            0,
            "items/s",
        ),
    ] {
        let world = run(gates.clone(), trainer());
        let (reason, message) = world.failure();
        assert_eq!((reason, of_search(&world).len()), ("DryRunFailed", trials), "{gates}: {message}");
        let title = if trials == 0 { "search dry: dry run: " } else { "search dry: trial 0: " };
        assert!(message.starts_with(title) && message.contains(expected), "{gates}: {message}");
    }
    let silent = |plan: &LaunchPlan, _| {
        let mut result = trained(plan);
        result.measured.utilization = None;
        result
    };
    let world = run(json!({"minGpuUtilization": "0.5"}), Box::new(silent));
    assert!(world.failure().1.contains("gates.minGpuUtilization cannot be checked"), "{:?}", world.failure());
    let diverging = |plan: &LaunchPlan, _| {
        if plan.kind == LaunchKind::Search { ended(plan, Outcome::NonFinite) } else { trained(plan) }
    };
    let world = run(json!({}), Box::new(diverging));
    assert!(world.failure().1.contains("search dry: trial 0: NonFinite: "), "{:?}", world.failure());
    assert_eq!((world.failure().0, of_search(&world).len()), ("DryRunFailed", 1), "the trial is not repeated");
}

#[test]
fn budgets_and_patience_end_a_stage() {
    // A launch takes 36 seconds on one device: a hundredth of an hour.
    for (limit, reason) in [
        (json!({"budget": {"gpuHours": "0.045"}}), "BudgetSpent"),
        (json!({"budget": {"wallTime": "3m"}}), "BudgetSpent"),
        (json!({"patience": 2}), "NoImprovement"),
    ] {
        let world = searched(json!([stage(limit.clone())]), trainer());
        let search = &world.status.search[0];
        assert_eq!((search.reason.as_str(), world.status.stage), (reason, Stage::Complete), "{limit}");
        assert!((2..8).contains(&search.trials.len()) && search.winner.is_some(), "{limit}: {:?}", search.trials);
    }
}

#[test]
fn a_grid_ends_with_its_last_point() {
    let parameters = json!([{"name": "batchPerGpu", "min": "4", "max": "16", "step": "4"}]);
    let grid =
        json!({"sampler": "Grid", "trials": 20, "parameters": parameters, "constraints": ["batchPerGpu * ranks <= 8"]});
    let world = searched(json!([stage(grid)]), trainer());
    assert_eq!((states(&world).as_str(), world.status.search[0].reason.as_str()), ("CC", "SpaceExhausted"));
}

#[test]
fn a_search_without_any_result_fails_the_job() {
    let never = |plan: &LaunchPlan, _| match plan.kind {
        LaunchKind::Search => ended(plan, Outcome::NonFinite),
        _ => trained(plan),
    };
    let world = searched(json!([stage(json!({}))]), Box::new(never));
    assert_eq!((states(&world).as_str(), world.failure().0), ("NNNNNNNN", "SearchFailed"));
}

#[test]
fn an_unknown_setting_fails_the_job() {
    let parameters = json!([{"name": "learningRat", "min": "1e-5", "max": "1e-1"}]);
    let world = searched(json!([stage(json!({"parameters": parameters}))]), trainer());
    let (reason, message) = world.failure();
    assert_eq!((reason, of_search(&world).len()), ("InvalidSpec", 0));
    assert!(message.contains("did you mean learningRate?"), "{message}");
}

/// Nine parameters, 400 trials in three stages, a third of them with values of three rungs.
#[test]
fn four_hundred_trials_in_three_stages_fit_into_the_status() {
    let real =
        |index: usize| Parameter::new(&format!("p{index}"), Domain::Float { low: 1e-6, high: 1.0, scale: Scale::Log });
    let choices = ["Math", "Flash"].map(str::to_owned).to_vec();
    let mut parameters: Vec<Parameter> = (0..6).map(real).collect();
    parameters.push(Parameter::new("batchPerGpu", Domain::Int { low: 1, high: 4096, scale: Scale::Linear }));
    parameters.push(Parameter::new("workload.hidden", Domain::Int { low: 1, high: 4096, scale: Scale::Linear }));
    parameters.push(Parameter::new("attention", Domain::Categorical { choices }));
    let space = Space { parameters, ..Space::default() };
    let recorded = |number: u32| {
        let share = |index: usize| (f64::from(number) * 0.618_034 + index as f64 * 0.414_214).fract();
        let value = |(index, parameter): (usize, &Parameter)| match &parameter.domain {
            Domain::Float { .. } => Setting::Float(1e-6_f64.powf(share(index))),
            Domain::Int { high, .. } => Setting::Int((share(index) * *high as f64) as i64 + 1),
            Domain::Categorical { choices } => Setting::Text(choices[number as usize % 2].clone()),
        };
        let point: Point = space.parameters.iter().enumerate().map(|p| (p.1.name.clone(), value(p))).collect();
        let mut trial = Trial::new(number, pawl_api::search::rounded(point, &space), 1);
        trial.state = State::Stopped;
        let loss = |rung: u32| 0.123_456 + f64::from((number * 7919 + rung) % 1000) * 1.003e-3;
        let rungs = if number.is_multiple_of(3) { vec![1, 3, 9] } else { vec![1] };
        trial.reports = rungs.into_iter().map(|rung| Report { resource: rung, value: loss(rung) }).collect();
        if number.is_multiple_of(3) {
            (trial.state, trial.target, trial.values) = (State::Complete, 20, vec![loss(20)]);
        }
        Recorded { trial, checked: false, items_per_second: 1234.56, lists_evaluations: true }
    };
    let mut world = World::new(spec(json!([])), trainer());
    world.run();
    let stage = |(name, count): (&str, u32)| SearchStatus {
        name: name.to_owned(),
        trials: encode(&(0..count).map(recorded).collect::<Vec<_>>(), &space, 20),
        ..SearchStatus::default()
    };
    world.status.search = [("quick", 50), ("middle", 100), ("long", 250)].map(stage).into();
    let bytes = serde_json::to_string(&world.status).unwrap().len();
    assert!(bytes < 48 << 10, "{bytes} bytes, which leaves less than 16 KiB for the phases");

    // With as many trials at the same time as may be, each of which failed before.
    let name = |number: u32| format!("search-2-0bad-t{number}");
    let attempt = |number: u32| AttemptStatus {
        name: format!("job-{}", 1000 + number),
        purpose: Purpose::Search,
        plan_hash: "0badcafe0badcafe".to_owned(),
        started: "2026-01-01T00:00:00.123456789Z".to_owned(),
        seen: true,
        task: name(number),
        launches: ["check", "n9"].map(|kind| format!("{}-{kind}-0badcafe", name(number))).to_vec(),
        folded: vec![format!("{}-check-0badcafe", name(number))],
        ..AttemptStatus::default()
    };
    let retry = |number: u32| RetryStatus {
        task: name(number),
        count: 2,
        not_before: Some("2026-01-01T00:00:00.123456789Z".to_owned()),
        message: "x".repeat(96),
        ..RetryStatus::default()
    };
    world.status.attempt = Some(attempt(300));
    world.status.parallel = (301..332).map(attempt).collect();
    world.status.retry = Some(retry(300));
    world.status.retries = (301..332).map(retry).collect();
    let bytes = serde_json::to_string(&world.status).unwrap().len();
    assert!(bytes < 64 << 10, "{bytes} bytes");
}
