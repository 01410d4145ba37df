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
