//! What the agent was told: environment, flags, mesh file, PROXY_CONFIG, annotations, joined into one [`Vars`].
//!
//! Every value is asked for by its public name and remembers where it came from, so that `footman check` can print it.
//! Rooms of rank 3 and more make their own `Config` from it; nothing else of the agent reads the environment or these files.

mod duration;
mod env;
mod errors;

pub use duration::parse_go_duration;
pub use env::{Origin, Setting, Vars};
pub use errors::{ConfigError, Errors};
