//! The name table that istiod sends over NDS, as `xds` hands it to `dns`.

use prost::Message;

use crate::proto::istio::networking::nds::v1;

/// One decoded table: host to addresses.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NameTable {
    /// The message as istiod sent it.
    pub table: v1::NameTable,
}

/// Why bytes are no name table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameTableError(String);

impl NameTable {
    /// Reads `istio.networking.nds.v1.NameTable`.
    ///
    /// # Errors
    /// When the bytes are not that message.
    pub fn decode(bytes: &[u8]) -> Result<NameTable, NameTableError> {
        v1::NameTable::decode(bytes).map(|table| NameTable { table }).map_err(|error| NameTableError(error.to_string()))
    }
}

impl std::fmt::Display for NameTableError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "name table: {}", self.0)
    }
}

impl std::error::Error for NameTableError {}
