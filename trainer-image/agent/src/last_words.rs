//! What a rank wrote last.

use pawl_contract::report::printable;

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
        let lines: Vec<String> = output
            .lines()
            .map(|line| printable(line).replace('\t', " ").trim().to_owned())
            .filter(|line| !line.is_empty())
            .collect();
        let error = lines.iter().rev().find(|line| names_an_exception(line)).or(lines.last());
        Self { text: lines[lines.len().saturating_sub(3)..].join(" | "), error: error.cloned().unwrap_or_default() }
    }
}

/// Exceptions of connections, by the last part of their names: of Python, requests, urllib3, httpx and the Hugging Face
/// Hub. Their cause is elsewhere, and a repetition of it is no evidence about the settings.
const OF_CONNECTIONS: [&str; 18] = [
    "BrokenPipeError",
    "ChunkedEncodingError",
    "ConnectError",
    "ConnectTimeout",
    "ConnectionAbortedError",
    "ConnectionError",
    "ConnectionRefusedError",
    "ConnectionResetError",
    "HTTPError",
    "HfHubHTTPError",
    "IncompleteRead",
    "LocalEntryNotFoundError",
    "MaxRetryError",
    "ReadTimeout",
    "RemoteDisconnected",
    "TimeoutError",
    "URLError",
    "gaierror",
];

/// Whether a failure begins with an exception of a connection.
pub(crate) fn is_of_a_connection(text: &str) -> bool {
    let name = text.split(':').next().unwrap_or_default().trim();
    OF_CONNECTIONS.contains(&name.rsplit('.').next().unwrap_or(name))
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
    fn a_lost_connection_is_no_property_of_the_settings() {
        assert!(is_of_a_connection("requests.exceptions.ConnectionError: HTTPSConnectionPool(host='hub')"));
        assert!(is_of_a_connection("TimeoutError"));
        assert!(!is_of_a_connection("RuntimeError: ConnectionError"));
        assert!(!is_of_a_connection("ValueError: batch size 3"));
    }

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
