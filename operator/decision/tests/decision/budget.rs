//! What judging may cost: `analysis.budgetPercent`.

use crate::world::{World, done, noise, speed};
use pawl_api::spec::JudgingBudget;
use pawl_api::status::{PhaseState, Purpose, Stage};
use pawl_contract::plan::LaunchKind;
use serde_json::{Value, json};

/// Items of a measurement: 70 steps of 8.
const WINDOW: f64 = 560.0;

/// A training of `items` and phases of this order: `compile` is so many times as fast, `attention` 1.25 times, and
/// `loader` does nothing. A launch takes the time of its items, and nothing else.
fn ladder(items: u64, analysis: Value, names: &[&str], compile: f64) -> World {
    let phase = |name: &&str| {
        let settings = match *name {
            "compile" => json!({"compile": "Fuse"}),
            "attention" => json!({"attention": "Flash"}),
            _ => json!({"loaderWorkers": 4}),
        };
        json!({"name": name, "settings": settings})
    };
    let phases: Vec<Value> = names.iter().map(phase).collect();
    let spec = json!({"phases": phases, "analysis": analysis, "train": {"items": items}});
    World::new(
        spec,
        Box::new(move |plan, _| {
            let speed = speed(&plan.settings, &[("Fuse", compile), ("Flash", 1.25)]) * noise(plan, 0.002);
            let mut result = done(plan, speed);
            let items = plan.budget.items.map_or(WINDOW, |items| items as f64);
            result.measured.items = items as u64;
            result.measured.wall_seconds = Some(if plan.kind == LaunchKind::Preflight { 0.0 } else { items / speed });
            result
        }),
    )
}

/// The time of judging in percent of that of the training with the baseline, which makes 100 items a second.
fn spent(world: &World, items: u64) -> f64 {
    let cost = world.status.cost.as_ref().unwrap();
    let judging = cost.purposes.iter().filter(|(purpose, _)| **purpose != Purpose::Train).map(|(_, spent)| *spent);
    judging.sum::<u64>() as f64 / 1000.0 / (items as f64 / 100.0) * 100.0
}

fn states(world: &World) -> Vec<(PhaseState, String)> {
    world.status.phases.iter().map(|phase| (phase.state, phase.reason.clone())).collect()
}

#[test]
fn judging_never_loses_more_than_its_budget_and_changes_no_other_verdict() {
    let (items, names) = (50_000, ["loader", "compile", "attention"]);
    let mut unlimited = ladder(items, json!({}), &names, 1.25);
    unlimited.run();
    let all = states(&unlimited);
    assert_eq!(all.iter().map(|(state, _)| *state).collect::<Vec<_>>(), {
        use PhaseState::{Accepted, RolledBack};
        [RolledBack, Accepted, Accepted]
    });
    // Whether time ends the windows of the first look is not known before it: it may take all of their steps, 6.8 % of
    // the items.
    let first_look = 6.8;
    let mut known = Vec::new();
    for percent in 1..60 {
        let mut world = ladder(items, json!({"budgetPercent": percent}), &names, 1.25);
        world.run();
        assert_eq!(world.status.stage, Stage::Complete, "{percent}");
        for (own, without) in states(&world).into_iter().zip(&all) {
            let given_up = (PhaseState::Inconclusive, "BudgetSpent".to_owned());
            assert!(own == *without || own == given_up, "{percent}: {own:?}, without a budget {without:?}");
        }
        let accepted: Vec<_> = states(&world).iter().map(|(state, _)| *state == PhaseState::Accepted).collect();
        let trained = world.ran.last().unwrap();
        assert_eq!(trained.kind, LaunchKind::Train);
        assert_eq!(
            (trained.settings.compile.is_some(), trained.settings.attention.is_some()),
            (accepted[1], accepted[2])
        );
        let saved = 100.0 * (1.0 - 1.25_f64.powi(-i32::from(accepted[1]) - i32::from(accepted[2])));
        let lost = spent(&world, items) - saved;
        // Predictions are right within the noise of the speeds.
        assert!(lost <= f64::from(percent).max(first_look) * 1.01, "{percent}: {lost}");
        known.push(states(&world).iter().filter(|(_, reason)| reason != "BudgetSpent").count());
    }
    assert!(known.contains(&1) && known.first() == Some(&0), "{known:?}");
    assert_eq!(known.last(), Some(&3));
}

#[test]
fn a_phase_that_was_given_up_says_why_and_is_taken_up_under_a_larger_budget() {
    let mut world = ladder(50_000, json!({"budgetPercent": 13}), &["compile", "loader", "attention"], 1.05);
    world.run();
    assert_eq!(states(&world)[0].0, PhaseState::Accepted);
    let given_up = world.phase("attention");
    assert_eq!((given_up.state, given_up.reason.as_str()), (PhaseState::Inconclusive, "BudgetSpent"));
    for part in [
        "the next 6 launches would take about",
        "beside",
        "all accepted phases together",
        "budgetPercent",
        "is 13",
        "the 4.7 %",
    ] {
        assert!(given_up.message.contains(part), "{}", given_up.message);
    }
    let (before, compile) = (world.ran.len(), world.phase("compile").clone());
    world.edit(|spec| spec["analysis"]["budgetPercent"] = json!(100));
    world.run();
    assert_eq!(states(&world)[2], (PhaseState::Accepted, "SpeedAboveThreshold".to_owned()));
    let again = &world.ran[before..];
    assert!(again.iter().any(|plan| plan.launch.starts_with("attention-")));
    assert!(!again.iter().any(|plan| plan.launch.starts_with("compile-")), "what is accepted stays so");
    let judged = again.len();
    world.edit(|spec| spec["analysis"]["budgetPercent"] = json!(1));
    world.run();
    assert_eq!(world.ran.len(), before + judged, "a smaller budget judges nothing again");
    assert_eq!(world.phase("compile").input_hash, compile.input_hash);
}

#[test]
fn a_phase_that_saves_less_than_its_launches_take_is_not_measured() {
    let of_promise = |promise: &str, items| {
        let mut world = ladder(items, json!({"budgetPercent": 1000}), &["compile"], 1.25);
        world.job.spec.phases[0].expected_speedup = Some(promise.parse().unwrap());
        world.run();
        let phase = world.phase("compile").clone();
        (phase.reason, phase.message, world.launches(LaunchKind::Measure, "compile-"))
    };
    // Six launches of at least 18 steps, three of them as much faster as promised.
    let (reason, message, launches) = of_promise("1.01", 50_000);
    assert_eq!((reason.as_str(), launches), ("NotWorthKnowing", 0), "{message}");
    assert!(
        message.contains("1.7 %") && message.contains("at most 1.0 %") && message.contains("expectedSpeedup 1.01"),
        "{message}"
    );
    assert_eq!(of_promise("1.05", 50_000).0, "SpeedAboveThreshold");
    assert_eq!(of_promise("1.01", 500_000).0, "SpeedAboveThreshold", "a longer training pays for it");
}

#[test]
fn launches_under_way_are_not_stopped_for_the_budget() {
    // Enough for what the launches were to take, not for the ten times that they do.
    let mut world = ladder(50_000, json!({"budgetPercent": 20}), &["compile", "loader"], 1.25);
    let mut trainer = std::mem::replace(&mut world.trainer, Box::new(|_, _| unreachable!()));
    world.trainer = Box::new(move |plan, before| {
        let mut result = trainer(plan, before);
        result.measured.wall_seconds = result.measured.wall_seconds.map(|seconds| seconds * 10.0);
        result
    });
    world.run();
    assert_eq!(states(&world)[0], (PhaseState::Accepted, "SpeedAboveThreshold".to_owned()));
    assert_eq!(world.launches(LaunchKind::Measure, "compile-"), 6);
    assert_eq!(states(&world)[1].1, "BudgetSpent");
    assert_eq!(world.status.bundle.as_ref().unwrap().state, PhaseState::Accepted, "what is accepted is confirmed");
}

#[test]
fn quality_launches_are_paid_for_too() {
    let of_budget = |percent: u32| {
        let mut world = ladder(100_000, json!({"budgetPercent": percent, "qualityItems": 4000}), &["compile"], 1.25);
        world.edit(|spec| {
            spec["gates"] = json!({"validationLossDelta": "5"});
            spec["seeds"] = json!([42, 43]);
            spec["phases"][0]["numerics"] = json!("Changed");
        });
        world.run();
        let pairs = world.launches(LaunchKind::Measure, "compile-");
        let quality = world.launches(LaunchKind::Quality, "");
        let phase = world.phase("compile");
        (phase.reason.clone(), pairs, quality, phase.message.clone())
    };
    // The pairs, and those of all phases together, are 6 % of the items; two seeds of the phase and of the baseline, 14
    // %.
    let (reason, pairs, quality, message) = of_budget(15);
    assert_eq!((reason.as_str(), pairs, quality), ("BudgetSpent", 0, 0), "pairs alone would show nothing: {message}");
    assert!(message.starts_with("the next 6 launches and those of its quality would take about 16."), "{message}");
    let (reason, pairs, quality, _) = of_budget(40);
    assert_eq!((reason.as_str(), pairs, quality), ("SpeedAboveThreshold", 6, 4));
}

#[test]
fn a_phase_that_promises_little_is_given_up_for_one_that_promises_much() {
    use PhaseState::{Accepted, Inconclusive, RolledBack};
    // A look at a phase is 6.7 % of the items, one at `attention` as fast as promised 6 %, and so are all together.
    let of = |percent: u32, change: fn(&mut Value)| {
        let mut world = ladder(50_000, json!({"budgetPercent": percent}), &["loader", "attention"], 1.25);
        world.edit(|spec| spec["phases"][1]["expectedSpeedup"] = json!("1.25"));
        world.edit(change);
        world.run();
        (states(&world)[0].0, states(&world)[1].0, world.phase("loader").message.clone())
    };
    let (loader, attention, message) = of(15, |_| {});
    assert_eq!((loader, attention), (Inconclusive, Accepted));
    assert!(message.contains("budgetPercent, which is 15, for phase attention, which promises more"), "{message}");
    assert_eq!(of(20, |_| {}).0, RolledBack, "it pays for both");
    assert_eq!(of(11, |_| {}).0, RolledBack, "it does not pay for attention anyway");
    type Change = fn(&mut Value);
    let exempt: [(&str, Change); 4] = [
        ("it promises half as much", |spec| spec["phases"][0]["expectedSpeedup"] = json!("1.15")),
        ("nothing is promised", |spec| drop(spec["phases"][1].as_object_mut().unwrap().remove("expectedSpeedup"))),
        ("it is the other phase that is tried first", |spec| spec["phases"][1]["conflictsWith"] = json!(["loader"])),
        ("it may be what the other phase needs", |spec| spec["phases"][0]["role"] = json!("Enabler")),
    ];
    for (why, change) in exempt {
        assert_ne!(of(15, change).0, Inconclusive, "{why}");
    }
}

#[test]
fn after_a_pinned_phase_the_speed_of_the_control_is_the_unit() {
    let of_budget = |percent: u32| {
        let mut world = ladder(50_000, json!({"budgetPercent": percent}), &["compile", "loader", "attention"], 1.05);
        world.edit(|spec| spec["phases"][0]["pin"] = json!("Accepted"));
        world.run();
        (world.phase("loader").reason.clone(), world.phase("attention").reason.clone())
    };
    // The baseline is not measured before all phases together are.
    assert_eq!(of_budget(1), ("BudgetSpent".to_owned(), "BudgetSpent".to_owned()));
    assert_eq!(of_budget(10), ("SpeedBelowThreshold".to_owned(), "BudgetSpent".to_owned()));
    assert_eq!(of_budget(60), ("SpeedBelowThreshold".to_owned(), "SpeedAboveThreshold".to_owned()));
}

#[test]
fn what_another_phase_needs_is_measured_whatever_it_saves_itself() {
    let mut world = ladder(50_000, json!({"budgetPercent": 100}), &["loader", "attention"], 1.0);
    world.edit(|spec| {
        spec["phases"][0]["expectedSpeedup"] = json!("0.98");
        spec["phases"][0]["minSpeedup"] = json!("0.9");
        spec["phases"][1]["requires"] = json!(["loader"]);
    });
    world.run();
    assert_eq!(states(&world).iter().map(|(state, _)| *state).collect::<Vec<_>>(), [PhaseState::Accepted; 2]);
    let mut alone = ladder(50_000, json!({"budgetPercent": 100}), &["loader"], 1.0);
    alone.edit(|spec| spec["phases"][0]["expectedSpeedup"] = json!("0.98"));
    alone.run();
    assert_eq!(states(&alone)[0].1, "NotWorthKnowing");
    // What it was given up for has changed, but nothing is left to save.
    alone.edit(|spec| spec["phases"][0]["expectedSpeedup"] = json!("1.2"));
    alone.run();
    assert_eq!((states(&alone)[0].1.as_str(), alone.launches(LaunchKind::Measure, "")), ("NotWorthKnowing", 0));
    alone.edit(|spec| spec["train"]["items"] = json!(500_000));
    alone.run();
    assert_eq!(states(&alone)[0].1, "SpeedBelowThreshold");
}

#[test]
fn a_job_that_gives_no_budget_has_the_default_one() {
    let of = |items, budget| {
        let mut world = ladder(items, json!({}), &["loader", "compile", "attention"], 1.25);
        world.job.spec.analysis.budget_percent = budget;
        world.run();
        world
    };
    let all = states(&of(5_000, Some(JudgingBudget::Unlimited)));
    assert_eq!(all.iter().map(|(state, _)| *state).collect::<Vec<_>>(), {
        use PhaseState::{Accepted, RolledBack};
        [RolledBack, Accepted, Accepted]
    });
    assert_eq!(states(&of(1_000_000, None)), all, "a training that is long enough pays for all launches");

    let mut short = of(5_000, None);
    assert_eq!(states(&short), vec![(PhaseState::Inconclusive, "BudgetSpent".to_owned()); 3]);
    assert_eq!(short.launches(LaunchKind::Measure, ""), 0);
    let message = &short.phase("loader").message;
    assert!(message.contains("more than analysis.budgetPercent, which is 10 by default, and"), "{message}");
    let ran = short.ran.len();
    short.edit(|spec| spec["analysis"]["budgetPercent"] = json!(10));
    short.run();
    assert_eq!((short.ran.len(), short.count_events("Superseded")), (ran, 0), "it is the same budget");
    short.edit(|spec| spec["analysis"]["budgetPercent"] = json!("Unlimited"));
    short.run();
    assert_eq!(states(&short), all);

    // As after an update from a version without a default.
    let (ran, judged) = (short.ran.len(), short.status.phases.clone());
    short.edit(|spec| drop(spec["analysis"].as_object_mut().unwrap().remove("budgetPercent")));
    short.run();
    assert_eq!((short.ran.len(), &short.status.phases), (ran, &judged), "what was judged stays");
}

#[test]
fn without_a_training_there_is_no_limit() {
    let mut world = ladder(5_000, json!({}), &["loader", "compile"], 1.25);
    (world.job.spec.analysis.budget_percent, world.job.spec.train.items) = (None, None);
    world.run();
    assert_eq!(states(&world)[1], (PhaseState::Accepted, "SpeedAboveThreshold".to_owned()));
}

#[test]
fn a_missed_goal_names_the_phases_that_the_default_budget_gave_up() {
    let of = |budget, promises: &[(&str, &str)]| {
        let mut world = ladder(60_000, json!({}), &["compile", "loader", "attention"], 1.05);
        world.edit(|spec| spec["gates"] = json!({"overallSpeedup": "1.2"}));
        for (name, promise) in promises {
            let phase = world.job.spec.phases.iter_mut().find(|phase| phase.name == *name).unwrap();
            phase.expected_speedup = Some(promise.parse().unwrap());
        }
        world.job.spec.analysis.budget_percent = budget;
        world.run();
        world
    };
    let message = |world: &World| {
        let bundle = world.status.bundle.as_ref().unwrap();
        assert_eq!((bundle.reason.as_str(), world.phase("compile").state), ("GoalMissed", PhaseState::Accepted));
        bundle.message.clone()
    };
    let named = "budgetPercent: Unlimited also judges the phases that its default has given up, which might meet it: \
                 loader, attention";
    let mut world = of(None, &[]);
    assert!(message(&world).ends_with(named), "{}", message(&world));
    world.edit(|spec| spec["analysis"]["budgetPercent"] = json!("Unlimited"));
    world.run();
    assert_eq!(world.status.bundle.as_ref().unwrap().reason, "GoalMet", "the remedy is one");

    // 1.05 times as fast, and 1.2 is asked for.
    assert!(message(&of(None, &[("loader", "1.0"), ("attention", "1.25")])).ends_with(named));
    let other = [
        ("their promises are too small", of(None, &[("loader", "1.01"), ("attention", "1.02")])),
        ("the limit is as it was asked for", of(Some(JudgingBudget::Percent(10)), &[])),
    ];
    for (why, world) in other {
        assert!(message(&world).contains("is below gates.overallSpeedup 1.2"), "{}", message(&world));
        assert!(!message(&world).contains("budgetPercent"), "{why}: {}", message(&world));
    }
}
