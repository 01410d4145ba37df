//! What the large sizes will need, known without a GPU: nothing here runs a kernel.

use pawl_contract::settings::{Precision, RopeCache, Settings, WeightQuantization};
use pawl_graph::executor::unify_states;
use pawl_graph::optim::OptimizerKernel;
use pawl_graph::passes::Pattern;
use pawl_graph::recipe::{AttentionKernel, Precision as Arithmetic, Recipe};
use pawl_lower::{LowerOptions, Lowered};
use pawl_workloads::slm::SlmJob;
use pawl_workloads::{Job, Request};
use serde_json::json;
use std::time::Instant;

struct MemoryPlan {
    /// Bytes of states and arena together.
    bytes: usize,
    /// Elements of the largest value in the arena.
    largest: usize,
    /// How many values of that size there are at once, at most.
    together: usize,
}

/// The plan of a step and an evaluation in bfloat16 with every fusing setting on.
fn plan(size: &str, batch: u32, int8: bool, checkpointing: bool) -> MemoryPlan {
    let settings = Settings {
        batch_per_gpu: Some(batch),
        precision: Some(Precision::Bf16),
        rope_cache: Some(RopeCache::Cached),
        weight_quantization: int8.then_some(WeightQuantization::Int8),
        ..Settings::default()
    };
    let config = json!({"size": size}).as_object().unwrap().clone();
    let began = Instant::now();
    let job = SlmJob::new(&Request { config, settings, seed: 0, rank: 0, world: 1 }).unwrap();
    let (optimization, regions) = (job.optimization(), job.programs().regions);
    let patterns = |of: &[&str]| of.iter().map(|p| Pattern::new(p)).collect::<Vec<_>>();
    let recipe = Recipe {
        attention: AttentionKernel::Flash,
        precision: Arithmetic::BF16,
        kernel: OptimizerKernel::Fused,
        clip: optimization.clip,
        rematerialize: patterns(regions.rematerialized),
        recompute: if checkpointing { patterns(regions.blocks) } else { Vec::new() },
        ..Recipe::new(optimization.optimizer.clone())
    };
    let traced = began.elapsed();
    let programs = [
        recipe.step(&job.programs().train[0]).unwrap(),
        recipe.evaluate(&job.programs().evaluation[0], false).unwrap(),
    ];
    let differentiated = began.elapsed();
    let lowered: Vec<Lowered> = programs.iter().map(|p| Lowered::new(p, &LowerOptions::default())).collect();
    let (states, _) = unify_states(&programs).unwrap();
    let (states, arena): (usize, usize) =
        (states.iter().map(|s| s.meta.bytes()).sum(), lowered.iter().map(|l| l.plan.arena).max().unwrap());
    let gib = |bytes: usize| bytes as f64 / f64::from(1 << 30);
    println!(
        "{size} x {batch} int8 {int8} checkpointing {checkpointing}: states {:.2} + arena {:.2} (floor {:.2}) GiB; {} nodes, {} kernels; traced \
         in {:.2} s, passes {:.2} s, lowering {:.2} s",
        gib(states),
        gib(arena),
        gib(lowered[0].plan.floor),
        programs[0].graph.len(),
        lowered[0].kernels.len(),
        traced.as_secs_f64(),
        (differentiated - traced).as_secs_f64(),
        (began.elapsed() - differentiated).as_secs_f64(),
    );
    let placed = lowered[0].buffers.iter().zip(&lowered[0].plan.offsets).filter(|(_, offset)| offset.is_some());
    let largest = placed.map(|(buffer, _)| buffer.elements).max().unwrap();
    let lives: Vec<(usize, usize)> =
        lowered[0].buffers.iter().filter(|buffer| buffer.elements == largest).map(|buffer| buffer.life).collect();
    let alive = |at: usize| lives.iter().filter(|life| (life.0..=life.1).contains(&at)).count();
    let together = (0..lowered[0].kernels.len()).map(alive).max().unwrap();
    MemoryPlan { bytes: states + arena, largest, together }
}

#[test]
fn logits_are_never_whole() {
    let MemoryPlan { largest, together, .. } = plan("125m", 32, false, false);
    let chunk = 32 * 1024 / 4 * 32_000;
    assert!(largest <= chunk, "{largest}");
    // Logits and their gradient.
    assert!(together <= 2, "{together} chunks at once");
}

#[test]
fn the_large_sizes_fit_where_the_specification_says() {
    const GIB: usize = 1 << 30;
    for (size, batch, int8, checkpointing, least, most) in [
        ("125m", 32, false, false, 10, 16),
        ("1b", 32, false, false, 20, 52),
        // One H200: 141 GB.
        ("8b", 32, false, false, 30, 65),
        ("8b", 32, false, true, 18, 32),
        ("8b", 16, true, true, 9, 24),
    ] {
        let bytes = plan(size, batch, int8, checkpointing).bytes;
        assert!((least * GIB..most * GIB).contains(&bytes), "{size}: {:.2} GiB", bytes as f64 / GIB as f64);
    }
}
