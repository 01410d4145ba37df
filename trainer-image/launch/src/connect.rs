//! How a rank meets the other ranks of its gang.

use crate::collective::{Exchange, Gang, TcpMesh};
use crate::ending::Ending;
use crate::launch::Launch;
use pawl_contract::progress::RankPhase;
use pawl_rendezvous::Client;
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs, UdpSocket};
use std::time::Duration;

/// Connects this rank to its gang through the rendezvous. `meet` then connects its device to those of the other ranks,
/// with the same exchange of values and within the same time.
///
/// # Errors
/// [`Ending::LostPeer`] when not all ranks join within the plan's hang timeout; errors of `meet`.
pub fn gang(
    launch: &Launch,
    meet: impl FnOnce(&mut dyn Exchange, Duration) -> Result<(), Ending>,
) -> Result<Gang, Ending> {
    let Launch { plan, rank, world_size, .. } = launch;
    if *world_size == 1 {
        return Ok(Gang::alone());
    }
    let lost = |problem: String| Ending::LostPeer(format!("cannot connect to the other ranks: {problem}"));
    let mut client = Client::from_env(&plan.launch).map_err(|e| lost(e.to_string()))?;
    let deadline = Duration::try_from_secs_f64(plan.hang_timeout_seconds)
        .map_err(|e| Ending::InvalidPlan(format!("hangTimeoutSeconds: {}: {e}", plan.hang_timeout_seconds)))?;
    let mesh = TcpMesh::connect(*rank, *world_size, own_address(), &mut client, deadline)?;
    // A peer may save, read a checkpoint or generate data for as long as its agent lets it.
    let mesh =
        mesh.with_deadline(RankPhase::DataGeneration.longest().map_or(deadline, |longest| longest.max(deadline)));
    meet(&mut client, deadline)?;
    Ok(Gang::new(mesh))
}

/// The local address of the route to the rendezvous, which is the route to the other ranks. Sends no packet.
fn own_address() -> IpAddr {
    let found = || {
        let rendezvous = std::env::var(pawl_contract::env::RENDEZVOUS).ok()?.to_socket_addrs().ok()?.next()?;
        let any: IpAddr = if rendezvous.is_ipv6() { [0; 8].into() } else { [0; 4].into() };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(rendezvous).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    found().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

impl Exchange for Client {
    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), String> {
        Self::put(self, key, value).map_err(|e| e.to_string())
    }

    fn get(&mut self, key: &str, limit: Duration) -> Result<Vec<u8>, String> {
        Self::get(self, key, limit).map_err(|e| e.to_string())
    }
}
