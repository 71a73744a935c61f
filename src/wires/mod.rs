//! Plain types that travel between rooms over channels. No behaviour beyond what the type means.

pub mod ecds;
mod event;
mod health;
mod identity;
pub mod names;

pub use event::Event;
pub use health::{AppHealth, Told};
pub use identity::{Leaf, PrivateKey, Snapshot, Source, TrustBundle, Workload};
pub use names::{NameEntry, NameTable, NameTableError, NamesPublisher, NamesReceiver};
