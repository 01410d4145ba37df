//! Many jobs and random faults at a time, on a real Kubernetes: `tests/run soak`.
//!
//! Ten slots run one job each, again and again, while faults from a seed hit pods, nodes, operators, the API server,
//! the storage and the clocks. Every job must end as `pawl run` ends it without faults, and nothing of it may be left.
//! The last line is 'N passed, N failed'; every event is a line of JSON in `target/soak`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod answers;
mod clock;
mod disk;
mod jobs;
mod operators;
mod options;
mod processes;
mod record;
mod stage;
mod twins;
mod view;

use clap::Parser;
use options::Options;
use pawl_e2e::scene;
use record::Record;
use stage::Stage;
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    let options = Options::parse();
    let record = Arc::new(Record::create(&options));
    let ours = Arc::clone(&record);
    // The namespace is named after the thread.
    let soak = std::thread::Builder::new().name("soak".to_owned()).spawn(move || {
        scene(async |scene| {
            let stage = Stage::build(scene, options, ours).await;
            tokio::select! {
                () = stage.run() => {}
                () = interrupted() => stage.record.note("interrupted"),
            }
            stage.close().await;
        });
    });
    if soak.expect("a thread").join().is_err() {
        record.check("the soak itself", Err("it panicked, see above".to_owned()));
    }
    record.summary()
}

/// Returns at the first SIGINT or SIGTERM.
async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let mut signals = [SignalKind::interrupt(), SignalKind::terminate()].map(|kind| signal(kind).expect("a handler"));
    let [first, second] = &mut signals;
    tokio::select! {
        _ = first.recv() => {}
        _ = second.recv() => {}
    }
}
