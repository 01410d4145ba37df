//! Large arrays, written by all processors.

/// Elements that are worth a thread.
const PIECE: usize = 1 << 18;

/// Writes `value(0), value(1), ..`, made by all processors.
pub(crate) fn fill<T: Send>(out: &mut [T], value: impl Fn(u64) -> T + Sync) {
    fill_with(out, 1, value);
}

/// As [`fill`], where a value takes as much work as `work` elements.
pub(crate) fn fill_with<T: Send>(out: &mut [T], work: usize, value: impl Fn(u64) -> T + Sync) {
    in_pieces(out, work, |first, piece| {
        piece.iter_mut().enumerate().for_each(|(i, out)| *out = value((first + i) as u64));
    });
}

/// Copies `from` to `to`, of the same length, by all processors: most of the time goes into page faults.
pub(crate) fn copy<T: Copy + Send + Sync>(to: &mut [T], from: &[T]) {
    in_pieces(to, 1, |first, piece| piece.copy_from_slice(&from[first..first + piece.len()]));
}

/// Runs `write` with the first index of each piece of `out` and the piece, on all processors; returns what it returned,
/// in the order of the pieces. An element takes as much work as `work` elements that are only written.
pub(crate) fn in_pieces<T: Send, R: Send>(
    out: &mut [T],
    work: usize,
    write: impl Fn(usize, &mut [T]) -> R + Sync,
) -> Vec<R> {
    if out.len() * work <= PIECE {
        return vec![write(0, out)];
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = processors.min((out.len() * work).div_ceil(PIECE));
    let piece = out.len().div_ceil(threads);
    std::thread::scope(|scope| {
        let write = &write;
        let parts = out.chunks_mut(piece).enumerate();
        let running: Vec<_> = parts.map(|(number, part)| scope.spawn(move || write(number * piece, part))).collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}
