//! The workload's identity: gets its certificate from istiod or from files, renews it, keeps the last good one.

mod answer;
mod bundle;
mod certificate;
mod csr;
mod key;
mod pem;
mod rotate;

#[cfg(test)]
mod testing;
