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

    #[tokio::test]
    async fn keeps_the_newest_bytes_and_the_last_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rank-0.log");
        let (reader, mut writer) = io::pipe().unwrap();
        let log = Log::start(reader, path.clone(), 100_000, None, None).unwrap();
        for number in 0..100_000 {
            writeln!(writer, "line {number}").unwrap();
        }
        write!(writer, "error: \x1b[1mdied\n\n").unwrap();
        drop(writer);
        assert_eq!(log.last_words().await.text, "line 99998 | line 99999 | error:  [1mdied");
        let newest = std::fs::read_to_string(&path).unwrap();
        let older = std::fs::read_to_string(dir.path().join("rank-0.log.1")).unwrap();
        assert!(newest.len() <= 100_000 && older.len() <= 100_000 && older.len() > 80_000);
        assert!((older + &newest).contains("line 99000\n") && newest.ends_with("died\n\n"));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
