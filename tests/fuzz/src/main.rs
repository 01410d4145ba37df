//! `pawl-fuzz`: one fuzz target under libFuzzer, whose command line it has. The environment variable `PAWL_FUZZ_TARGET`
//! names the target, because libFuzzer starts further processes with its own arguments.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pawl_fuzz::{TARGETS, Target, target};
use std::sync::LazyLock;

/// In the path of a library whose panics our code catches.
const CAUGHT: &str = "/parquet-";

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    // libFuzzer's hook ends the process at any panic, also at one that would be caught. One that is not caught ends it
    // as well.
    let end = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.location().is_none_or(|location| !location.file().contains(CAUGHT)) {
            end(panic);
        }
    }));
    let name = std::env::var("PAWL_FUZZ_TARGET").unwrap_or_default();
    target(&name).unwrap_or_else(|| {
        let known: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("PAWL_FUZZ_TARGET: {name:?} is not a target: set it to one of {}", known.join(", "));
        std::process::exit(2)
    })
});

fuzz_target!(|input: &[u8]| (TARGET.run)(input));
