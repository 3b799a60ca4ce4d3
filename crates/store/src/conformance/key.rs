use super::*;
use crate::{KeyBatch, State};

fn keyed(key: &str, payload: &str) -> NewMessage {
    NewMessage { key: Some(key.into()), ..NewMessage::new(payload.to_owned()) }
}

async fn put(h: &Harness, queue: &Queue, messages: &[(&str, &str)]) {
    let messages = messages.iter().map(|(key, payload)| keyed(key, payload)).collect();
    h.store.enqueue(queue, None, messages).await.unwrap();
}

async fn take_key(h: &Harness, queue: &Queue) -> Option<KeyBatch> {
    h.store.claim_key(&queue.lanes, None, None, Duration::ZERO).await.unwrap()
}

async fn hold(h: &Harness, queue: &Queue, key: &str) -> KeyBatch {
    let batch = take_key(h, queue).await.unwrap();
    assert_eq!(batch.key, key);
    batch
}

pub async fn all_messages_of_the_first_free_key_come_together_in_order(h: &Harness) {
    let queue = h.queue().await;
    put(h, &queue, &[("a", "a1"), ("b", "b1"), ("a", "a2"), ("c", "c1"), ("a", "a3")]).await;
    let batch = hold(h, &queue, "a").await;
    assert_eq!(payloads(&batch.messages), ["a1", "a2", "a3"]);
    assert_eq!(batch.leased_until, START + 30_000_000);
    assert!(batch.messages.iter().all(|message| message.leased_until == batch.leased_until));
    assert_eq!(payloads(&hold(h, &queue, "b").await.messages), ["b1"]);
    assert_eq!(h.store.key_complete(batch.token).await.unwrap(), Answer::Done);
    assert_eq!(h.store.key_complete(batch.token).await.unwrap(), Answer::Lost);
    assert_eq!(h.store.lane_stats(queue.lanes[0]).await.unwrap().ready, 1);
}

pub async fn nobody_else_gets_a_held_key(h: &Harness) {
    let queue = h.queue().await;
    put(h, &queue, &[("a", "a1")]).await;
    hold(h, &queue, "a").await;
    put(h, &queue, &[("a", "a2")]).await;
    assert!(take_key(h, &queue).await.is_none());
    h.advance(29_999);
    assert!(take_key(h, &queue).await.is_none());
}

pub async fn what_arrives_meanwhile_waits_and_is_not_swallowed(h: &Harness) {
    let queue = h.queue().await;
    put(h, &queue, &[("a", "a1")]).await;
    let first = hold(h, &queue, "a").await;
    put(h, &queue, &[("a", "a2"), ("a", "a3")]).await;
    assert_eq!(h.store.key_complete(first.token).await.unwrap(), Answer::Done);
    let second = hold(h, &queue, "a").await;
    assert_eq!(payloads(&second.messages), ["a2", "a3"]);
    assert!(second.messages.iter().all(|message| message.attempts == 1));
}

pub async fn an_expired_key_lease_passes_to_the_next_and_fences_the_first(h: &Harness) {
    let queue = h.queue().await;
    put(h, &queue, &[("a", "a1")]).await;
    let first = hold(h, &queue, "a").await;
    h.advance(30_000);
    put(h, &queue, &[("a", "a2")]).await;
    let second = hold(h, &queue, "a").await;
    assert_eq!(payloads(&second.messages), ["a1", "a2"]);
    assert_eq!((second.messages[0].attempts, second.messages[1].attempts), (2, 1));
    assert_eq!(h.store.key_complete(first.token).await.unwrap(), Answer::Lost);
    assert_eq!(h.store.key_abandon(first.token, Duration::ZERO).await.unwrap(), Answer::Lost);
    assert_eq!(h.store.key_extend(first.token, Duration::from_secs(1)).await.unwrap(), None);
    assert_eq!(h.complete(first.messages[0].fence()).await, Answer::Lost);
    assert_eq!(h.store.key_complete(second.token).await.unwrap(), Answer::Done);
    assert_eq!(h.store.lane_stats(queue.lanes[0]).await.unwrap().ready, 0);
}

pub async fn an_abandoned_key_rests_for_its_delay_and_keeps_its_order(h: &Harness) {
    let queue = h.queue().await;
    put(h, &queue, &[("a", "a1"), ("a", "a2")]).await;
    let first = hold(h, &queue, "a").await;
    assert_eq!(h.store.key_abandon(first.token, Duration::from_secs(5)).await.unwrap(), Answer::Done);
    put(h, &queue, &[("a", "a3")]).await;
    h.advance(4_999);
    assert!(take_key(h, &queue).await.is_none());
    h.advance(1);
    let second = hold(h, &queue, "a").await;
    assert_eq!(payloads(&second.messages), ["a1", "a2", "a3"]);
    assert_eq!(second.messages[0].attempts, 2);
    assert_eq!(h.store.key_abandon(second.token, Duration::ZERO).await.unwrap(), Answer::Done);
    hold(h, &queue, "a").await;
}

pub async fn an_extended_key_stays_held(h: &Harness) {
    let queue = h.queue().await;
    put(h, &queue, &[("a", "a1")]).await;
    let batch = hold(h, &queue, "a").await;
    h.advance(20_000);
    let extended = h.store.key_extend(batch.token, Duration::from_secs(30)).await.unwrap();
    assert_eq!(extended, Some(START + 60_000_000));
    h.advance(39_999);
    assert!(take_key(h, &queue).await.is_none());
    let leased = h.store.message_list(queue.lanes[0], State::Leased, 0, 9).await.unwrap();
    assert_eq!(leased[0].leased_until, START + 60_000_000);
    h.advance(1);
    hold(h, &queue, "a").await;
}

pub async fn concurrent_claims_take_different_keys(h: &Harness) {
    let queue = h.queue().await;
    let messages: Vec<_> = (0..40).map(|n| keyed(&format!("k{}", n % 10), &n.to_string())).collect();
    h.store.enqueue(&queue, None, messages).await.unwrap();
    let other = h.another().await;
    let store = |n: usize| if n.is_multiple_of(2) { &h.store } else { other.as_ref().unwrap_or(&h.store) };
    let claims = (0..10).map(|n| store(n).claim_key(&queue.lanes, None, None, Duration::ZERO));
    let batches = futures_util::future::join_all(claims).await;
    let keys: std::collections::BTreeSet<String> =
        batches.into_iter().map(|batch| batch.unwrap().expect("ten keys for ten claims").key).collect();
    assert_eq!(keys.len(), 10);
    assert!(take_key(h, &queue).await.is_none());
}

pub async fn a_key_always_goes_to_the_same_lane(h: &Harness) {
    let queue = h.queue_with(Settings { partitions: 8, ..Settings::default() }).await;
    for n in 0..5 {
        put(h, &queue, &[("customer-17", &n.to_string()), (&format!("other-{n}"), "x")]).await;
    }
    let mut seventeen = Vec::new();
    while let Some(batch) = take_key(h, &queue).await {
        if batch.key == "customer-17" {
            seventeen = batch.messages;
        }
    }
    assert_eq!(payloads(&seventeen), ["0", "1", "2", "3", "4"]);
}

pub async fn plain_claims_never_see_keyed_messages(h: &Harness) {
    let queue = h.queue().await;
    put(h, &queue, &[("a", "a1")]).await;
    h.put(&queue, "plain").await;
    assert_eq!(payloads(&h.take(&queue, 9).await), ["plain"]);
    assert_eq!(payloads(&hold(h, &queue, "a").await.messages), ["a1"]);
    assert!(take_key(h, &queue).await.is_none());
}

pub async fn an_exhausted_keyed_message_is_buried_and_the_rest_delivered(h: &Harness) {
    let queue = h.queue_with(Settings { max_attempts: Some(1), ..Settings::default() }).await;
    put(h, &queue, &[("a", "a1")]).await;
    let first = hold(h, &queue, "a").await;
    h.store.key_abandon(first.token, Duration::ZERO).await.unwrap();
    assert!(take_key(h, &queue).await.is_none());
    assert_eq!(h.store.archive_count(queue.id).await.unwrap(), (1, 1));
    put(h, &queue, &[("a", "a2"), ("b", "b1")]).await;
    assert_eq!(payloads(&hold(h, &queue, "a").await.messages), ["a2"]);
}
