//! The examples at full size, with a trainer that is a function: what their ladders cost.

use crate::world::{Trainer, World, done, noise};
use pawl_api::spec::Numerics;
use pawl_api::status::{PhaseState, Stage};
use pawl_contract::decimal::Decimal;
use pawl_contract::plan::LaunchKind;

const ITEMS_PER_EPOCH: u64 = 13_000;

/// A trainer whose every phase is faster. The validation loss of a launch with the seed of this place in `seeds` is
/// above the baseline's by the value of `regressions` there, times the gate of 0.001.
fn trainer(seeds: Vec<u32>, regressions: [f64; 3]) -> Trainer {
    Box::new(move |plan, _| {
        let settings = serde_json::to_string(&plan.settings).unwrap();
        // Each phase adds settings.
        let mut result = done(plan, 100.0 * 1.001f64.powi(settings.len() as i32) * noise(plan, 0.001));
        result.items_per_epoch = Some(ITEMS_PER_EPOCH);
        // The accepted settings with which the baseline is trained change no numerics.
        let baseline = plan.launch.starts_with("baseline");
        if let Some(validation) = result.measured.validation.as_mut().filter(|_| !baseline) {
            let place = seeds.iter().position(|seed| u64::from(*seed) == plan.seed).unwrap();
            *validation.metrics.get_mut("loss").unwrap() += 0.001 * regressions[place];
        }
        result
    })
}

/// The job of an example after its ladder, and the items of its quality launches in percent of those of its training.
fn ladder(example: &str, regressions: [f64; 3]) -> (World, u64) {
    let mut job = pawl_manifest::parse(example, "example.yaml").unwrap();
    // Settings that make no difference to this trainer, nor to the number of quality launches.
    job.spec.gates.overall_speedup = None;
    for phase in &mut job.spec.phases {
        phase.min_speedup = Decimal::from_f64(0.5);
    }
    let trainer = trainer(job.spec.seeds.clone(), regressions);
    let mut world = World::new(serde_json::to_value(&job.spec).unwrap(), trainer);
    world.run();
    assert_eq!(world.status.stage, Stage::Complete, "{:#?}", world.status.failure);
    let training = u64::from(job.spec.train.epochs.unwrap()) * ITEMS_PER_EPOCH;
    let quality = world.ran.iter().filter(|plan| plan.kind == LaunchKind::Quality);
    let items: u64 = quality.map(|plan| plan.budget.items.unwrap()).sum();
    (world, 100 * items / training)
}

const EXAMPLES: [&str; 3] = [
    include_str!("../../../../examples/ups-1gpu.yaml"),
    include_str!("../../../../examples/ups-2gpu.yaml"),
    include_str!("../../../../examples/ups-4gpu.yaml"),
];

fn changed(world: &World, state: PhaseState) -> usize {
    let phases = world.job.spec.phases.iter().zip(&world.status.phases);
    phases.filter(|(spec, status)| spec.numerics == Numerics::Changed && status.state == state).count()
}

#[test]
fn clear_quality_costs_less_than_fifteen_percent_of_the_training() {
    for (example, phases, passed, failed) in
        [(EXAMPLES[0], 2, 14, 10), (EXAMPLES[1], 2, 14, 10), (EXAMPLES[2], 5, 12, 12)]
    {
        // Every phase passes: so the baseline, each changed phase and all together are trained.
        let (world, share) = ladder(example, [0.01, 0.0, -0.01]);
        assert_eq!((changed(&world, PhaseState::Accepted), share), (phases, passed));
        // Every phase fails, and its fallbacks with it.
        let (world, share) = ladder(example, [30.1, 30.0, 29.9]);
        assert_eq!((changed(&world, PhaseState::RolledBack), share), (phases, failed));
    }
}

#[test]
fn unclear_quality_costs_less_than_the_training() {
    for (example, phases, percent) in [(EXAMPLES[0], 2, 59), (EXAMPLES[1], 2, 59), (EXAMPLES[2], 5, 51)] {
        // Too noisy for every look but the last.
        let (world, share) = ladder(example, [0.3, 0.0, -0.3]);
        assert_eq!((changed(&world, PhaseState::Accepted), share), (phases, percent));
    }
}
