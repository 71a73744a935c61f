//! How many queries may wait for the servers behind us: in all, for each holds a descriptor, and of one client, so that no client
//! takes all the room. Pure.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

/// The room there is, and who has it.
#[derive(Debug)]
pub struct Bounds {
    total: usize,
    per_client: usize,
    taken: Mutex<HashMap<SocketAddr, usize>>,
}

/// Room for one query, until it is dropped.
#[derive(Debug)]
pub struct Room {
    bounds: Arc<Bounds>,
    client: SocketAddr,
}

impl Bounds {
    /// Room for `total` queries, half of them of one client.
    pub fn new(total: usize) -> Arc<Bounds> {
        Arc::new(Bounds { total, per_client: total.div_ceil(2), taken: Mutex::default() })
    }

    /// Room for a query of `client`; `None` when it, or everybody together, has too many.
    pub fn admit(self: &Arc<Self>, client: SocketAddr) -> Option<Room> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let own = taken.get(&client).copied().unwrap_or(0);
        // Each room holds its Arc, and so does the owner.
        if own >= self.per_client || Arc::strong_count(self) > self.total {
            return None;
        }
        taken.insert(client, own + 1);
        Some(Room { bounds: self.clone(), client })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut taken = self.bounds.taken.lock().unwrap_or_else(PoisonError::into_inner);
        match taken.get_mut(&self.client) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(taken.remove(&self.client)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_never_takes_all_and_all_never_more_than_there_is() {
        let client = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let bounds = Bounds::new(6);
        let mut held: Vec<Room> = (0..3).map(|_| bounds.admit(client(1)).unwrap()).collect();
        assert!(bounds.admit(client(1)).is_none());
        held.extend((0..3).map(|port| bounds.admit(client(2 + port)).unwrap()));
        assert!(bounds.admit(client(9)).is_none(), "no room left");
        held.truncate(2);
        assert!(bounds.admit(client(1)).is_some());
        drop(held);
        assert!(bounds.taken.lock().unwrap().is_empty());
    }
}
