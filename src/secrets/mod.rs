//! The workload's identity: gets its certificate from istiod or from files, renews it, keeps the last good one.

mod answer;
mod authority;
mod bundle;
mod certificate;
mod csr;
mod file;
mod files;
mod key;
mod pem;
mod rotate;
mod worker;

#[cfg(test)]
mod testing;
