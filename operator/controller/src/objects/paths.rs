//! Paths in the trainer's container.

/// Where the plan lies.
pub(super) const PLAN: &str = "/etc/pawl/plan";
/// Where the token lies.
pub(super) const TOKEN: &str = "/etc/pawl/token";
/// Where the agent of a foreign image lies.
pub(super) const BIN: &str = "/pawl/bin";
/// The volume of [`BIN`].
pub(super) const BIN_VOLUME: &str = "pawl-bin";
/// The agent's files of the attempt.
pub(super) const WORK: &str = "/pawl/work";
/// Data that the workload makes or reads.
pub(super) const DATA: &str = "/pawl/data";
/// Where a claim for checkpoints is mounted.
pub(super) const CHECKPOINTS: &str = "/pawl/checkpoints";
/// Data of each pod in the claim that the operator creates: generated data outlives the attempt there.
pub(super) const CLAIMED_DATA: &str = "/pawl/checkpoints/data";
/// Caches of libraries in the claim that the operator creates, shared by the pods of the job.
pub(super) const CLAIMED_CACHES: &str = "/pawl/checkpoints/cache";
/// Where a claim with the checkpoints of another job is mounted.
pub(super) const RESUME_FROM: &str = "/pawl/resume-from";
/// Temporary files.
pub(super) const TMP: &str = "/tmp";
/// Shared memory of the ranks and their loaders.
pub(super) const SHM: &str = "/dev/shm";
