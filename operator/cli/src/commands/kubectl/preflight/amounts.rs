//! Amounts of resources: quantities as numbers, and what a pod requests in total.

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use pawl_api::quantity::Bytes;
use std::collections::BTreeMap;

/// A billionth is the smallest unit of a quantity.
pub const ONE: u128 = 1_000_000_000;
/// Billionths by resource.
pub type Amounts = BTreeMap<String, u128>;

/// Which amounts of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What the scheduler reserves.
    Requests,
    /// What it may use at most.
    Limits,
}

/// A quantity in billionths, rounded up; `None` when it is negative or not a quantity.
pub fn amount(quantity: &Quantity) -> Option<u128> {
    let text = quantity.0.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let powers = |base: u128, exponent: u32| base.checked_pow(exponent)?.checked_mul(ONE);
    let scale = match suffix {
        "n" => 1,
        "u" => 1_000,
        "m" => 1_000_000,
        "" => ONE,
        "k" => powers(1000, 1)?,
        "M" => powers(1000, 2)?,
        "G" => powers(1000, 3)?,
        "T" => powers(1000, 4)?,
        "P" => powers(1000, 5)?,
        "E" => powers(1000, 6)?,
        "Ki" => powers(1024, 1)?,
        "Mi" => powers(1024, 2)?,
        "Gi" => powers(1024, 3)?,
        "Ti" => powers(1024, 4)?,
        "Pi" => powers(1024, 5)?,
        "Ei" => powers(1024, 6)?,
        other => powers(10, other.strip_prefix(['e', 'E'])?.parse().ok()?)?,
    };
    let divisor = 10u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    Some(digits.checked_mul(scale)?.div_ceil(divisor))
}

/// An amount of a resource for people.
pub fn display(resource: &str, amount: u128) -> String {
    let whole = amount.div_ceil(ONE);
    if resource.contains("memory") || resource.contains("storage") && !resource.ends_with("persistentvolumeclaims") {
        return Bytes::display(u64::try_from(whole).unwrap_or(u64::MAX));
    }
    if amount.is_multiple_of(ONE) { whole.to_string() } else { format!("{}m", amount.div_ceil(ONE / 1000)) }
}

/// The amounts of a container. A request that is not set is the limit, as the API server fills it in.
pub fn of_container(container: &Container, kind: Kind) -> Amounts {
    let none = ResourceRequirements::default();
    let resources = container.resources.as_ref().unwrap_or(&none);
    let read = |quantities: &Option<BTreeMap<String, Quantity>>| -> Amounts {
        let all = quantities.iter().flatten();
        all.filter_map(|(name, quantity)| Some((name.clone(), amount(quantity)?))).collect()
    };
    let limits = read(&resources.limits);
    match kind {
        Kind::Limits => limits,
        Kind::Requests => {
            let mut all = limits;
            all.extend(read(&resources.requests));
            all
        }
    }
}

/// The amounts of a pod, as scheduler and quotas count them: its containers run together, its init containers before
/// them one after the other, unless they are sidecars; and what its runtime class adds.
pub fn of_pod(pod: &PodSpec, kind: Kind) -> Amounts {
    let mut sidecars = Amounts::new();
    let mut most = Amounts::new();
    for container in pod.init_containers.iter().flatten() {
        let own = of_container(container, kind);
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut sidecars, &own);
            raise(&mut most, &sidecars);
        } else {
            let mut together = sidecars.clone();
            add(&mut together, &own);
            raise(&mut most, &together);
        }
    }
    let mut running = sidecars;
    for container in &pod.containers {
        add(&mut running, &of_container(container, kind));
    }
    raise(&mut most, &running);
    let overhead = pod.overhead.iter().flatten();
    let overhead: Amounts = overhead.filter_map(|(name, quantity)| Some((name.clone(), amount(quantity)?))).collect();
    match kind {
        Kind::Requests => add(&mut most, &overhead),
        // A limit that is not set stays unlimited.
        Kind::Limits => overhead.iter().for_each(|(name, more)| {
            most.entry(name.clone()).and_modify(|amount| *amount += more);
        }),
    }
    most
}

fn add(to: &mut Amounts, amounts: &Amounts) {
    for (name, amount) in amounts {
        let sum = to.entry(name.clone()).or_default();
        *sum = sum.saturating_add(*amount);
    }
}

fn raise(to: &mut Amounts, amounts: &Amounts) {
    for (name, amount) in amounts {
        let most = to.entry(name.clone()).or_default();
        *most = (*most).max(*amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn quantities_are_read_as_kubernetes_does() {
        let read = |text: &str| amount(&Quantity(text.to_owned()));
        assert_eq!(read("4"), Some(4 * ONE));
        assert_eq!(read("1500m"), read("1.5"));
        assert_eq!(read("1Gi"), Some((1 << 30) * ONE));
        assert_eq!((read("1E"), read("1e18")), (read("1000P"), read("1E")));
        assert_eq!(read("0.0000000001"), Some(1), "rounded up");
        for text in ["", "-1", "Gi", "1GiB", "1.2.3", "99999999999999999999999999999999Ei"] {
            assert_eq!(read(text), None, "{text}");
        }
        assert_eq!(display("requests.cpu", read("1500m").unwrap()), "1500m");
        assert_eq!(display("limits.memory", read("64Gi").unwrap()), "64.00Gi");
        assert_eq!(display("pods", read("3").unwrap()), "3");
    }

    #[test]
    fn a_pod_requests_what_runs_at_the_same_time() {
        let container = |cpu: &str| json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
        let mut pod = json!({"containers": [container("2"), container("1")], "initContainers": [container("4")]});
        let cpu = |pod: &serde_json::Value| {
            let pod: PodSpec = serde_json::from_value(pod.clone()).unwrap();
            display("cpu", of_pod(&pod, Kind::Requests)["cpu"])
        };
        assert_eq!(cpu(&pod), "4", "its init container is the largest");
        let mut sidecar = container("500m");
        sidecar["restartPolicy"] = json!("Always");
        pod["initContainers"] = json!([sidecar, container("1")]);
        assert_eq!(cpu(&pod), "3500m", "a sidecar runs beside the containers");
        pod["overhead"] = json!({"cpu": "500m"});
        assert_eq!(cpu(&pod), "4");
        let limited = json!({"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "4"}}}]});
        let limited: PodSpec = serde_json::from_value(limited).unwrap();
        assert_eq!(of_pod(&limited, Kind::Requests)["nvidia.com/gpu"], 4 * ONE, "a limit is its request");
    }
}
