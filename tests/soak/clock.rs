//! A clock that jumps, for operators: libfaketime, which needs a dynamically linked program.

use pawl_e2e::operator::Program;
use std::path::{Path, PathBuf};

/// The clock of an operator.
pub struct Clock {
    offset: PathBuf,
    program: PathBuf,
    library: PathBuf,
}

impl Clock {
    /// A clock whose offset is in a file of this name.
    ///
    /// # Errors
    /// This machine lacks what is necessary.
    pub fn new(offset: PathBuf) -> Result<Self, String> {
        let library = library().ok_or("libfaketime not found (Debian: apt-get install faketime)")?;
        let program = std::env::var_os("PAWL_DYNAMIC").map(PathBuf::from).filter(|program| program.exists());
        let program = program.ok_or("no dynamically linked pawl (PAWL_DYNAMIC): libfaketime cannot be loaded")?;
        let clock = Self { offset, program, library };
        clock.set(0);
        Ok(clock)
    }

    /// Sets the clock to this many seconds after the real time.
    pub fn set(&self, seconds: i64) {
        // Replaced at once: it is read at every look at the clock.
        let part = self.offset.with_extension("part");
        std::fs::write(&part, format!("{seconds:+}\n")).unwrap();
        std::fs::rename(&part, &self.offset).unwrap();
    }

    /// The operator with this clock.
    pub fn program(&self) -> Program {
        let variables = [
            ("LD_PRELOAD", self.library.as_path()),
            ("FAKETIME_TIMESTAMP_FILE", &self.offset),
            ("FAKETIME_NO_CACHE", Path::new("1")),
            ("FAKETIME_DONT_FAKE_MONOTONIC", Path::new("1")),
        ];
        let environment = variables.map(|(name, value)| (name.to_owned(), value.display().to_string()));
        Program { path: self.program.clone(), environment: environment.to_vec() }
    }
}

/// The library for programs with threads.
fn library() -> Option<PathBuf> {
    let directories = std::fs::read_dir("/usr/lib").ok()?.filter_map(Result::ok).map(|entry| entry.path());
    directories.map(|directory| directory.join("faketime/libfaketimeMT.so.1")).find(|path| path.exists())
}
