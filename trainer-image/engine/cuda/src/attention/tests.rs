use super::*;
use pawl_graph::graph::AttentionSpec;
use pawl_lower::Storage;
use proptest::prelude::*;

#[cfg(feature = "nvrtc")]
mod compiled;

/// Shared memory of a block on sm_80, sm_86, sm_90.
const LIMITS: [usize; 3] = [163 << 10, 99 << 10, 227 << 10];

fn card(shared: usize) -> Card {
    Card { shared, ..Card::H200 }
}

/// Batch, heads, groups, queries, keys, width.
type Extents = [usize; 6];

fn buffer(dtype: DType) -> Buffer {
    Buffer { dtype, elements: 1 << 30, storage: Storage::Arena, life: (0, 0) }
}

fn packed(at: usize, [b, h, t, d]: [usize; 4], row: usize, offset: usize) -> Access {
    Access { buffer: at, offset, dims: vec![b, h, t, d], strides: vec![t * row, d, row, 1] }
}

fn gradient([b, h, g, t, s, d]: Extents, causal: bool) -> AttentionGrad {
    let (row, kv) = (h * d, 2 * g * d);
    let q = packed(0, [b, h, t, d], row, 0);
    let forward = Attention {
        spec: AttentionSpec { scale: 0.2, causal },
        norm: None,
        k: packed(0, [b, g, s, d], kv, 0),
        v: packed(0, [b, g, s, d], kv, g * d),
        o: q.clone(),
        lse: Some(Access::contiguous(1, &[b, h, t, 1])),
        q: q.clone(),
    };
    let (dk, dv) = (forward.k.clone(), forward.v.clone());
    AttentionGrad { forward, grad: q.clone(), dq: q, dk, dv, sums: None }
}

/// With queries and keys normalised on their way in.
fn normed(mut kernel: AttentionGrad) -> AttentionGrad {
    let (q, k) = (kernel.forward.q.dims.clone(), kernel.forward.k.dims.clone());
    let vector = |dims: &[usize]| Access::contiguous(1, dims);
    let [of_q, of_k] = [[q[1], q[3]], [k[1], k[3]]].map(|dims| vector(&dims));
    let biases = [of_q, of_k.clone(), of_k];
    kernel.forward.norm = Some(Norm { epsilon: 1e-6, biases, gain: vector(&[q[3]]) });
    let [of_q, of_k] = [[q[0], q[1], q[3]], [k[0], k[1], k[3]]].map(|dims| vector(&dims));
    kernel.sums = Some([of_q, of_k.clone(), of_k.clone(), of_k]);
    kernel
}

fn plans(extents: Extents, dtype: DType, causal: bool, shared: usize) -> Result<[AttentionPlan; 2], ExecError> {
    let kernel = gradient(extents, causal);
    let buffers = [buffer(dtype), buffer(dtype.accumulator())];
    Ok([forward(&kernel.forward, &buffers, card(shared))?, backward(&kernel, &buffers, card(shared))?])
}

#[test]
fn each_shape_gets_its_family() {
    let of = |extents, dtype| plans(extents, dtype, true, LIMITS[2]).unwrap().map(|plan| plan.family);
    let cases = [
        ([3, 8, 8, 128, 128, 48], DType::BF16, Family::Tile),
        ([3, 8, 2, 17, 128, 64], DType::F16, Family::Tile),
        ([3, 8, 8, 129, 128, 64], DType::F16, Family::Flash),
        ([1, 12, 4, 1024, 1024, 128], DType::BF16, Family::Flash),
        ([3, 8, 8, 128, 128, 48], DType::F32, Family::Plain),
        ([3, 8, 8, 128, 128, 20], DType::BF16, Family::Plain),
        ([3, 8, 8, 128, 128, 160], DType::BF16, Family::Plain),
    ];
    for (extents, dtype, family) in cases {
        assert_eq!(of(extents, dtype), [family; 2], "{extents:?} {dtype}");
    }
}

#[test]
fn views_that_cannot_be_read_in_vectors_take_the_plain_kernel() {
    let buffers = [buffer(DType::BF16), buffer(DType::F32)];
    let whole = gradient([2, 4, 4, 64, 64, 32], false).forward;
    assert_eq!(forward(&whole, &buffers, card(LIMITS[0])).unwrap().family, Family::Tile);
    let mut shifted = whole.clone();
    shifted.k.offset = 4;
    let mut odd = whole.clone();
    odd.v.strides[2] = 33;
    let mut upside_down = whole.clone();
    upside_down.q.strides.swap(2, 3);
    let mut negative = whole;
    negative.spec.scale = -0.1;
    for kernel in [shifted, odd, upside_down, negative] {
        assert_eq!(forward(&kernel, &buffers, card(LIMITS[0])).unwrap().family, Family::Plain);
    }
}

/// The kernels of older GPUs have no tensor cores, and fit into what shared memory there is.
#[test]
fn cards_before_ampere_take_the_plain_kernel() {
    let turing = Card { capability: (7, 5), multiprocessors: 40, shared: 64 << 10 };
    let buffers = [buffer(DType::F16), buffer(DType::F32)];
    for extents in [[3, 8, 8, 128, 128, 48], [1, 12, 4, 1024, 1024, 96], [2, 8, 8, 1, 4, 25]] {
        let kernel = gradient(extents, false);
        let plans = [forward(&kernel.forward, &buffers, turing), backward(&kernel, &buffers, turing)];
        for plan in plans.map(Result::unwrap) {
            assert_eq!(plan.family, Family::Plain);
            assert!(plan.launches.iter().all(|launch| launch.shared as usize <= turing.shared), "{extents:?}");
        }
    }
    // The gradient of wider heads does not fit: the launch ends as Unsupported, with the remedy.
    let error = backward(&gradient([1, 1, 1, 64, 64, 128], false), &buffers, turing).unwrap_err().to_string();
    assert!(error.contains("of shared memory of 65536") && error.contains("settings.attention: Math"), "{error}");
}

#[test]
fn heads_too_wide_for_any_kernel_are_refused_with_the_remedy() {
    let error = plans([1, 1, 1, 8, 8, 2048], DType::F32, false, LIMITS[2]).unwrap_err();
    assert!(matches!(error, ExecError::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("settings.attention: Math"), "{error}");
}

#[test]
fn layers_of_one_shape_share_their_source() {
    let [one, two] = [0, 6 * 96].map(|offset| {
        let mut kernel = gradient([3, 2, 2, 40, 40, 48], false).forward;
        kernel.q.offset = offset;
        forward(&kernel, &[buffer(DType::BF16), buffer(DType::F32)], card(LIMITS[0])).unwrap()
    });
    assert_eq!(one.launches[0].source, two.launches[0].source);
    assert_ne!(one.launches[0].arguments, two.launches[0].arguments, "where a view starts is an argument");
}

proptest! {
    #[test]
    fn launches_cover_every_row_and_fit_the_gpu(
        (b, g, per, t, s) in (1usize..5, 1usize..4, 1usize..4, 1usize..700, 1usize..700),
        d in prop::sample::select(vec![8usize, 16, 20, 48, 64, 96, 128]),
        dtype in prop::sample::select(vec![DType::BF16, DType::F16, DType::F32]),
        causal: bool,
        limit in prop::sample::select(LIMITS.to_vec()),
    ) {
        let plans = plans([b, g * per, g, t, s, d], dtype, causal, limit).unwrap();
        for launch in plans.iter().flat_map(|plan| &plan.launches) {
            prop_assert!(launch.shared as usize <= limit, "{}: {}", launch.entry, launch.shared);
            prop_assert!(launch.threads <= 1024 && launch.threads % 32 == 0);
            let family = launch.entry.split('_').nth(1).unwrap();
            let own = match family { "tile" => 128, "flash" => launch.threads as usize / 2, _ => PLAIN };
            let (rows, blocks) = match launch.entry {
                "attention_tile_backward" => (s, b * g),
                "attention_flash_keys" | "attention_plain_keys" => (s, b * g),
                _ => (t, b * g * per),
            };
            prop_assert_eq!(launch.grid as usize, rows.div_ceil(own) * blocks);
            if family == "tile" {
                prop_assert!(launch.threads as usize >= 2 * rows, "two threads a row, a warp for each 16");
            }
        }
    }
}

#[test]
fn norms_are_joined_where_a_head_is_one_tile() {
    let buffers = [buffer(DType::BF16), buffer(DType::F32)];
    let of = |extents, shared| {
        let kernel = normed(gradient(extents, false));
        let plans = [forward(&kernel.forward, &buffers, card(shared))?, backward(&kernel, &buffers, card(shared))?];
        Ok::<_, ExecError>(plans.map(|plan| (plan.family, plan.launches[0].arguments.len())))
    };
    assert_eq!(of([3, 8, 8, 128, 128, 48], LIMITS[2]).unwrap(), [(Family::Tile, 9), (Family::Tile, 17)]);
    let error = of([3, 8, 8, 129, 129, 48], LIMITS[2]).unwrap_err().to_string();
    assert!(error.contains("settings.attention: Math"), "{error}");
    // Two blocks of the widest kernel that trains UPS share a multiprocessor of 228 KiB.
    let kernel = normed(gradient([3, 8, 8, 128, 128, 48], false));
    let shared = backward(&kernel, &buffers, card(LIMITS[2])).unwrap().launches[0].shared;
    assert!(2 * (shared + 1024) <= 228 << 10, "{shared}");
}
