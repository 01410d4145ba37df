//! Windows in which the utilization of a GPU is measured.

use crate::world::{World, done, fuse, noise, speed};
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use serde_json::json;

#[test]
fn the_utilization_of_a_gpu_is_measured_for_long_enough_or_not_at_all() {
    let run = |spec: serde_json::Value, honest: bool| {
        let trainer = move |plan: &LaunchPlan, _: usize| {
            let mut asked = plan.clone();
            asked.budget.min_window_seconds.take_if(|_| !honest);
            done(&asked, speed(&plan.settings, &[("Fuse", 1.3)]) * noise(plan, 0.002))
        };
        let mut world = World::new(fuse(spec), Box::new(trainer));
        world.run();
        let bundle = world.status.bundle.clone().unwrap();
        let of_bundle = |plan: &&LaunchPlan| plan.kind == LaunchKind::Measure && plan.launch.starts_with("bundle");
        let windows: Vec<_> = world.ran.iter().filter(of_bundle).map(|plan| plan.budget.min_window_seconds).collect();
        (bundle.reason, bundle.message, windows)
    };
    let gates = json!({"gates": {"minGpuUtilization": "0.85"}});
    let (reason, message, windows) = run(gates.clone(), true);
    assert_eq!(reason, "GoalMet", "{message}");
    assert!(!windows.is_empty() && windows.iter().all(|seconds| *seconds == Some(10.0)), "{windows:?}");
    // 50 steps are 4 s at this speed: of a trainer that leaves it at that nothing is known.
    let (reason, message, _) = run(gates, false);
    assert_eq!(reason, "GoalMissed");
    assert!(message.contains("GateUnmeasured") && message.contains("window of 10 s"), "{message}");
    // On CPUs it is exact.
    let (reason, message, windows) =
        run(json!({"gates": {"minGpuUtilization": "0.85"}, "trainer": {"gpusPerReplica": 0}}), false);
    assert_eq!(reason, "GoalMet", "{message}");
    assert!(windows.iter().all(Option::is_none), "{windows:?}");
    // Without the gate no launch is longer.
    let (_, _, windows) = run(json!({"gates": {"minItemsPerSecond": "125"}}), true);
    assert!(!windows.is_empty() && windows.iter().all(Option::is_none), "{windows:?}");
}
