//! The cloud that the node runs in: what its metadata server tells goes into node metadata and locality.

use std::collections::BTreeMap;

/// What is known about the cloud; empty where there is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Platform {
    /// Metadata `PLATFORM_METADATA`.
    pub metadata: BTreeMap<String, String>,
    /// Region, zone, subzone.
    pub locality: [String; 3],
    /// Labels of a virtual machine.
    pub labels: BTreeMap<String, String>,
}
