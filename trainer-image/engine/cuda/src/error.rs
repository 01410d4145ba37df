//! Errors of the CUDA libraries as [`ExecError`]s with the remedy.

use std::error::Error as _;

use cudarc::{cublaslt::result::CublasError, driver::DriverError, driver::sys::CUresult};

use pawl_graph::executor::ExecError;

/// Name of the executor in errors.
pub(super) const NAME: &str = "graph-cuda";

/// The remedy for an error of the driver.
fn remedy(error: CUresult) -> &'static str {
    use CUresult as E;
    match error {
        E::CUDA_ERROR_NO_DEVICE | E::CUDA_ERROR_INVALID_DEVICE => {
            "no such GPU is visible: check CUDA_VISIBLE_DEVICES, and that the pod asks for a GPU"
        }
        E::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH | E::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => {
            "the driver is too old for CUDA 13: install 580 or newer"
        }
        E::CUDA_ERROR_NO_BINARY_FOR_GPU => "a cached kernel is for another GPU: empty the kernel cache",
        E::CUDA_ERROR_ECC_UNCORRECTABLE | E::CUDA_ERROR_CONTAINED | E::CUDA_ERROR_NVLINK_UNCORRECTABLE => {
            "the GPU's hardware reports an error; its Xid is in the node's kernel log: drain the node"
        }
        E::CUDA_ERROR_ILLEGAL_ADDRESS
        | E::CUDA_ERROR_MISALIGNED_ADDRESS
        | E::CUDA_ERROR_LAUNCH_FAILED
        | E::CUDA_ERROR_ILLEGAL_INSTRUCTION => {
            "a kernel failed; its Xid is in the node's kernel log. If it comes again on another GPU, it is a defect of this program"
        }
        E::CUDA_ERROR_DEVICE_UNAVAILABLE => "the GPU is held by another process, or lost: see nvidia-smi",
        _ => "see the node's kernel log for an Xid",
    }
}

/// Results of the CUDA libraries as those of an executor: `call().check()?`.
pub trait Check<T> {
    /// The value.
    ///
    /// # Errors
    /// [`ExecError::Device`] with the library's error and the remedy.
    fn check(self) -> Result<T, ExecError>;
}

impl<T> Check<T> for Result<T, DriverError> {
    fn check(self) -> Result<T, ExecError> {
        self.map_err(|error| {
            let text = error.error_string().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
            ExecError::Device(format!("{:?}: {text}; {}", error.0, remedy(error.0)))
        })
    }
}

impl<T> Check<T> for Result<T, CublasError> {
    fn check(self) -> Result<T, ExecError> {
        self.map_err(|error| ExecError::Device(format!("cuBLASLt: {:?}", error.0)))
    }
}

/// The error for a library that is missing, or that the loader refuses.
pub(super) fn missing(library: &str, package: &str) -> ExecError {
    let what = match refusal(library) {
        Some(why) => format!("without {library}, which cannot be loaded ({why}): install what it needs"),
        None => format!("without {library}: put it on LD_LIBRARY_PATH ({package})"),
    };
    ExecError::Unsupported { executor: NAME, what: format!("{what}, or use the CPU executor") }
}

/// Why a library that exists cannot be loaded: it may need another one that does not.
fn refusal(library: &str) -> Option<String> {
    // A driver without its files for developers has the versioned name only.
    [library.to_owned(), format!("{library}.1")].into_iter().find_map(|name| {
        // SAFETY: a library of NVIDIA, whose initialization has no preconditions.
        let error = unsafe { libloading::Library::new(&name) }.err()?;
        // The loader's own words.
        let error = error.source()?.to_string();
        (!error.starts_with(&name)).then_some(error)
    })
}

// A static program loads no libraries.
#[cfg(test)]
#[cfg(not(target_feature = "crt-static"))]
mod tests {
    use super::*;
    use std::{path::Path, process::Command};

    fn link(folder: &Path, name: &str, more: &[&str]) {
        let empty = folder.join("empty.c");
        std::fs::write(&empty, "").unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-Wl,--no-as-needed", "-o"]).arg(folder.join(name)).arg(&empty).args(more);
        assert!(cc.status().unwrap().success());
    }

    #[test]
    fn a_library_that_lacks_another_one_is_not_said_to_be_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        link(folder.path(), "libneeded.so", &["-Wl,-soname,libneeded.so"]);
        link(folder.path(), "libdriver.so.1", &[&path("libneeded.so")]);
        std::fs::remove_file(path("libneeded.so")).unwrap();
        let told = missing(&path("libdriver.so"), "it comes with NVIDIA's driver").to_string();
        assert!(told.contains("cannot be loaded (libneeded.so: cannot open shared object file"), "{told}");
        let told = missing(&path("libother.so"), "it comes with NVIDIA's driver").to_string();
        assert!(told.contains("libother.so: put it on LD_LIBRARY_PATH (it comes with"), "{told}");
    }
}
