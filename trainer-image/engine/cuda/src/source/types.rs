//! Names, numbers and instructions of generated code.

use half::{bf16, f16};

use pawl_graph::{
    float8::{E4M3, E5M2},
    graph::{BinaryOp, CompareOp, DType, ReduceOp, UnaryOp},
};
use pawl_lower::Instruction;

/// The tag of a dtype in the prelude.
pub(super) fn tag(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "F64",
        DType::F32 => "F32",
        DType::BF16 => "BF16",
        DType::F16 => "F16",
        DType::E4M3 => "E4M3",
        DType::E5M2 => "E5M2",
        DType::U32 => "U32",
        DType::Bool => "Bool",
    }
}

/// The type its values are computed in.
pub(super) fn value(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "double",
        DType::F32 | DType::BF16 | DType::F16 | DType::E4M3 | DType::E5M2 => "float",
        DType::U32 => "u32",
        DType::Bool => "bool",
    }
}

/// The type sums of it are kept in.
pub(super) fn accumulator(dtype: DType) -> (&'static str, usize) {
    match dtype {
        DType::F64 => ("double", 8),
        DType::F32 | DType::BF16 | DType::F16 | DType::E4M3 | DType::E5M2 => ("float", 4),
        DType::U32 | DType::Bool => ("u32", 4),
    }
}

/// The reduction in the prelude.
pub(super) fn reduction(op: ReduceOp) -> &'static str {
    match op {
        ReduceOp::Sum => "Sum",
        ReduceOp::Max => "Max",
    }
}

/// A number, rounded to the dtype.
pub(super) fn literal(number: f64, dtype: DType) -> String {
    match dtype {
        DType::F64 => double(number),
        DType::F32 => single(number as f32),
        DType::BF16 => single(bf16::from_f64(number).to_f32()),
        DType::F16 => single(f16::from_f64(number).to_f32()),
        DType::E4M3 => single(E4M3::from_f64(number).to_f32()),
        DType::E5M2 => single(E5M2::from_f64(number).to_f32()),
        DType::U32 => format!("{}u", number as u32),
        DType::Bool => (number != 0.0).to_string(),
    }
}

fn single(x: f32) -> String {
    if x.is_finite() { format!("{x:?}f") } else { format!("__uint_as_float(0x{:08x}u)", x.to_bits()) }
}

fn double(x: f64) -> String {
    if x.is_finite() {
        return format!("{x:?}");
    }
    format!("__hiloint2double((int)0x{:08x}, 0)", (x.to_bits() >> 32) as u32)
}

/// `x`, rounded to what the dtype can hold; no more than a change of name where it holds everything.
pub(super) fn rounded(x: &str, dtype: DType) -> String {
    match dtype {
        DType::BF16 => format!("round_bf16({x})"),
        DType::F16 => format!("round_f16({x})"),
        DType::E4M3 => format!("round_e4m3({x})"),
        DType::E5M2 => format!("round_e5m2({x})"),
        _ => x.to_owned(),
    }
}

/// What a value is before it is rounded to its dtype, and whether rounding changes it.
pub(super) struct Exact {
    pub text: String,
    pub rounds: bool,
}

/// An instruction on named operands, each with its dtype. Reductions, indices and draws are the caller's.
pub(super) fn instruction(op: &Instruction, operands: &[(String, DType)], dtype: DType) -> Exact {
    let x = |i: usize| operands[i].0.as_str();
    let exact = |text: String| Exact { text, rounds: false };
    let computed = |text: String| Exact { text, rounds: dtype.is_low_precision() };
    match *op {
        Instruction::Immediate(number) => exact(literal(number, dtype)),
        Instruction::Unary(op, _) => match op {
            UnaryOp::Neg => exact(format!("-{}", x(0))),
            UnaryOp::Square => computed(format!("{0} * {0}", x(0))),
            UnaryOp::Abs => exact(format!("abs_({})", x(0))),
            UnaryOp::Sign => exact(format!("sign_({})", x(0))),
            UnaryOp::Floor => exact(format!("floor_({})", x(0))),
            UnaryOp::IsFinite => exact(format!("finite_({})", x(0))),
            UnaryOp::Exp => computed(format!("exp_({})", x(0))),
            UnaryOp::Log => computed(format!("log_({})", x(0))),
            UnaryOp::Sqrt => computed(format!("sqrt_({})", x(0))),
            UnaryOp::Rsqrt => computed(format!("rsqrt_({})", x(0))),
            UnaryOp::Recip => computed(format!("recip_({})", x(0))),
            UnaryOp::Erf => computed(format!("erf_({})", x(0))),
            UnaryOp::Tanh => computed(format!("tanh_({})", x(0))),
            UnaryOp::Sigmoid => computed(format!("sigmoid_({})", x(0))),
            UnaryOp::Sin => computed(format!("sin_({})", x(0))),
            UnaryOp::Cos => computed(format!("cos_({})", x(0))),
        },
        Instruction::Binary(op, ..) => match op {
            BinaryOp::Add => computed(format!("{} + {}", x(0), x(1))),
            BinaryOp::Sub => computed(format!("{} - {}", x(0), x(1))),
            BinaryOp::Mul => computed(format!("{} * {}", x(0), x(1))),
            BinaryOp::Div => computed(format!("div_({}, {})", x(0), x(1))),
            BinaryOp::Max => exact(format!("max_({}, {})", x(0), x(1))),
            BinaryOp::Min => exact(format!("min_({}, {})", x(0), x(1))),
        },
        Instruction::Compare(op, ..) => {
            let sign = match op {
                CompareOp::Eq => "==",
                CompareOp::Ne => "!=",
                CompareOp::Lt => "<",
                CompareOp::Le => "<=",
                CompareOp::Gt => ">",
                CompareOp::Ge => ">=",
            };
            exact(format!("{} {sign} {}", x(0), x(1)))
        }
        Instruction::Select(..) => exact(format!("{} ? {} : {}", x(0), x(1), x(2))),
        Instruction::Cast(_) => cast(x(0), operands[0].1, dtype),
        Instruction::Iota { .. } | Instruction::Random { .. } | Instruction::Reduce(..) => {
            unreachable!("the caller writes these")
        }
    }
}

fn cast(x: &str, from: DType, to: DType) -> Exact {
    let (text, rounds) = match (from, to) {
        _ if from == to => (x.to_owned(), false),
        (_, DType::Bool) => (format!("{x} != {}", literal(0.0, from)), false),
        (DType::Bool, _) => (format!("{x} ? {} : {}", literal(1.0, to), literal(0.0, to)), false),
        (DType::F64, DType::U32) => (format!("__double2uint_rz({x})"), false),
        (_, DType::U32) => (format!("__float2uint_rz({x})"), false),
        (DType::U32, DType::F64) => (format!("(double){x}"), false),
        (DType::U32, _) => (format!("__uint2float_rn({x})"), to.is_low_precision() || to.is_float8()),
        (DType::F64, DType::F32) => (format!("(float){x}"), false),
        (DType::F64, _) => (format!("narrow_odd({x})"), true),
        (_, DType::F64) => (format!("(double){x}"), false),
        (_, DType::F32) => (x.to_owned(), false),
        // Between narrow floats, or from float32.
        _ => (x.to_owned(), true),
    };
    Exact { text, rounds }
}
