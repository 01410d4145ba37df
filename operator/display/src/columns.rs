//! Cells in columns as wide as their widest one.

use console::{measure_text_width, truncate_str};

/// Lays out rows of equal length, the first of which is the head. Lines are truncated to `width` columns if given.
pub(crate) fn lay_out<const N: usize>(rows: &[[String; N]], width: Option<usize>) -> String {
    let widest = |column: usize| rows.iter().map(|row| measure_text_width(&row[column])).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(widest);
    let mut text = String::new();
    for row in rows {
        let padded = row.iter().zip(widths).map(|(cell, width)| {
            let missing = width.saturating_sub(measure_text_width(cell));
            format!("{cell}{}", " ".repeat(missing))
        });
        let line = padded.collect::<Vec<_>>().join("  ");
        let line = line.trim_end();
        match width {
            Some(width) => text.push_str(&truncate_str(line, width.max(1), "…")),
            None => text.push_str(line),
        }
        text.push('\n');
    }
    text
}
