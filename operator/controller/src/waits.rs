//! How long a watch that failed waits before it is tried again.

use kube::runtime::utils::Backoff;
use kube::runtime::watcher::DefaultBackoff;
use std::time::Duration;

/// The longest wait.
///
/// With the usual ones, up to a minute, the operator sees nothing for as long after an API server has come back: a pod
/// that ends and is evicted in that time is lost, for all it knows.
const LONGEST: Duration = Duration::from_secs(5);

/// client-go's waits between tries, but none longer than 5 s.
#[derive(Default)]
pub struct Waits(DefaultBackoff);

impl Iterator for Waits {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next().map(|wait| wait.min(LONGEST))
    }
}

impl Backoff for Waits {
    fn reset(&mut self) {
        self.0.reset();
    }
}
