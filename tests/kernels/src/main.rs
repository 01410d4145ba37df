//! `pawl-kernels`: kernels as text, checked against other executors, and timed.

mod check;
mod speed;
mod table;

use std::sync::Arc;

use clap::{Args, Parser, Subcommand};
use pawl_cuda::{CudaGraph, cudnn::Cudnn, device::Device, source};
use pawl_graph::{
    graph::Program,
    passes::{Float8, Scaling},
    recipe::{AttentionKernel, Precision},
};
use pawl_kernels::{AtftStep, ForexStep, SlmStep, UpsStep, VisionStep};
use pawl_lower::{LowerOptions, Lowered};

/// Generated CUDA kernels.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Prints the lowered step of UPS; needs no GPU.
    Dump {
        #[command(flatten)]
        ups: UpsArgs,
        /// What to print: estimate (time by memory and arithmetic), kernels, memory, sources.
        #[arg(long, default_value = "estimate", value_parser = ["estimate", "kernels", "memory", "sources"])]
        what: String,
    },
    /// Runs programs on a GPU and on the CPU and compares the results.
    Check {
        /// Random programs.
        #[arg(long, default_value_t = 60)]
        random: u64,
    },
    /// Prints the lowered step of the language model; needs no GPU.
    DumpSlm {
        #[command(flatten)]
        slm: SlmArgs,
        /// What to print, as for `dump`.
        #[arg(long, default_value = "estimate", value_parser = ["estimate", "kernels", "memory", "sources"])]
        what: String,
    },
    /// Prints the lowered step of Vision-BDH; needs no GPU.
    DumpVisionBdh {
        #[command(flatten)]
        vision: VisionArgs,
        /// What to print, as for `dump`.
        #[arg(long, default_value = "estimate", value_parser = ["estimate", "kernels", "memory", "sources"])]
        what: String,
    },
    /// Prints the lowered step of the forex workload; needs no GPU.
    DumpForex {
        #[command(flatten)]
        forex: ForexArgs,
        /// What to print, as for `dump`.
        #[arg(long, default_value = "estimate", value_parser = ["estimate", "kernels", "memory", "sources"])]
        what: String,
    },
    /// Keeps the first visible GPU busy with kernels that do nothing, so that other processes on it are slow.
    Idle {
        /// For how long.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
    /// Times steps of UPS on a GPU.
    Ups {
        #[command(flatten)]
        ups: UpsArgs,
        #[command(flatten)]
        timing: Timing,
    },
    /// Times steps of the language model on a GPU.
    Slm {
        #[command(flatten)]
        slm: SlmArgs,
        #[command(flatten)]
        timing: Timing,
    },
    /// Times steps of Vision-BDH on a GPU.
    VisionBdh {
        #[command(flatten)]
        vision: VisionArgs,
        #[command(flatten)]
        timing: Timing,
    },
    /// Times steps of ATFT-GAT-FAN on a GPU.
    Atft {
        #[command(flatten)]
        atft: AtftArgs,
        #[command(flatten)]
        timing: Timing,
    },
    /// Times steps of the forex workload on a GPU.
    Forex {
        #[command(flatten)]
        forex: ForexArgs,
        #[command(flatten)]
        timing: Timing,
    },
}

/// How steps are timed.
#[derive(Args, Clone)]
struct Timing {
    /// Steps that are timed.
    #[arg(long, default_value_t = 30)]
    steps: usize,
    /// How kernels run: captured, streamed, unfused.
    #[arg(long, default_value = "captured", value_parser = ["captured", "streamed", "unfused"])]
    mode: String,
    /// Prints the kernels that take most of the time.
    #[arg(long)]
    profile: bool,
}

/// Which step of the language model.
#[derive(Args, Clone)]
struct SlmArgs {
    /// Size of the model.
    #[arg(long, default_value = "125m", value_parser = ["tiny", "125m", "1b", "3b", "8b"])]
    size: String,
    /// Windows of a micro-step.
    #[arg(long, default_value_t = 32)]
    windows: u32,
    /// fp32, bf16, fp8.
    #[arg(long, default_value = "bf16", value_parser = ["fp32", "bf16", "fp8"])]
    precision: String,
    /// With fp8, what shares a scale: row, tensor, delayed.
    #[arg(long, default_value = "row", value_parser = ["row", "tensor", "delayed"])]
    scaling: String,
    /// Frozen matrices as 8-bit integers.
    #[arg(long)]
    int8: bool,
    /// Recompute blocks in the backward pass.
    #[arg(long)]
    recompute: bool,
}

impl SlmArgs {
    fn step(&self) -> SlmStep {
        SlmStep {
            size: self.size.clone(),
            windows: self.windows,
            precision: precision(&self.precision),
            float8: Float8 {
                scaling: match self.scaling.as_str() {
                    "tensor" => Scaling::Tensor,
                    "delayed" => Scaling::Delayed,
                    _ => Scaling::Row,
                },
                ..Float8::default()
            },
            int8: self.int8,
            recompute: self.recompute,
        }
    }
}

/// Which step of Vision-BDH.
#[derive(Args, Clone)]
struct VisionArgs {
    /// Preset of the workload.
    #[arg(long, default_value = "medium", value_parser = ["smoke", "medium"])]
    preset: String,
    /// Images of a micro-step.
    #[arg(long, default_value_t = 128)]
    images: u32,
    /// fp32, bf16.
    #[arg(long, default_value = "bf16", value_parser = ["fp32", "bf16"])]
    precision: String,
    /// Recompute levels in the backward pass.
    #[arg(long)]
    recompute: bool,
    /// Keep images on the device, and augment them there.
    #[arg(long)]
    resident: bool,
}

impl VisionArgs {
    fn step(&self) -> VisionStep {
        VisionStep {
            preset: self.preset.clone(),
            images: self.images,
            precision: if self.precision == "fp32" { Precision::F32 } else { Precision::BF16 },
            recompute: self.recompute,
            resident: self.resident,
        }
    }
}

/// Which step of ATFT-GAT-FAN.
#[derive(Args, Clone)]
struct AtftArgs {
    /// Preset of the workload.
    #[arg(long, default_value = "medium", value_parser = ["smoke", "medium"])]
    preset: String,
    /// Samples of a step.
    #[arg(long, default_value_t = 4096)]
    samples: u32,
    /// fp32, bf16.
    #[arg(long, default_value = "bf16", value_parser = ["fp32", "bf16"])]
    precision: String,
}

impl AtftArgs {
    fn step(&self) -> AtftStep {
        AtftStep { preset: self.preset.clone(), samples: self.samples, precision: precision(&self.precision) }
    }
}

/// Which step of the forex workload.
#[derive(Args, Clone)]
struct ForexArgs {
    /// Preset of the workload.
    #[arg(long, default_value = "medium", value_parser = ["smoke", "medium"])]
    preset: String,
    /// Windows of a micro-step.
    #[arg(long, default_value_t = 64)]
    windows: u32,
    /// fp32, bf16.
    #[arg(long, default_value = "bf16", value_parser = ["fp32", "bf16"])]
    precision: String,
    /// The evaluation instead of the training step.
    #[arg(long)]
    evaluation: bool,
}

impl ForexArgs {
    fn program(&self) -> anyhow::Result<Program> {
        let precision = if self.precision == "fp32" { Precision::F32 } else { Precision::BF16 };
        let step = ForexStep { preset: self.preset.clone(), windows: self.windows, precision };
        let [training, evaluation] = step.programs()?;
        Ok(if self.evaluation { evaluation } else { training })
    }
}

/// Which step.
#[derive(Args, Clone)]
struct UpsArgs {
    /// Preset of the workload: smoke, small, medium, full.
    #[arg(long, default_value = "full")]
    preset: String,
    /// Items of a micro-step.
    #[arg(long, default_value_t = 30)]
    items: u32,
    /// Pairs per item. Default: the preset's.
    #[arg(long)]
    pairs: Option<u32>,
    /// With the losses through the decoder.
    #[arg(long)]
    auxiliary: bool,
    /// fp32, bf16, fp16, fp8.
    #[arg(long, default_value = "bf16", value_parser = ["fp32", "bf16", "fp16", "fp8"])]
    precision: String,
    /// Attention as matmuls and softmax.
    #[arg(long)]
    math: bool,
    /// Recompute sub-layers in the backward pass.
    #[arg(long)]
    recompute: bool,
}

impl UpsArgs {
    fn step(&self) -> UpsStep {
        UpsStep {
            preset: self.preset.clone(),
            items: self.items,
            pairs: self.pairs,
            auxiliary: self.auxiliary,
            precision: precision(&self.precision),
            attention: if self.math { AttentionKernel::Math } else { AttentionKernel::Flash },
            recompute: self.recompute,
        }
    }
}

/// The precision of that name, of those that the arguments allow.
fn precision(name: &str) -> Precision {
    match name {
        "fp32" => Precision::F32,
        "fp16" => Precision::F16,
        "fp8" => Precision::FP8,
        _ => Precision::BF16,
    }
}

fn device() -> anyhow::Result<Arc<Device>> {
    Ok(Device::open(0, pawl_cuda::cache_directory().as_deref())?)
}

fn executor(device: &Arc<Device>, mode: &str) -> CudaGraph {
    let base = match mode {
        "unfused" => CudaGraph::unfused(Arc::clone(device)),
        "streamed" => CudaGraph { launching: pawl_cuda::Launching::Streamed, ..CudaGraph::new(Arc::clone(device)) },
        _ => CudaGraph::new(Arc::clone(device)),
    };
    let cudnn = Cudnn::open(device).inspect_err(|error| eprintln!("without cuDNN: {error}")).ok();
    CudaGraph { cudnn, ..base }
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Dump { ups, what } => dump(&ups.step().program()?, &what),
        Command::DumpSlm { slm, what } => dump(&slm.step().program()?, &what),
        Command::DumpVisionBdh { vision, what } => dump(&vision.step().program()?, &what),
        Command::Check { random } => check::run(random),
        Command::Idle { seconds } => pawl_kernels::idle::run(&device()?, seconds),
        Command::DumpForex { forex, what } => dump(&forex.program()?, &what),
        Command::Ups { ups, timing } => on_random_data(&ups.step().program()?, ups.items, &timing),
        Command::Slm { slm, timing } => on_random_data(&slm.step().program()?, slm.windows, &timing),
        Command::VisionBdh { vision, timing } => on_random_data(&vision.step().program()?, vision.images, &timing),
        Command::Forex { forex, timing } => on_random_data(&forex.program()?, forex.windows, &timing),
        Command::Atft { atft, timing } => {
            let step = atft.step();
            let program = step.program()?;
            // Indices of edges must be those of a graph, and cannot be random.
            speed::step(&program, &step.inputs(&program)?, atft.samples, &timing)
        }
    }
}

/// Times steps on random data.
fn on_random_data(program: &Program, items: u32, timing: &Timing) -> anyhow::Result<()> {
    speed::step(program, &pawl_kernels::inputs(program)?, items, timing)
}

fn dump(program: &Program, what: &str) -> anyhow::Result<()> {
    let options = LowerOptions::default();
    let lowered = Lowered::new(&pawl_cuda::specialize(program, pawl_cuda::Card::H200, &options)?, &options);
    match what {
        "kernels" => print!("{}", lowered.dump_kernels()),
        "memory" => print!("{}", lowered.dump_memory()),
        "sources" => {
            for (at, kernel) in lowered.kernels.iter().enumerate() {
                if let Some(generated) = source::generate(&kernel.body, &lowered.buffers, 132) {
                    let (_, own) = generated.source.text.split_once("extern").unwrap_or_default();
                    println!("// kernel {at}, {}\nextern{own}", kernel.scope);
                }
            }
        }
        _ => table::estimate(&lowered),
    }
    Ok(())
}
