//! On which devices an attempt runs, and which trainer.

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
    format!("{} nodes {}/{devices}", nodes.len(), hash(&nodes))
}

/// The build of the trainer: the digest of its image, the same for all pods; a hash when their images differ, as those
/// of a moved tag do. Empty while the image of a pod is unknown.
pub fn trainer(facts: &AttemptFacts) -> String {
    let images: Vec<&str> = facts.own_pods().map(|pod| pod.image.as_str()).collect();
    let complete = facts.gang.as_ref().is_none_or(|gang| images.len() >= gang.replicas as usize);
    match images.split_first() {
        None => String::new(),
        Some(_) if !complete || images.contains(&"") => String::new(),
        Some((first, others)) if others.iter().all(|other| other == first) => (*first).to_owned(),
        Some(_) => format!("mixed {}", hash(&images)),
    }
}

/// The first 16 digits of a hash of `names`.
fn hash(names: &[&str]) -> String {
    let mut hash = String::new();
    for byte in &Sha256::digest(names.join(",").as_bytes())[..8] {
        let _ = write!(hash, "{byte:02x}");
    }
    hash
}
