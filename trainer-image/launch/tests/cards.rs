//! What a card lacks ends the phase that needs it, and no other: decided without a GPU, for a card that is only
//! pretended.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use pawl_contract::exit::Outcome;
use pawl_cuda::{Card, Choices, predict_on};
use pawl_engine_tests::transformer;
use pawl_graph::{
    executor::ExecError,
    graph::{AttentionSpec, Builder, DType, Program},
    optim::{AdamW, Optimizer},
    passes::Float8,
    recipe::{AttentionKernel, Precision, Recipe},
};
use pawl_kernels::{ForexStep, SlmStep};
use pawl_launch::ending::Ending;
use pawl_lower::LowerOptions;

/// A T4: compute capability 7.5, 64 KiB of shared memory.
const T4: Card = Card { capability: (7, 5), multiprocessors: 40, shared: 64 << 10 };

/// How a launch of these programs would end on a card; `None`: it runs.
fn ending(card: Card, programs: &[Program], tf32: bool) -> Option<Ending> {
    let lowering = LowerOptions::default();
    let planned = predict_on(card, programs, Choices { lowering: &lowering, tf32, offload: false });
    planned.err().map(|error: ExecError| Ending::from(error))
}

fn forex(precision: Precision) -> [Program; 2] {
    ForexStep { preset: "smoke".into(), windows: 16, precision }.programs().unwrap()
}

/// The precisions of `examples/forex.yaml`: the baseline runs on a T4, its phases tf32 and bf16 end as Unsupported, and
/// fp16 would not.
#[test]
fn a_phase_with_a_number_format_that_the_card_lacks_is_unsupported() {
    assert!(ending(T4, &forex(Precision::F32), false).is_none());
    assert!(ending(T4, &forex(Precision::F16), false).is_none());
    for (name, precision, tf32) in [("bf16", Precision::BF16, false), ("tf32", Precision::F32, true)] {
        let ending = ending(T4, &forex(precision), tf32).expect("the card lacks it");
        assert_eq!(ending.outcome(), Outcome::Unsupported);
        // A phase with this outcome is rolled back, and the job continues.
        assert!(ending.outcome().is_evidence());
        let text = ending.to_string();
        assert!(text.contains(&format!("{name} on a GPU of compute capability 7.5")), "{text}");
        assert!(text.contains("set settings.precision: fp16 or fp32"), "{text}");
        for newer in [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)] {
            let card = Card { capability: newer, shared: 99 << 10, ..T4 };
            assert!(self::ending(card, &forex(precision), tf32).is_none(), "{name} on {newer:?}");
        }
    }
}

/// 8-bit floats came later: before, the phase is Unsupported, with the precision that the card has instead.
#[test]
fn a_phase_in_fp8_is_unsupported_before_compute_capability_8_9() {
    let step = SlmStep {
        size: "tiny".into(),
        windows: 2,
        precision: Precision::FP8,
        float8: Float8::default(),
        int8: false,
        recompute: false,
    };
    let step = [step.program().unwrap()];
    let card = |capability| Card { capability, shared: 99 << 10, ..T4 };
    for (older, remedy) in [((7, 5), "fp16 or fp32"), ((8, 0), "bf16"), ((8, 6), "bf16")] {
        let ending = ending(card(older), &step, false).expect("the card lacks it");
        assert_eq!(ending.outcome(), Outcome::Unsupported);
        let (text, (major, minor)) = (ending.to_string(), older);
        let expected = format!(
            "fp8 on a GPU of compute capability {major}.{minor}: it came with 8.9; set settings.precision: {remedy}"
        );
        assert!(text.contains(&expected), "{text}");
    }
    for newer in [(8, 9), (9, 0), (10, 0), (12, 0)] {
        assert!(ending(card(newer), &step, false).is_none(), "{newer:?}");
    }
}

fn flash(precision: Precision) -> Program {
    let recipe = Recipe {
        precision,
        attention: AttentionKernel::Flash,
        ..Recipe::new(Optimizer { matrices: None, others: AdamW::default() })
    };
    recipe.step(&transformer(3)).unwrap()
}

/// Attention in one kernel needs no tensor cores: it runs on older cards too, unless a head does not fit into shared
/// memory.
#[test]
fn attention_in_one_kernel_is_unsupported_only_where_a_head_does_not_fit() {
    assert!(ending(T4, &[flash(Precision::F16)], false).is_none());
    let b = Builder::new("wide heads");
    let [q, k, v] = ["q", "k", "v"].map(|name| b.input(name, DType::F32, [1, 1, 64, 128]));
    b.output("o", q.attention(k, v, AttentionSpec { scale: 0.1, causal: false }));
    let wide = b.finish().unwrap();
    assert!(ending(T4, std::slice::from_ref(&wide), false).is_none());
    let ending = ending(Card { shared: 48 << 10, ..T4 }, &[wide], false).expect("it does not fit");
    assert_eq!(ending.outcome(), Outcome::Unsupported);
    assert!(ending.to_string().contains("settings.attention: Math"), "{ending}");
}
