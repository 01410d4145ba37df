//! Times attention on a GPU, after a warm-up as long as the measurement.

use std::{ffi::c_void, sync::Arc};

use pawl_cuda::{
    Card, Check as _,
    attention::{self, AttentionArgument, AttentionPlan},
    device::{Device, Function, Memory},
};
use pawl_graph::{
    executor::ExecError,
    graph::{AttentionSpec, DType},
};
use pawl_lower::{Access, Attention, AttentionGrad, Buffer, Storage};

/// Milliseconds that each measurement takes, about.
const SPAN: f32 = 60.0;

/// Batch, heads, groups, queries (and keys), width, mask.
const SHAPES: [([usize; 5], bool); 5] = [
    ([3000, 8, 8, 128, 48], false),
    ([3000, 8, 8, 128, 64], false),
    ([120, 4, 4, 128, 96], false),
    ([32, 12, 4, 1024, 64], true),
    ([8, 32, 8, 2048, 128], true),
];

/// The kernels of a model whose queries, keys and values lie packed in one row.
fn kernels([b, h, g, t, d]: [usize; 5], causal: bool, dtype: DType) -> (AttentionGrad, Vec<Buffer>) {
    let row = (h + 2 * g) * d;
    let packed = |buffer, heads, first| Access {
        buffer,
        offset: first * d,
        dims: vec![b, heads, t, d],
        strides: vec![t * row, d, row, 1],
    };
    let joined = |buffer| Access { buffer, offset: 0, dims: vec![b, h, t, d], strides: vec![t * h * d, d, h * d, 1] };
    let forward = Attention {
        spec: AttentionSpec { scale: 1.0 / (d as f64).sqrt(), causal },
        norm: None,
        q: packed(0, h, 0),
        k: packed(0, g, h),
        v: packed(0, g, h + g),
        o: joined(1),
        lse: Some(Access::contiguous(2, &[b, h, t, 1])),
    };
    let (dq, dk, dv) = (packed(4, h, 0), packed(4, g, h), packed(4, g, h + g));
    let buffer = |dtype, elements| Buffer { dtype, elements, storage: Storage::Arena, life: (0, 1) };
    let (rows, outputs) = (b * t * row, b * t * h * d);
    let buffers = vec![
        buffer(dtype, rows),
        buffer(dtype, outputs),
        buffer(DType::F32, b * h * t),
        buffer(dtype, outputs),
        buffer(dtype, rows),
    ];
    (AttentionGrad { forward, grad: joined(3), dq, dk, dv, sums: None }, buffers)
}

struct Ready {
    launches: Vec<(Function, attention::AttentionLaunch)>,
    workspace: Memory,
}

impl Ready {
    fn new(device: &Arc<Device>, plan: &AttentionPlan) -> Result<Self, ExecError> {
        let load = |launch: &attention::AttentionLaunch| {
            let function = device.load(&device.compiler().compile(&launch.source)?)?.function(launch.entry)?;
            function.allow_shared(launch.shared as usize)?;
            Ok((function, launch.clone()))
        };
        let launches = plan.launches.iter().map(load).collect::<Result<_, ExecError>>()?;
        Ok(Self { launches, workspace: device.allocate(plan.workspace)? })
    }

    fn run(&self, device: &Device, memory: &[Memory]) -> Result<(), ExecError> {
        for (function, launch) in &self.launches {
            let address = |argument: &AttentionArgument| match *argument {
                AttentionArgument::Buffer { buffer, offset } => memory[buffer].address() + offset as u64,
                AttentionArgument::Workspace => self.workspace.address(),
                AttentionArgument::Null => 0,
            };
            let mut addresses: Vec<u64> = launch.arguments.iter().map(address).collect();
            let mut arguments: Vec<*mut c_void> = addresses.iter_mut().map(|a| std::ptr::from_mut(a).cast()).collect();
            // SAFETY: all parameters are addresses of memory that lives until the stream is idle.
            unsafe {
                function.launch(device.stream(), [launch.grid, 1, 1], launch.threads, launch.shared, &mut arguments)?;
            }
        }
        Ok(())
    }
}

/// Milliseconds of one call, the mean over [`SPAN`].
fn time(device: &Device, mut call: impl FnMut() -> Result<(), ExecError>) -> Result<f32, ExecError> {
    let (start, end) = (device.event()?, device.event()?);
    let mut span = |count: usize| -> Result<f32, ExecError> {
        start.record(device.stream()).check()?;
        (0..count).try_for_each(|_| call())?;
        end.record(device.stream()).check()?;
        device.synchronize()?;
        Ok(start.elapsed_ms(&end).check()? / count as f32)
    };
    span(2)?;
    let count = ((SPAN / span(3)?) as usize).max(3);
    span(count)?;
    span(count)
}

fn main() -> Result<(), ExecError> {
    let device = Device::open(0, None)?;
    println!("{}", device.name());
    for (shape, causal) in SHAPES {
        let (kernel, buffers) = kernels(shape, causal, DType::BF16);
        let memory = buffers.iter().map(|b| device.allocate(b.bytes())).collect::<Result<Vec<_>, _>>()?;
        for (memory, buffer) in memory.iter().zip(&buffers) {
            // Numbers of many bits: zeros need less power.
            let noise: Vec<u8> = (0..buffer.bytes() as u32)
                .map(|i| if i % 2 == 0 { (i.wrapping_mul(2_654_435_761) >> 24) as u8 } else { 0x3d })
                .collect();
            // SAFETY: as many bytes were allocated.
            unsafe { cudarc::driver::result::memcpy_htod_sync(memory.address(), &noise) }.check()?;
        }
        let plans = [
            attention::forward(&kernel.forward, &buffers, Card::H200)?,
            attention::backward(&kernel, &buffers, Card::H200)?,
        ];
        let [b, h, _, t, d] = shape;
        let flops = 4.0 * (b * h * t * t * d) as f64 * if causal { 0.5 } else { 1.0 };
        print!("b{b} h{h}/{} T{t} d{d}{} {:?}:", shape[2], if causal { " causal" } else { "" }, plans[0].family);
        for (plan, work) in plans.iter().zip([1.0, 2.5]) {
            let ready = Ready::new(&device, plan)?;
            let milliseconds = time(&device, || ready.run(&device, &memory))?;
            print!("  {milliseconds:.4} ms ({:.0} TFLOP/s)", work * flops / f64::from(milliseconds) / 1e9);
        }
        println!();
    }
    Ok(())
}
