//! One kernel of a program, ready to be queued.

use std::{collections::HashMap, ffi::c_void, sync::Arc};

use cudarc::driver::{CudaEvent, result, sys};

use super::{
    attention::{self, AttentionArgument, AttentionLaunch, AttentionPlan},
    card::Card,
    compile::Source,
    cudnn::{CudnnPlan, CudnnPlans},
    device::{Device, Function},
    error::{Check as _, NAME},
    matmul::{Blas, Operands, Ready},
    nccl::Nccl,
    problem::Product,
    source::{self, Argument, Generated},
};
use pawl_graph::{
    executor::{ExecError, ExecOptions},
    graph::DType,
};
use pawl_lower::{Access, Body, Buffer, Collect, CollectOp, Kernel, Lowered, MatMul};

/// Addresses for a launch: those of buffers (which depend on the input slot), and of the workspace.
#[derive(Clone, Copy)]
pub(super) struct Addresses<'p> {
    /// Address of each buffer.
    pub buffers: &'p [u64],
    /// Address of the workspace.
    pub workspace: u64,
}

/// How a kernel will run, before anything is compiled or allocated.
pub(super) enum KernelPlan {
    /// Generated code.
    Generated(Generated),
    /// A matrix product of cuBLASLt, with a generated kernel in case that it has no algorithm.
    Product {
        product: Product,
        own: Box<Generated>,
        /// What scales the library's result where it stands, if the library does not.
        scale: Option<Box<Generated>>,
    },
    /// Launches of attention.
    Attention(AttentionPlan),
    /// Attention by cuDNN.
    Library(CudnnPlan),
    /// A sum or concatenation over ranks.
    Collective(Collect),
}

impl KernelPlan {
    /// How each kernel of a program will run.
    pub(super) fn all(
        lowered: &Lowered,
        card: Card,
        cudnn: &mut CudnnPlans,
        tf32: bool,
    ) -> Result<Vec<Self>, ExecError> {
        let plan = |kernel: &Kernel| match Self::by_library(&kernel.body, &lowered.buffers, cudnn) {
            Some(plan) => Ok(KernelPlan::Library(plan)),
            None => Self::new(&kernel.body, &lowered.buffers, card, tf32),
        };
        lowered.kernels.iter().map(plan).collect()
    }

    fn by_library(body: &Body, buffers: &[Buffer], cudnn: &mut CudnnPlans) -> Option<CudnnPlan> {
        match body {
            Body::Attention(kernel) => cudnn.forward(kernel, buffers),
            Body::AttentionGrad(kernel) => cudnn.backward(kernel, buffers),
            _ => None,
        }
    }

    fn new(body: &Body, buffers: &[Buffer], card: Card, tf32: bool) -> Result<Self, ExecError> {
        Ok(match body {
            Body::MatMul(MatMul { scales: Some(scales), .. })
                if scales.iter().any(|scale| buffers[scale.buffer].dtype == DType::F64) =>
            {
                return Err(ExecError::Unsupported { executor: NAME, what: "scaled products in float64".into() });
            }
            Body::MatMul(kernel) => {
                let own = Box::new(source::product(kernel, buffers));
                match Product::new(kernel, buffers, tf32, card.scales_by_vectors()) {
                    Some(product) => {
                        let scale = source::scaling(kernel, buffers, card.multiprocessors);
                        let scale = scale.filter(|_| product.scales.is_none()).map(Box::new);
                        KernelPlan::Product { product, own, scale }
                    }
                    None => KernelPlan::Generated(*own),
                }
            }
            Body::Attention(kernel) => KernelPlan::Attention(attention::forward(kernel, buffers, card)?),
            Body::AttentionGrad(kernel) => KernelPlan::Attention(attention::backward(kernel, buffers, card)?),
            Body::Collective(kernel) => {
                if buffers[kernel.from.buffer].dtype != DType::F32 {
                    let what = "collectives of anything but float32".into();
                    return Err(ExecError::Unsupported { executor: NAME, what });
                }
                KernelPlan::Collective(kernel.clone())
            }
            body => match source::generate(body, buffers, card.multiprocessors) {
                Some(generated) => KernelPlan::Generated(generated),
                None => {
                    let what = format!("a kernel of kind {}", body.name());
                    return Err(ExecError::Unsupported { executor: NAME, what });
                }
            },
        })
    }

    /// Bytes of workspace.
    pub(super) fn workspace(&self) -> usize {
        match self {
            KernelPlan::Generated(generated) => generated.workspace,
            KernelPlan::Product { own, .. } => own.workspace,
            KernelPlan::Attention(plan) => plan.workspace,
            KernelPlan::Library(plan) => plan.workspace(),
            KernelPlan::Collective(_) => 0,
        }
    }

    /// Code that has to be compiled (a product's own kernel only if the library turns out to need it).
    pub(super) fn sources(&self) -> Vec<&Source> {
        match self {
            KernelPlan::Generated(generated) => vec![&generated.source],
            KernelPlan::Attention(plan) => plan.launches.iter().map(|launch| &launch.source).collect(),
            KernelPlan::Product { scale, .. } => scale.iter().map(|scale| &scale.source).collect(),
            KernelPlan::Library(_) | KernelPlan::Collective(_) => Vec::new(),
        }
    }
}

/// Loaded code, by source.
pub(super) struct Code {
    device: Arc<Device>,
    modules: HashMap<Source, Arc<super::device::Module>>,
    options: ExecOptions,
}

impl Code {
    pub(super) fn new(device: &Arc<Device>, options: &ExecOptions) -> Self {
        Self { device: Arc::clone(device), modules: HashMap::new(), options: options.clone() }
    }

    /// Compiles and loads what is not there yet.
    pub(super) fn add(&mut self, sources: &[&Source]) -> Result<(), ExecError> {
        let mut new: Vec<&Source> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for &source in sources {
            if !self.modules.contains_key(source) && seen.insert(source) {
                new.push(source);
            }
        }
        for (source, code) in new.iter().zip(self.device.compiler().compile_all(&new, &|| self.options.compiled())?) {
            self.modules.insert((*source).clone(), self.device.load(&code)?);
        }
        Ok(())
    }

    fn function(&mut self, source: &Source, name: &str) -> Result<Function, ExecError> {
        self.add(&[source])?;
        match self.modules.get(source) {
            Some(module) => module.function(name),
            None => Err(ExecError::Device(format!("kernel {} was not compiled", source.name))),
        }
    }
}

/// A kernel, ready to be queued.
pub(super) enum CudaKernel {
    Launches(Vec<KernelLaunch>),
    Product { ready: Arc<Ready>, product: Product, scale: Vec<KernelLaunch> },
    Library(CudnnPlan),
    Collective(Collect),
}

/// A launch, without addresses.
pub(super) struct KernelLaunch {
    function: Function,
    grid: [u32; 3],
    threads: u32,
    shared: u32,
    parameters: Vec<Parameter>,
}

enum Parameter {
    Buffer(usize, u64),
    Workspace(u64),
    Number(u64),
    Null,
}

impl CudaKernel {
    /// Makes a plan ready. Memory must be there: algorithms of products are chosen by timing.
    pub(super) fn new(
        plan: &KernelPlan,
        code: &mut Code,
        blas: &mut Blas,
        addresses: Addresses<'_>,
        tune: bool,
    ) -> Result<Self, ExecError> {
        Ok(match plan {
            KernelPlan::Generated(generated) => CudaKernel::Launches(generated_launches(generated, code)?),
            KernelPlan::Product { product, own, scale } => {
                match blas.ready(product, operands(product, &product.calls[0], addresses), tune)? {
                    Some(ready) => {
                        let launches = scale.as_ref().map(|scale| generated_launches(scale, code)).transpose()?;
                        CudaKernel::Product { ready, product: product.clone(), scale: launches.unwrap_or_default() }
                    }
                    None => CudaKernel::Launches(generated_launches(own, code)?),
                }
            }
            KernelPlan::Attention(plan) => {
                let launch = |launch: &AttentionLaunch| {
                    let function = code.function(&launch.source, launch.entry)?;
                    if launch.shared > 48 * 1024 {
                        function.allow_shared(launch.shared as usize)?;
                    }
                    let parameters = launch.arguments.iter().map(|argument| match argument {
                        AttentionArgument::Buffer { buffer, offset } => Parameter::Buffer(*buffer, *offset as u64),
                        AttentionArgument::Workspace => Parameter::Workspace(0),
                        AttentionArgument::Null => Parameter::Null,
                    });
                    Ok(KernelLaunch {
                        grid: [launch.grid, 1, 1],
                        threads: launch.threads,
                        shared: launch.shared,
                        parameters: parameters.collect(),
                        function,
                    })
                };
                CudaKernel::Launches(plan.launches.iter().map(launch).collect::<Result<_, ExecError>>()?)
            }
            KernelPlan::Library(plan) => CudaKernel::Library(plan.clone()),
            KernelPlan::Collective(collect) => CudaKernel::Collective(collect.clone()),
        })
    }

    /// Queues it. A collective runs beside the stream: it is done at the event that is returned.
    pub(super) fn enqueue(
        &self,
        device: &Device,
        blas: &Blas,
        gang: Option<&Nccl>,
        addresses: Addresses<'_>,
    ) -> Result<Option<CudaEvent>, ExecError> {
        match self {
            CudaKernel::Launches(launches) => {
                launches.iter().try_for_each(|launch| launch.enqueue(device, addresses))?;
            }
            CudaKernel::Product { ready, product, scale } => {
                product.calls.iter().try_for_each(|call| blas.enqueue(ready, operands(product, call, addresses)))?;
                scale.iter().try_for_each(|launch| launch.enqueue(device, addresses))?;
            }
            // SAFETY: the plan was made for these buffers, which live as long as the executable.
            CudaKernel::Library(plan) => unsafe { plan.enqueue(addresses.buffers, addresses.workspace) }?,
            CudaKernel::Collective(collect) => {
                let place = |access: &Access| addresses.buffers[access.buffer] + 4 * access.offset as u64;
                let (from, to) = (place(&collect.from), place(&collect.to));
                match gang {
                    Some(gang) => {
                        let elements = collect.from.elements();
                        // SAFETY: lowering keeps both buffers until the result is read.
                        return Ok(Some(unsafe { gang.start(collect.op, from, to, elements, device.stream()) }?));
                    }
                    // Alone: the sum of one.
                    None if from == to => {}
                    None => {
                        debug_assert!(matches!(
                            collect.op,
                            CollectOp::AllReduce | CollectOp::ReduceScatter | CollectOp::AllGather
                        ));
                        let bytes = 4 * collect.to.elements();
                        // SAFETY: both buffers hold that many bytes.
                        unsafe { result::memcpy_dtod_async(to, from, bytes, device.stream().cu_stream()) }.check()?;
                    }
                }
            }
        }
        Ok(None)
    }

    /// Registers and spilled bytes of a thread, of the first launch.
    pub(super) fn registers(&self) -> Option<(i32, i32)> {
        let CudaKernel::Launches(launches) = self else { return None };
        let function = &launches.first()?.function;
        let registers = function.attribute(sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS).ok()?;
        let local = function.attribute(sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES).ok()?;
        Some((registers, local))
    }
}

/// The addresses of a call.
fn operands(product: &Product, call: &[usize; 3], addresses: Addresses<'_>) -> Operands {
    let at = |buffer: usize, offset: usize| addresses.buffers[buffer] + offset as u64;
    Operands {
        matrices: [0, 1, 2].map(|x| at(product.buffers[x], call[x])),
        add: product.add.map(|(buffer, offset, factor)| (at(buffer, offset), factor)),
        scales: product.scales.map(|scales| scales.map(|(buffer, offset)| at(buffer, offset))),
    }
}

fn generated_launches(generated: &Generated, code: &mut Code) -> Result<Vec<KernelLaunch>, ExecError> {
    let function = code.function(&generated.source, "main_kernel")?;
    let grid = &generated.grid;
    let mut blocks = grid.blocks;
    if grid.persistent {
        let all = code.device.multiprocessors() * function.resident(generated.threads, 0)?;
        blocks = blocks.min(all.div_ceil(grid.beside * grid.tiles)).max(1);
    }
    let parameter = |argument: &Argument| match *argument {
        Argument::Buffer { buffer, offset } => Parameter::Buffer(buffer, offset as u64),
        Argument::Workspace(offset) => Parameter::Workspace(offset as u64),
        Argument::Key(key) => Parameter::Number(key),
    };
    let mut launches = vec![KernelLaunch {
        function,
        grid: [(blocks * grid.beside) as u32, grid.tiles as u32, 1],
        threads: generated.threads as u32,
        shared: 0,
        parameters: generated.arguments.iter().map(parameter).collect(),
    }];
    if let Some(finish) = &generated.finish {
        let mut parameters = vec![Parameter::Workspace(0), Parameter::Number(blocks as u64)];
        parameters.extend(finish.arguments.iter().map(parameter));
        launches.push(KernelLaunch {
            function: code.function(&generated.source, "finish_kernel")?,
            grid: finish.grid,
            threads: 1024,
            shared: 0,
            parameters,
        });
    }
    Ok(launches)
}

impl KernelLaunch {
    fn enqueue(&self, device: &Device, addresses: Addresses<'_>) -> Result<(), ExecError> {
        // Parameters are read as their own types: of a 32-bit number, the lower half of its word.
        let mut values: Vec<u64> = (self.parameters.iter())
            .map(|parameter| match *parameter {
                Parameter::Buffer(buffer, offset) => addresses.buffers[buffer] + offset,
                Parameter::Workspace(offset) => addresses.workspace + offset,
                Parameter::Number(number) => number,
                Parameter::Null => 0,
            })
            .collect();
        let mut arguments: Vec<*mut c_void> = values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        // SAFETY: parameters are those of the generated code; buffers live as long as the executable.
        unsafe { self.function.launch(device.stream(), self.grid, self.threads, self.shared, &mut arguments) }
    }
}
