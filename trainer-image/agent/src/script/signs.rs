//! Errors of Python programs by their names, at the beginning of a line of output.

use super::traceback::without_rank;
use pawl_contract::exit::Outcome;

/// Beginnings of lines, and what they mean for a process that ends with an error. The exceptions of libraries come with
/// their module.
const BEGINNINGS: [(&str, Outcome); 12] = [
    ("torch.OutOfMemoryError", Outcome::OutOfMemory),
    ("torch.cuda.OutOfMemoryError", Outcome::OutOfMemory),
    ("MemoryError", Outcome::HostOutOfMemory),
    ("FloatingPointError", Outcome::NonFinite),
    ("torch._dynamo.exc.", Outcome::CompileFailed),
    ("torch._inductor.exc.", Outcome::CompileFailed),
    ("triton.compiler.", Outcome::CompileFailed),
    ("ModuleNotFoundError", Outcome::Unsupported),
    ("ImportError", Outcome::Unsupported),
    ("torch.distributed.DistBackendError", Outcome::LostPeer),
    ("torch.distributed.DistNetworkError", Outcome::LostPeer),
    ("ConnectionResetError", Outcome::LostPeer),
];

/// Parts of lines that begin as an error does.
const PARTS: [(&str, Outcome); 13] = [
    ("CUDA out of memory", Outcome::OutOfMemory),
    ("HIP out of memory", Outcome::OutOfMemory),
    ("CUDNN_STATUS_ALLOC_FAILED", Outcome::OutOfMemory),
    ("CUBLAS_STATUS_ALLOC_FAILED", Outcome::OutOfMemory),
    ("DefaultCPUAllocator: can't allocate memory", Outcome::HostOutOfMemory),
    ("Cannot allocate memory", Outcome::HostOutOfMemory),
    ("Connection closed by peer", Outcome::LostPeer),
    ("Connection reset by peer", Outcome::LostPeer),
    ("NCCL communicator was aborted", Outcome::LostPeer),
    ("ncclRemoteError", Outcome::LostPeer),
    // argparse, and what is built on it.
    ("error: unrecognized arguments", Outcome::Unsupported),
    ("error: argument ", Outcome::Unsupported),
    // The parser of Transformers.
    ("arguments are not used by the HfArgumentParser", Outcome::Unsupported),
];

/// What `line` means if the process that wrote it fails.
pub(super) fn outcome(line: &str) -> Option<Outcome> {
    let line = without_rank(line);
    let begins = BEGINNINGS.iter().find(|(beginning, _)| line.starts_with(beginning));
    let contains = || {
        let (first, _) = line.split_once(": ")?;
        // An exception, or a program such as `train.py`.
        let named = !first.contains(char::is_whitespace) && (first.ends_with("Error") || first.contains('.'));
        PARTS.iter().find(|(part, _)| named && line.contains(part))
    };
    begins.or_else(contains).map(|(_, outcome)| *outcome)
}

/// Whether `line` says that memory ran out, in an exception or in the script's own words: a script that continues after
/// it has left out a batch, or has made it smaller.
pub(super) fn lacks_memory(line: &str) -> bool {
    if matches!(outcome(line), Some(Outcome::OutOfMemory | Outcome::HostOutOfMemory)) {
        return true;
    }
    // The words alone are in help texts, in options, and in messages of libraries that are no failure.
    let lower = line.to_ascii_lowercase();
    let words = || lower.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let goes_on = ["skip", "retry", "reduc", "halv", "caught"];
    (lower.contains("out of memory") || words().any(|word| word == "oom"))
        && words().any(|word| goes_on.iter().any(|stem| word.starts_with(stem)))
}

/// Whether `text` says that a file does not exist: as the C library of Linux does, or Python, or its data sets.
pub(super) fn lacks_file(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    ["no such file or directory", "filenotfounderror"].iter().any(|part| lower.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_says_that_memory_ran_out_in_its_own_words() {
        for line in [
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
            "| WARNING: ran out of memory, skipping batch",
            "WARNING: OOM in all workers, skipping update",
            "Out of memory: retrying with batch size 4",
            "[rank1]: caught OOM, halving the batch",
        ] {
            assert!(lacks_memory(line), "{line}");
        }
        for line in
            ["step 3: loss 0.5", "OOM-safe mode", "room for memory", "skipping batch 3", "memory 40 GiB of 80 GiB"]
        {
            assert!(!lacks_memory(line), "{line}");
        }
    }

    #[test]
    fn exceptions_are_recognized_and_other_text_is_not() {
        for (line, expected) in [
            ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", Some(Outcome::OutOfMemory)),
            ("[rank1]: torch.OutOfMemoryError: CUDA out of memory.", Some(Outcome::OutOfMemory)),
            ("RuntimeError: CUDA out of memory. Tried", Some(Outcome::OutOfMemory)),
            ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory", Some(Outcome::HostOutOfMemory)),
            ("MemoryError", Some(Outcome::HostOutOfMemory)),
            ("torch._dynamo.exc.BackendCompilerFailed: x", Some(Outcome::CompileFailed)),
            ("train.py: error: unrecognized arguments: --fast", Some(Outcome::Unsupported)),
            (
                "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--fast']",
                Some(Outcome::Unsupported),
            ),
            ("ModuleNotFoundError: No module named 'flash_attn'", Some(Outcome::Unsupported)),
            ("hint: if CUDA out of memory, lower the batch", None),
            ("we never had a CUDA out of memory here", None),
            ("step 3: loss 0.2", None),
        ] {
            assert_eq!(outcome(line), expected, "{line}");
        }
    }
}
