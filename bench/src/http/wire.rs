//! What the client sends and reads: the messages of crates/server/proto that it needs, with the fields that it needs.

use bytes::Bytes;
use prost::Message;

/// The queue of both sides.
pub(crate) const QUEUE: &str = "bench";

#[derive(Clone, PartialEq, Message)]
pub(crate) struct QueueInfo {
    #[prost(string, tag = "1")]
    pub(crate) queue_name: String,
    #[prost(string, tag = "6")]
    pub(crate) lease_timeout: String,
    #[prost(string, tag = "7")]
    pub(crate) expire_timeout: String,
    #[prost(int32, tag = "9")]
    pub(crate) requested_partitions: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProduceRequest {
    #[prost(string, tag = "1")]
    pub(crate) queue_name: String,
    #[prost(string, tag = "2")]
    pub(crate) request_timeout: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) items: Vec<ProduceItem>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProduceItem {
    #[prost(bytes = "bytes", tag = "5")]
    pub(crate) bytes: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaseRequest {
    #[prost(string, tag = "1")]
    pub(crate) queue_name: String,
    #[prost(int32, tag = "2")]
    pub(crate) batch_size: i32,
    #[prost(string, tag = "3")]
    pub(crate) client_id: String,
    #[prost(string, tag = "4")]
    pub(crate) request_timeout: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaseResponse {
    #[prost(int32, tag = "2")]
    pub(crate) partition: i32,
    #[prost(message, repeated, tag = "3")]
    pub(crate) items: Vec<LeaseItem>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaseItem {
    #[prost(string, tag = "4")]
    pub(crate) id: String,
    #[prost(bytes = "bytes", tag = "7")]
    pub(crate) bytes: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CompleteRequest {
    #[prost(string, tag = "1")]
    pub(crate) queue_name: String,
    #[prost(int32, tag = "2")]
    pub(crate) partition: i32,
    #[prost(string, tag = "3")]
    pub(crate) request_timeout: String,
    #[prost(string, repeated, tag = "4")]
    pub(crate) ids: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Reply {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "3")]
    pub(crate) message: String,
}

/// Bytes that no database compresses: what is stored is as large as it looks.
pub(crate) fn payload(size: usize) -> Bytes {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..size).map(next).collect()
}

/// A whole request, ready to be written to a connection.
pub(crate) fn request(path: &str, message: &impl Message) -> Vec<u8> {
    let length = message.encoded_len();
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/protobuf\r\nContent-Length: {length}\r\n\r\n"
    )
    .into_bytes();
    request.extend(message.encode_to_vec());
    request
}
