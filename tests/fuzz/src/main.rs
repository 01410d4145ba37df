//! `pawl-fuzz`: one fuzz target under libFuzzer, whose command line it has. The environment variable `PAWL_FUZZ_TARGET` names
//! the target, because libFuzzer starts further processes with its own arguments.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pawl_fuzz::{TARGETS, Target, target};
use std::sync::LazyLock;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("PAWL_FUZZ_TARGET").unwrap_or_default();
    target(&name).unwrap_or_else(|| {
        let known: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("PAWL_FUZZ_TARGET: {name:?} is not a target: set it to one of {}", known.join(", "));
        std::process::exit(2)
    })
});

fuzz_target!(|input: &[u8]| (TARGET.run)(input));
