//! Sharding: each layout trains what one rank trains, in less memory, and checkpoints move between all of them.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use std::{sync::Arc, thread};

use pawl_cpu::GraphCpu;
use pawl_eager::Eager;
use pawl_engine_tests::{Case, read_outputs, transformer};
use pawl_graph::{
    array::{Array, Data, View},
    collective::{self, Collective},
    executor::{ExecOptions, Executable, Executor, read_chosen, write_named},
    graph::{Op, Program, Role, Stage},
    optim::{AdamW, Muon, Optimizer, OptimizerKernel},
    passes::Pattern,
    recipe::{LossScale, Precision, Recipe, Sharding},
};

const SHARDED: [Sharding; 3] = [Sharding::Zero1, Sharding::Zero2, Sharding::Full];
const LAYOUTS: [Sharding; 4] = [Sharding::None, Sharding::Zero1, Sharding::Zero2, Sharding::Full];

type Named = Vec<(String, Array)>;

fn adamw() -> Optimizer {
    Optimizer { matrices: None, others: AdamW { weight_decay: 0.03, decay_vectors: false, ..AdamW::default() } }
}

fn muon() -> Optimizer {
    Optimizer { matrices: Some(Muon { weight_decay: 0.03, ..Muon::default() }), ..adamw() }
}

/// One rank: the programs of a recipe, compiled.
struct Rank {
    programs: Vec<Program>,
    exe: Box<dyn Executable>,
    gang: Arc<dyn Collective>,
    micro_steps: u32,
}

impl Rank {
    fn new(executor: &dyn Executor, recipe: &Recipe, gang: Arc<dyn Collective>, seed: u64) -> Self {
        let recipe = Recipe { world: gang.world(), rank: gang.rank(), ..recipe.clone() };
        let forward = transformer(4);
        let mut programs = match recipe.accumulation {
            1 => vec![recipe.step(&forward).unwrap()],
            _ => vec![recipe.micro_step(&forward).unwrap(), recipe.apply(&[&forward]).unwrap()],
        };
        programs.push(recipe.evaluate(&forward, true).unwrap());
        let options = ExecOptions { seed, collective: Arc::clone(&gang), ..ExecOptions::default() };
        let exe = executor.compile(&programs, &options).unwrap();
        Self { programs, exe, gang, micro_steps: recipe.accumulation as u32 }
    }

    fn run(&mut self, index: usize, counter: u32) -> Named {
        let program = &self.programs[index];
        let mut inputs = Case::new(program.clone(), u64::from(counter)).inputs;
        for (decl, array) in program.inputs.iter().zip(&mut inputs) {
            match decl.name.as_str() {
                "counter" => *array.data_mut() = Data::U32(vec![counter]),
                "learning_rate" => *array = Array::scalar(1e-2),
                _ => {}
            }
        }
        let views: Vec<View<'_>> = inputs.iter().map(Array::view).collect();
        self.exe.run(index, &views).unwrap();
        read_outputs(self.exe.as_mut(), index, program).unwrap()
    }

    /// Step number `step`: the micro-steps of all ranks are numbered rank by rank. Returns the outputs of the update.
    fn step(&mut self, step: u32) -> Named {
        let (world, rank) = (self.gang.world() as u32, self.gang.rank() as u32);
        let first = (step * world + rank) * self.micro_steps;
        let mut outputs = Vec::new();
        for micro_step in 0..self.micro_steps {
            outputs = self.run(0, first + micro_step);
        }
        if self.micro_steps > 1 { self.run(1, 0) } else { outputs }
    }

    /// What a checkpoint holds, sorted by name.
    fn checkpoint(&mut self) -> Named {
        let mut states = read_chosen(self.exe.as_mut(), self.gang.as_ref(), |decl| {
            !matches!(decl.role, Role::Gradient | Role::Frozen | Role::Data)
        })
        .unwrap();
        states.sort_by(|a, b| a.0.cmp(&b.0));
        states
    }

    fn validation(&mut self) -> f64 {
        let outputs = self.run(self.programs.len() - 1, 1000);
        outputs.iter().find(|(name, _)| name == "loss").unwrap().1.item()
    }
}

/// Runs `each` on every rank of a gang, and returns the results by rank.
fn gang<T: Send + 'static>(world: usize, each: impl Fn(Arc<dyn Collective>) -> T + Send + Sync + 'static) -> Vec<T> {
    let each = Arc::new(each);
    let ranks: Vec<_> = collective::threads(world)
        .into_iter()
        .map(|seat| {
            let each = Arc::clone(&each);
            thread::spawn(move || each(Arc::new(seat)))
        })
        .collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

/// Two steps: the norms of the gradients, the checkpoint, and the validation loss of the averages, by rank.
fn trained(executor: fn() -> Box<dyn Executor>, recipe: &Recipe, world: usize) -> Vec<(Vec<f64>, Named, f64)> {
    let recipe = recipe.clone();
    gang(world, move |seat| {
        let mut rank = Rank::new(executor().as_ref(), &recipe, seat, 7);
        let norm = |outputs: Named| outputs.iter().find(|(name, _)| name == "gradient_norm").unwrap().1.item();
        let norms = (0..2).map(|step| norm(rank.step(step))).collect();
        (norms, rank.checkpoint(), rank.validation())
    })
}

fn eager() -> Box<dyn Executor> {
    Box::new(Eager::cpu())
}

fn compiled() -> Box<dyn Executor> {
    Box::new(GraphCpu::default())
}

fn assert_near(a: &Named, b: &Named, bound: f64, what: &str) {
    let names = |named: &Named| named.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(a), names(b), "{what}: checkpoints have the same names");
    for ((name, x), (_, y)) in a.iter().zip(b) {
        assert_eq!(x.shape(), y.shape(), "{what}: {name}");
        let worst = x.to_f64().iter().zip(y.to_f64()).fold(0.0f64, |worst, (p, q)| worst.max((p - q).abs()));
        assert!(worst <= bound, "{what}: {name} differs by {worst}");
    }
}

/// Each layout and number of ranks beside one rank that runs the micro-steps of all of them.
fn train_as_one_rank_does(executor: fn() -> Box<dyn Executor>, worlds: &[usize]) {
    // Muon iterates in bfloat16, which may round the other way after a difference in the last bit of a gradient.
    for (optimizer, bound) in [(adamw(), 3e-5), (muon(), 4e-4)] {
        for accumulation in [1, 2] {
            let base = Recipe { average: Some(0.9), clip: Some(0.5), accumulation, ..Recipe::new(optimizer.clone()) };
            for &world in worlds {
                let alone = Recipe { accumulation: accumulation * world, ..base.clone() };
                let (norms, expected, validation) = trained(executor, &alone, 1).remove(0);
                for sharding in SHARDED {
                    let what = format!("{sharding:?}, {world} ranks, {accumulation} micro-steps, {optimizer:?}");
                    for (rank, (own_norms, states, own)) in
                        trained(executor, &Recipe { sharding, ..base.clone() }, world).into_iter().enumerate()
                    {
                        let what = format!("{what}, rank {rank}");
                        // Norms are summed by shards, and so clip by another rounding.
                        assert_near(&states, &expected, bound, &what);
                        assert!((own - validation).abs() < bound, "{what}: {own} beside {validation}");
                        let near = |(a, b): (&f64, &f64)| (a - b).abs() < bound * b;
                        assert!(own_norms.iter().zip(&norms).all(near), "{what}: {own_norms:?} beside {norms:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn all_layouts_train_as_one_rank_does() {
    train_as_one_rank_does(eager, &[2, 3, 4, 8]);
}

#[test]
fn all_layouts_train_as_one_rank_does_when_compiled() {
    train_as_one_rank_does(compiled, &[2, 3]);
}

#[test]
fn without_clipping_no_bit_differs() {
    for optimizer in [adamw(), muon()] {
        let base = Recipe::new(optimizer);
        let data_parallel = trained(eager, &base, 3).remove(0).1;
        for sharding in SHARDED {
            for (_, states, _) in trained(eager, &Recipe { sharding, ..base.clone() }, 3) {
                assert_eq!(states, data_parallel, "{sharding:?}: the order of sums is the same");
            }
        }
    }
}

#[test]
fn half_precision_recomputation_and_loss_scales_are_sharded_too() {
    let base = Recipe {
        precision: Precision::F16,
        loss_scale: LossScale::Dynamic,
        recompute: vec![Pattern::new("blocks.*")],
        groups: vec!["out.".into()],
        ..Recipe::new(muon())
    };
    let expected = trained(eager, &base, 2).remove(0).1;
    for sharding in SHARDED {
        for (_, states, _) in trained(eager, &Recipe { sharding, ..base.clone() }, 2) {
            assert_near(&states, &expected, 1e-6, &format!("{sharding:?}"));
        }
    }
}

#[test]
fn a_checkpoint_moves_between_all_layouts_and_numbers_of_ranks() {
    let of = |sharding| Recipe { sharding, average: Some(0.9), ..Recipe::new(muon()) };
    let ladder: Vec<(Sharding, usize)> = LAYOUTS.into_iter().zip([1, 2, 3, 4]).chain([(Sharding::Full, 2)]).collect();
    for &(from, ranks) in &ladder {
        let saved = trained(eager, &of(from), ranks).remove(0).1;
        for &(to, world) in &ladder {
            let (checkpoint, recipe) = (saved.clone(), of(to));
            let loaded = gang(world, move |seat| {
                let mut rank = Rank::new(&Eager::cpu(), &recipe, seat, 99);
                assert_eq!(write_named(rank.exe.as_mut(), &checkpoint).unwrap(), [""; 0]);
                rank.checkpoint()
            });
            for states in loaded {
                assert_eq!(states, saved, "{from:?} of {ranks} ranks into {to:?} of {world}");
            }
        }
    }
}

#[test]
fn each_rank_holds_its_part_only() {
    let held = |sharding, roles: &[Role]| -> usize {
        let recipe =
            Recipe { sharding, world: 2, accumulation: 2, kernel: OptimizerKernel::Fused, ..Recipe::new(adamw()) };
        let forward = transformer(4);
        let programs = [recipe.micro_step(&forward).unwrap(), recipe.apply(&[&forward]).unwrap()];
        let (states, _) = pawl_graph::executor::unify_states(&programs).unwrap();
        states.iter().filter(|decl| roles.contains(&decl.role)).map(|decl| decl.meta.bytes()).sum()
    };
    // Shards are padded.
    let halved = |sharding, role| {
        let (all, part) = (held(Sharding::None, &[role]), held(sharding, &[role]));
        part < all * 65 / 100
    };
    assert_eq!(
        SHARDED.map(|sharding| [Role::Optimizer, Role::Gradient, Role::Parameter].map(|role| halved(sharding, role))),
        [[true, false, false], [true, true, false], [true, true, true]]
    );
}

#[test]
fn gathered_parameters_are_gathered_again_for_the_backward_pass() {
    let recipe = Recipe { sharding: Sharding::Full, world: 2, ..Recipe::new(adamw()) };
    let program = recipe.step(&transformer(4)).unwrap();
    let gathers = |stage| {
        let nodes = program.graph.iter();
        nodes
            .filter(|(_, n)| matches!(n.op, Op::AllGather { .. }) && n.stage == stage)
            .map(|(id, _)| id)
            .collect::<Vec<_>>()
    };
    let (forward, backward) = (gathers(Stage::Forward), gathers(Stage::Recompute));
    assert!(forward.len() >= 3 && backward.len() >= 2, "blocks and the rest: {forward:?}, {backward:?}");
    let first_gradient = program.graph.iter().find(|(_, node)| node.stage == Stage::Backward).unwrap().0;
    assert!(backward.iter().all(|gather| *gather > first_gradient), "not before they are needed");
    let last_uses = program.graph.last_uses();
    let kept = forward.iter().filter(|gather| last_uses[gather.index()] > first_gradient.index()).count();
    assert_eq!(kept, 0, "nothing gathered is kept from one pass to the other");
    let mut scatters = program.graph.iter().filter(|(_, node)| matches!(node.op, Op::ReduceScatter { .. }));
    let last_gradient = program.graph.iter().rfind(|(_, node)| node.stage == Stage::Backward).unwrap().0;
    assert!(scatters.any(|(id, _)| id < last_gradient), "gradients are scattered while the backward pass runs");
}
