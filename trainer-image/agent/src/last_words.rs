//! What a rank wrote last.

/// The end of a rank's output.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastWords {
    /// Its last lines, joined.
    pub(crate) text: String,
    /// The newest line that reads like an exception; without one the last line.
    pub(crate) error: String,
}

impl LastWords {
    /// Of all lines that are known.
    pub(crate) fn of(output: &str) -> Self {
        let printable = |c: char| if c.is_control() { ' ' } else { c };
        let lines: Vec<String> = output
            .lines()
            .map(|line| line.chars().map(printable).collect::<String>().trim().to_owned())
            .filter(|line| !line.is_empty())
            .collect();
        let error = lines.iter().rev().find(|line| names_an_exception(line)).or(lines.last());
        Self { text: lines[lines.len().saturating_sub(3)..].join(" | "), error: error.cloned().unwrap_or_default() }
    }
}

/// Whether a line is an exception as Python prints it: its name, a colon, its text.
fn names_an_exception(line: &str) -> bool {
    let (name, _) = line.split_once(':').unwrap_or((line, ""));
    let is_name = name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.'));
    is_name && (name.ends_with("Error") || name.ends_with("Exception"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_an_exception_is_found_among_the_last_lines() {
        let traceback =
            "step 3\nTraceback (most recent call last):\n  File \"a.py\", line 3\ntorch.cuda.CudaError: no kernel\n";
        assert_eq!(LastWords::of(traceback).error, "torch.cuda.CudaError: no kernel");
        let after = format!("{traceback}Exception ignored in: <function>\nwandb: synced 3 files\n");
        assert_eq!(LastWords::of(&after).error, "torch.cuda.CudaError: no kernel");
        assert_eq!(LastWords::of("loading\nno such option: --fuse\n").error, "no such option: --fuse");
        assert_eq!(LastWords::of("").error, "");
    }
}
