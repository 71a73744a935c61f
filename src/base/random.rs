//! Randomness for jitter, ids and ports, from the kernel through ring.

use ring::rand::{SecureRandom, SystemRandom};

/// 64 random bits; zero only if the kernel has no randomness at all.
pub fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    match SystemRandom::new().fill(&mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes),
        Err(_) => 0,
    }
}

/// A random number in `0..bound`; 0 for a bound of 0.
pub fn random_below(bound: u64) -> u64 {
    ((u128::from(random_u64()) * u128::from(bound)) >> 64) as u64
}

/// A random number in `[0, 1)`.
pub fn random_unit() -> f64 {
    (random_u64() >> 11) as f64 / (1u64 << 53) as f64
}
