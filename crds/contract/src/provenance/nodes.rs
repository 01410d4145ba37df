//! The pods of a gang whose machines differ from that of the first one.

use super::{Cpu, Gpu, Provenance};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum number of kinds of pods.
pub const MAX_KINDS: usize = 8;
/// Maximum number of pods of a kind that are named.
pub const MAX_PODS: usize = 8;

/// Pods that have the same, which is not what the first pod has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OtherPods {
    /// Their indices in the gang; of many the first ones.
    #[serde(default)]
    pub pods: Vec<u32>,
    /// How many they are.
    #[serde(default)]
    pub count: u32,
    /// Those of GPU, CPU and driver in which they are known to differ.
    #[serde(default)]
    pub provenance: Provenance,
}

impl OtherPods {
    /// Those of `others`, by index, that differ from the `first` pod.
    pub fn differing(first: &Provenance, others: &BTreeMap<u32, Provenance>) -> Vec<Self> {
        let mut kinds: Vec<Self> = Vec::new();
        for (pod, other) in others {
            let provenance = differences(other, first);
            if provenance == Provenance::default() {
                continue;
            }
            let known = kinds.iter().position(|kind| kind.provenance == provenance);
            let known = known.unwrap_or_else(|| {
                kinds.push(Self { provenance, ..Self::default() });
                kinds.len() - 1
            });
            kinds[known].pods.push(*pod);
            kinds[known].count += 1;
        }
        kinds.into_iter().take(MAX_KINDS).map(Self::bounded).collect()
    }

    /// This within the limits.
    pub(super) fn bounded(mut self) -> Self {
        self.pods.truncate(MAX_PODS);
        let Provenance { gpu, cpu, driver, .. } = self.provenance;
        let provenance = Provenance { gpu, cpu, driver, ..Provenance::default() };
        Self { provenance: provenance.bounded(), ..self }
    }
}

/// What a pod has in place of what the first one has.
fn differences(pod: &Provenance, first: &Provenance) -> Provenance {
    let gpus = |own: &Gpu, first: &Gpu| {
        are_unlike(&own.name, &first.name) || are_unlike(&own.memory_bytes, &first.memory_bytes)
    };
    let cpus = |own: &Cpu, first: &Cpu| are_unlike(&own.name, &first.name) || are_unlike(&own.cores, &first.cores);
    Provenance {
        gpu: unlike(&pod.gpu, &first.gpu, gpus),
        cpu: unlike(&pod.cpu, &first.cpu, cpus),
        driver: unlike(&pod.driver, &first.driver, PartialEq::ne),
        ..Provenance::default()
    }
}

/// Whether both are known, and differ.
fn are_unlike<T: PartialEq>(own: &Option<T>, first: &Option<T>) -> bool {
    unlike(&own.as_ref(), &first.as_ref(), PartialEq::ne).is_some()
}

/// What a pod has, if that and what the first one has are known, and differ.
fn unlike<T: Clone>(own: &Option<T>, first: &Option<T>, differ: impl Fn(&T, &T) -> bool) -> Option<T> {
    let both = own.as_ref().zip(first.as_ref());
    both.filter(|(own, first)| differ(own, first)).map(|(own, _)| own.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(gpu: &str, memory_bytes: Option<u64>, driver: &str) -> Provenance {
        let gpu = Gpu { name: Some(gpu.to_owned()), memory_bytes, count: Some(8) };
        Provenance { gpu: Some(gpu), driver: Some(driver.to_owned()), ..Provenance::default() }
    }

    #[test]
    fn pods_that_differ_alike_are_one_kind_with_what_they_differ_in() {
        let first = machine("H200", Some(7), "580");
        let same = machine("H200", None, "580");
        let older = machine("H200", Some(7), "570");
        let others = [(1, same), (2, older.clone()), (3, machine("L4", Some(2), "580")), (4, older)].into();
        let found = OtherPods::differing(&first, &others);
        let driver = Provenance { driver: Some("570".to_owned()), ..Provenance::default() };
        assert_eq!(found[0], OtherPods { pods: vec![2, 4], count: 2, provenance: driver });
        let gpu = found[1].provenance.gpu.as_ref().and_then(|gpu| gpu.name.as_deref());
        assert_eq!((found.len(), &found[1].pods[..], gpu), (2, &[3][..], Some("L4")));
        assert_eq!(found[1].provenance.driver, None);
        // What is not known of the first pod differs from nothing.
        assert!(OtherPods::differing(&Provenance::default(), &others).is_empty());
    }

    #[test]
    fn thousands_of_pods_take_little_room() {
        let others = (1..5_000_u32).map(|pod| (pod, machine("H200", None, &format!("{}", pod % 100)))).collect();
        let found = OtherPods::differing(&machine("H200", None, "580"), &others);
        assert!(found.len() == MAX_KINDS && found.iter().all(|kind| kind.pods.len() == MAX_PODS && kind.count >= 49));
    }
}
