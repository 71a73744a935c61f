//! What operators see of the agent: log lines and metrics. Any room may write to them; nothing here knows a room.

pub mod log;
pub mod metrics;
pub mod pages;
