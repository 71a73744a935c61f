//! Whole requests from a stream, cancel-safely: a wait that is given up for a push loses nothing.

use bytes::{Bytes, BytesMut};

use crate::grpc::{Code, Piece, Receiver, Status};

/// grpc-go's limit for what it receives. A request is small; the node that comes with the first one may not be.
const MAX_REQUEST: usize = 4 << 20;

pub(super) struct Inbox {
    receiver: Receiver,
    /// The length of the message under way.
    length: Option<usize>,
    gathered: BytesMut,
}

impl Inbox {
    pub(super) fn new(receiver: Receiver) -> Inbox {
        Inbox { receiver, length: None, gathered: BytesMut::new() }
    }

    /// The next request; `None` when the client has no more.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if self.length == Some(self.gathered.len()) {
                self.length = None;
                return Ok(Some(std::mem::take(&mut self.gathered).freeze()));
            }
            match self.receiver.piece().await? {
                Some(Piece::Begin(length)) if length > MAX_REQUEST => {
                    let message = format!("grpc: received message larger than max ({length} vs. {MAX_REQUEST})");
                    return Err(Status::new(Code::ResourceExhausted, message));
                }
                Some(Piece::Begin(length)) => self.length = Some(length),
                Some(Piece::Data(data)) if self.gathered.is_empty() && self.length == Some(data.len()) => {
                    self.length = None;
                    return Ok(Some(data));
                }
                Some(Piece::Data(data)) => self.gathered.extend_from_slice(&data),
                None => return Ok(None),
            }
        }
    }
}
