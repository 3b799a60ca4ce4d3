//! The tables one by one: what operators and tests look at. Consumers and producers have better words for their work.

mod archive;
mod messages;
mod queues;
mod workers;

pub use archive::ArchiveTable;
pub use messages::MessageTable;
pub(crate) use messages::done;
pub use queues::QueueTable;
pub use workers::WorkerTable;
