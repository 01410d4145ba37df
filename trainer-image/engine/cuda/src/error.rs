//! Errors of the CUDA libraries as [`ExecError`]s with the remedy.

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

/// The error for a missing library.
pub(super) fn missing(library: &str, package: &str) -> ExecError {
    ExecError::Unsupported {
        executor: NAME,
        what: format!("without {library}: put it on LD_LIBRARY_PATH ({package}), or use the CPU executor"),
    }
}
