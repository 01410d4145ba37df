//! The exception by which a Python program ended, among what its output has after it: reports of a launcher, of leaked
//! resources, and of exceptions that its exit ignored.

use pawl_contract::report::truncated;

/// Maximum length of what is quoted, in bytes.
const MAX_QUOTED: usize = 500;
/// Begins the exception of a launcher whose worker failed, which follows that of the worker.
const OF_LAUNCHERS: [&str; 2] =
    ["torch.distributed.elastic.multiprocessing.errors.ChildFailedError", "subprocess.CalledProcessError"];

/// Reads lines, and remembers the last exception.
#[derive(Debug, Default)]
pub(super) struct Tracebacks {
    /// Whether the line is one of a traceback.
    inside: bool,
    /// Whether the exception of the traceback that follows was ignored.
    ignored: bool,
    exception: Option<String>,
    /// How a worker ended, as its launcher reports it: `1 (pid: 7)`, `-9`.
    worker: Option<String>,
    /// Whether torchrun has reported a failed worker, before it ended or started the workers again.
    has_failed: bool,
}

impl Tracebacks {
    /// Adds a line. Returns whether it may name the error of the program: not if its exception was ignored.
    pub(super) fn read(&mut self, line: &str) -> bool {
        let line = without_rank(line);
        if line.starts_with("Exception ignored in") {
            self.ignored = true;
        } else if line.starts_with("Traceback (most recent call last)") {
            self.inside = true;
        } else if let Some(end) = end_of_worker(line) {
            self.worker = Some(end.to_owned());
        } else if let Some((end, _)) = failed_worker(line) {
            self.has_failed = true;
            self.worker = Some(end.to_owned());
        } else if self.inside && !line.is_empty() && !line.starts_with(char::is_whitespace) {
            self.inside = false;
            if std::mem::take(&mut self.ignored) {
                return false;
            }
            let of_launcher = OF_LAUNCHERS.iter().any(|launcher| line.starts_with(launcher));
            if !of_launcher || self.exception.is_none() {
                self.exception = Some(truncated(line.trim_end(), MAX_QUOTED).to_owned());
            }
        }
        true
    }

    /// Whether a worker of torchrun has failed. If that ends with 0, it has started the workers again.
    pub(super) const fn has_failed_worker(&self) -> bool {
        self.has_failed
    }

    /// The signal that ended the worker of a launcher.
    pub(super) fn signal(&self) -> Option<i32> {
        let code: i32 = self.worker.as_deref()?.split(' ').next()?.parse().ok()?;
        code.checked_neg().filter(|signal| *signal > 0)
    }

    /// The last exception, and how the worker of a launcher ended.
    pub(super) fn cause(&self) -> Option<String> {
        let worker = self.worker.as_ref().map(|end| format!("a worker ended with exit code {end}"));
        match (&self.exception, worker) {
            (Some(exception), Some(worker)) => Some(format!("{exception} ({worker})")),
            (exception, worker) => exception.clone().or(worker),
        }
    }
}

/// How a worker ended, by the report of torchrun (`  exitcode  : -9 (pid: 7)`) or of deepspeed (`... exits with return
/// code = -9`).
fn end_of_worker(line: &str) -> Option<&str> {
    let of_torchrun = line.trim_start().strip_prefix("exitcode ").map(|end| end.trim_start_matches([' ', ':']));
    let of_deepspeed = || line.split_once(" exits with return code = ").map(|(_, end)| end);
    of_torchrun.or_else(of_deepspeed).map(str::trim_end)
}

/// How a worker ended and where it ran, by the log of torchrun: `failed (exitcode: 1) local_rank: 0 (pid: 7) of
/// binary: python3`.
fn failed_worker(line: &str) -> Option<(&str, &str)> {
    line.split_once("failed (exitcode: ")?.1.split_once(") local_rank: ")
}

/// Launchers put the rank before each line: `[rank0]: ValueError`, `[default0]:ValueError`.
pub(super) fn without_rank(line: &str) -> &str {
    let begins = |tag: &str| tag.starts_with("[rank") || tag.starts_with("[default");
    match line.split_once("]:").filter(|(tag, _)| begins(tag)) {
        Some((_, rest)) => rest.strip_prefix(' ').unwrap_or(rest),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(output: &str) -> Option<String> {
        let mut tracebacks = Tracebacks::default();
        output.lines().for_each(|line| {
            tracebacks.read(line);
        });
        tracebacks.cause()
    }

    #[test]
    fn a_crash_is_told_by_its_last_exception_and_not_by_what_follows_it() {
        let crash =
            "Traceback (most recent call last):\n  File \"a.py\", line 3, in <module>\n    f()\nValueError: no\n";
        let leak = "/usr/lib/python3/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be \
                    6 leaked semaphore objects to clean up at shutdown\n  warnings.warn('resource_tracker: '\n";
        let ignored = "Exception ignored in: <function f at 0x7>\nTraceback (most recent call last):\n  File \"b.py\"\n\
                       ConnectionResetError: peer\n";
        assert_eq!(cause(&format!("step 1\n{crash}{leak}{ignored}")).as_deref(), Some("ValueError: no"));
        let chained =
            format!("{crash}\nDuring handling of the above exception, another exception occurred:\n\n{crash}");
        assert_eq!(cause(&chained.replacen("ValueError", "KeyError", 1)).as_deref(), Some("ValueError: no"));
        assert_eq!(cause("step 1\nKeyError: is a word\n"), None);
    }

    #[test]
    fn the_end_of_a_worker_is_told_and_not_that_of_its_launcher() {
        let launcher = "Traceback (most recent call last):\n  File \"/usr/bin/torchrun\", line 8, in <module>\n\
                        torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\nworker.py FAILED\n\
                        Root Cause (first observed failure):\n[0]:\n  exitcode  : 1 (pid: 7)\n  error_file: <N/A>\n";
        let crash = "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"a.py\"\n[rank1]: ValueError: no\n";
        let told = cause(&format!("{crash}{launcher}"));
        assert_eq!(told.as_deref(), Some("ValueError: no (a worker ended with exit code 1 (pid: 7))"));
        let killed = cause(&launcher.replace("1 (pid: 7)", "-9 (pid: 7)")).unwrap();
        assert!(killed.contains("ChildFailedError") && killed.contains("exit code -9 (pid: 7)"), "{killed}");
    }

    #[test]
    fn the_signal_of_a_worker_is_read_from_the_report_of_its_launcher() {
        for (line, expected) in [
            ("  exitcode  : -9 (pid: 7)", Some(9)),
            (
                "[2026-01-01 00:00:00,000] [ERROR] [launch.py:325:sigkill_handler] ['python3'] exits with return code = -11",
                Some(11),
            ),
            ("  exitcode  : 1 (pid: 7)", None),
            ("step 3: the exitcode is fine", None),
        ] {
            let mut tracebacks = Tracebacks::default();
            tracebacks.read(line);
            assert_eq!(tracebacks.signal(), expected, "{line}");
        }
    }
}
