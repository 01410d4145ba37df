//! Bounds on connections that have not authenticated.
//!
//! Whoever reaches a port can open connections and say nothing. A listener that handles a fixed number of them at a
//! time, and lets the others wait, is blocked by as many silent ones. [`Strangers`] therefore limits them by address,
//! and replaces the oldest: a neighbor that opens thousands of connections only replaces its own.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Limits of [`Strangers`].
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of connections.
    pub total: usize,
    /// Maximum number of connections from one address.
    pub per_address: usize,
    /// Age below which a connection is not replaced: the new one is refused instead.
    pub grace: Duration,
}

/// No connection is old enough to be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The connections of a listener that have not authenticated, oldest first.
///
/// ```
/// use pawl_rendezvous::strangers::{Limits, Strangers};
/// use std::time::{Duration, Instant};
///
/// let mut strangers = Strangers::new(Limits { total: 8, per_address: 2, grace: Duration::ZERO });
/// let (neighbor, operator) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
/// let now = Instant::now();
/// for connection in ["a", "b"] {
///     assert_eq!(strangers.make_room(neighbor, now), Ok(None));
///     strangers.enter(neighbor, now, connection);
/// }
/// assert_eq!(strangers.make_room(operator, now), Ok(None));
/// assert_eq!(strangers.make_room(neighbor, now), Ok(Some("a")));
/// ```
#[derive(Debug)]
pub struct Strangers<T> {
    limits: Limits,
    connections: Vec<Stranger<T>>,
}

#[derive(Debug)]
struct Stranger<T> {
    from: IpAddr,
    since: Instant,
    connection: T,
}

impl<T> Strangers<T> {
    /// No connection yet.
    pub fn new(limits: Limits) -> Self {
        Self { limits, connections: Vec::new() }
    }

    /// Makes room for a connection from `from`. Returns the connection that must be closed for it, if any.
    ///
    /// # Errors
    /// [`Full`] when the connection to be replaced is younger than [`Limits::grace`].
    pub fn make_room(&mut self, from: IpAddr, now: Instant) -> Result<Option<T>, Full> {
        let from = from.to_canonical();
        let of_address = self.connections.iter().filter(|stranger| stranger.from == from).count();
        let crowd = if of_address >= self.limits.per_address {
            from
        } else if self.connections.len() >= self.limits.total {
            self.busiest().ok_or(Full)?
        } else {
            return Ok(None);
        };
        let oldest = self.connections.iter().position(|stranger| stranger.from == crowd).ok_or(Full)?;
        if now.saturating_duration_since(self.connections[oldest].since) < self.limits.grace {
            return Err(Full);
        }
        Ok(Some(self.connections.remove(oldest).connection))
    }

    /// The address with the most connections.
    fn busiest(&self) -> Option<IpAddr> {
        let mut counts = HashMap::new();
        self.connections.iter().for_each(|stranger| *counts.entry(stranger.from).or_insert(0) += 1);
        counts.into_iter().max_by_key(|(address, count)| (*count, *address)).map(|(address, _)| address)
    }

    /// Adds a connection, after [`Self::make_room`].
    pub fn enter(&mut self, from: IpAddr, now: Instant, connection: T) {
        self.connections.push(Stranger { from: from.to_canonical(), since: now, connection });
    }

    /// Removes the connections for which `stays` is false: those that have ended or authenticated.
    pub fn retain(&mut self, mut stays: impl FnMut(&mut T) -> bool) {
        self.connections.retain_mut(|stranger| stays(&mut stranger.connection));
    }

    /// The connections, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.connections.iter().map(|stranger| &stranger.connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(1);

    fn address(last: u8) -> IpAddr {
        [127, 0, 0, last].into()
    }

    fn arrive(strangers: &mut Strangers<u32>, from: u8, now: Instant, name: u32) -> Result<Option<u32>, Full> {
        let room = strangers.make_room(address(from), now)?;
        strangers.enter(address(from), now, name);
        Ok(room)
    }

    #[test]
    fn an_address_replaces_its_own_connections_only() {
        let mut strangers = Strangers::new(Limits { total: 100, per_address: 3, grace: Duration::ZERO });
        let now = Instant::now();
        assert_eq!(arrive(&mut strangers, 9, now, 1000), Ok(None));
        let replaced: Vec<_> = (0..50).filter_map(|name| arrive(&mut strangers, 1, now, name).unwrap()).collect();
        assert_eq!(replaced, (0..47).collect::<Vec<_>>());
        assert_eq!(strangers.iter().copied().collect::<Vec<_>>(), [1000, 47, 48, 49]);
    }

    #[test]
    fn many_addresses_replace_the_connections_of_the_busiest() {
        let mut strangers = Strangers::new(Limits { total: 4, per_address: 3, grace: GRACE });
        let now = Instant::now();
        for (name, from) in [1, 2, 2, 3].into_iter().enumerate() {
            assert_eq!(arrive(&mut strangers, from, now, name as u32), Ok(None));
        }
        assert_eq!(arrive(&mut strangers, 4, now, 4), Err(Full), "all of them are young");
        assert_eq!(arrive(&mut strangers, 4, now + GRACE, 4), Ok(Some(1)));
    }

    #[test]
    fn those_that_ended_leave_room() {
        let mut strangers = Strangers::new(Limits { total: 2, per_address: 2, grace: GRACE });
        let now = Instant::now();
        for name in 0..2 {
            assert_eq!(arrive(&mut strangers, 1, now, name), Ok(None));
        }
        assert_eq!(arrive(&mut strangers, 1, now, 2), Err(Full));
        strangers.retain(|name| *name != 0);
        assert_eq!(arrive(&mut strangers, 1, now, 2), Ok(None));
        // An IPv4 address that is written as IPv6 is the same one.
        assert_eq!(strangers.make_room("::ffff:127.0.0.1".parse().unwrap(), now), Err(Full));
    }
}
