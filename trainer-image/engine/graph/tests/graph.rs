//! Building, checking and printing programs.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use pawl_graph::graph::{AttentionSpec, Builder, DType, GraphError, Init, Meta, Op, Shape, StateId, Update, concat};
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
    stranger.updates[0] = Update { state: StateId(9), ..fine.updates[0] };
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn broadcasting_is_symmetric_and_as_numpy_defines_it(
        a in prop::collection::vec(1usize..4, 0..4),
        b in prop::collection::vec(1usize..4, 0..4),
    ) {
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
    let spec = AttentionSpec { scale: 0.5, causal: false };
    let out = q.attention(q, q, spec);
    let late = out.exp();
    let statistics = b.push(Op::Side(1), &[out]);
    b.output("y", late + statistics);
    assert!(b.finish().unwrap_err().to_string().contains("directly follow its operator"));
}
