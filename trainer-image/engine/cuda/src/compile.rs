//! CUDA C to machine code with NVRTC: no GPU, toolkit or header is needed. Results are cached on disk.

use std::{
    ffi::CString,
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use cudarc::nvrtc::{result as nvrtc, sys};
use sha2::{Digest, Sha256};

use super::cache::Cache;
use super::error::missing;
use pawl_graph::executor::ExecError;

/// Architecture of machine code: `sm_90`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Architecture {
    major: i32,
    minor: i32,
}

impl Architecture {
    /// The architecture of a compute capability.
    pub fn new(major: i32, minor: i32) -> Self {
        Self { major, minor }
    }
}

impl std::fmt::Display for Architecture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "sm_{}{}", self.major, self.minor)
    }
}

/// A translation unit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Source {
    /// Name in messages.
    pub name: String,
    /// CUDA C++17. There are no headers.
    pub text: String,
    /// Options of NVRTC in addition to architecture and language: `--prec-div=false`.
    pub options: Vec<String>,
}

/// NVRTC for one architecture, with its cache.
#[derive(Debug)]
pub struct Compiler {
    architecture: Architecture,
    version: (i32, i32),
    cache: Option<Cache>,
}

impl Compiler {
    /// A compiler for an architecture. `cache` is the directory of compiled code, created when missing; `None`: no
    /// cache. In it, each user has a directory that no other user can enter.
    ///
    /// # Errors
    /// [`ExecError::Unsupported`] when there is no NVRTC, or it does not know the architecture.
    pub fn new(architecture: Architecture, cache: Option<&Path>) -> Result<Self, ExecError> {
        // SAFETY: only opens and closes the library.
        if !unsafe { sys::is_culib_present() } {
            return Err(missing("libnvrtc.so.13", "pip install nvidia-cuda-nvrtc==13.0.88"));
        }
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both are valid places.
        unsafe { sys::nvrtcVersion(&mut major, &mut minor) }
            .result()
            .map_err(|e| ExecError::Device(format!("NVRTC: {e:?}")))?;
        Ok(Self { architecture, version: (major, minor), cache: cache.and_then(Cache::open) })
    }

    /// The architecture that it compiles for.
    pub fn architecture(&self) -> Architecture {
        self.architecture
    }

    /// Version of NVRTC.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// The cache of what depends on this compiler and its device.
    pub(super) fn cache(&self) -> Option<&Cache> {
        self.cache.as_ref()
    }

    /// Cache key of `parts` for this architecture and this version of NVRTC: 32 hexadecimal digits.
    pub fn key(&self, parts: &[&str]) -> String {
        let mut hash = Sha256::new();
        hash.update(format!("{} {:?}", self.architecture, self.version));
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }

    /// Machine code (cubin) of a translation unit, from the cache or compiled.
    ///
    /// # Errors
    /// [`ExecError::Compile`] with the compiler's log when it does not compile; [`ExecError::Device`] when NVRTC itself
    /// fails.
    pub fn compile(&self, source: &Source) -> Result<Vec<u8>, ExecError> {
        let mut parts = vec![source.text.as_str()];
        parts.extend(source.options.iter().map(String::as_str));
        let name = format!("{}.cubin", self.key(&parts));
        if let Some(code) = self.cache.as_ref().and_then(|cache| cache.read(&name)) {
            return Ok(code);
        }
        let code = self.translate(source)?;
        if let Some(cache) = &self.cache {
            cache.keep(&name, &code);
        }
        Ok(code)
    }

    /// Machine code (cubin) of each source, compiled in parallel by all processors. `each` is called after each one.
    ///
    /// # Errors
    /// As [`Compiler::compile`].
    pub fn compile_all(&self, sources: &[&Source], each: &(dyn Fn() + Sync)) -> Result<Vec<Vec<u8>>, ExecError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(sources.len());
        let next = AtomicUsize::new(0);
        let done = Mutex::new(Vec::with_capacity(sources.len()));
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some(source) = sources.get(at) else { break };
                        let code = self.compile(source);
                        each();
                        done.lock().unwrap_or_else(PoisonError::into_inner).push((at, code));
                    }
                });
            }
        });
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_by_key(|&(at, _)| at);
        done.into_iter().map(|(_, code)| code).collect()
    }

    fn translate(&self, source: &Source) -> Result<Vec<u8>, ExecError> {
        let failed = |e: nvrtc::NvrtcError| ExecError::Device(format!("NVRTC, kernel {}: {e:?}", source.name));
        let nul = |e: std::ffi::NulError| ExecError::Device(format!("kernel {}: {e}", source.name));
        let text = CString::new(source.text.as_str()).map_err(nul)?;
        let name = CString::new(format!("{}.cu", source.name)).map_err(nul)?;
        let mut options = vec![format!("--gpu-architecture={}", self.architecture), "--std=c++17".into()];
        options.extend(source.options.iter().cloned());
        let program = nvrtc::create_program(&text, Some(&name)).map_err(failed)?;
        // SAFETY: the program is live until it is destroyed at the end; the buffer has the size that NVRTC reported.
        unsafe {
            let code = nvrtc::compile_program(program, &options).and_then(|()| {
                let mut size = 0;
                sys::nvrtcGetCUBINSize(program, &mut size).result()?;
                let mut code = vec![0u8; size];
                sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast()).result()?;
                Ok(code)
            });
            let log = nvrtc::get_program_log(program).unwrap_or_default();
            let _ = nvrtc::destroy_program(program);
            code.map_err(|e| {
                let log: Vec<u8> = log.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
                let log = format!("{e:?}\n{}", String::from_utf8_lossy(&log));
                ExecError::Compile { kernel: source.name.clone(), log }
            })
        }
    }
}
