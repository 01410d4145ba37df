//! From the nodes of a program to those of an ONNX graph.

mod attention;
mod ops;
mod segments;

use std::collections::{BTreeMap, HashMap};

use pawl_graph::{
    array::{Array, Data},
    graph::{DType, Node, NodeId, Op, Program, Shape},
};

use crate::{
    OnnxError,
    extents::{Extent, Extents},
    proto::{
        AttributeProto, AttributeType, DataType, DimensionProto, GraphProto, NodeProto, TensorProto, TensorShapeProto,
        TensorTypeProto, TypeProto, ValueInfoProto,
    },
    tensor::{data_type, of_array, of_integers, of_state},
};

/// Where a model finds its batch size: extent `axis` of an input is `per_batch` times it.
struct BatchSource {
    input: String,
    axis: usize,
    per_batch: i64,
}

/// An ONNX graph under construction.
pub(crate) struct Lowering<'p> {
    program: &'p Program,
    extents: Extents,
    source: Option<BatchSource>,
    graph: GraphProto,
    /// Names of the values that are computed so far. A broadcast value is computed when an operator reads it that does
    /// not broadcast its operands by itself.
    names: Vec<Option<String>>,
    /// Names of constants: integers by extents and values, and scalars by type and bits.
    integers: HashMap<(Vec<i64>, Vec<i64>), String>,
    scalars: HashMap<(DType, u64), String>,
    /// The batch size, as an array of one integer.
    batch: Option<String>,
}

impl<'p> Lowering<'p> {
    /// Of a program with these extents, all of which are fixed.
    pub fn of_one_batch(program: &'p Program, extents: Extents) -> Self {
        Self {
            program,
            extents,
            source: None,
            graph: GraphProto { name: program.name.clone(), ..GraphProto::default() },
            names: vec![None; program.graph.len()],
            integers: HashMap::new(),
            scalars: HashMap::new(),
            batch: None,
        }
    }

    /// Of a program with these extents; `None` if no input says the batch size.
    pub fn of_any_batch(program: &'p Program, extents: Extents) -> Option<Self> {
        let source = batch_source(program, &extents)?;
        Some(Self { source: Some(source), ..Self::of_one_batch(program, extents) })
    }

    /// The graph of the `needed` nodes; see [`export`](crate::export).
    pub fn graph(mut self, needed: &[bool], most_inside: usize) -> Result<GraphProto, OnnxError> {
        let program = self.program;
        self.graph.initializer = states(program, needed, most_inside)?;
        for (id, node) in program.graph.iter().filter(|(id, _)| needed[id.index()]) {
            if data_type(node.meta.dtype).is_none() {
                return Err(self.unknown(node));
            }
            if !matches!(node.op, Op::Broadcast(_)) {
                let name = self.node(id, node)?;
                self.names[id.index()] = Some(name);
            }
        }
        self.graph.input = inputs(program, needed).into_iter().map(|(name, id)| self.described(name, id)).collect();
        for output in &program.outputs {
            let value = self.value(output.node);
            self.push("Identity", &[&value], Vec::new(), output.name.clone());
            let described = self.described(output.name.clone(), output.node);
            self.graph.output.push(described);
        }
        Ok(self.graph)
    }

    fn unknown(&self, node: &Node) -> OnnxError {
        let scope = self.program.graph.scope(node.scope).to_owned();
        OnnxError::Operation { operation: format!("`{}` ({})", node.op, node.meta), scope }
    }

    fn described(&self, name: String, id: NodeId) -> ValueInfoProto {
        let dim = |extent: &Extent| match extent.is_fixed() {
            true => DimensionProto { dim_value: Some(extent.fixed), dim_param: None },
            false => DimensionProto { dim_value: None, dim_param: Some(extent.to_string()) },
        };
        let shape = TensorShapeProto { dim: self.extents[id.index()].iter().map(dim).collect() };
        let elem_type = data_type(self.program.graph.meta(id).dtype).unwrap_or(DataType::Undefined).into();
        let tensor_type = Some(TensorTypeProto { elem_type, shape: Some(shape) });
        ValueInfoProto { name, r#type: Some(TypeProto { tensor_type }) }
    }

    /// The name of a value.
    fn value(&mut self, id: NodeId) -> String {
        if let Some(name) = &self.names[id.index()] {
            return name.clone();
        }
        let spread = self.value(self.program.graph.node(id).operands[0]);
        let shape = self.shape(&self.extents[id.index()].clone());
        let name = self.apply("Expand", &[&spread, &shape]);
        self.names[id.index()].insert(name).clone()
    }

    /// The names of operands of an elementwise operator, whose shapes are equal: all but one of them may be values that
    /// ONNX broadcasts to them.
    fn elementwise(&mut self, operands: &[NodeId]) -> Vec<String> {
        let whole = operands.iter().position(|id| self.names[id.index()].is_some()).unwrap_or(0);
        operands.iter().enumerate().map(|(i, &id)| if i == whole { self.value(id) } else { self.narrow(id) }).collect()
    }

    /// The name of a value, or of the one that it repeats.
    fn narrow(&mut self, id: NodeId) -> String {
        match self.names[id.index()].is_some() {
            true => self.value(id),
            false => self.narrow(self.program.graph.node(id).operands[0]),
        }
    }

    /// Appends an operator with one result, and returns its name.
    fn apply(&mut self, op: &str, inputs: &[&str]) -> String {
        self.apply_with(op, inputs, Vec::new())
    }

    fn apply_with(&mut self, op: &str, inputs: &[&str], attributes: Vec<AttributeProto>) -> String {
        let name = self.fresh();
        self.push(op, inputs, attributes, name.clone());
        name
    }

    fn push(&mut self, op: &str, inputs: &[&str], attribute: Vec<AttributeProto>, output: String) {
        let input = inputs.iter().map(|&name| name.to_owned()).collect();
        let node = NodeProto { input, name: output.clone(), output: vec![output], op_type: op.to_owned(), attribute };
        self.graph.node.push(node);
    }

    /// A name that no value has yet.
    fn fresh(&self) -> String {
        format!("v_{}", self.graph.node.len() + self.graph.initializer.len())
    }

    fn constant(&mut self, tensor: TensorProto) -> String {
        let name = tensor.name.clone();
        self.graph.initializer.push(tensor);
        name
    }

    /// Integers of `dims`.
    fn integers(&mut self, dims: Vec<i64>, values: Vec<i64>) -> String {
        let key = (dims, values);
        if let Some(name) = self.integers.get(&key) {
            return name.clone();
        }
        let name = self.constant(of_integers(self.fresh(), key.0.clone(), &key.1));
        self.integers.insert(key, name.clone());
        name
    }

    /// A vector of integers.
    fn vector(&mut self, values: Vec<i64>) -> String {
        self.integers(vec![values.len() as i64], values)
    }

    /// A scalar integer.
    fn integer(&mut self, value: i64) -> String {
        self.integers(Vec::new(), vec![value])
    }

    /// A scalar of `dtype`.
    fn scalar(&mut self, value: f64, dtype: DType) -> String {
        let key = (dtype, value.to_bits());
        if let Some(name) = self.scalars.get(&key) {
            return name.clone();
        }
        let tensor = filled(self.fresh(), value, dtype, Shape::scalar());
        let name = self.constant(tensor);
        self.scalars.insert(key, name.clone());
        name
    }

    /// `value` everywhere.
    fn fill(&mut self, value: f64, dtype: DType, extents: &[Extent]) -> String {
        if extents.is_empty() {
            return self.scalar(value, dtype);
        }
        let one = filled(String::new(), value, dtype, [1].into());
        let shape = self.shape(extents);
        let t = AttributeProto { t: Some(one), ..attribute("value", AttributeType::Tensor) };
        self.apply_with("ConstantOfShape", &[&shape], vec![t])
    }

    /// The vector of these extents.
    fn shape(&mut self, extents: &[Extent]) -> String {
        let fixed = self.vector(extents.iter().map(|extent| extent.fixed).collect());
        if extents.iter().all(|extent| extent.is_fixed()) {
            return fixed;
        }
        let factors = self.vector(extents.iter().map(|extent| extent.per_batch).collect());
        let batch = self.batch_size();
        let scaled = self.apply("Mul", &[&batch, &factors]);
        self.apply("Add", &[&scaled, &fixed])
    }

    /// `0, 1, ..` up to `extent`, exclusive.
    fn range(&mut self, extent: Extent) -> String {
        let limit = match extent.is_fixed() {
            true => self.integer(extent.fixed),
            false => {
                let shape = self.shape(&[extent]);
                self.apply("Squeeze", &[&shape])
            }
        };
        let (start, step) = (self.integer(0), self.integer(1));
        self.apply("Range", &[&start, &limit, &step])
    }

    fn batch_size(&mut self) -> String {
        if let Some(name) = &self.batch {
            return name.clone();
        }
        let BatchSource { input, axis, per_batch } = self.source.take().expect("extents are fixed without a source");
        let [start, end] = [axis, axis + 1].map(|axis| axis as i64);
        let extent = self.apply_with("Shape", &[&input], vec![int("start", start), int("end", end)]);
        let divisor = self.integer(per_batch);
        let name = self.apply("Div", &[&extent, &divisor]);
        self.batch.insert(name).clone()
    }
}

/// The names of the inputs that are read, with their nodes, in the order of the program.
fn inputs(program: &Program, needed: &[bool]) -> Vec<(String, NodeId)> {
    let read = program.graph.iter().filter(|(id, _)| needed[id.index()]);
    let read = read.filter_map(|(id, node)| match node.op {
        Op::Input(input) => Some((input, id)),
        _ => None,
    });
    let read: BTreeMap<_, _> = read.collect();
    read.into_iter().map(|(input, id)| (program.inputs[input.0 as usize].name.clone(), id)).collect()
}

/// The states that are read, each once.
fn states(program: &Program, needed: &[bool], most_inside: usize) -> Result<Vec<TensorProto>, OnnxError> {
    let read = program.graph.iter().filter(|(id, _)| needed[id.index()]);
    let read: BTreeMap<_, _> = read
        .filter_map(|(_, node)| match node.op {
            Op::State(state) => Some((state, node)),
            _ => None,
        })
        .collect();
    let bytes: usize = read.values().map(|node| node.meta.bytes()).sum();
    let tensor = |(state, node): (_, &Node)| {
        let scope = program.graph.scope(node.scope).to_owned();
        let unknown = || OnnxError::Operation { operation: format!("`{}` ({})", node.op, node.meta), scope };
        of_state(program.state_decl(state), bytes <= most_inside)?.ok_or_else(unknown)
    };
    read.into_iter().map(tensor).collect()
}

/// The input and axis that say the batch size most directly.
fn batch_source(program: &Program, extents: &Extents) -> Option<BatchSource> {
    let inputs = program.graph.iter().filter_map(|(id, node)| match node.op {
        Op::Input(input) => Some((input, &extents[id.index()])),
        _ => None,
    });
    let axes = inputs.flat_map(|(input, extents)| extents.iter().enumerate().map(move |axis| (input, axis)));
    let multiples = axes.filter(|(_, (_, extent))| extent.fixed == 0 && extent.per_batch > 0);
    let (input, (axis, extent)) = multiples.min_by_key(|(_, (_, extent))| extent.per_batch)?;
    let input = program.inputs[input.0 as usize].name.clone();
    Some(BatchSource { input, axis, per_batch: extent.per_batch })
}

/// A tensor with `value` everywhere. Its type is one that models have: [`Lowering::graph`] refuses nodes of others.
fn filled(name: String, value: f64, dtype: DType, shape: Shape) -> TensorProto {
    let data = Data::from_f64(dtype, std::iter::repeat_n(value, shape.elements()));
    let array = Array::new(shape, data).expect("there are as many elements as the shape has");
    of_array(name, &array).expect("models have values of this type")
}

fn attribute(name: &str, r#type: AttributeType) -> AttributeProto {
    AttributeProto { name: name.to_owned(), r#type: r#type.into(), ..AttributeProto::default() }
}

fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { i: Some(value), ..attribute(name, AttributeType::Int) }
}

fn ints(name: &str, values: Vec<i64>) -> AttributeProto {
    AttributeProto { ints: values, ..attribute(name, AttributeType::Ints) }
}

fn string(name: &str, value: &str) -> AttributeProto {
    AttributeProto { s: Some(value.as_bytes().to_vec()), ..attribute(name, AttributeType::String) }
}
