//! Google's certificate authorities, which Istio 1.19 and Higress know as CA providers.

mod cas;
mod meshca;
#[cfg(test)]
mod tests;

pub use cas::{ADDRESS, Cas, is_pool};
pub use meshca::MeshCa;
