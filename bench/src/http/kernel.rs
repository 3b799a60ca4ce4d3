//! The kernel's side: callers of one store in this process, whose calls it combines.

use std::time::Duration;

use bytes::Bytes;
use tenure_store::{Answer, Claim, Fence, Message, NewMessage, Queue, Settings, Store};

use crate::Result;
use crate::http::drive::Caller;
use crate::http::{PATIENCE, Shape, wire};

pub(crate) struct Kernel {
    store: Store,
    queue: Queue,
    claim: Claim,
    payload: Bytes,
    items: usize,
}

impl Kernel {
    /// The callers of a new store, with a queue as the server makes it.
    pub(crate) async fn callers(dsn: &str, shape: Shape) -> Result<Vec<Self>> {
        let store = Store::connect(dsn).await?;
        store.install().await?;
        let settings = Settings {
            lease: Duration::from_secs(60),
            expire: Some(Duration::from_secs(86_400)),
            retain_dead: Some(Duration::from_secs(7 * 86_400)),
            tail_on_expiry: true,
            ..Settings::default()
        };
        let queue = store.queue_create(wire::QUEUE, settings).await?;
        let claim = Claim { wait: PATIENCE, ..Claim::from_queue(&queue, shape.items) };
        let payload = wire::payload(shape.size);
        let caller = |_| Kernel {
            store: store.clone(),
            queue: queue.clone(),
            claim: claim.clone(),
            payload: payload.clone(),
            items: shape.items,
        };
        Ok((0..shape.callers).map(caller).collect())
    }
}

impl Caller for Kernel {
    type Lease = Vec<Fence>;

    async fn produce(&mut self) -> Result<()> {
        let messages = (0..self.items).map(|_| NewMessage::new(self.payload.clone())).collect();
        self.store.enqueue(&self.queue, None, messages).await?;
        Ok(())
    }

    async fn lease(&mut self) -> Result<Option<(usize, Vec<Fence>)>> {
        let messages = self.store.claim(self.claim.clone()).await?;
        let fences: Vec<Fence> = messages.iter().map(Message::fence).collect();
        Ok(Some((fences.len(), fences)).filter(|(count, _)| *count > 0))
    }

    async fn complete(&mut self, leased: Vec<Fence>) -> Result<()> {
        let answers = self.store.discard(&leased).await?;
        match answers.iter().find(|answer| **answer != Answer::Done) {
            Some(answer) => Err(format!("a message could not be completed: {answer:?}").into()),
            None => Ok(()),
        }
    }
}
