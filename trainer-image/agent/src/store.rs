//! Key-value store of the ranks of a launch.

use parking_lot::Mutex;
use pawl_rendezvous::wire::{Answer, MAX_KEY, MAX_KEYS, MAX_VALUE};
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::Notify;

/// Maximum wait of one request.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Values of the running launch.
#[derive(Debug, Default)]
pub(crate) struct Store {
    values: Mutex<Values>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Values {
    launch: Option<String>,
    by_key: HashMap<String, String>,
}

impl Store {
    /// Removes all values; from now on the ranks of `launch` are accepted, or none.
    pub(crate) fn open(&self, launch: Option<&str>) {
        *self.values.lock() = Values { launch: launch.map(str::to_owned), by_key: HashMap::new() };
        self.changed.notify_waiters();
    }

    /// Whether `launch` is running.
    pub(crate) fn runs(&self, launch: &str) -> bool {
        self.values.lock().launch.as_deref() == Some(launch)
    }

    /// Stores a value.
    pub(crate) fn put(&self, launch: &str, key: String, value: String) -> Answer {
        let mut values = self.values.lock();
        if values.launch.as_deref() != Some(launch) {
            return over(launch);
        }
        if key.len() > MAX_KEY || value.len() > 2 * MAX_VALUE {
            return Answer::Refused(format!("a key has at most {MAX_KEY} bytes, a value {MAX_VALUE}"));
        }
        if values.by_key.len() >= MAX_KEYS {
            return Answer::Refused(format!("a launch has at most {MAX_KEYS} keys"));
        }
        if values.by_key.contains_key(&key) {
            return Answer::Refused(format!("`{key}` is stored already"));
        }
        values.by_key.insert(key, value);
        drop(values);
        self.changed.notify_waiters();
        Answer::Stored
    }

    /// Reads a value, waiting until it is stored.
    pub(crate) async fn get(&self, launch: &str, key: &str, wait: Duration) -> Answer {
        let deadline = tokio::time::Instant::now() + wait.min(MAX_WAIT);
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // From here on, no change is missed.
            changed.as_mut().enable();
            {
                let values = self.values.lock();
                if values.launch.as_deref() != Some(launch) {
                    return over(launch);
                }
                if let Some(value) = values.by_key.get(key) {
                    return Answer::Value(value.clone());
                }
            }
            if tokio::time::timeout_at(deadline, changed).await.is_err() {
                return Answer::Missing;
            }
        }
    }
}

fn over(launch: &str) -> Answer {
    Answer::Refused(format!("launch `{launch}` is not running"))
}
