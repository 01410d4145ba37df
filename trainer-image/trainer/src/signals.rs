//! What the outside may ask of a rank: to stop (SIGTERM), and to go when its agent is gone.

use signal_hook::consts::{SIGTERM, SIGXFSZ};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a rank looks whether its agent is still there.
const PARENT_PERIOD: Duration = Duration::from_millis(200);

/// Whether this process was asked to stop.
#[derive(Clone, Debug, Default)]
pub struct StopRequest(Arc<AtomicBool>);

impl StopRequest {
    /// From now on SIGTERM sets this; it no longer ends the process. A second SIGTERM ends it at once.
    ///
    /// # Errors
    /// When the system refuses the handler.
    pub fn on_sigterm() -> io::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register_conditional_shutdown(SIGTERM, 143, Arc::clone(&flag))?;
        signal_hook::flag::register(SIGTERM, Arc::clone(&flag))?;
        Ok(Self(flag))
    }

    /// Whether to stop.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Asks to stop.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Ends this process soon after its parent is gone: an orphan would hold the device, and its next checkpoint would
/// collide with those of the gang that is started in its place. No checkpoint is written for the same reason.
///
/// # Errors
/// When the watching thread cannot be started.
pub fn die_with_parent() -> io::Result<()> {
    let parent = std::os::unix::process::parent_id();
    let watch = move || {
        while std::os::unix::process::parent_id() == parent {
            std::thread::sleep(PARENT_PERIOD);
        }
        eprintln!("the agent that started this rank is gone: ending");
        std::process::exit(1);
    };
    std::thread::Builder::new().name("parent-watch".into()).spawn(watch).map(drop)
}

/// A write over the limit on file sizes becomes an error that can be reported, instead of a signal that kills.
///
/// # Errors
/// When the system refuses the handler.
pub fn survive_file_size_limit() -> io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).map(drop)
}
