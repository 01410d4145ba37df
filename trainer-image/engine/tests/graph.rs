//! Building, checking and printing programs, and what an executor refuses.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use pawl_engine::{
    array::{Array, Data, View},
    collective::{Collective, CollectiveError, threads},
    eager::Eager,
    executor::{ExecError, ExecOptions, Executor},
    graph::{Builder, DType, GraphError, Init, Meta, Op, Role, StateDecl, Update, concat},
};
use proptest::prelude::*;

/// The message of the mistake that `build` makes.
fn mistake(build: impl Fn(&Builder)) -> String {
    let b = Builder::new("wrong");
    build(&b);
    b.finish().expect_err("a mistake").to_string()
}

#[test]
fn a_mistake_names_the_operands_the_remedy_the_line_and_the_scope() {
    let message = mistake(|b| {
        let x = b.input("x", DType::F32, [4, 3]);
        let w = b.parameter("w", [5, 2], Init::Fill(0.0));
        b.scope("head", || x.matmul_t(w) + 1.0);
    });
    for part in ["matmul", "f32[4x3]", "f32[5x2]", "inner extents are equal, not 3 and 2", "graph.rs:", "scope head"] {
        assert!(message.contains(part), "{part} in: {message}");
    }
}

#[test]
fn every_operator_says_what_is_wrong() {
    type Mistake<'a> = (&'a dyn Fn(&Builder), &'a str);
    let cases: [Mistake<'_>; 14] = [
        (&|b| _ = b.fill(1.0, DType::F32, [2]) + b.fill(1.0, DType::F32, [3]), "do not broadcast"),
        (&|b| _ = b.fill(1.0, DType::F32, [2]) * b.fill(1.0, DType::F64, [2]), "one dtype; cast one"),
        (&|b| _ = b.fill(1.0, DType::U32, [2]).exp(), "operands are floats"),
        (&|b| _ = b.fill(1.0, DType::F32, [2]).sum([1]), "axis 1 is not below the rank"),
        (&|b| _ = b.fill(1.0, DType::F32, [2]).sum([0, 0]), "without repetition"),
        (&|b| _ = b.fill(1.0, DType::F32, [2, 3]).reshape([4]), "4 elements, not 6"),
        (&|b| _ = b.fill(1.0, DType::F32, [2, 3]).permute([0, 0]), "every axis once"),
        (&|b| _ = b.fill(1.0, DType::F32, [2]).broadcast([3]), "does not broadcast to [3]"),
        (&|b| _ = b.fill(1.0, DType::F32, [2]).slice(0, 1, 2), "has extent 2"),
        (&|b| _ = concat(&[b.fill(1.0, DType::F32, [2, 2]), b.fill(1.0, DType::F32, [2, 3])], 0), "but that of axis 0"),
        (&|b| _ = b.fill(1.0, DType::F32, [2]).gather(0, b.fill(1.0, DType::F32, [2])), "indices are u32"),
        (&|b| _ = b.fill(1.0, DType::F32, [2]).select(b.scalar(1.0, DType::F32), 0.0), "condition is bool"),
        (&|b| _ = b.input("x", DType::F32, []) + b.input("x", DType::F32, []), "input `x` is declared twice"),
        (&|b| b.update(b.fill(1.0, DType::F32, []), b.fill(1.0, DType::F32, [])), "only a state can be updated"),
    ];
    for (build, expected) in cases {
        let message = mistake(build);
        assert!(message.contains(expected), "{expected:?} is not in {message:?}");
    }
}

#[test]
fn the_first_mistake_counts() {
    let message = mistake(|b| {
        let poisoned = b.fill(1.0, DType::F32, [2]).reshape([3]);
        b.output("y", poisoned.matmul(poisoned).sum([7]));
    });
    assert!(message.starts_with("reshape"), "{message}");
}

#[test]
fn the_verifier_finds_what_a_pass_breaks() {
    let b = Builder::new("fine");
    let p = b.parameter("p", [2], Init::Fill(0.0));
    b.update(p, p + 1.0);
    b.output("q", p.exp());
    let fine = b.finish().unwrap();
    let mut twice = fine.clone();
    twice.updates.push(fine.updates[0]);
    assert!(matches!(twice.verify(), Err(GraphError::Duplicate { .. })));
    let mut misfit = fine.clone();
    misfit.states[0].meta = Meta::new(DType::F32, [3]);
    assert!(misfit.verify().is_err());
    let mut stranger = fine.clone();
    stranger.updates[0] = Update { state: pawl_engine::graph::StateId(9), ..fine.updates[0] };
    assert!(stranger.verify().is_err());
}

#[test]
fn a_dump_shows_names_scopes_and_shapes() {
    let b = Builder::new("dump");
    let x = b.input("x", DType::F32, [2, 3]);
    let p = b.parameter("p", [4, 3], Init::Fill(0.0));
    b.output("y", b.scope("head", || x.matmul_t(p)));
    b.update(p, p * 0.5);
    let text = b.finish().unwrap().to_string();
    for line in ["input `x` : f32[2x3]", "-- Forward head", "matmul.nt %0 %1 : f32[2x4]", "output `y` = %2", "`p` <- %"]
    {
        assert!(text.contains(line), "{line:?} in\n{text}");
    }
}

#[test]
fn wrong_inputs_and_states_are_refused_by_name() {
    let b = Builder::new("refuse");
    let x = b.input("x", DType::F32, [2]);
    let p = b.parameter("p", [2], Init::Fill(0.0));
    b.output("y", x + p);
    let mut exe = Eager::cpu().compile(&[b.finish().unwrap()], &ExecOptions::default()).unwrap();
    let message = |error: ExecError| error.to_string();
    assert!(message(exe.run(0, &[View::F32(&[1.0])]).unwrap_err()).contains("input `x`"));
    assert!(message(exe.run(0, &[View::F64(&[1.0, 2.0])]).unwrap_err()).contains("wants f32[2], got f64[2]"));
    assert!(message(exe.run(0, &[]).unwrap_err()).contains("input `x`"));
    assert!(exe.run(0, &[View::F32(&[1.0, 2.0]), View::F32(&[1.0])]).is_err());
    assert!(exe.run(1, &[]).is_err());
    assert!(exe.output(0, 0).is_err(), "nothing has run");
    assert!(message(exe.read_state("q").unwrap_err()).contains("there are: p"));
    let wrong = Array::new([3], Data::F32(vec![0.0; 3])).unwrap();
    assert!(message(exe.write_state("p", &wrong).unwrap_err()).contains("state `p` wants f32[2], got f32[3]"));
    exe.run(0, &[View::F32(&[1.0, 2.0])]).unwrap();
    assert_eq!(exe.output(0, 0).unwrap().to_f64(), [1.0, 2.0]);
}

#[test]
fn programs_share_states_and_must_declare_them_alike() {
    let program = |init: f64| {
        let b = Builder::new("one");
        let p = b.parameter("p", [2], Init::Fill(init));
        b.update(p, p + 1.0);
        b.output("before", p);
        b.finish().unwrap()
    };
    let mut exe = Eager::cpu().compile(&[program(1.0), program(1.0)], &ExecOptions::default()).unwrap();
    exe.run(0, &[]).unwrap();
    exe.run(1, &[]).unwrap();
    assert_eq!(exe.output(1, 0).unwrap().to_f64(), [2.0, 2.0], "reads see the value before the run");
    assert_eq!(exe.read_state("p").unwrap().to_f64(), [3.0, 3.0]);
    assert!(Eager::cpu().compile(&[program(1.0), program(2.0)], &ExecOptions::default()).is_err());
}

#[test]
fn updates_happen_together() {
    let b = Builder::new("swap");
    let [p, q] = [("p", 1.0), ("q", 2.0)].map(|(name, value)| b.parameter(name, [1], Init::Fill(value)));
    b.update(p, q);
    b.update(q, p);
    let mut exe = Eager::cpu().compile(&[b.finish().unwrap()], &ExecOptions::default()).unwrap();
    exe.run(0, &[]).unwrap();
    assert_eq!([exe.read_state("p").unwrap().item(), exe.read_state("q").unwrap().item()], [2.0, 1.0]);
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_allocated() {
    let b = Builder::new("large");
    let p = b.parameter("p", [1 << 20], Init::Fill(0.0));
    b.output("y", (p + 1.0).exp().sum_all());
    let program = b.finish().unwrap();
    let limit = |memory_limit| ExecOptions { memory_limit: Some(memory_limit), ..ExecOptions::default() };
    let refused = Eager::cpu().compile(std::slice::from_ref(&program), &limit(8 << 20));
    assert!(matches!(refused, Err(ExecError::OutOfMemory { needed, .. }) if needed >= 12 << 20));
    assert!(Eager::cpu().compile(&[program], &limit(13 << 20)).is_ok());
}

#[test]
fn an_index_out_of_range_is_an_error() {
    let b = Builder::new("gather");
    let x = b.input("x", DType::F32, [3]);
    b.output("y", x.gather(0, b.input("i", DType::U32, [2])));
    let mut exe = Eager::cpu().compile(&[b.finish().unwrap()], &ExecOptions::default()).unwrap();
    let error = exe.run(0, &[View::F32(&[1.0, 2.0, 3.0]), View::U32(&[0, 3])]).unwrap_err();
    assert!(matches!(error, ExecError::Index { index: 3, extent: 3, .. }), "{error}");
}

#[test]
fn random_draws_depend_on_name_and_counter_only() {
    let draw = |name: &str, counter: u32, extra: bool| {
        let b = Builder::new("draw");
        let c = b.input("counter", DType::U32, []);
        if extra {
            b.output("other", b.random("other", c, [5]));
        }
        b.output("y", b.random(name, c, [1000]));
        let program = b.finish().unwrap();
        let index = program.outputs.len() - 1;
        let mut exe = Eager::cpu().compile(&[program], &ExecOptions::default()).unwrap();
        exe.run(0, &[View::U32(&[counter])]).unwrap();
        exe.output(0, index).unwrap().to_f64()
    };
    let values = draw("a", 1, false);
    assert!(values.iter().all(|v| (0.0..1.0).contains(v)));
    assert!((values.iter().sum::<f64>() / 1000.0 - 0.5).abs() < 0.05);
    assert_eq!(values, draw("a", 1, true), "other draws do not matter");
    assert_ne!(values, draw("a", 2, false));
    assert_ne!(values, draw("b", 1, false));
}

#[test]
fn first_values_depend_on_seed_and_name_only() {
    let values = |seed: u64, extra: bool| {
        let b = Builder::new("init");
        if extra {
            b.parameter("first", [7], Init::Uniform { bound: 1.0 });
        }
        b.output("y", b.parameter("p", [500], Init::Normal { deviation: 2.0 }));
        let copy = Init::SameAs("p".into());
        let average = StateDecl::f32("average", [500], Role::Average, copy);
        b.output("average", b.state(average));
        let mut exe =
            Eager::cpu().compile(&[b.finish().unwrap()], &ExecOptions { seed, ..ExecOptions::default() }).unwrap();
        let p = exe.read_state("p").unwrap().to_f64();
        assert_eq!(p, exe.read_state("average").unwrap().to_f64());
        p
    };
    let p = values(1, false);
    assert_eq!(p, values(1, true));
    assert_ne!(p, values(2, false));
    let deviation = (p.iter().map(|x| x * x).sum::<f64>() / 500.0).sqrt();
    assert!((deviation - 2.0).abs() < 0.2, "{deviation}");
}

#[test]
fn a_cast_rounds_to_nearest_even_and_its_gradient_is_cast_back() {
    let b = Builder::new("cast");
    let x = b.parameter("x", [3], Init::Array(Array::new([3], Data::F32(vec![1.0 + 1.0 / 256.0, 3e38, 0.3])).unwrap()));
    let low = x.cast(DType::BF16);
    b.output("bf16", low);
    b.output("f16", x.cast(DType::F16));
    let loss = (low * b.fill(1.0 + 1.0 / 128.0, DType::BF16, [3])).cast(DType::F32).sum_all();
    b.output("gradient", pawl_engine::autodiff::gradients(loss, &[x])[0].unwrap());
    let mut exe = Eager::cpu().compile(&[b.finish().unwrap()], &ExecOptions::default()).unwrap();
    exe.run(0, &[]).unwrap();
    let [bf16, f16, gradient] = [0, 1, 2].map(|i| exe.output(0, i).unwrap());
    assert_eq!(bf16.to_f64()[0], 1.0, "a tie goes to the even neighbour");
    assert_eq!(f16.to_f64()[1], f64::INFINITY);
    assert_eq!((gradient.dtype(), gradient.to_f64()), (DType::F32, vec![1.0 + 1.0 / 128.0; 3]));
}

#[test]
fn ranks_that_leave_or_disagree_are_found_out() {
    let mut ranks = threads(2);
    drop(ranks.pop());
    assert_eq!(ranks[0].all_reduce(&mut [1.0]), Err(CollectiveError::PeerLost { rank: 1 }));
    let errors: Vec<_> = threads(2)
        .into_iter()
        .map(|rank| std::thread::spawn(move || rank.all_reduce(&mut vec![1.0; 2 + rank.rank()])))
        .collect::<Vec<_>>()
        .into_iter()
        .map(|thread| thread.join())
        .collect();
    assert!(errors.iter().any(|e| matches!(e, Ok(Err(_)))), "{errors:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn collectives_sum_in_rank_order(world in 1usize..5, len in 1usize..6, seed in 0u64..1000) {
        let value = move |rank: usize, i: usize| {
            pawl_engine::random::uniform_f32(seed, (rank * 100 + i) as u64) * 10f32.powi((rank as i32 * 3 + i as i32) % 7)
        };
        let len = len * world;
        let expected: Vec<f32> =
            (0..len).map(|i| (1..world).fold(value(0, i), |sum, rank| sum + value(rank, i))).collect();
        let results: Vec<_> = threads(world)
            .into_iter()
            .map(|seat| std::thread::spawn(move || {
                let mine: Vec<f32> = (0..len).map(|i| value(seat.rank(), i)).collect();
                let mut sum = mine.clone();
                seat.all_reduce(&mut sum)?;
                let mut part = vec![0.0; len / world];
                seat.reduce_scatter(&mine, &mut part)?;
                let mut all = vec![0.0; len];
                seat.all_gather(&part, &mut all)?;
                Ok::<_, CollectiveError>((sum, all))
            }))
            .collect::<Vec<_>>()
            .into_iter()
            .map(|thread| thread.join().unwrap().unwrap())
            .collect();
        for (sum, all) in results {
            prop_assert_eq!(&sum, &expected);
            prop_assert_eq!(&all, &expected);
        }
    }

    #[test]
    fn broadcasting_is_symmetric_and_as_numpy_defines_it(
        a in prop::collection::vec(1usize..4, 0..4),
        b in prop::collection::vec(1usize..4, 0..4),
    ) {
        use pawl_engine::graph::Shape;
        let (a, b) = (Shape::from(a), Shape::from(b));
        let joint = a.broadcast_with(&b);
        prop_assert_eq!(&joint, &b.broadcast_with(&a));
        if let Some(joint) = joint {
            prop_assert!(a.broadcasts_to(&joint) && b.broadcasts_to(&joint));
            prop_assert_eq!(joint.rank(), a.rank().max(b.rank()));
        } else {
            let clash = a.iter().rev().zip(b.iter().rev()).any(|(x, y)| x != y && *x != 1 && *y != 1);
            prop_assert!(clash);
        }
    }
}

#[test]
fn side_results_stay_beside_their_operator() {
    let b = Builder::new("side");
    let q = b.input("q", DType::F32, [1, 1, 2, 4]);
    let spec = pawl_engine::graph::AttentionSpec { scale: 0.5, causal: false };
    let out = q.attention(q, q, spec);
    let late = out.exp();
    let statistics = b.push(Op::Side(1), &[out]);
    b.output("y", late + statistics);
    assert!(b.finish().unwrap_err().to_string().contains("directly after its operator"));
}
