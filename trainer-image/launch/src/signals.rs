//! Signals to a rank: stop on SIGTERM, exit when its agent dies.

use signal_hook::consts::{SIGTERM, SIGXFSZ};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Interval at which a rank checks whether its agent is alive.
const PARENT_PERIOD: Duration = Duration::from_millis(200);

/// Whether this process was requested to stop.
#[derive(Clone, Debug, Default)]
pub struct StopRequest(Arc<AtomicBool>);

impl StopRequest {
    /// From now on SIGTERM sets this flag instead of ending the process. A second SIGTERM ends a process that was
    /// started by hand at once, but not one that is `supervised`: its agent has SIGKILL for that, and more than one
    /// program may ask it to stop.
    ///
    /// # Errors
    /// When the handler cannot be installed.
    pub fn on_sigterm(supervised: bool) -> io::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        if !supervised {
            signal_hook::flag::register_conditional_shutdown(SIGTERM, 143, Arc::clone(&flag))?;
        }
        signal_hook::flag::register(SIGTERM, Arc::clone(&flag))?;
        Ok(Self(flag))
    }

    /// Whether a stop was requested.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Requests a stop.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Ends this process soon after its parent dies: an orphan would occupy the device, and its next checkpoint would
/// collide with those of the gang that replaces it. For the same reason, no checkpoint is written.
///
/// # Errors
/// When the watching thread cannot be started.
pub fn die_with_parent() -> io::Result<()> {
    let parent = std::os::unix::process::parent_id();
    let watch = move || {
        while std::os::unix::process::parent_id() == parent {
            std::thread::sleep(PARENT_PERIOD);
        }
        eprintln!("the agent that started this rank has died: exiting");
        std::process::exit(1);
    };
    std::thread::Builder::new().name("parent-watch".into()).spawn(watch).map(drop)
}

/// Catches SIGXFSZ, so that a write beyond the file size limit fails with an error that can be reported.
///
/// # Errors
/// When the handler cannot be installed.
pub fn survive_file_size_limit() -> io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).map(drop)
}
