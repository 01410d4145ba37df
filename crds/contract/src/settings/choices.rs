//! Settings with one of several names.

use super::row::{Kind, Typed};
use serde::{Deserialize, Serialize};

macro_rules! choices {
    ($(#[$meta:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident),+ $(,)? }) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[cfg_attr(feature = "schema", schemars(inline))]
        $(#[$meta])*
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl Typed for $name {
            const KIND: Kind = Kind::Choice;
        }
    };
}

choices!(/// How the step is executed.
Compile {
    // Not written `Off`: YAML 1.1, and with it kubectl, reads that as `false`.
    /// One library call per operation.
    None,
    /// Fused kernels, launched one by one.
    Fuse,
    /// Fused kernels over a static memory plan, launched as one graph.
    Graph,
});
choices!(/// How attention is computed.
Attention {
    /// Scores are materialized.
    Math,
    /// Scores are never materialized.
    Flash,
});
choices!(/// Optimizer kernel implementation.
OptimizerKernel {
    /// One update per tensor.
    PerTensor,
    /// One fused update over flat buffers that hold all tensors.
    Fused,
});
choices!(/// Where optimizer state lives.
OptimizerOffload {
    /// On the device.
    None,
    /// In host memory, which kernels of the built-in trainer access directly.
    Cpu,
});
choices!(/// Activations that are recomputed in the backward pass.
ActivationCheckpointing {
    /// No recomputation: all activations are kept.
    None,
    /// The attention and MLP sub-layers of each block, each recomputed on its own.
    Selective,
    /// Each block as a whole.
    Full,
});
choices!(/// State that is sharded over the ranks.
Sharding {
    /// Nothing: data parallel.
    None,
    /// Optimizer state.
    Zero1,
    /// Optimizer state and gradients.
    Zero2,
    /// Optimizer state, gradients and parameters.
    Full,
});
choices!(/// Quantization of frozen weights.
WeightQuantization {
    /// None.
    None,
    /// 8-bit integers.
    Int8,
});
choices!(/// Layout of image tensors.
MemoryFormat {
    /// NCHW.
    ChannelsFirst,
    /// NHWC.
    ChannelsLast,
});
choices!(/// When rotary tables are computed.
RopeCache {
    /// In every step.
    PerStep,
    /// Once.
    Cached,
});
choices!(/// Layout of the parameters that a workload can rearrange.
ParameterLayout {
    /// As published.
    Raw,
    /// As plain matrices.
    Linear,
});

choices!(/// Arithmetic of matrix products and activations; weights and statistics stay fp32.
#[serde(rename_all = "lowercase")]
Precision {
    /// 32-bit floats.
    Fp32,
    /// 32-bit floats, products in TensorFloat-32.
    Tf32,
    /// 16-bit floats with loss scaling.
    Fp16,
    /// bfloat16.
    Bf16,
    /// bfloat16, with products of linear layers in blocks over 8-bit floats.
    Fp8,
});

choices!(/// Which 8-bit floats share a scale, and from which values it is computed.
Float8Scaling {
    /// One scale a row of activations and gradients, and an output of a weight.
    Row,
    /// One an operand.
    Tensor,
    /// One an operand, from the 16 micro-steps before.
    Delayed,
});

choices!(/// 8-bit format of gradients.
#[serde(rename_all = "lowercase")]
Float8Gradients {
    /// Finer.
    E4m3,
    /// A larger range.
    E5m2,
});
