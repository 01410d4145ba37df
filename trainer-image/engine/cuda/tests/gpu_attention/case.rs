//! One attention with its gradient: data on the device, launches, results.

use std::{ffi::c_void, sync::Arc};

use half::{bf16, f16};
use pawl_cuda::{
    Check as _,
    attention::{AttentionArgument, AttentionPlan},
    device::{Device, Memory},
};
use pawl_graph::{
    executor::ExecError,
    graph::{AttentionSpec, DType},
    random,
};
use pawl_lower::{Access, Attention, AttentionGrad, Buffer, Norm, Storage};

use super::reference::{self, Expected};

/// Extents, mask and layout of an attention.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub dtype: DType,
    /// Batch, heads, groups, queries, keys, width.
    pub extents: [usize; 6],
    pub causal: bool,
    /// Whether queries, keys and values are views of packed rows (else each head lies alone).
    pub packed: bool,
    /// Whether biases are added to queries and keys, and these are normalised, before attention.
    pub normed: bool,
}

/// Results of both passes.
pub struct Results {
    /// As [`RESULTS`] names them; gradients of biases and gain for each batch and head.
    pub values: Vec<Vec<f64>>,
    pub touched_outside: usize,
}

const SCALE: f64 = 0.17;
const EPSILON: f64 = 1e-6;
/// Buffers: q, k, v, o, do, dq, dk, dv; then the log-sum-exp; with norms, biases of q, k, v and the gain, and their
/// gradients.
const LSE: usize = 8;
const VECTORS: [usize; 4] = [9, 10, 11, 12];
const SUMS: [usize; 4] = [13, 14, 15, 16];
/// What a run gives, by name, and its buffers; the last four with norms only.
pub const RESULTS: [(&str, usize); 9] = [
    ("o", 3),
    ("lse", LSE),
    ("dq", 5),
    ("dk", 6),
    ("dv", 7),
    ("dbias_q", SUMS[0]),
    ("dbias_k", SUMS[1]),
    ("dbias_v", SUMS[2]),
    ("dgain", SUMS[3]),
];

impl Case {
    pub fn new(dtype: DType, extents: [usize; 6], causal: bool) -> Self {
        Self { dtype, extents, causal, packed: false, normed: false }
    }

    pub fn packed(self) -> Self {
        Self { packed: true, ..self }
    }

    pub fn normed(self) -> Self {
        Self { normed: true, ..self }
    }

    fn view(&self, buffer: usize, [b, h, t, d]: [usize; 4]) -> Access {
        if !self.packed {
            // Between batches there is room for what must not be touched.
            let strides = vec![h * t * d + 64, t * d, d, 1];
            return Access { buffer, offset: 64, dims: vec![b, h, t, d], strides };
        }
        let row = 3 * h * d + 16;
        Access { buffer, offset: h * d + 8, dims: vec![b, h, t, d], strides: vec![t * row, d, row, 1] }
    }

    pub fn kernel(&self) -> AttentionGrad {
        let [b, h, g, t, s, d] = self.extents;
        let (of_q, of_k) = ([b, h, t, d], [b, g, s, d]);
        let [bias_q, bias_k, bias_v, gain] = VECTORS;
        let norm = Norm {
            epsilon: EPSILON,
            biases: [(bias_q, h), (bias_k, g), (bias_v, g)].map(|(at, heads)| Access::contiguous(at, &[heads, d])),
            gain: Access::contiguous(gain, &[d]),
        };
        let sums: [Access; 4] = std::array::from_fn(|i| {
            let heads = if i == 0 { h } else { g };
            Access::contiguous(SUMS[i], &[b, heads, d])
        });
        let forward = Attention {
            spec: AttentionSpec { scale: SCALE, causal: self.causal },
            norm: self.normed.then_some(norm),
            q: self.view(0, of_q),
            k: self.view(1, of_k),
            v: self.view(2, of_k),
            o: self.view(3, of_q),
            lse: Some(Access::contiguous(LSE, &[b, h, t, 1])),
        };
        let [grad, dq] = [4, 5].map(|buffer| self.view(buffer, of_q));
        let [dk, dv] = [6, 7].map(|buffer| self.view(buffer, of_k));
        AttentionGrad { forward, grad, dq, dk, dv, sums: self.normed.then_some(sums) }
    }

    fn views(&self) -> Vec<Access> {
        let AttentionGrad { forward: f, grad, dq, dk, dv, sums } = self.kernel();
        let mut views = vec![f.q, f.k, f.v, f.o, grad, dq, dk, dv, f.lse.expect("kept")];
        views.extend(f.norm.into_iter().flat_map(|norm| norm.biases.into_iter().chain([norm.gain])));
        views.extend(sums.into_iter().flatten());
        views
    }

    /// Statistics, vectors and sums are wide.
    fn dtype_of(&self, buffer: usize) -> DType {
        if buffer >= LSE { self.dtype.accumulator() } else { self.dtype }
    }

    fn inputs(&self) -> Vec<usize> {
        let vectors = VECTORS.iter().filter(|_| self.normed);
        [0, 1, 2, 4].iter().chain(vectors).copied().collect()
    }

    /// The values of an input, as rounded to its dtype, in row-major order.
    pub fn input(&self, buffer: usize) -> Vec<f64> {
        let stream = random::stream(7, &format!("buffer {buffer}"));
        let count = self.views()[buffer].elements() as u64;
        let scale = if buffer == 4 { 1.0 } else { 4.0 };
        let dtype = self.dtype_of(buffer);
        (0..count).map(|i| rounded(dtype, scale * (random::uniform_f64(stream, i) - 0.5))).collect()
    }

    pub fn buffers(&self) -> Vec<Buffer> {
        let make = |(at, view): (usize, &Access)| Buffer {
            dtype: self.dtype_of(at),
            elements: view.offset + positions(view).into_iter().max().unwrap_or(0) + 65,
            storage: Storage::Arena,
            life: (0, 1),
        };
        self.views().iter().enumerate().map(make).collect()
    }

    /// Runs both passes with `launches`, which receives the kernel, its buffers and their memory.
    ///
    /// # Errors
    /// When the device or `launches` fails.
    pub fn run(
        &self,
        device: &Arc<Device>,
        launches: impl Fn(&AttentionGrad, &[Buffer], &[Memory]) -> Result<(), ExecError>,
    ) -> Result<Results, ExecError> {
        let (buffers, views) = (self.buffers(), self.views());
        let mut images: Vec<Vec<u8>> = buffers.iter().map(|b| vec![0xff; b.bytes()]).collect();
        for at in self.inputs() {
            for (place, value) in positions(&views[at]).into_iter().zip(self.input(at)) {
                put(buffers[at].dtype, &mut images[at], place, value);
            }
        }
        let memory = images.iter().map(|image| upload(device, image)).collect::<Result<Vec<_>, _>>()?;
        launches(&self.kernel(), &buffers, &memory)?;
        let mut values = vec![Vec::new(); RESULTS.iter().filter(|(_, at)| *at < buffers.len()).count()];
        let mut touched_outside = 0;
        for (at, view) in views.iter().enumerate() {
            let image = download(device, &memory[at])?;
            let (dtype, places) = (buffers[at].dtype, positions(view));
            if let Some(result) = RESULTS.iter().position(|(_, of)| *of == at) {
                values[result] = places.iter().map(|&place| get(dtype, &image, place)).collect();
            }
            let mut inside = vec![false; image.len()];
            places.iter().for_each(|place| inside[place * dtype.bytes()..(place + 1) * dtype.bytes()].fill(true));
            touched_outside += image.iter().zip(&inside).filter(|&(&byte, &inside)| !inside && byte != 0xff).count();
        }
        Ok(Results { values, touched_outside })
    }

    /// The expected results, given the output as it was stored.
    pub fn reference(&self, kept: &[f64]) -> Vec<Expected> {
        let inputs = [0, 1, 2, 4].map(|at| self.input(at));
        if !self.normed {
            return reference::attention(self.extents, self.causal, SCALE, inputs, None).map(Expected::value).into();
        }
        let vectors = VECTORS.map(|at| self.input(at));
        reference::normed(self.extents, (self.causal, SCALE, EPSILON), inputs, vectors, kept, |x| {
            rounded(self.dtype, x)
        })
    }
}

/// Compiles and runs a plan, and waits for it.
///
/// # Errors
/// When a kernel does not compile, or the device fails.
pub fn launch(device: &Arc<Device>, plan: &AttentionPlan, memory: &[Memory]) -> Result<(), ExecError> {
    let workspace = device.allocate(plan.workspace)?;
    for launch in &plan.launches {
        let function = device.load(&device.compiler().compile(&launch.source)?)?.function(launch.entry)?;
        function.allow_shared(launch.shared as usize)?;
        let mut addresses: Vec<u64> = launch.arguments.iter().map(|a| address(a, &workspace, memory)).collect();
        let mut arguments: Vec<*mut c_void> = addresses.iter_mut().map(|a| std::ptr::from_mut(a).cast()).collect();
        // SAFETY: all parameters are addresses; memory lives until the stream is idle.
        unsafe {
            function.launch(device.stream(), [launch.grid, 1, 1], launch.threads, launch.shared, &mut arguments)?;
        }
        device.synchronize()?;
    }
    Ok(())
}

fn address(argument: &AttentionArgument, workspace: &Memory, memory: &[Memory]) -> u64 {
    match *argument {
        AttentionArgument::Buffer { buffer, offset } => memory[buffer].address() + offset as u64,
        AttentionArgument::Workspace => workspace.address(),
        AttentionArgument::Null => 0,
    }
}

fn upload(device: &Arc<Device>, bytes: &[u8]) -> Result<Memory, ExecError> {
    let memory = device.allocate(bytes.len())?;
    // SAFETY: as many bytes were allocated.
    unsafe { cudarc::driver::result::memcpy_htod_sync(memory.address(), bytes) }.check()?;
    Ok(memory)
}

fn download(device: &Arc<Device>, memory: &Memory) -> Result<Vec<u8>, ExecError> {
    device.synchronize()?;
    let mut bytes = vec![0u8; memory.len()];
    // SAFETY: as many bytes were allocated.
    unsafe { cudarc::driver::result::memcpy_dtoh_sync(&mut bytes, memory.address()) }.check()?;
    Ok(bytes)
}

/// Where the elements of a view lie, in row-major order.
fn positions(view: &Access) -> Vec<usize> {
    let mut places = vec![view.offset];
    for (&extent, &stride) in view.dims.iter().zip(&view.strides) {
        places = places.iter().flat_map(|place| (0..extent).map(move |i| place + i * stride)).collect();
    }
    places
}

fn rounded(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::BF16 => bf16::from_f64(value).to_f64(),
        DType::F16 => f16::from_f64(value).to_f64(),
        DType::F32 => f64::from(value as f32),
        _ => value,
    }
}

fn put(dtype: DType, image: &mut [u8], place: usize, value: f64) {
    let to = &mut image[place * dtype.bytes()..(place + 1) * dtype.bytes()];
    match dtype {
        DType::BF16 => to.copy_from_slice(&bf16::from_f64(value).to_le_bytes()),
        DType::F16 => to.copy_from_slice(&f16::from_f64(value).to_le_bytes()),
        DType::F32 => to.copy_from_slice(&(value as f32).to_le_bytes()),
        _ => to.copy_from_slice(&value.to_le_bytes()),
    }
}

fn get(dtype: DType, image: &[u8], place: usize) -> f64 {
    let from = &image[place * dtype.bytes()..(place + 1) * dtype.bytes()];
    match (dtype, from) {
        (DType::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f64(),
        (DType::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f64(),
        (DType::F32, &[a, b, c, d]) => f64::from(f32::from_le_bytes([a, b, c, d])),
        (_, bytes) => f64::from_le_bytes(std::array::from_fn(|i| bytes[i])),
    }
}
