//! Starts processes that die with this one.

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{getpid, getppid};
use std::fs::File;
use std::io;
use std::sync::mpsc;
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Has the kernel kill this process when its parent ends. Only Linux can: elsewhere, a rank may outlive a killed
/// agent, and the next run names it.
fn die_with_parent() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    Ok(())
}

struct Request {
    command: Command,
    reply: oneshot::Sender<io::Result<Child>>,
}

/// The parent of the ranks: a dedicated thread, because the kernel sends the parent-death signal when the *thread* that
/// started a process ends, and threads of an async runtime are not permanent. Dropping the nursery ends all ranks.
#[derive(Debug)]
pub(crate) struct Nursery(mpsc::Sender<Request>);

impl Nursery {
    /// Starts the thread. Must be called within the runtime.
    pub(crate) fn start() -> io::Result<Self> {
        let (sender, requests) = mpsc::channel::<Request>();
        let runtime = Handle::current();
        std::thread::Builder::new().name("pawl-nursery".into()).spawn(move || {
            let _context = runtime.enter();
            for Request { mut command, reply } in requests {
                // The receiver is gone: the child is dropped, and killed by `kill_on_drop`.
                let _ = reply.send(command.spawn());
            }
        })?;
        Ok(Self(sender))
    }

    /// Starts `command` as the leader of a process group. It and every process that it starts hold `lock` open while
    /// alive.
    pub(crate) async fn spawn(&self, mut command: Command, lock: File) -> io::Result<Child> {
        let parent = getpid();
        command.process_group(0).kill_on_drop(true);
        let prepare = move || {
            die_with_parent()?;
            // The parent may have died before the line above; the process then has a new one.
            if getppid() != Some(parent) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            fcntl_setfd(&lock, FdFlags::empty())?;
            Ok(())
        };
        // SAFETY: between fork and exec `prepare` makes three system calls and neither allocates nor takes a lock.
        unsafe { command.pre_exec(prepare) };
        let (reply, child) = oneshot::channel();
        let gone = || io::Error::other("the thread that starts ranks has ended");
        self.0.send(Request { command, reply }).map_err(|_| gone())?;
        child.await.map_err(|_| gone())?
    }
}
