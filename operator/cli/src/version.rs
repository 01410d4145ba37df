//! What this build of the program is.

use pawl_contract::provenance::Build;
use pawl_display::provenance::build;
use std::sync::LazyLock;

/// The optional features of this build.
pub fn features() -> Vec<&'static str> {
    let all = [
        ("azure", cfg!(feature = "azure")),
        ("cluster", cfg!(feature = "cluster")),
        ("cuda", cfg!(feature = "cuda")),
        ("gs", cfg!(feature = "gs")),
        ("parquet", cfg!(feature = "parquet")),
        ("s3", cfg!(feature = "s3")),
    ];
    all.into_iter().filter(|(_, enabled)| *enabled).map(|(name, _)| name).collect()
}

/// The version of this build and its optional features, for `--version`.
pub static VERSION: LazyLock<String> = LazyLock::new(|| {
    let features = features().into_iter().map(str::to_owned).collect();
    build(&Build { version: env!("CARGO_PKG_VERSION").to_owned(), features })
});

/// What `--version` prints; `verbose`: a line each for the commit, if the build knows it (`PAWL_COMMIT`, as releases
/// are), the target, and the features.
pub fn text(verbose: bool) -> String {
    if !verbose {
        return format!("pawl {}\n", *VERSION);
    }
    let version = env!("CARGO_PKG_VERSION");
    let commit = option_env!("PAWL_COMMIT").unwrap_or("unknown");
    let target = env!("PAWL_TARGET");
    let features = if features().is_empty() { "none".to_owned() } else { features().join(", ") };
    format!("pawl {version}\ncommit: {commit}\ntarget: {target}\nfeatures: {features}\n")
}
