//! What the operator holds in memory for jobs at rest: measured by an allocator that counts, with an API server that
//! makes up its jobs and keeps none of them.
//!
//! The test compares two fleets, so that what does not grow with the jobs is not counted. The table of 10,000 jobs,
//! with what is resident, is printed by `cargo test --release -p pawl-controller --test resting -- --ignored
//! --nocapture`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod counting;
mod fleet;
mod jobs;
mod server;
#[path = "../../../decision/tests/decision/world.rs"]
#[allow(dead_code, reason = "of the world, only jobs that run to their end are needed")]
mod world;

use counting::{KIB, MIB};
use fleet::Fleet;
use jobs::{Job, Kind};
use std::sync::Arc;

/// Most that a job at rest may cost.
const AT_REST: usize = 20 * KIB;
/// The chart's memory limit of the operator.
const LIMIT: usize = 256 * MIB;

/// A job of this kind, and whether the operator has written its status.
fn at_rest(kind: Kind) -> (Arc<Job>, bool) {
    let job = kind.job();
    match kind {
        Kind::Suspended | Kind::Incompressible => (job, false),
        // In another process the operator finds it as it left it.
        Kind::Finished | Kind::Searched => {
            let written = Fleet::measure(&job, 1).written;
            (Arc::new(job.with_status(written)), true)
        }
    }
}

#[test]
fn a_job_at_rest_costs_at_most_20_kib() {
    // What a process makes once, such as the schema.
    Fleet::measure(&Kind::Suspended.job(), 10);
    for kind in Kind::ALL {
        let (job, settled) = at_rest(kind);
        let [few, many] = [100, 300].map(|count| Fleet::measure(&job, count));
        let each = many.held.checked_sub(few.held).expect("more jobs take more memory") / 200;
        assert_eq!(many.written.is_empty(), settled, "{kind:?}: a job is written once and not again");
        let filling = many.filling / MIB;
        println!("{kind:?}: {} bytes of JSON, {each} bytes a job at rest, filled within {filling} MiB", job.size());
        assert!(each <= AT_REST, "{kind:?}: {each} bytes a job");
        assert!(many.filling < LIMIT / 2, "{kind:?}: {filling} MiB while the caches are filled");
    }
}

/// Some minutes, and the memory of a whole fleet.
#[test]
#[ignore = "a measurement: prints a table"]
fn fleets() {
    let wanted = std::env::var("PAWL_FLEET").ok();
    for kind in Kind::ALL.into_iter().filter(|kind| wanted.as_ref().is_none_or(|name| *name == format!("{kind:?}"))) {
        let (job, _) = at_rest(kind);
        for count in [1_000, 10_000] {
            let Fleet { held, filling, scrape, exposition, resident, took, .. } = Fleet::measure(&job, count);
            let [held, filling, scrape, exposition] =
                [held, filling, scrape, exposition].map(|size| size as f64 / MIB as f64);
            println!(
                "{kind:?} x {count}: held {held:.1} MiB, most while filling {filling:.1}, during a scrape {scrape:.1} \
                 (of {exposition:.1}), resident {:.1}, {:.1} s",
                resident as f64 / MIB as f64,
                took.as_secs_f64(),
            );
        }
    }
    assert!(counting::resident() < LIMIT);
}
