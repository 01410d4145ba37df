use std::{collections::HashSet, path::Path, sync::Arc};

use pawl_graph::{
    array::{Array, Data},
    graph::{AttentionSpec, Builder, DType, FileSlice, Init, Program, Role, StateDecl, concat},
};
use prost::Message as _;

use super::{
    ANY_BATCH, BATCH, MOST_INSIDE, Model, OnnxError, Traced, export,
    proto::{DataLocation, GraphProto, ModelProto, ValueInfoProto},
};

/// The model of a program for batch sizes 2, 3 and 5, and what its file says.
fn exported(program: impl Fn(&Builder, usize)) -> (Model, ModelProto) {
    let model = export(&[2, 3, 5].map(|batch| traced(batch, &program)), MOST_INSIDE).expect("ONNX has the operators");
    let file = ModelProto::decode(model.bytes.as_slice()).expect("it is a message");
    (model, file)
}

fn traced(batch: usize, program: impl Fn(&Builder, usize)) -> Traced {
    let b = Builder::new("test");
    program(&b, batch);
    Traced { batch, program: b.finish().expect("it is well formed") }
}

fn refused(program: impl Fn(&Builder, usize)) -> String {
    export(&[traced(2, program)], MOST_INSIDE).expect_err("ONNX lacks the operator").to_string()
}

fn graph(file: &ModelProto) -> &GraphProto {
    file.graph.as_ref().expect("a model has a graph")
}

fn extents(value: &ValueInfoProto) -> Vec<String> {
    let tensor = value.r#type.as_ref().and_then(|of| of.tensor_type.as_ref()).expect("values are tensors");
    let dims = &tensor.shape.as_ref().expect("extents are known").dim;
    dims.iter().map(|dim| dim.dim_param.clone().or(dim.dim_value.map(|n| n.to_string())).unwrap_or_default()).collect()
}

/// Every operator that ONNX has a counterpart of, on floats, integers and booleans.
fn everything(b: &Builder, batch: usize) {
    let x = b.input("x", DType::F32, [batch, 4, 8]);
    let rows = b.input("rows", DType::U32, [batch]);
    let offsets = b.input("offsets", DType::U32, [batch + 1]);
    let weight = b.parameter("weight", [8, 8], Init::Uniform { bound: 0.5 });
    let table = b.constant(Array::new([3, 8], Data::F32(vec![0.5; 24])).expect("24 elements"));
    let unary = (x.exp() + 1.0).log().sqrt().rsqrt().tanh().sigmoid().sin().cos().abs().square().erf().floor();
    let chosen = unary.is_finite().select(unary.recip(), -x);
    let compared = chosen.less(x).cast(DType::F32) + chosen.not_equal(x).cast(DType::F32);
    let looked_up = table.gather(0, rows).reshape([batch, 1, 8]) + b.iota(0, [batch, 1, 8]).cast(DType::F32);
    let moved = (compared.matmul_t(weight) + looked_up).permute([0, 2, 1]).slice(1, 0, 4).pad(2, 0, 4);
    let heads = concat(&[moved, x], 1).reshape([batch, 4, 2, 8]);
    let read = heads.attention(heads.slice(1, 0, 2), heads.slice(1, 2, 2), AttentionSpec { scale: 0.5, causal: true });
    let joined = read.max([2]).reshape([batch, 32]).maximum(0.0).minimum(9.0) / 2.0;
    let back = (rows - b.scalar(1.0, DType::U32)).cast(DType::F32).reshape([batch, 1]);
    b.output("joined", joined + back);
    b.output("sums", joined.segment_softmax(offsets).segment_sum(offsets).segment_repeat(offsets, batch));
    b.output("total", joined.sum_all().stop_gradient());
}

#[test]
fn names_are_of_earlier_values_and_unique() {
    let (_, file) = exported(everything);
    let graph = graph(&file);
    let mut known: HashSet<&str> = HashSet::from([""]);
    let given = graph.input.iter().map(|input| &input.name).chain(graph.initializer.iter().map(|tensor| &tensor.name));
    given.for_each(|name| assert!(known.insert(name), "{name}"));
    for node in &graph.node {
        node.input.iter().for_each(|name| assert!(known.contains(name.as_str()), "{}: {name}", node.op_type));
        node.output.iter().for_each(|name| assert!(known.insert(name), "{name}"));
    }
    assert!(graph.output.iter().all(|output| known.contains(output.name.as_str())));
}

#[test]
fn extents_that_grow_with_the_batch_are_free() {
    let (model, file) = exported(everything);
    assert_eq!((model.batch, &*file.metadata_props[0].key, &*file.metadata_props[0].value), (None, BATCH, ANY_BATCH));
    let inputs: Vec<_> = graph(&file).input.iter().map(|input| (input.name.as_str(), extents(input))).collect();
    let of = |extents: &[&str]| extents.iter().map(|&extent| extent.to_owned()).collect::<Vec<_>>();
    let expected = [("x", of(&["batch", "4", "8"])), ("rows", of(&["batch"])), ("offsets", of(&["batch+1"]))];
    assert_eq!(inputs, expected);
    assert_eq!(extents(&graph(&file).output[0]), ["batch", "32"]);
}

#[test]
fn what_depends_on_the_batch_otherwise_has_a_fixed_one() {
    let (model, file) = exported(|b, batch| {
        let x = b.input("x", DType::F32, [batch, 4]);
        b.output("mean", x.mean_all());
    });
    assert_eq!((model.batch, &*file.metadata_props[0].value), (Some(2), "2"), "the mean divides by the batch size");
    assert_eq!(extents(&graph(&file).input[0]), ["2", "4"]);
}

#[test]
fn inputs_without_effect_are_left_out() {
    let (model, file) = exported(|b, batch| {
        let [x, rows, order] = [("x", DType::F32), ("rows", DType::U32), ("order", DType::U32)]
            .map(|(name, dtype)| b.input(name, dtype, [batch]));
        b.input("targets", DType::F32, [batch]);
        let offsets = b.input("offsets", DType::U32, [batch + 1]);
        b.output("y", x.gather_by(rows, order, offsets));
    });
    assert_eq!(model.inputs, ["x", "rows"], "the others are read by the gradient alone");
    assert!(graph(&file).node.iter().any(|node| node.op_type == "Gather"));
}

#[test]
fn integers_wrap_and_are_compared_in_full() {
    let (_, file) = exported(|b, batch| {
        let rows = b.input("rows", DType::U32, [batch]);
        let most = b.scalar(4e9, DType::U32);
        b.output("larger", rows.maximum(most) + rows.minimum(most));
        b.output("cut", b.input("x", DType::F32, [batch]).cast(DType::U32));
    });
    let used = |name: &str| graph(&file).node.iter().filter(|node| node.op_type == name).count();
    assert_eq!((used("Min"), used("Max"), used("Where"), used("Mod")), (0, 0, 3, 1));
}

#[test]
fn what_onnx_lacks_is_named_with_its_place() {
    let drawn = refused(|b, batch| {
        let counter = b.input("counter", DType::U32, []);
        b.scope("noise", || b.output("y", b.random("draws", counter, [batch])));
    });
    assert!(drawn.starts_with("operation `random") && drawn.contains(" in noise has no counterpart"), "{drawn}");
    let summed = refused(|b, batch| b.output("y", b.input("x", DType::F32, [batch]).all_reduce()));
    assert!(summed.starts_with("operation `all_reduce` (f32[2]) has no"), "{summed}");
    let narrow = refused(|b, batch| {
        b.output("y", b.input("x", DType::F32, [batch]).cast(DType::BF16).cast(DType::F32));
    });
    assert!(narrow.starts_with("operation `cast` (bf16[2]) has no"), "{narrow}");
    let attended = export(
        &[2, 3, 5].map(|batch| {
            traced(batch, |b, batch| {
                let heads = b.input("x", DType::F32, [1, batch, 4, 8]);
                b.output("y", heads.attention(heads, heads, AttentionSpec { scale: 0.5, causal: false }));
            })
        }),
        MOST_INSIDE,
    );
    let heads = attended.expect_err("which heads share a key is not known").to_string();
    assert!(heads.starts_with("operation `attention"), "{heads}");
    assert!(matches!(export(&[], MOST_INSIDE), Err(OnnxError::Nothing)));
}

/// A program with one weight, in a file beside the model.
fn with_weight_in(path: &Path) -> Program {
    let b = Builder::new("test");
    let slice = FileSlice { path: Arc::from(path), offset: 8, dtype: DType::F32 };
    let weight = b.state(StateDecl::f32("weight", [2], Role::Parameter, Init::File(slice)));
    b.output("y", b.input("x", DType::F32, [2]) * weight);
    b.finish().expect("it is well formed")
}

#[test]
fn weights_are_inside_or_beside_the_model() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("model.safetensors");
    let values: Vec<u8> = [0.0_f32, 0.0, 1.5, -2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    std::fs::write(&path, &values).expect("a file");
    let weight = |most_inside: usize| {
        let model = export(&[Traced { batch: 2, program: with_weight_in(&path) }], most_inside).expect("an operator");
        graph(&ModelProto::decode(model.bytes.as_slice()).expect("a message")).initializer[0].clone()
    };
    let inside = weight(8);
    assert_eq!((inside.raw_data.as_slice(), inside.external_data.len()), (&values[8..], 0));
    let beside = weight(7);
    assert_eq!((beside.raw_data.len(), beside.data_location), (0, i32::from(DataLocation::External)));
    let place: Vec<_> = beside.external_data.iter().map(|entry| (&*entry.key, &*entry.value)).collect();
    assert_eq!(place, [("location", "model.safetensors"), ("offset", "8"), ("length", "8")]);
}
