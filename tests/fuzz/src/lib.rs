//! Fuzz targets of every parser of bytes from outside: a function each, which must return for any input.
//!
//! The program `pawl-fuzz` (feature `libfuzzer`) runs one of them with LLVM's libFuzzer; `tests/fuzz/run` builds it,
//! runs the targets one after the other and reports crashes. Without the feature, the tests of this crate replay the
//! committed corpora (`corpus/<target>/`), in which every input that once crashed remains.

mod parts;
mod scratch;
mod story;
mod targets;

pub use targets::hugging_face::CONFIGURATIONS;

/// A fuzz target.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, which is also that of its corpus.
    pub name: &'static str,
    /// Reads `input` as the parsers of the target do, and panics when a promise of theirs is broken.
    pub run: fn(input: &[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "agent_http", run: targets::agent::http },
    Target { name: "archive", run: targets::archive::run },
    Target { name: "checkpoint", run: targets::checkpoint::run },
    Target { name: "checkpoint_names", run: targets::checkpoint::names },
    Target { name: "cifar", run: targets::data::cifar },
    Target { name: "config_json", run: targets::hugging_face::config_json },
    Target { name: "crd", run: targets::crd::run },
    Target { name: "exposition", run: targets::exposition::run },
    Target { name: "expression", run: targets::expression::run },
    Target { name: "handshake", run: targets::handshake::run },
    Target { name: "hdf5", run: targets::data::hdf5 },
    Target { name: "live_answer", run: targets::results::live_answer },
    Target { name: "manifest", run: targets::manifest::run },
    Target { name: "mesh_frames", run: targets::mesh::frames },
    Target { name: "mesh_hello", run: targets::mesh::hello },
    Target { name: "parquet", run: targets::data::parquet },
    Target { name: "record", run: targets::results::record },
    Target { name: "state", run: targets::state::run },
    Target { name: "termination", run: targets::results::termination },
    Target { name: "tokenizer", run: targets::hugging_face::tokenizer },
    Target { name: "tokens", run: targets::data::tokens },
    Target { name: "trainer_files", run: targets::agent::trainer_files },
    Target { name: "weights", run: targets::hugging_face::weights },
    Target { name: "workload_config", run: targets::hugging_face::workload_config },
];

/// The target called `name`.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
