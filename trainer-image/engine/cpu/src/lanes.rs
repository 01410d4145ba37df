//! Instructions of fused kernels over one chunk: tight loops over registers that lie in first-level cache.
//!
//! A register holds one element for each element, row or column of the chunk, or one; elements are `f32` (also for
//! 16-bit floats), `f64` or `u32` (also for booleans).

use super::math::{self, Arithmetic};
use pawl_graph::{
    float8::{E4M3, E5M2},
    graph::{BinaryOp, CompareOp, ReduceOp, UnaryOp},
    random,
};
use pawl_lower::Class;

/// What lanes of a register are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    F32,
    F64,
    U32,
}

/// How a cast ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Round {
    None,
    Bf16,
    F16,
    E4m3,
    E5m2,
    /// To a boolean.
    Bool,
}

/// An operation of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Act {
    Unary(UnaryOp),
    Binary(BinaryOp),
    Compare(CompareOp),
    /// Operands have the class of the result.
    Select,
    Cast(Lane, Round),
    /// The operand repeated to a [`Class::Full`] result.
    Expand,
    /// The operand is [`Class::Full`].
    Reduce(ReduceOp),
    Iota {
        inner: usize,
        extent: usize,
    },
    Random {
        key: u64,
    },
}

/// A register and how it varies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Operand {
    pub slot: usize,
    pub class: Class,
}

/// One step of a chunk's code.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub act: Act,
    /// Lanes of the operands (of the branches, for a selection).
    pub lane: Lane,
    pub to: Operand,
    pub from: [Operand; 3],
}

/// A chunk: where its registers are, and what it covers.
pub(super) struct Chunk<'c> {
    /// First byte of each register.
    pub slots: &'c [*mut u8],
    pub rows: usize,
    pub cols: usize,
    /// Number of its first element in the kernel's loops.
    pub first: usize,
}

impl Chunk<'_> {
    /// Elements of a register of `class`.
    pub(super) fn count(&self, class: Class) -> usize {
        match class {
            Class::Full => self.rows * self.cols,
            Class::Row => self.rows,
            Class::Col => self.cols,
            Class::Scalar => 1,
        }
    }

    #[inline(always)]
    fn read<T>(&self, of: Operand) -> &[T] {
        // SAFETY: a register is large enough for its class, holds lanes of type T (lowering chose both), and is not the
        // one that is written, since a step's result never shares a register with its operands.
        unsafe { std::slice::from_raw_parts(self.slots[of.slot].cast(), self.count(of.class)) }
    }

    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "registers are memory behind raw pointers; one is written at a time")]
    fn write<T>(&self, of: Operand) -> &mut [T] {
        // SAFETY: as in `read`; a worker has its registers for itself.
        unsafe { std::slice::from_raw_parts_mut(self.slots[of.slot].cast(), self.count(of.class)) }
    }
}

/// The instructions of a processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Features {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

impl Features {
    /// The best that this processor has.
    pub(super) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            if avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
            {
                return Features::Avx512;
            }
            if avx2 {
                return Features::Avx2;
            }
        }
        Features::Portable
    }
}

/// Runs `code` on a chunk. Inlined into a function that enables the processor's instructions.
#[inline(always)]
pub(super) fn run<A: Arithmetic>(code: &[Step], chunk: &Chunk<'_>) {
    for step in code {
        match step.lane {
            Lane::F32 => float32::<A>(step, chunk),
            Lane::F64 => float64(step, chunk),
            Lane::U32 => integer(step, chunk),
        }
    }
}

#[inline(always)]
fn map<T: Copy, U>(step: &Step, chunk: &Chunk<'_>, f: impl Fn(T) -> U) {
    for (to, &x) in chunk.write::<U>(step.to).iter_mut().zip(chunk.read::<T>(step.from[0])) {
        *to = f(x);
    }
}

/// A function of two operands, each of which varies like the result or less.
#[inline(always)]
fn zip<T: Copy, U>(step: &Step, chunk: &Chunk<'_>, f: impl Fn(T, T) -> U) {
    let [a, b, _] = step.from;
    let to = chunk.write::<U>(step.to);
    let (x, y) = (chunk.read::<T>(a), chunk.read::<T>(b));
    let (alike_a, alike_b) = (a.class == step.to.class, b.class == step.to.class);
    if alike_a && alike_b {
        both(to, x, y, f);
    } else if alike_a && b.class == Class::Scalar {
        left(to, x, y[0], f);
    } else if alike_b && a.class == Class::Scalar {
        left(to, y, x[0], |y, x| f(x, y));
    } else {
        for (row, to) in to.chunks_exact_mut(chunk.cols).enumerate() {
            let whole = |class: Class, all: &'_ [T]| -> std::ops::Range<usize> {
                match class {
                    Class::Full => row * chunk.cols..(row + 1) * chunk.cols,
                    _ => 0..all.len(),
                }
            };
            let single = |class: Class| match class {
                Class::Row => Some(row),
                Class::Scalar => Some(0),
                _ => None,
            };
            match (single(a.class), single(b.class)) {
                (None, None) => both(to, &x[whole(a.class, x)], &y[whole(b.class, y)], &f),
                (None, Some(at)) => left(to, &x[whole(a.class, x)], y[at], &f),
                (Some(at), None) => left(to, &y[whole(b.class, y)], x[at], |y, x| f(x, y)),
                (Some(i), Some(j)) => to.iter_mut().for_each(|to| *to = f(x[i], y[j])),
            }
        }
    }
}

#[inline(always)]
fn both<T: Copy, U>(to: &mut [U], x: &[T], y: &[T], f: impl Fn(T, T) -> U) {
    for ((to, &x), &y) in to.iter_mut().zip(x).zip(y) {
        *to = f(x, y);
    }
}

#[inline(always)]
fn left<T: Copy, U>(to: &mut [U], x: &[T], y: T, f: impl Fn(T, T) -> U) {
    for (to, &x) in to.iter_mut().zip(x) {
        *to = f(x, y);
    }
}

#[inline(always)]
fn expand<T: Copy>(step: &Step, chunk: &Chunk<'_>) {
    let to = chunk.write::<T>(step.to);
    let from = chunk.read::<T>(step.from[0]);
    match step.from[0].class {
        Class::Full => to.copy_from_slice(from),
        Class::Scalar => to.fill(from[0]),
        Class::Row => to.chunks_exact_mut(chunk.cols).zip(from).for_each(|(row, &x)| row.fill(x)),
        Class::Col => to.chunks_exact_mut(chunk.cols).for_each(|row| row.copy_from_slice(from)),
    }
}

#[inline(always)]
fn select<T: Copy>(step: &Step, chunk: &Chunk<'_>) {
    let [condition, a, b] = step.from;
    let branches = chunk.read::<T>(a).iter().zip(chunk.read::<T>(b));
    let to = chunk.write::<T>(step.to).iter_mut();
    for ((to, &condition), (&a, &b)) in to.zip(chunk.read::<u32>(condition)).zip(branches) {
        *to = if condition != 0 { a } else { b };
    }
}

/// Partial sums of a row: a fixed number, whatever the processor, so that sums are the same everywhere.
const PARTS: usize = 16;

/// All of `x` by `f`: sixteen interleaved parts, then those in pairs.
#[inline(always)]
pub(super) fn fold<T: Copy>(x: &[T], identity: T, f: impl Fn(T, T) -> T) -> T {
    let mut parts = [identity; PARTS];
    let (whole, rest) = x.as_chunks::<PARTS>();
    for chunk in whole {
        for (part, &x) in parts.iter_mut().zip(chunk) {
            *part = f(*part, x);
        }
    }
    for (part, &x) in parts.iter_mut().zip(rest) {
        *part = f(*part, x);
    }
    let mut width = PARTS / 2;
    while width > 0 {
        for i in 0..width {
            parts[i] = f(parts[i], parts[i + width]);
        }
        width /= 2;
    }
    parts[0]
}

#[inline(always)]
fn reduce<T: Copy>(step: &Step, chunk: &Chunk<'_>, identity: T, f: impl Fn(T, T) -> T) {
    let rows = chunk.read::<T>(step.from[0]).chunks_exact(chunk.cols);
    for (to, row) in chunk.write::<T>(step.to).iter_mut().zip(rows) {
        *to = fold(row, identity, &f);
    }
}

#[inline(always)]
pub(super) fn larger(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}

#[inline(always)]
pub(super) fn smaller(a: f32, b: f32) -> f32 {
    if a < b || a.is_nan() { a } else { b }
}

#[inline(always)]
fn compare<T: Copy + PartialOrd>(step: &Step, chunk: &Chunk<'_>, op: CompareOp) {
    match op {
        CompareOp::Eq => zip(step, chunk, |a: T, b: T| u32::from(a == b)),
        CompareOp::Ne => zip(step, chunk, |a: T, b: T| u32::from(a != b)),
        CompareOp::Lt => zip(step, chunk, |a: T, b: T| u32::from(a < b)),
        CompareOp::Le => zip(step, chunk, |a: T, b: T| u32::from(a <= b)),
        CompareOp::Gt => zip(step, chunk, |a: T, b: T| u32::from(a > b)),
        CompareOp::Ge => zip(step, chunk, |a: T, b: T| u32::from(a >= b)),
    }
}

#[inline(always)]
fn float32<A: Arithmetic>(step: &Step, chunk: &Chunk<'_>) {
    match step.act {
        Act::Unary(op) => match op {
            UnaryOp::Neg => map(step, chunk, |x: f32| -x),
            UnaryOp::Exp => map(step, chunk, math::exp::<A>),
            UnaryOp::Log => map(step, chunk, math::log::<A>),
            UnaryOp::Sqrt => map(step, chunk, |x: f32| x.sqrt()),
            UnaryOp::Rsqrt => map(step, chunk, |x: f32| 1.0 / x.sqrt()),
            UnaryOp::Recip => map(step, chunk, |x: f32| 1.0 / x),
            UnaryOp::Erf => map(step, chunk, math::erf::<A>),
            UnaryOp::Tanh => map(step, chunk, math::tanh::<A>),
            UnaryOp::Sigmoid => map(step, chunk, math::sigmoid::<A>),
            UnaryOp::Sin => map(step, chunk, |x| math::sine::<A>(x, 0)),
            UnaryOp::Cos => map(step, chunk, |x| math::sine::<A>(x, 1)),
            UnaryOp::Abs => map(step, chunk, |x: f32| x.abs()),
            UnaryOp::Square => map(step, chunk, |x: f32| x * x),
            UnaryOp::Sign => map(step, chunk, |x: f32| if x == 0.0 || x.is_nan() { x } else { 1f32.copysign(x) }),
            UnaryOp::Floor => map(step, chunk, |x: f32| x.floor()),
            UnaryOp::IsFinite => map(step, chunk, |x: f32| u32::from(x.abs() < f32::INFINITY)),
        },
        Act::Binary(op) => match op {
            BinaryOp::Add => zip(step, chunk, |a: f32, b: f32| a + b),
            BinaryOp::Sub => zip(step, chunk, |a: f32, b: f32| a - b),
            BinaryOp::Mul => zip(step, chunk, |a: f32, b: f32| a * b),
            BinaryOp::Div => zip(step, chunk, |a: f32, b: f32| a / b),
            BinaryOp::Max => zip(step, chunk, larger),
            BinaryOp::Min => zip(step, chunk, smaller),
        },
        Act::Compare(op) => compare::<f32>(step, chunk, op),
        Act::Select => select::<f32>(step, chunk),
        Act::Expand => expand::<f32>(step, chunk),
        Act::Reduce(ReduceOp::Sum) => reduce(step, chunk, 0.0, |a: f32, b: f32| a + b),
        Act::Reduce(ReduceOp::Max) => reduce(step, chunk, f32::NEG_INFINITY, larger),
        Act::Cast(Lane::F32, Round::Bf16) => map(step, chunk, math::round_bf16),
        Act::Cast(Lane::F32, Round::F16) => map(step, chunk, |x: f32| half::f16::from_f32(x).to_f32()),
        Act::Cast(Lane::F32, Round::E4m3) => map(step, chunk, |x: f32| E4M3::from_f32(x).to_f32()),
        Act::Cast(Lane::F32, Round::E5m2) => map(step, chunk, |x: f32| E5M2::from_f32(x).to_f32()),
        Act::Cast(Lane::F32, _) => map(step, chunk, |x: f32| x),
        Act::Cast(Lane::F64, _) => map(step, chunk, |x: f32| f64::from(x)),
        Act::Cast(Lane::U32, Round::Bool) => map(step, chunk, |x: f32| u32::from(x != 0.0)),
        Act::Cast(Lane::U32, _) => map(step, chunk, |x: f32| x as u32),
        Act::Iota { .. } => {}
        Act::Random { key } => {
            let counter = chunk.read::<u32>(step.from[0])[0];
            let stream = random::draw_stream(key, counter);
            for (index, to) in chunk.write::<f32>(step.to).iter_mut().enumerate() {
                *to = random::uniform_f32(stream, (chunk.first + index) as u64);
            }
        }
    }
}

// Rare and small: not worth a copy for each kind of processor.
#[inline(never)]
fn float64(step: &Step, chunk: &Chunk<'_>) {
    match step.act {
        Act::Unary(op) => match op {
            UnaryOp::IsFinite => map(step, chunk, |x: f64| u32::from(x.is_finite())),
            op => map(step, chunk, |x: f64| unary_f64(op, x)),
        },
        Act::Binary(op) => match op {
            BinaryOp::Add => zip(step, chunk, |a: f64, b: f64| a + b),
            BinaryOp::Sub => zip(step, chunk, |a: f64, b: f64| a - b),
            BinaryOp::Mul => zip(step, chunk, |a: f64, b: f64| a * b),
            BinaryOp::Div => zip(step, chunk, |a: f64, b: f64| a / b),
            BinaryOp::Max => zip(step, chunk, |a: f64, b: f64| if a > b || a.is_nan() { a } else { b }),
            BinaryOp::Min => zip(step, chunk, |a: f64, b: f64| if a < b || a.is_nan() { a } else { b }),
        },
        Act::Compare(op) => compare::<f64>(step, chunk, op),
        Act::Select => select::<f64>(step, chunk),
        Act::Expand => expand::<f64>(step, chunk),
        Act::Reduce(ReduceOp::Sum) => reduce(step, chunk, 0.0, |a: f64, b: f64| a + b),
        Act::Reduce(ReduceOp::Max) => {
            reduce(step, chunk, f64::NEG_INFINITY, |a: f64, b: f64| if a > b || a.is_nan() { a } else { b });
        }
        Act::Cast(Lane::F32, Round::Bf16) => map(step, chunk, |x: f64| half::bf16::from_f64(x).to_f32()),
        Act::Cast(Lane::F32, Round::F16) => map(step, chunk, |x: f64| half::f16::from_f64(x).to_f32()),
        Act::Cast(Lane::F32, Round::E4m3) => map(step, chunk, |x: f64| E4M3::from_f64(x).to_f32()),
        Act::Cast(Lane::F32, Round::E5m2) => map(step, chunk, |x: f64| E5M2::from_f64(x).to_f32()),
        Act::Cast(Lane::F32, _) => map(step, chunk, |x: f64| x as f32),
        Act::Cast(Lane::F64, _) => map(step, chunk, |x: f64| x),
        Act::Cast(Lane::U32, Round::Bool) => map(step, chunk, |x: f64| u32::from(x != 0.0)),
        Act::Cast(Lane::U32, _) => map(step, chunk, |x: f64| x as u32),
        Act::Iota { .. } | Act::Random { .. } => {}
    }
}

fn unary_f64(op: UnaryOp, x: f64) -> f64 {
    match op {
        UnaryOp::Neg => -x,
        UnaryOp::Exp => x.exp(),
        UnaryOp::Log => x.ln(),
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Rsqrt => 1.0 / x.sqrt(),
        UnaryOp::Recip => 1.0 / x,
        UnaryOp::Erf => libm::erf(x),
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        UnaryOp::Sin => x.sin(),
        UnaryOp::Cos => x.cos(),
        UnaryOp::Abs => x.abs(),
        UnaryOp::Square => x * x,
        UnaryOp::Sign if x == 0.0 || x.is_nan() => x,
        UnaryOp::Sign => 1f64.copysign(x),
        UnaryOp::Floor => x.floor(),
        UnaryOp::IsFinite => f64::from(u8::from(x.is_finite())),
    }
}

// Rare and small: not worth a copy for each kind of processor.
#[inline(never)]
fn integer(step: &Step, chunk: &Chunk<'_>) {
    match step.act {
        Act::Binary(op) => match op {
            BinaryOp::Add => zip(step, chunk, u32::wrapping_add),
            BinaryOp::Sub => zip(step, chunk, u32::wrapping_sub),
            BinaryOp::Mul => zip(step, chunk, u32::wrapping_mul),
            BinaryOp::Div => zip(step, chunk, |a: u32, b: u32| a.checked_div(b).unwrap_or(u32::MAX)),
            BinaryOp::Max => zip(step, chunk, |a: u32, b: u32| a.max(b)),
            BinaryOp::Min => zip(step, chunk, |a: u32, b: u32| a.min(b)),
        },
        Act::Compare(op) => compare::<u32>(step, chunk, op),
        Act::Select => select::<u32>(step, chunk),
        Act::Expand => expand::<u32>(step, chunk),
        Act::Reduce(ReduceOp::Sum) => reduce(step, chunk, 0, u32::wrapping_add),
        Act::Reduce(ReduceOp::Max) => reduce(step, chunk, 0, |a: u32, b: u32| a.max(b)),
        Act::Cast(Lane::F32, Round::Bf16) => map(step, chunk, |x: u32| math::round_bf16(x as f32)),
        Act::Cast(Lane::F32, Round::F16) => map(step, chunk, |x: u32| half::f16::from_f32(x as f32).to_f32()),
        Act::Cast(Lane::F32, Round::E4m3) => map(step, chunk, |x: u32| E4M3::from_f32(x as f32).to_f32()),
        Act::Cast(Lane::F32, Round::E5m2) => map(step, chunk, |x: u32| E5M2::from_f32(x as f32).to_f32()),
        Act::Cast(Lane::F32, _) => map(step, chunk, |x: u32| x as f32),
        Act::Cast(Lane::F64, _) => map(step, chunk, |x: u32| f64::from(x)),
        Act::Cast(Lane::U32, Round::Bool) => map(step, chunk, |x: u32| u32::from(x != 0)),
        Act::Cast(Lane::U32, _) => map(step, chunk, |x: u32| x),
        Act::Iota { inner, extent } => {
            for (index, to) in chunk.write::<u32>(step.to).iter_mut().enumerate() {
                *to = ((chunk.first + index) / inner % extent) as u32;
            }
        }
        Act::Unary(_) | Act::Random { .. } => {}
    }
}
