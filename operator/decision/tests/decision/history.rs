//! Random specs and random histories: no panic, no restlessness, bounded.

use crate::inputs::unmet;
use crate::world::{World, done, ended, factors, job, noise};
use pawl_api::status::Stage;
use pawl_contract::exit::Outcome;
use pawl_contract::measured::Validation;
use pawl_contract::plan::LaunchPlan;
use pawl_contract::report::LaunchResult;
use pawl_decision::observed::Ending;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn settings() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        json!({"compile": "Fuse"}),
        json!({"attention": "Flash"}),
        json!({"batchPerGpu": 16}),
        json!({"batchPerGpu": 6, "globalBatch": 48}),
        json!({"globalBatch": 7}),
        json!({"precision": "bf16"}),
        json!({"loaderWorkers": 4}),
        json!({"optimizerOffload": "Cpu"}),
        json!({"nccl": {"NCCL_ALGO": "Ring"}, "workload": {"width": 3}}),
        json!({}),
    ])
}

fn triggers() -> impl Strategy<Value = Value> {
    prop::sample::subsequence(
        vec![
            "OutOfMemory",
            "NonFinite",
            "Hang",
            "LoaderBound",
            "SpeedBelowThreshold",
            "QualityBelowThreshold",
            "Unsupported",
            "MemoryAboveGate",
            "CompileFailed",
        ],
        1..4,
    )
    .prop_map(|triggers| json!(triggers))
}

fn phases() -> impl Strategy<Value = Vec<Value>> {
    let phase = (
        settings(),
        prop::collection::vec((triggers(), settings()), 0..3),
        prop::sample::select(vec!["Equivalent", "Changed"]),
        prop::sample::select(vec!["Optimization", "Enabler"]),
        prop::option::weighted(0.2, prop::sample::select(vec!["Accepted", "RolledBack", "DryRun"])),
        prop::collection::vec(0usize..5, 0..2),
        prop::collection::vec(0usize..5, 0..2),
    );
    prop::collection::vec(phase, 0..5).prop_map(|phases| {
        let named = phases.into_iter().enumerate().map(|(index, (settings, fallbacks, numerics, role, pin, requires, conflicts))| {
            let earlier = |list: Vec<usize>| list.into_iter().filter(|i| *i < index).map(|i| format!("p{i}")).collect::<Vec<_>>();
            let fallbacks: Vec<_> = fallbacks.into_iter().map(|(when, settings)| json!({"when": when, "settings": settings})).collect();
            json!({"name": format!("p{index}"), "settings": settings, "fallbacks": fallbacks, "numerics": numerics, "role": role,
                   "pin": pin, "requires": earlier(requires), "conflictsWith": earlier(conflicts)})
        });
        named.collect()
    })
}

/// Gates of the histories: each occurs.
fn gates() -> Vec<Value> {
    vec![
        json!({}),
        json!({"overallSpeedup": "1.2", "gpuMemory": "12Gi"}),
        json!({"validationLossDelta": "0.001", "validationMetrics": [{"name": "nrmse", "maxRelativeRegression": "0.03"}]}),
        json!({"maxOffloadOverhead": "0.05", "minGpuUtilization": "0.95"}),
        json!({"validationLossWithin": "0.01", "trainingLossWithin": "0.02", "gpuMemoryIncrease": "0.1"}),
        json!({"minItemsPerSecond": "90", "maxEpochSeconds": "120",
               "validationMetrics": [{"name": "nrmse", "better": "Larger", "min": "0.05", "maxRegression": "0.1"}]}),
    ]
}

fn spec() -> impl Strategy<Value = Value> {
    let analysis = (1u32..4, 0u32..3, any::<bool>(), any::<bool>()).prop_map(|(min, more, reuse, accept)| {
        json!({"minPairs": min, "maxPairs": min + more, "reuseControl": reuse,
               "onInconclusive": if accept { "Accept" } else { "RollBack" }})
    });
    let gates = prop::sample::select(gates());
    let rollback = (
        prop::sample::select(vec!["Phase", "Dependents", "All"]),
        prop::sample::select(vec!["KeepAccepted", "RollBackAll", "Pause"]),
    );
    let rest = (prop::option::of(1_000u64..100_000), 0u32..3, prop::option::weighted(0.2, Just("2h")), 1usize..4);
    (phases(), analysis, gates, rollback, rest).prop_map(|(phases, analysis, gates, rollback, rest)| {
        json!({"phases": phases, "analysis": analysis, "gates": gates,
               "rollback": {"scope": rollback.0, "onGoalMissed": rollback.1},
               "train": {"items": rest.0}, "seeds": (0..rest.3).collect::<Vec<_>>(),
               "cost": {"gpuHour": "1.89"},
               "lifecycle": {"maxRestarts": rest.1, "activeDeadline": rest.2}})
    })
}

#[derive(Clone, Debug)]
enum Happening {
    Decide,
    Work,
    Lose,
    Vanish,
    StopItself,
    Wait(i64),
    Suspend(bool),
    Pin(usize, Option<&'static str>),
    Progress(u64, f64, f64, bool),
    MoveAway,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        12 => Just(Happening::Decide),
        12 => Just(Happening::Work),
        1 => Just(Happening::Lose),
        1 => Just(Happening::Vanish),
        1 => Just(Happening::StopItself),
        3 => (1i64..2_000).prop_map(Happening::Wait),
        1 => any::<bool>().prop_map(Happening::Suspend),
        1 => (0usize..5, prop::option::of(prop::sample::select(vec!["Accepted", "RolledBack", "DryRun"]))).prop_map(|(i, pin)| Happening::Pin(i, pin)),
        3 => (0u64..10_000, prop::sample::select(vec![0.0, 1.0, 95.0, 200.0, f64::NAN]), 0.5f64..2.0, any::<bool>())
            .prop_map(|(items, speed, loss, slow)| Happening::Progress(items, speed, loss, slow)),
        1 => Just(Happening::MoveAway),
    ]
}

const OUTCOMES: [Outcome; 10] = [
    Outcome::OutOfMemory,
    Outcome::HostOutOfMemory,
    Outcome::NonFinite,
    Outcome::LossSpike,
    Outcome::Unsupported,
    Outcome::Stopped,
    Outcome::LostPeer,
    Outcome::Hang,
    Outcome::Failed,
    Outcome::InvalidPlan,
];

/// A trainer that does anything, mostly well.
fn anything(plan: &LaunchPlan, chance: u64) -> LaunchResult {
    let mut well = done(plan, 100.0 * noise(plan, 0.3));
    let measured = &mut well.measured;
    match chance % 40 {
        index @ 0..=8 => return ended(plan, OUTCOMES[index as usize]),
        9 => measured.items_per_second = [None, Some(f64::NAN), Some(0.0), Some(-1.0)][chance as usize % 4],
        10 => (measured.validation, measured.loss) = (None, None),
        11 => {
            let metrics = BTreeMap::from([("loss".to_owned(), f64::INFINITY)]);
            measured.validation = Some(Validation { items: 700, metrics });
        }
        12 => {
            (measured.peak_memory_bytes, measured.predicted_memory_bytes) = (Some(u64::MAX), Some(20 << 30));
        }
        13 => {
            (measured.loader_wait_share, measured.offload_share) = (Some(0.5), Some(0.2));
            measured.items_per_second = Some(50.0);
        }
        14 if chance.is_multiple_of(7) => return ended(plan, Outcome::InvalidPlan),
        15 => {
            (measured.wall_seconds, measured.items) = (Some(f64::NAN), u64::MAX);
            well.message = "é".repeat(500);
        }
        16 => return ended(plan, Outcome::CompileFailed),
        17 => {
            measured.utilization = None;
            well.items_per_epoch = None;
        }
        _ => {}
    }
    well
}

fn happen(world: &mut World, happening: Happening) {
    match happening {
        Happening::Decide => {
            world.decide();
        }
        Happening::Work => {
            world.work();
        }
        Happening::Lose if !world.alive().is_empty() => world.end_alive(Ending::Lost("gone".to_owned())),
        Happening::StopItself if !world.alive().is_empty() => world.end_alive(Ending::Stopped),
        Happening::Vanish => {
            world.attempts.pop_last();
        }
        Happening::Wait(seconds) => {
            world.wait(seconds);
        }
        Happening::Suspend(suspend) => world.edit(|spec| spec["suspend"] = json!(suspend)),
        Happening::Pin(index, pin) => world.edit(|spec| {
            if let Some(phase) = spec["phases"].get_mut(index) {
                phase["pin"] = json!(pin);
            }
        }),
        Happening::Progress(items, speed, loss, straggles) if !world.alive().is_empty() => {
            world.report_progress(items, speed, loss, straggles)
        }
        Happening::MoveAway => world.placement.push('x'),
        Happening::Lose | Happening::StopItself | Happening::Progress(..) => {}
    }
    let size = serde_json::to_string(&world.status).unwrap().len();
    assert!(size < 64 * 1024, "the status is too large: {size}");
}

impl World {
    fn report_progress(&mut self, items: u64, speed: f64, loss: f64, straggles: bool) {
        let running = self.alive()[0];
        if running.facts.results.len() >= running.plan.launches.len() {
            return;
        }
        self.progress(|progress| {
            progress.items = items;
            progress.step = items / 10;
            progress.windows += 1;
            progress.items_per_second = Some(speed);
            progress.eta_seconds = Some(speed);
            progress.straggler = straggles.then(|| "rank 1".to_owned());
            progress.validation = Some(Validation { items, metrics: BTreeMap::from([("loss".to_owned(), loss)]) });
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// [`World::decide`] checks every decision: made twice it changes nothing, one attempt at most is alive, the
    /// settings in effect are the baseline and the accepted patches.
    #[test]
    fn nothing_that_happens_upsets_a_decision(
        spec in spec(),
        chances in prop::collection::vec(any::<u64>(), 1..60),
        happenings in prop::collection::vec(happening(), 0..160),
        gives_budget in any::<bool>(),
    ) {
        let mut next = 0;
        let mut world = World::new(spec, Box::new(move |plan, _| {
            next += 1;
            anything(plan, chances[next % chances.len()])
        }));
        if !gives_budget {
            // The default gives phases up wherever it does not pay for them.
            world.job.spec.analysis.budget_percent = None;
        }
        for happening in happenings {
            happen(&mut world, happening);
        }
        // Left alone, every job comes to rest.
        world.edit(|spec| spec["suspend"] = json!(false));
        world.run();
        let rests = [Stage::Complete, Stage::Failed, Stage::Suspended];
        prop_assert!(rests.contains(&world.status.stage), "{:#?}", world.status);
    }
}

#[test]
fn histories_have_every_gate() {
    let Value::Object(all) = serde_json::to_value(unmet()).unwrap() else { panic!() };
    let given = gates();
    let is_absent = |gate: &&String| given.iter().all(|gates| gates.get(gate.as_str()).is_none());
    let missing: Vec<_> = all.keys().filter(is_absent).collect();
    assert!(missing.is_empty(), "add {missing:?} to `gates`");
}

#[test]
fn fifty_phases_fit_into_a_status() {
    let phases: Vec<_> = (0..50)
        .map(|i| json!({"name": format!("a-rather-long-name-of-a-phase-{i}"), "numerics": "Changed", "settings": {"workload": {format!("knob{i}"): i}},
            "fallbacks": [{"when": ["OutOfMemory"], "settings": {"batchPerGpu": 4}}]}))
        .collect();
    let mut world =
        World::new(json!({"phases": phases, "analysis": {"minPairs": 7, "maxPairs": 7}}), factors(&[("knob49", 1.1)]));
    let mut largest = 0;
    while world.decide() | world.work() {
        largest = largest.max(serde_json::to_string(&world.status).unwrap().len());
    }
    assert_eq!(world.status.stage, Stage::Complete, "{:?}", world.status.failure);
    println!("largest status: {largest} bytes");
    assert!(largest < 64 * 1024, "{largest}");
    assert!(largest > 32 * 1024, "the test is too easy: {largest}");
}

#[test]
fn a_damaged_status_is_survived() {
    let mut world =
        World::new(json!({"phases": [{"name": "fuse", "settings": {"compile": "Fuse"}}]}), factors(&[("Fuse", 1.2)]));
    world.run_until(|world| world.ran.len() > 4);
    world.status.phases[0].fallback = 99;
    world.status.attempts = u32::MAX;
    world.status.start_time = Some("yesterday".to_owned());
    for launch in &mut world.status.phases[0].launches {
        launch.pair = u32::MAX;
    }
    let _ = pawl_decision::decide(&job(json!({})), &world.status, &world.observed(), jiff::Timestamp::MAX);
    let _ = pawl_decision::decide(&world.job, &world.status, &world.observed(), jiff::Timestamp::MIN);
}
