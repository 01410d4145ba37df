//! Large arrays, written by all processors.

/// Elements made by one thread at a time; smaller states are not worth a thread.
const PIECE: usize = 1 << 18;

/// Writes `value(0), value(1), ..`, made by all processors.
pub(super) fn fill<T: Send>(out: &mut [T], value: impl Fn(u64) -> T + Sync) {
    fill_with(out, 1, value);
}

/// As [`fill`], where a value takes as much work as `work` elements.
pub(super) fn fill_with<T: Send>(out: &mut [T], work: usize, value: impl Fn(u64) -> T + Sync) {
    let write = |first: usize, piece: &mut [T]| {
        piece.iter_mut().enumerate().for_each(|(i, out)| *out = value((first + i) as u64));
    };
    if out.len() * work <= PIECE {
        return write(0, out);
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let piece = out.len().div_ceil(threads);
    std::thread::scope(|scope| {
        for (number, part) in out.chunks_mut(piece).enumerate() {
            let write = &write;
            scope.spawn(move || write(number * piece, part));
        }
    });
}
