//! The targets, by parser.

pub mod agent;
pub mod archive;
pub mod checkpoint;
pub mod crd;
pub mod data;
pub mod exposition;
pub mod expression;
pub mod handshake;
pub mod hugging_face;
pub mod manifest;
pub mod mesh;
pub mod results;
pub mod state;

use std::cell::OnceCell;

/// Runs a future whose I/O is in memory.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    thread_local! {
        static RUNTIME: OnceCell<tokio::runtime::Runtime> = const { OnceCell::new() };
    }
    RUNTIME.with(|runtime| {
        let make =
            || tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime can be made");
        runtime.get_or_init(make).block_on(future)
    })
}
