//! The clock by which reconciles decide, and by which facts are as old as they are.

use jiff::{SignedDuration, Timestamp};
use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// A larger difference is in the log.
const REPORTED: SignedDuration = SignedDuration::from_secs(10);

/// A clock: a test sets its own.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// That of the system.
    pub fn system() -> Self {
        Self::of(Timestamp::now)
    }

    /// That of the API server, as far as it is certain to differ from the system's.
    pub fn corrected(offset: Offset) -> Self {
        Self::of(move || {
            let own = Timestamp::now();
            own.checked_add(offset.get()).unwrap_or(own)
        })
    }

    /// Any other.
    pub fn of(read: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

impl Debug for Clock {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "Clock({})", self.now())
    }
}

/// The API server's clock minus this machine's. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Offset(Arc<AtomicI64>);

impl Offset {
    /// What is certain of it; zero while both clocks may be the same.
    pub fn get(&self) -> SignedDuration {
        SignedDuration::from_millis(self.0.load(Ordering::Relaxed))
    }

    pub(crate) fn set(&self, offset: SignedDuration) {
        let millis = i64::try_from(offset.as_millis()).unwrap_or_default();
        let before = SignedDuration::from_millis(self.0.swap(millis, Ordering::Relaxed));
        let is_large = |offset: SignedDuration| offset.abs() >= REPORTED;
        match (is_large(before), is_large(offset)) {
            (false, true) => tracing::warn!(
                seconds = offset.as_secs(),
                "the API server's clock is not this machine's: decisions are made by that of the API server"
            ),
            (true, false) => tracing::info!("the API server's clock is this machine's again"),
            (true, true) | (false, false) => {}
        }
    }
}
