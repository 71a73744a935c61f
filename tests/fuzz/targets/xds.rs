//! The relay: the peeker at messages that only pass through, and gRPC's framing.

use bytes::{Bytes, BytesMut};
use footman::{
    grpc::{Decoder, Piece, prefix},
    proto::envoy::service::discovery::v3::{
        DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
    },
    xds::{
        Kind,
        peek::{Peek, Text},
    },
};
use prost::Message;

/// The first byte chooses how the rest is cut. What protobuf can read, the peeker reads as well, and the same.
pub fn xds_response(data: &[u8]) {
    let Some((cut, message)) = data.split_first() else { return };
    let seen = walk(Peek::response(Kind::Sotw, message.len()), message, *cut);
    if let Ok(response) = DiscoveryResponse::decode(message) {
        compare(&seen, &[(Text::Version, &response.version_info), (Text::Nonce, &response.nonce)]);
    }
    let seen = walk(Peek::response(Kind::Delta, message.len()), message, *cut);
    if let Ok(response) = DeltaDiscoveryResponse::decode(message) {
        compare(&seen, &[(Text::Version, &response.system_version_info), (Text::TypeUrl, &response.type_url)]);
    }
}

/// As [`xds_response`], for requests.
pub fn xds_request(data: &[u8]) {
    let Some((cut, message)) = data.split_first() else { return };
    let seen = walk(Peek::request(Kind::Sotw, message.len()), message, *cut);
    if let Ok(request) = DiscoveryRequest::decode(message) {
        compare(&seen, &[(Text::TypeUrl, &request.type_url), (Text::Nonce, &request.response_nonce)]);
    }
    let seen = walk(Peek::request(Kind::Delta, message.len()), message, *cut);
    if let Ok(request) = DeltaDiscoveryRequest::decode(message) {
        compare(&seen, &[(Text::TypeUrl, &request.type_url), (Text::Nonce, &request.response_nonce)]);
    }
}

/// Framing that is read and written again is the same bytes.
pub fn grpc_frames(data: &[u8]) {
    let Some((cut, stream)) = data.split_first() else { return };
    let mut decoder = Decoder::default();
    let mut again = BytesMut::new();
    for chunk in stream.chunks(usize::from(*cut) + 1) {
        let mut input = Bytes::copy_from_slice(chunk);
        loop {
            match decoder.next(&mut input) {
                Ok(Some(Piece::Begin(length))) => again.extend_from_slice(&prefix(length)),
                Ok(Some(Piece::Data(data))) => again.extend_from_slice(&data),
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
    // What is not there yet is an incomplete prefix.
    assert!(stream.starts_with(&again) && stream.len() - again.len() < 5);
}

fn walk(mut peek: Peek, message: &[u8], cut: u8) -> Peek {
    message.chunks(usize::from(cut) + 1).for_each(|chunk| peek.feed(chunk));
    peek
}

fn compare(seen: &Peek, texts: &[(Text, &String)]) {
    // Groups are legal protobuf that nobody sends; the peeker calls them broken.
    if seen.is_broken() {
        return;
    }
    for (text, wanted) in texts {
        // Longer ones are cut.
        if wanted.len() <= 1024 {
            assert_eq!(seen.text(*text).unwrap_or_default(), wanted.as_str());
        }
    }
}
