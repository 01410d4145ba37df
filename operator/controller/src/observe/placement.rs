//! On which devices an attempt runs.

use crate::facts::AttemptFacts;
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// Longest placement, bytes: the status keeps no more of it.
const MAX: usize = 64;

/// The nodes of the pods in the order of their indices, and the GPUs of each; empty while a node is unknown. A long
/// list is identified by its hash.
pub fn placement(facts: &AttemptFacts, gpus: u32) -> String {
    let nodes: Vec<&str> = facts.own_pods().map(|pod| pod.node.as_str()).collect();
    if nodes.is_empty() || nodes.contains(&"") {
        return String::new();
    }
    let devices = if gpus == 0 { "cpu".to_owned() } else { format!("gpu:{gpus}") };
    let whole = format!("{}/{devices}", nodes.join(","));
    if whole.len() <= MAX {
        return whole;
    }
    let digest = Sha256::digest(nodes.join(",").as_bytes());
    let mut hash = String::new();
    for byte in &digest[..8] {
        let _ = write!(hash, "{byte:02x}");
    }
    format!("{} nodes {hash}/{devices}", nodes.len())
}
