//! The five bytes before each message: a decoder fed with pieces of any size, and the encoding. Pure.

use bytes::{Buf, Bytes, BytesMut};
use prost::Message;

use super::{Code, Status};

/// The largest message that the length prefix can announce and that gRPC libraries accept.
pub const MAX_MESSAGE: usize = i32::MAX as usize;

const PREFIX: usize = 5;

/// What a stream of messages consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// A message of so many bytes begins.
    Begin(usize),
    /// The next bytes of the message, never empty. The message ends with its last byte.
    Data(Bytes),
}

/// Splits bytes into messages without copying or holding them.
#[derive(Debug, Default)]
pub struct Decoder {
    head: [u8; PREFIX],
    filled: usize,
    /// Bytes that the message at hand still lacks.
    left: usize,
}

/// The prefix of an uncompressed message of that length.
pub fn prefix(length: usize) -> [u8; PREFIX] {
    let mut prefix = [0; PREFIX];
    // Longer messages are refused before they come here; gRPC cannot express them.
    prefix[1..].copy_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    prefix
}

/// A message with its prefix.
///
/// # Errors
/// None that is known: the buffer has the message's size.
pub fn framed(message: &impl Message) -> Result<Bytes, Status> {
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(PREFIX + length);
    framed.extend_from_slice(&prefix(length));
    message.encode(&mut framed).map_err(|error| Status::new(Code::Internal, error.to_string()))?;
    Ok(framed.freeze())
}

impl Decoder {
    /// Takes the next piece out of `input`; `None` when it is used up.
    ///
    /// # Errors
    /// `Internal` when a message is marked as compressed, which nobody offered; `ResourceExhausted` when it is too large for gRPC.
    pub fn next(&mut self, input: &mut Bytes) -> Result<Option<Piece>, Status> {
        if self.left > 0 && input.has_remaining() {
            let data = input.split_to(self.left.min(input.len()));
            self.left -= data.len();
            return Ok(Some(Piece::Data(data)));
        }
        while input.has_remaining() {
            self.head[self.filled] = input.get_u8();
            self.filled += 1;
            if self.filled == PREFIX {
                return self.begin().map(Some);
            }
        }
        Ok(None)
    }

    /// Bytes that the message at hand still lacks.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Whether no message is under way.
    pub fn is_between_messages(&self) -> bool {
        self.left == 0 && self.filled == 0
    }

    fn begin(&mut self) -> Result<Piece, Status> {
        self.filled = 0;
        let [flag, length @ ..] = self.head;
        if flag != 0 {
            // The same text as grpc-go's, for those who search for it.
            return Err(Status::new(Code::Internal, "grpc: compressed flag set with identity or empty encoding"));
        }
        let length = u32::from_be_bytes(length) as usize;
        if length > MAX_MESSAGE {
            let message = format!("grpc: received message larger than max ({length} vs. {MAX_MESSAGE})");
            return Err(Status::new(Code::ResourceExhausted, message));
        }
        self.left = length;
        Ok(Piece::Begin(length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(chunks: &[&[u8]]) -> Result<Vec<Vec<u8>>, Status> {
        let mut decoder = Decoder::default();
        let mut messages = Vec::new();
        for chunk in chunks {
            let mut input = Bytes::copy_from_slice(chunk);
            while let Some(piece) = decoder.next(&mut input)? {
                match piece {
                    Piece::Begin(_) => messages.push(Vec::new()),
                    Piece::Data(data) => messages.last_mut().unwrap().extend_from_slice(&data),
                }
            }
        }
        assert!(decoder.is_between_messages());
        Ok(messages)
    }

    #[test]
    fn every_way_to_cut_gives_the_same_messages() {
        let mut wire = Vec::new();
        for message in [&b"hello"[..], b"", b"x"] {
            wire.extend_from_slice(&prefix(message.len()));
            wire.extend_from_slice(message);
        }
        let whole = decode(&[&wire]).unwrap();
        assert_eq!(whole, [b"hello".to_vec(), Vec::new(), b"x".to_vec()]);
        for cut in 0..wire.len() {
            assert_eq!(decode(&[&wire[..cut], &wire[cut..]]).unwrap(), whole);
        }
        let bytes: Vec<&[u8]> = wire.chunks(1).collect();
        assert_eq!(decode(&bytes).unwrap(), whole);
    }

    #[test]
    fn compressed_and_far_too_long_messages_are_refused() {
        assert_eq!(decode(&[&[1, 0, 0, 0, 0]]).unwrap_err().code, Code::Internal);
        let mut decoder = Decoder::default();
        let mut begin = |length: [u8; 4]| decoder.next(&mut [&[0][..], &length].concat().into());
        assert_eq!(begin([0x80, 0, 0, 0]).unwrap_err().code, Code::ResourceExhausted);
        assert_eq!(begin([0x7f, 0xff, 0xff, 0xff]).unwrap(), Some(Piece::Begin(MAX_MESSAGE)));
    }

    #[test]
    fn knows_what_is_missing() {
        let mut decoder = Decoder::default();
        let mut input = Bytes::from_static(&[0, 0, 0, 0, 3, b'a']);
        assert_eq!(decoder.next(&mut input).unwrap(), Some(Piece::Begin(3)));
        assert_eq!(decoder.next(&mut input).unwrap(), Some(Piece::Data(Bytes::from_static(b"a"))));
        assert_eq!(decoder.next(&mut input).unwrap(), None);
        assert_eq!((decoder.left(), decoder.is_between_messages()), (2, false));
    }
}
