//! Checks of segments.

use super::ExecError;

/// Checks that the offsets of segments of `rows` rows ascend and end at `rows` at most, for the operator `op`.
///
/// # Errors
/// [`ExecError::Offset`] for the first that does not.
pub fn check_offsets(op: &str, offsets: &[u32], rows: usize) -> Result<(), ExecError> {
    let mut low = 0;
    for &offset in offsets {
        if offset < low || offset as usize > rows {
            return Err(ExecError::Offset { op: op.to_owned(), offset, low, high: rows });
        }
        low = offset;
    }
    Ok(())
}
