//! What people and tools write into configuration.

use footman::config::parse_go_duration;

/// Durations as Go writes them.
pub fn go_duration(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = parse_go_duration(text);
    }
}
