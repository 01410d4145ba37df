//! The environment that `torchrun` gives a rank: without it, Lightning on several nodes takes wrong ranks.

use pawl_contract::plan::AttemptPlan;

/// The variables of a rank. `rendezvous`: `host:port` of agent 0.
pub(crate) fn environment(
    plan: &AttemptPlan,
    replica: u32,
    rendezvous: &str,
    master_port: u16,
    local: u32,
    rank: u32,
) -> Vec<(&'static str, String)> {
    let host = rendezvous.rsplit_once(':').map_or(rendezvous, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let (node, world_size) = (replica.to_string(), plan.world_size().to_string());
    vec![
        ("MASTER_ADDR", host.to_owned()),
        ("MASTER_PORT", master_port.to_string()),
        ("RANK", rank.to_string()),
        ("LOCAL_RANK", local.to_string()),
        ("ROLE_RANK", rank.to_string()),
        ("WORLD_SIZE", world_size.clone()),
        ("LOCAL_WORLD_SIZE", plan.ranks_per_replica.to_string()),
        ("ROLE_WORLD_SIZE", world_size),
        ("GROUP_RANK", node.clone()),
        ("NODE_RANK", node),
        ("GROUP_WORLD_SIZE", plan.replicas.to_string()),
        ("TORCHELASTIC_RUN_ID", plan.attempt.clone()),
        ("TORCHELASTIC_RESTART_COUNT", "0".to_owned()),
        ("TORCHELASTIC_MAX_RESTARTS", "0".to_owned()),
        // Rank 0 itself serves the store at MASTER_PORT.
        ("TORCHELASTIC_USE_AGENT_STORE", "False".to_owned()),
    ]
}

/// The names of these variables.
pub(crate) fn names(plan: &AttemptPlan) -> Vec<&'static str> {
    environment(plan, 0, "", 0, 0, 0).into_iter().map(|(name, _)| name).collect()
}
