use std::time::Duration;

use tenure::{Error, MessageBatch, MessageQueue, Settings};

use super::Harness;

async fn orders(h: &Harness) -> MessageQueue {
    h.admin().create_queue("jobs").await.unwrap();
    let queue = MessageQueue::on(&h.store);
    for (key, text) in [("a", "a1"), ("b", "b1"), ("a", "a2")] {
        queue.enqueue("jobs", key, text, None).await.unwrap();
    }
    queue
}

fn texts(batch: &MessageBatch) -> Vec<String> {
    batch.messages.iter().map(|m| String::from_utf8_lossy(m.payload.as_bytes()).into_owned()).collect()
}

pub(crate) async fn a_key_is_delivered_together_in_order_to_one_holder(h: &Harness) {
    let queue = orders(h).await;
    let first = queue.dequeue_batch("jobs").await.unwrap().unwrap();
    assert_eq!((first.routing_key.as_str(), texts(&first)), ("a", vec!["a1".to_owned(), "a2".to_owned()]));
    queue.enqueue("jobs", "a", "a3", None).await.unwrap();
    let second = queue.dequeue_batch("jobs").await.unwrap().unwrap();
    assert_eq!((second.routing_key.as_str(), texts(&second)), ("b", vec!["b1".to_owned()]));
    assert!(queue.dequeue_batch("jobs").await.unwrap().is_none(), "a3 waits for its key");
    queue.ack(&first.lock_token).await.unwrap();
    // What arrived meanwhile was not swallowed.
    assert_eq!(texts(&queue.dequeue_batch("jobs").await.unwrap().unwrap()), ["a3"]);
    assert!(matches!(queue.ack(&first.lock_token).await.unwrap_err(), Error::LeaseLost { .. }));
    // A lease that runs out frees the key, and fences its holder.
    assert!(queue.extend(&second.lock_token, 10).await.unwrap());
    h.advance(Duration::from_secs(40));
    let again = queue.dequeue_batch("jobs").await.unwrap().unwrap();
    assert_eq!(again.messages[0].read_ct, 2);
    let stale = if again.routing_key == "b" { second.lock_token } else { first.lock_token };
    assert!(matches!(queue.ack(&stale).await.unwrap_err(), Error::LeaseLost { .. }));
}

pub(crate) async fn an_abandoned_key_rests_for_its_delay(h: &Harness) {
    let queue = orders(h).await;
    let first = queue.dequeue_batch("jobs").await.unwrap().unwrap();
    queue.abandon(&first.lock_token, Some(10.into())).await.unwrap();
    queue.enqueue("jobs", "a", "a3", None).await.unwrap();
    let b = queue.dequeue_batch("jobs").await.unwrap().unwrap();
    assert_eq!(b.routing_key, "b");
    assert!(queue.dequeue_batch("jobs").await.unwrap().is_none());
    h.advance(Duration::from_secs(10));
    assert_eq!(texts(&queue.dequeue_batch("jobs").await.unwrap().unwrap()), ["a1", "a2", "a3"]);
    queue.abandon(&b.lock_token, None).await.unwrap();
    assert_eq!(queue.dequeue_batch("jobs").await.unwrap().unwrap().routing_key, "b");
}

pub(crate) async fn bad_keys_and_tokens_are_refused(h: &Harness) {
    let queue = orders(h).await;
    assert!(matches!(queue.enqueue("nope", "k", "x", None).await.unwrap_err(), Error::QueueNotFound { .. }));
    assert!(matches!(queue.dequeue_batch("nope").await.unwrap_err(), Error::QueueNotFound { .. }));
    assert!(matches!(queue.enqueue("jobs", "", "x", None).await.unwrap_err(), Error::ValidationFailed { .. }));
    let batch = queue.dequeue_batch("jobs").await.unwrap().unwrap();
    assert!(queue.extend(&batch.lock_token, 0).await.is_err());
    let delayed = queue.enqueue("jobs", "c", "later", Some(5.into())).await.unwrap();
    queue.ack(&queue.dequeue_batch("jobs").await.unwrap().unwrap().lock_token).await.unwrap();
    assert!(queue.dequeue_batch("jobs").await.unwrap().is_none());
    h.advance(Duration::from_secs(5));
    assert_eq!(queue.dequeue_batch("jobs").await.unwrap().unwrap().messages[0].id, delayed);
}

pub(crate) async fn a_routed_queue_that_was_created_anew_is_found_by_its_name(h: &Harness) {
    h.admin().create_queue("jobs").await.unwrap();
    let queue = MessageQueue::on(&h.store);
    assert_eq!(queue.dequeue_batch("jobs").await.unwrap(), None);
    h.kernel.queue_delete("jobs").await.unwrap();
    let error = queue.dequeue_batch("jobs").await.unwrap_err();
    assert!(matches!(&error, Error::QueueNotFound { name } if name == "jobs"), "{error:?}");
    let created = h.admin().create_queue("jobs").await.unwrap();
    queue.enqueue("jobs", "k", "x", None).await.unwrap();
    let batch = queue.dequeue_batch("jobs").await.unwrap().expect("the key is free");
    assert_eq!(batch.messages[0].queue_id, created.id);
}

pub(crate) async fn a_routed_batch_is_leased_for_as_long_as_its_queue_says(h: &Harness) {
    let settings = Settings { lease: Duration::from_secs(7), ..Settings::default() };
    h.admin().create_queue_with("jobs", settings).await.unwrap();
    let queue = MessageQueue::on(&h.store);
    for text in ["a1", "a2"] {
        queue.enqueue("jobs", "a", text, None).await.unwrap();
    }
    let batch = queue.dequeue_batch("jobs").await.unwrap().unwrap();
    let leases = batch.messages.iter().map(|message| (message.vt - message.dequeued_at.unwrap()).num_seconds());
    assert_eq!(leases.collect::<Vec<_>>(), [7, 7]);
    h.advance(Duration::from_millis(6_999));
    assert_eq!(queue.dequeue_batch("jobs").await.unwrap(), None, "the key is held");
    h.advance(Duration::from_millis(1));
    assert_eq!(texts(&queue.dequeue_batch("jobs").await.unwrap().unwrap()), ["a1", "a2"]);
}
