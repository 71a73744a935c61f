//! The integration tests: one binary, a file per room.
