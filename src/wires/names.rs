//! The name table that istiod sends over NDS, as `xds` hands it to `dns`: the bytes of the message, checked once and read in place.
//!
//! A table of 20,000 hosts is kept at the size it had on the wire plus four bytes a host.

use std::{fmt, net::IpAddr, str, sync::Arc};

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use tokio::sync::{mpsc, oneshot};

/// `istio.networking.nds.v1.NameTable`: hosts and their addresses.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct NameTable {
    bytes: Box<[u8]>,
    /// Where each entry's length stands in `bytes`.
    entries: Box<[u32]>,
}

/// A table that is read some entries at a time, so that others have their turn in between.
pub struct Reading<'a> {
    bytes: &'a [u8],
    rest: &'a [u8],
    entries: Vec<u32>,
}

/// One host of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NameEntry<'a> {
    /// The key of the map: a host name, perhaps with a wildcard as its first label, rarely with a final dot.
    pub host: &'a str,
    /// Where it comes from: `Kubernetes`, `External`, …
    pub registry: &'a str,
    /// Name of the Kubernetes service, empty otherwise.
    pub shortname: &'a str,
    /// Its namespace, empty otherwise.
    pub namespace: &'a str,
    info: &'a [u8],
}

/// Why bytes are no name table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameTableError(&'static str);

/// What istiod said about names, and the way to say that it is in force.
#[derive(Debug)]
pub struct NameUpdate {
    /// The new table; `None` when istiod has none for this proxy: the one in use stays, and if there is none yet, it is an empty one.
    pub table: Option<Arc<NameTable>>,
    /// Sent (or dropped) when lookups go by it.
    pub applied: oneshot::Sender<()>,
}

/// The end that `xds` holds.
#[derive(Debug, Clone)]
pub struct NamesPublisher(mpsc::Sender<NameUpdate>);

/// The end that `dns` holds.
#[derive(Debug)]
pub struct NamesReceiver(mpsc::Receiver<NameUpdate>);

/// A wire for name tables. One update is under way at a time: istiod hears of its success before it sends the next.
pub fn channel() -> (NamesPublisher, NamesReceiver) {
    let (sender, receiver) = mpsc::channel(1);
    (NamesPublisher(sender), NamesReceiver(receiver))
}

impl NamesPublisher {
    /// Hands over a table and returns when it is in force (or when `dns` has ended, and nobody asks it any more).
    pub async fn publish(&self, table: Option<NameTable>) {
        let (applied, done) = oneshot::channel();
        let update = NameUpdate { table: table.map(Arc::new), applied };
        if self.0.send(update).await.is_ok() {
            // An error means that the receiver ended with the update in its hands.
            let _ = done.await;
        }
    }
}

impl NamesReceiver {
    /// The next update; `None` when all publishers are gone. Cancel-safe.
    pub async fn next(&mut self) -> Option<NameUpdate> {
        self.0.recv().await
    }
}

impl NameTable {
    /// Reads `istio.networking.nds.v1.NameTable`; unknown fields are passed over.
    ///
    /// # Errors
    /// When the bytes are not that message.
    pub fn decode(bytes: &[u8]) -> Result<NameTable, NameTableError> {
        let mut reading = Reading::new(bytes);
        while reading.step(usize::MAX)? {}
        Ok(reading.finish())
    }

    /// How many entries it has.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it has no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// One entry, in the order of the message; an empty one beyond the end.
    pub fn entry(&self, index: usize) -> NameEntry<'_> {
        // Checked when the table was read.
        NameEntry::read(self.bytes_of(index)).unwrap_or_default()
    }

    /// The host of one entry; cheaper than all of the entry, for a lookup that only compares.
    pub fn host(&self, index: usize) -> &[u8] {
        self.halves(index).0
    }

    /// The addresses of one entry; what is none is left out.
    pub fn addresses(&self, index: usize) -> impl Iterator<Item = IpAddr> + '_ {
        let entry = NameEntry { info: self.halves(index).1, ..NameEntry::default() };
        entry.ips().filter_map(|ip| ip.parse().ok())
    }

    /// All entries, in the order of the message. Of entries with the same host the last one counts.
    pub fn iter(&self) -> impl Iterator<Item = NameEntry<'_>> {
        (0..self.len()).map(|index| self.entry(index))
    }

    fn bytes_of(&self, index: usize) -> &[u8] {
        let at = self.entries.get(index).map_or(self.bytes.len(), |at| *at as usize);
        piece(&mut &self.bytes[at..]).unwrap_or_default()
    }

    fn halves(&self, index: usize) -> (&[u8], &[u8]) {
        halves(self.bytes_of(index)).unwrap_or_default()
    }
}

impl<'a> Reading<'a> {
    /// Nothing is read yet.
    pub fn new(bytes: &'a [u8]) -> Reading<'a> {
        Reading { bytes, rest: bytes, entries: Vec::new() }
    }

    /// Reads up to `count` entries; whether there are more.
    ///
    /// # Errors
    /// When the bytes are no name table.
    pub fn step(&mut self, count: usize) -> Result<bool, NameTableError> {
        let mut read = 0;
        while read < count && !self.rest.is_empty() {
            let (tag, wire_type) = key(&mut self.rest)?;
            let at = u32::try_from(self.bytes.len() - self.rest.len());
            match (tag, wire_type) {
                (1, WireType::LengthDelimited) => {
                    NameEntry::read(piece(&mut self.rest)?)?.check()?;
                    self.entries.push(at.map_err(|_| NameTableError("longer than 4 GiB"))?);
                }
                (1, _) => return Err(NameTableError("table is not a message")),
                _ => skip(wire_type, tag, &mut self.rest)?,
            }
            read += 1;
        }
        Ok(!self.rest.is_empty())
    }

    /// What was read.
    pub fn finish(self) -> NameTable {
        NameTable { bytes: self.bytes.into(), entries: self.entries.into() }
    }
}

impl<'a> NameEntry<'a> {
    /// Its addresses as istiod wrote them.
    pub fn ips(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.texts(1)
    }

    /// Further full names of a Kubernetes service.
    pub fn alt_hosts(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.texts(5)
    }

    fn texts(&self, wanted: u32) -> impl Iterator<Item = &'a str> + use<'a> {
        Fields(self.info, 5)
            .map_while(Result::ok)
            .filter(move |(tag, _)| *tag == wanted)
            .filter_map(|(_, bytes)| str::from_utf8(bytes).ok())
    }

    fn read(entry: &'a [u8]) -> Result<NameEntry<'a>, NameTableError> {
        let (host, info) = halves(entry)?;
        let mut read = NameEntry { host: text(host)?, info, ..NameEntry::default() };
        for field in Fields(read.info, 5) {
            match field? {
                (2, registry) => read.registry = text(registry)?,
                (3, shortname) => read.shortname = text(shortname)?,
                (4, namespace) => read.namespace = text(namespace)?,
                _ => {}
            }
        }
        Ok(read)
    }

    /// Reads what [`NameEntry::read`] leaves for later.
    fn check(&self) -> Result<(), NameTableError> {
        for field in Fields(self.info, 5) {
            if let (1 | 5, bytes) = field? {
                text(bytes)?;
            }
        }
        Ok(())
    }
}

/// Key and value of an entry of the map.
fn halves(entry: &[u8]) -> Result<(&[u8], &[u8]), NameTableError> {
    let (mut host, mut info): (&[u8], &[u8]) = (&[], &[]);
    for field in Fields(entry, 2) {
        match field? {
            (1, bytes) => host = bytes,
            (2, bytes) => info = bytes,
            _ => {}
        }
    }
    Ok((host, info))
}

/// The length-delimited fields of a message, others passed over; those up to the given number must be such.
struct Fields<'a>(&'a [u8], u32);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, &'a [u8]), NameTableError>;

    fn next(&mut self) -> Option<Self::Item> {
        let field = self.read().transpose();
        if matches!(field, Some(Err(_))) {
            self.0 = &[];
        }
        field
    }
}

impl<'a> Fields<'a> {
    fn read(&mut self) -> Result<Option<(u32, &'a [u8])>, NameTableError> {
        while !self.0.is_empty() {
            let (tag, wire_type) = key(&mut self.0)?;
            match (tag, wire_type) {
                (_, WireType::LengthDelimited) => return Ok(Some((tag, piece(&mut self.0)?))),
                (tag, _) if tag <= self.1 => return Err(NameTableError("field of another type than expected")),
                _ => skip(wire_type, tag, &mut self.0)?,
            }
        }
        Ok(None)
    }
}

fn key(rest: &mut &[u8]) -> Result<(u32, WireType), NameTableError> {
    // What nearly all are: one byte, before a length.
    if let [byte @ 8..0x80, tail @ ..] = *rest
        && byte & 7 == WireType::LengthDelimited as u8
    {
        *rest = tail;
        return Ok((u32::from(byte >> 3), WireType::LengthDelimited));
    }
    decode_key(rest).map_err(|_| NameTableError("broken field"))
}

fn skip(wire_type: WireType, tag: u32, rest: &mut &[u8]) -> Result<(), NameTableError> {
    skip_field(wire_type, tag, rest, DecodeContext::default()).map_err(|_| NameTableError("broken field"))
}

fn piece<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], NameTableError> {
    let length = match *rest {
        [byte @ ..0x80, tail @ ..] => {
            *rest = tail;
            u64::from(*byte)
        }
        _ => decode_varint(rest).map_err(|_| NameTableError("broken length"))?,
    };
    let length = usize::try_from(length).ok().filter(|length| *length <= rest.len());
    let (piece, tail) = rest.split_at(length.ok_or(NameTableError("shorter than it says"))?);
    *rest = tail;
    Ok(piece)
}

fn text(bytes: &[u8]) -> Result<&str, NameTableError> {
    str::from_utf8(bytes).map_err(|_| NameTableError("text that is not UTF-8"))
}

impl fmt::Debug for NameTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NameTable({} hosts)", self.len())
    }
}

impl fmt::Display for NameTableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "name table: {}", self.0)
    }
}

impl std::error::Error for NameTableError {}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::proto::istio::networking::nds::v1;

    fn message() -> v1::NameTable {
        let info = v1::name_table::NameInfo {
            ips: vec!["10.0.0.1".into(), "not-an-address".into()],
            registry: "Kubernetes".into(),
            shortname: "web".into(),
            namespace: "ns1".into(),
            alt_hosts: vec!["web.ns1.svc.clusterset.local".into()],
        };
        let table = [("web.ns1.svc.cluster.local".to_owned(), info), ("empty.example".to_owned(), Default::default())];
        v1::NameTable { table: table.into() }
    }

    #[test]
    fn reads_what_prost_writes() {
        let message = message();
        let table = NameTable::decode(&message.encode_to_vec()).unwrap();
        assert_eq!(table.len(), 2);
        for entry in table.iter() {
            let info = &message.table[entry.host];
            assert_eq!(entry.ips().collect::<Vec<_>>(), info.ips);
            assert_eq!(entry.alt_hosts().collect::<Vec<_>>(), info.alt_hosts);
            assert_eq!(
                (entry.registry, entry.shortname, entry.namespace),
                (&*info.registry, &*info.shortname, &*info.namespace)
            );
        }
        assert_eq!(table.entry(7), NameEntry::default());
    }

    #[test]
    fn is_read_in_slices() {
        let bytes = message().encode_to_vec();
        let mut reading = Reading::new(&bytes);
        assert_eq!((reading.step(1), reading.step(1)), (Ok(true), Ok(false)));
        assert!(reading.finish() == NameTable::decode(&bytes).unwrap());
        assert!(Reading::new(b"\x0a\x7f").step(1).is_err());
    }

    #[test]
    fn refuses_what_prost_refuses() {
        let whole = message().encode_to_vec();
        for cut in 0..whole.len() {
            let bytes = &whole[..cut];
            assert_eq!(NameTable::decode(bytes).is_ok(), v1::NameTable::decode(bytes).is_ok(), "cut at {cut}");
        }
        for bytes in
            [&b"\x0a\x7fgarbage"[..], b"\x08\x01", b"\x0a\x04\x0a\x02\xff\xfe", b"\x0a\x02\x08\x01", b"\x12", b"\x0b"]
        {
            assert!(NameTable::decode(bytes).is_err(), "{bytes:?}");
            assert!(v1::NameTable::decode(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn unknown_fields_are_passed_over() {
        let mut bytes = message().encode_to_vec();
        bytes.extend_from_slice(b"\x7a\x03abc\x80\x01\x05");
        assert_eq!(NameTable::decode(&bytes).unwrap().len(), 2);
    }

    #[tokio::test]
    async fn publishing_waits_until_the_table_is_in_force() {
        let (publisher, mut receiver) = channel();
        let publish = tokio::spawn(async move { publisher.publish(Some(NameTable::default())).await });
        let update = receiver.next().await.unwrap();
        assert!(!publish.is_finished());
        update.applied.send(()).unwrap();
        publish.await.unwrap();
        assert!(receiver.next().await.is_none());
    }
}
