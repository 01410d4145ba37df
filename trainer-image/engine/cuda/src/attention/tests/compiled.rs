//! Compiles every family for every architecture: no GPU is needed.

use super::*;
use crate::compile::{Architecture, Compiler};

#[test]
fn every_variant_compiles_for_every_architecture() {
    let shapes: [(Extents, DType, bool); 11] = [
        ([3, 8, 8, 128, 128, 48], DType::BF16, false),
        ([3, 8, 8, 128, 128, 64], DType::F16, false),
        ([3, 8, 8, 100, 77, 16], DType::BF16, false),
        ([3, 8, 4, 37, 128, 80], DType::BF16, true),
        ([3, 4, 4, 128, 128, 128], DType::F16, false),
        ([3, 12, 4, 1024, 1024, 64], DType::BF16, true),
        ([3, 12, 4, 1000, 333, 128], DType::F16, false),
        ([3, 2, 2, 129, 7, 48], DType::BF16, true),
        ([3, 8, 8, 128, 128, 48], DType::F32, true),
        ([3, 4, 2, 33, 65, 20], DType::BF16, false),
        ([3, 4, 2, 33, 65, 20], DType::F64, true),
    ];
    let cards = [
        (8, 0, LIMITS[0]),
        (8, 6, LIMITS[1]),
        (8, 9, LIMITS[1]),
        (9, 0, LIMITS[2]),
        (10, 0, LIMITS[2]),
        (12, 0, LIMITS[1]),
    ];
    for (major, minor, limit) in cards {
        let compiler =
            Compiler::new(Architecture::new(major, minor), None).expect("the feature nvrtc is tested with NVRTC");
        let launches: Vec<AttentionLaunch> = shapes
            .iter()
            .flat_map(|&(extents, dtype, causal)| plans(extents, dtype, causal, limit).unwrap())
            .flat_map(|plan| plan.launches)
            .collect();
        let buffers = [buffer(DType::BF16), buffer(DType::F32)];
        let joined = [[3, 8, 8, 128, 128, 48], [3, 2, 2, 100, 77, 64], [3, 2, 2, 37, 37, 16]].map(|extents| {
            let kernel = normed(gradient(extents, extents[3] == 37));
            let plans = [forward(&kernel.forward, &buffers, card(limit)), backward(&kernel, &buffers, card(limit))];
            // Where a head is not one tile, the norm has a kernel of its own.
            plans.map(|plan| plan.map(|plan| plan.launches).unwrap_or_default())
        });
        let launches: Vec<AttentionLaunch> =
            launches.into_iter().chain(joined.into_iter().flatten().flatten()).collect();
        let sources: Vec<&Source> = launches.iter().map(|launch| &launch.source).collect();
        for (code, launch) in compiler.compile_all(&sources, &|| ()).unwrap().iter().zip(&launches) {
            let name = launch.entry.as_bytes();
            assert!(code.windows(name.len()).any(|window| window == name), "{} is not in its code", launch.entry);
        }
    }
}

/// What there is before compute capability 8.0: no bfloat16, no tensor cores of this size.
#[test]
fn what_older_cards_take_compiles_for_them() {
    let turing = Card { capability: (7, 5), multiprocessors: 40, shared: 64 << 10 };
    let compiler = Compiler::new(Architecture::new(7, 5), None).expect("the feature nvrtc is tested with NVRTC");
    for dtype in [DType::F16, DType::F32, DType::F64] {
        let kernel = gradient([3, 8, 4, 33, 65, 25], true);
        let buffers = [buffer(dtype), buffer(dtype.accumulator())];
        let plans = [forward(&kernel.forward, &buffers, turing), backward(&kernel, &buffers, turing)];
        let launches: Vec<AttentionLaunch> = plans.into_iter().flat_map(|plan| plan.unwrap().launches).collect();
        let sources: Vec<&Source> = launches.iter().map(|launch| &launch.source).collect();
        compiler.compile_all(&sources, &|| ()).unwrap_or_else(|error| panic!("{dtype}: {error}"));
    }
}
