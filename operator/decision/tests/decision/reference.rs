//! The settings of the baseline's quality launches.

use crate::world::{World, factors};
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_contract::settings::{Compile, Precision, Settings};
use serde_json::json;

const FACTORS: &[(&str, f64)] = &[("Fuse", 1.3), ("bf16", 1.3), (":16", 1.3)];

fn ladder() -> World {
    let fuse = json!({"name": "fuse", "settings": {"compile": "Fuse"}});
    let bf16 = json!({"name": "bf16", "numerics": "Changed", "settings": {"precision": "bf16"}});
    let kernels = json!({"name": "kernels", "settings": {"optimizerKernel": "Fused"}});
    let batch = json!({"name": "batch", "numerics": "Changed", "settings": {"batchPerGpu": 16}});
    World::new(json!({"phases": [fuse, bf16, kernels, batch]}), factors(FACTORS))
}

fn of_the_baseline(world: &World) -> Vec<&Settings> {
    let quality = world.ran.iter().filter(|plan| plan.kind == LaunchKind::Quality);
    quality.filter(|plan| plan.launch.starts_with("baseline")).map(|plan| &plan.settings).collect()
}

#[test]
fn the_baseline_learns_with_the_accepted_settings_that_change_no_numerics_before_the_first_that_do() {
    let mut world = ladder();
    world.run();
    let ran = of_the_baseline(&world);
    assert_eq!(ran.len(), 3, "one for each seed, shared by both phases that change the numerics");
    for settings in ran {
        assert_eq!((settings.compile, settings.precision), (Some(Compile::Fuse), None));
        assert_eq!(settings.optimizer_kernel, None, "what is compared with bf16 says nothing about the baseline");
    }
    assert_eq!(world.phase("bf16").quality.as_ref().unwrap().seeds, 3);
    assert_eq!(world.phase("batch").quality.as_ref().unwrap().seeds, 3);
}

#[test]
fn launches_of_the_baseline_that_there_are_stay_the_reference() {
    // Without the first phase they run with the baseline's own settings.
    let mut world = ladder();
    world.edit(|spec| {
        spec["phases"].as_array_mut().unwrap().remove(0);
    });
    world.run();
    assert!(of_the_baseline(&world).iter().all(|settings| settings.compile.is_none()));
    world.edit(|spec| {
        let fuse = json!({"name": "fuse", "settings": {"compile": "Fuse"}});
        spec["phases"].as_array_mut().unwrap().insert(0, fuse);
    });
    world.run();
    assert_eq!(of_the_baseline(&world).len(), 3, "no launch is repeated");
    assert!(world.phase("bf16").quality.is_some());
}

#[test]
fn a_phase_whose_losses_differ_is_not_part_of_the_reference() {
    let mut trainer = factors(FACTORS);
    let worse = Box::new(move |plan: &LaunchPlan, count: usize| {
        let mut result = trainer(plan, count);
        if plan.settings.compile.is_some() {
            result.measured.loss = result.measured.loss.map(|loss| loss * (1.0 + 0.02 * (plan.seed % 2) as f64));
        }
        result
    });
    let mut world = ladder();
    world.trainer = worse;
    world.run();
    let ran = of_the_baseline(&world);
    assert!(!ran.is_empty() && ran.iter().all(|settings| settings.compile.is_none()), "{ran:?}");
    assert!(ran.iter().all(|settings| settings.precision != Some(Precision::Bf16)));
}
