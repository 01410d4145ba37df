//! What every executor does, on the one that is the oracle: states, updates, random draws, and what is refused.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use pawl_eager::Eager;
use pawl_graph::{
    array::{Array, Data, View},
    autodiff::gradients,
    executor::{ExecError, ExecOptions, Executor},
    graph::{Builder, DType, Init, Role, StateDecl},
};

#[test]
fn wrong_inputs_and_states_are_refused_by_name() {
    let b = Builder::new("refuse");
    let x = b.input("x", DType::F32, [2]);
    let p = b.parameter("p", [2], Init::Fill(0.0));
    b.output("y", x + p);
    let mut exe = Eager::cpu().compile(&[b.finish().unwrap()], &ExecOptions::default()).unwrap();
    let message = |error: ExecError| error.to_string();
    assert!(message(exe.run(0, &[View::F32(&[1.0])]).unwrap_err()).contains("input `x`"));
    assert!(message(exe.run(0, &[View::F64(&[1.0, 2.0])]).unwrap_err()).contains("must be f32[2], got f64[2]"));
    assert!(message(exe.run(0, &[]).unwrap_err()).contains("input `x`"));
    assert!(exe.run(0, &[View::F32(&[1.0, 2.0]), View::F32(&[1.0])]).is_err());
    assert!(exe.run(1, &[]).is_err());
    assert!(exe.output(0, 0).is_err(), "nothing has run");
    assert!(message(exe.read_state("q").unwrap_err()).contains("there are: p"));
    let wrong = Array::new([3], Data::F32(vec![0.0; 3])).unwrap();
    assert!(message(exe.write_state("p", &wrong).unwrap_err()).contains("state `p` must be f32[2], got f32[3]"));
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
    b.output("gradient", gradients(loss, &[x])[0].unwrap());
    let mut exe = Eager::cpu().compile(&[b.finish().unwrap()], &ExecOptions::default()).unwrap();
    exe.run(0, &[]).unwrap();
    let [bf16, f16, gradient] = [0, 1, 2].map(|i| exe.output(0, i).unwrap());
    assert_eq!(bf16.to_f64()[0], 1.0, "a tie goes to the even neighbour");
    assert_eq!(f16.to_f64()[1], f64::INFINITY);
    assert_eq!((gradient.dtype(), gradient.to_f64()), (DType::F32, vec![1.0 + 1.0 / 128.0; 3]));
}
