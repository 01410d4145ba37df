//! The machines of the cluster, and what befalls them: the scripts of `tests/cluster`.

use crate::programs::{repository, succeed};
use std::process::Command;

fn script(name: &str, arguments: &[&str]) {
    succeed(Command::new(repository().join("tests/cluster").join(name)).args(arguments));
}

/// A node whose power can be cut; it is started again at the latest when this is dropped.
pub struct Node(u32);

impl Node {
    /// Starts node `number` with that many fake devices.
    pub fn start(number: u32, gpus: u32) -> Self {
        script("node", &["start", &number.to_string(), "--gpus", &gpus.to_string()]);
        Self(number)
    }

    /// The node called `name`, which runs.
    pub fn named(name: &str) -> Self {
        Self(name.strip_prefix("node-").and_then(|number| number.parse().ok()).expect("nodes are called node-N"))
    }

    /// Its kubelet and its containers die at once.
    pub fn cut(&self) {
        script("node", &["cut", &self.0.to_string()]);
    }

    /// Its next boot.
    pub fn boot(&self) {
        script("node", &["start", &self.0.to_string()]);
    }
}

/// A component of the control plane that is down for as long as this lives.
pub struct Outage(&'static str);

impl Outage {
    /// Kills a component.
    pub fn of(component: &'static str) -> Self {
        script("control-plane", &["stop", component]);
        Self(component)
    }

    /// Starts it again and waits until it is ready.
    pub fn end(self) {}
}

impl Drop for Outage {
    fn drop(&mut self) {
        script("control-plane", &["start", self.0]);
    }
}
