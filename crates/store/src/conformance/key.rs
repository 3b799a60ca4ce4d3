use super::statements::script;
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
    assert!(batch.messages.iter().all(|message| message.leased_at == Some(START)));
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
    assert_eq!(h.store.key_release(first.token, Duration::ZERO, None).await.unwrap(), Answer::Lost);
    assert_eq!(h.store.key_extend(&[first.token], Duration::from_secs(1)).await.unwrap(), [None]);
    assert_eq!(h.complete(first.messages[0].fence()).await, Answer::Lost);
    assert_eq!(h.store.key_complete(second.token).await.unwrap(), Answer::Done);
    assert_eq!(h.store.lane_stats(queue.lanes[0]).await.unwrap().ready, 0);
}

pub async fn an_abandoned_key_rests_for_its_delay_and_keeps_its_order(h: &Harness) {
    let queue = h.queue().await;
    put(h, &queue, &[("a", "a1"), ("a", "a2")]).await;
    let first = hold(h, &queue, "a").await;
    assert_eq!(h.store.key_release(first.token, Duration::from_secs(5), None).await.unwrap(), Answer::Done);
    put(h, &queue, &[("a", "a3")]).await;
    h.advance(4_999);
    assert!(take_key(h, &queue).await.is_none());
    h.advance(1);
    let second = hold(h, &queue, "a").await;
    assert_eq!(payloads(&second.messages), ["a1", "a2", "a3"]);
    assert_eq!(second.messages[0].attempts, 2);
    assert_eq!(h.store.key_release(second.token, Duration::ZERO, None).await.unwrap(), Answer::Done);
    hold(h, &queue, "a").await;
}

pub async fn an_extended_key_stays_held(h: &Harness) {
    let queue = h.queue().await;
    put(h, &queue, &[("a", "a1")]).await;
    let batch = hold(h, &queue, "a").await;
    h.advance(20_000);
    let extended = h.store.key_extend(&[batch.token], Duration::from_secs(30)).await.unwrap();
    assert_eq!(extended, [Some(START + 60_000_000)]);
    h.advance(39_999);
    assert!(take_key(h, &queue).await.is_none());
    let leased = h.store.message_list(queue.lanes[0], State::Leased, 0, 9).await.unwrap();
    assert_eq!(leased[0].leased_until, START + 60_000_000);
    h.advance(1);
    hold(h, &queue, "a").await;
}

pub async fn a_message_of_a_key_is_extended_with_its_key(h: &Harness) {
    let queue = h.queue().await;
    put(h, &queue, &[("a", "a1"), ("a", "a2"), ("b", "b1")]).await;
    h.put(&queue, "plain").await;
    let batch = hold(h, &queue, "a").await;
    let plain = h.take_one(&queue).await.fence();
    h.advance(20_000);
    let [first, second] = [0, 1].map(|n| batch.messages[n].fence());
    let without_token = Fence::exact(second.id, 1);
    let until = Some(START + 60_000_000);
    let extend = |fences: Vec<Fence>| async move { h.store.extend(&fences, Duration::from_secs(30)).await.unwrap() };
    assert_eq!(extend(vec![first, plain, Fence::exact(424_242, 1), without_token]).await, [until, until, None, until]);
    assert_eq!(h.complete(first).await, Answer::Done);
    assert_eq!(extend(vec![first]).await, [None], "a message that is gone extends nothing");
    h.advance(39_999);
    assert_eq!(payloads(&hold(h, &queue, "b").await.messages), ["b1"]);
    assert!(take_key(h, &queue).await.is_none(), "the key is held for as long as the answer said");
    h.advance(1);
    assert_eq!(payloads(&hold(h, &queue, "a").await.messages), ["a2"]);
    assert_eq!(extend(vec![second]).await, [None]);
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
    h.store.key_release(first.token, Duration::ZERO, None).await.unwrap();
    assert!(take_key(h, &queue).await.is_none());
    assert_eq!(h.store.archive_count(queue.id).await.unwrap(), (1, 1));
    put(h, &queue, &[("a", "a2"), ("b", "b1")]).await;
    assert_eq!(payloads(&hold(h, &queue, "a").await.messages), ["a2"]);
}

/// The next key while a backlog of dead messages is before it, and that the claim did not wait for all of their burials.
async fn behind_a_backlog(h: &Harness, queue: &Queue, backlog: u64) -> KeyBatch {
    let batch = take_key(h, queue).await.expect("the fresh key");
    let (buried, _) = h.store.archive_count(queue.id).await.unwrap();
    assert!(buried < backlog, "the claim waited until the whole backlog was buried");
    let lane = queue.lanes[0];
    while h.store.lane_stats(lane).await.unwrap().ready > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(h.store.archive_count(queue.id).await.unwrap(), (backlog, backlog));
    assert!(take_key(h, queue).await.is_none());
    batch
}

pub async fn a_backlog_of_dead_keys_does_not_hold_up_a_fresh_one(h: &Harness) {
    const BACKLOG: usize = 3000;
    let queue =
        h.queue_with(Settings { expire: Some(Duration::from_secs(10)), max_attempts: Some(1), ..Settings::default() });
    let queue = queue.await;
    // Half of them have used their attempts, the others expire.
    let spent = |n: usize| crate::Import { attempts: 1, key: Some(format!("spent {n}")), ..crate::Import::default() };
    h.store.message_import(queue.lanes[0], (0..BACKLOG / 2).map(spent).collect()).await.unwrap();
    let old = (0..BACKLOG / 2).map(|n| keyed(&format!("old {n}"), "x")).collect();
    h.store.enqueue(&queue, None, old).await.unwrap();
    h.advance(10_001);
    put(h, &queue, &[("fresh", "1"), ("fresh", "2")]).await;
    let batch = behind_a_backlog(h, &queue, BACKLOG as u64).await;
    assert_eq!((batch.key.as_str(), payloads(&batch.messages)), ("fresh", vec!["1".into(), "2".into()]));
    // The next ones are met, and buried, as usual.
    put(h, &queue, &[("last", "x")]).await;
    h.advance(10_001);
    assert!(take_key(h, &queue).await.is_none());
    assert_eq!(h.store.archive_count(queue.id).await.unwrap().0, BACKLOG as u64 + 1);
}

pub async fn a_backlog_of_dead_messages_of_one_key_does_not_hold_up_its_fresh_ones(h: &Harness) {
    const BACKLOG: usize = 3000;
    let queue = h.queue_with(Settings { expire: Some(Duration::from_secs(10)), ..Settings::default() }).await;
    h.store.enqueue(&queue, None, (0..BACKLOG).map(|_| keyed("a", "x")).collect()).await.unwrap();
    h.advance(10_001);
    put(h, &queue, &[("a", "1"), ("a", "2")]).await;
    let batch = behind_a_backlog(h, &queue, BACKLOG as u64).await;
    assert_eq!((payloads(&batch.messages), attempts(&batch)), (vec!["1".into(), "2".into()], vec![1, 1]));
    assert_eq!(h.store.key_complete(batch.token).await.unwrap(), Answer::Done);
}

pub async fn a_claim_ends_at_a_key_whose_message_is_leased_without_it(h: &Harness) {
    let queue = h.queue().await;
    put(h, &queue, &[("a", "a1")]).await;
    // As an import stored it once.
    script(&h.store, &format!("update tenure.message set leased_until = {}", START + 30_000_000)).await;
    let claim = tokio::time::timeout(Duration::from_secs(20), take_key(h, &queue)).await;
    assert!(claim.expect("the claim looks for ever").is_none());
}

pub async fn a_key_is_leased_in_batches_of_256_messages(h: &Harness) {
    let queue = h.queue().await;
    let messages = (0..600).map(|n| keyed("a", &n.to_string())).collect();
    h.store.enqueue(&queue, None, messages).await.unwrap();
    let mut seen = Vec::new();
    for count in [256, 256, 88] {
        let batch = hold(h, &queue, "a").await;
        assert_eq!(batch.messages.len(), count);
        assert!(take_key(h, &queue).await.is_none(), "the lease covers the messages that were not in the batch");
        seen.extend(payloads(&batch.messages));
        assert_eq!(h.store.key_complete(batch.token).await.unwrap(), Answer::Done);
    }
    assert_eq!(seen, (0..600).map(|n| n.to_string()).collect::<Vec<_>>());
    assert!(take_key(h, &queue).await.is_none());
}

pub async fn a_key_is_leased_in_batches_of_a_mebibyte(h: &Harness) {
    let queue = h.queue().await;
    for size in [400_000, 400_000, 400_000, 3_000_000, 10] {
        h.put_message(&queue, keyed("a", &"x".repeat(size))).await;
    }
    let mut sizes = Vec::new();
    while let Some(batch) = take_key(h, &queue).await {
        sizes.push(batch.messages.iter().map(|message| message.payload.len()).collect::<Vec<_>>());
        h.store.key_complete(batch.token).await.unwrap();
    }
    assert_eq!(sizes, [vec![400_000, 400_000], vec![400_000], vec![3_000_000], vec![10]]);
}

fn attempts(batch: &KeyBatch) -> Vec<i64> {
    batch.messages.iter().map(|message| message.attempts).collect()
}

pub async fn messages_that_no_handler_has_seen_use_no_attempt_when_their_key_is_released(h: &Harness) {
    let queue = h.queue().await;
    put(h, &queue, &[("a", "a1"), ("a", "a2"), ("a", "a3")]).await;
    let first = hold(h, &queue, "a").await;
    assert_eq!(h.complete(first.messages[0].fence()).await, Answer::Done);
    let seen = first.messages[1].id;
    assert_eq!(h.store.key_release(first.token, Duration::ZERO, Some(seen)).await.unwrap(), Answer::Done);
    let second = hold(h, &queue, "a").await;
    assert_eq!((payloads(&second.messages), attempts(&second)), (vec!["a2".into(), "a3".into()], vec![2, 1]));
}

pub async fn only_the_first_message_of_an_expired_key_lease_has_used_an_attempt(h: &Harness) {
    let queue = h.queue_with(Settings { max_attempts: Some(3), ..Settings::default() }).await;
    put(h, &queue, &[("a", "poison"), ("a", "a2"), ("a", "a3")]).await;
    for attempt in 1..=3 {
        assert_eq!(attempts(&hold(h, &queue, "a").await), [attempt, 1, 1]);
        h.advance(30_000);
    }
    let last = hold(h, &queue, "a").await;
    assert_eq!((payloads(&last.messages), attempts(&last)), (vec!["a2".into(), "a3".into()], vec![1, 1]));
    let dead = h.store.archive_list(queue.id, true, None, 9).await.unwrap();
    assert_eq!(dead.len(), 1);
    assert_eq!((&dead[0].payload[..], dead[0].attempts), (&b"poison"[..], 3));
}

pub async fn a_restarted_worker_has_used_an_attempt_of_one_message_of_its_key(h: &Harness) {
    let queue = h.queue().await;
    put(h, &queue, &[("a", "a1"), ("a", "a2")]).await;
    let worker = h.store.worker_register("w", Some(queue.id)).await.unwrap();
    let claim = |worker: i64| h.store.claim_key(&queue.lanes, None, Some(worker), Duration::ZERO);
    assert_eq!(attempts(&claim(worker.id).await.unwrap().unwrap()), [1, 1]);
    let restarted = h.store.worker_register("w", Some(queue.id)).await.unwrap();
    assert_eq!(h.store.lane_stats(queue.lanes[0]).await.unwrap().ready, 2);
    assert_eq!(attempts(&claim(restarted.id).await.unwrap().unwrap()), [2, 1]);
}

pub async fn a_former_holder_of_a_key_can_finish_none_of_its_messages(h: &Harness) {
    let queue = h.queue().await;
    put(h, &queue, &[("a", "a1"), ("a", "a2")]).await;
    let first = hold(h, &queue, "a").await;
    h.advance(30_000);
    let second = hold(h, &queue, "a").await;
    assert_eq!(attempts(&second), [2, 1], "the second message has the same attempt under both leases");
    for message in &first.messages {
        assert_eq!(h.complete(message.fence()).await, Answer::Lost);
        assert_eq!(h.store.release(&[message.fence()]).await.unwrap(), [Answer::Lost]);
        assert_eq!(h.store.extend(&[message.fence()], Duration::from_secs(1)).await.unwrap(), [None]);
    }
    for message in &second.messages {
        assert_eq!(h.complete(message.fence()).await, Answer::Done);
    }
}

pub async fn a_sweep_leaves_the_messages_of_a_key_to_its_next_claim(h: &Harness) {
    let queue = h.queue_with(Settings { max_attempts: Some(1), ..Settings::default() }).await;
    let lane = queue.lanes[0];
    put(h, &queue, &[("a", "a1"), ("a", "a2")]).await;
    let batch = hold(h, &queue, "a").await;
    h.advance(20_000);
    h.store.key_extend(&[batch.token], Duration::from_secs(30)).await.unwrap();
    // First the key is held beyond the time that its messages carry, then its lease has expired.
    for millis in [20_000, 60_000] {
        h.advance(millis);
        assert_eq!(h.store.sweep(lane).await.unwrap(), 0);
        assert_eq!(h.store.bury_exhausted(lane, 1).await.unwrap(), Vec::<i64>::new());
        assert_eq!(*h.store.tend(&[(lane, 0)]).await.unwrap()[0].as_ref().unwrap(), 0);
    }
    assert_eq!(payloads(&hold(h, &queue, "a").await.messages), ["a2"], "a1 was seen once and is dead");
}

pub async fn a_resting_key_is_delivered_on_time(h: &Harness) {
    let queue = h.queue_with(Settings { max_attempts: None, ..Settings::default() }).await;
    put(h, &queue, &[("a", "a1")]).await;
    // The clock that runs, as in production: a claim that waits must know when to look by itself.
    let store = if h.another().await.is_some() { Store::connect(&h.dsn).await.unwrap() } else { return };
    let claim = || store.claim_key(&queue.lanes, None, None, Duration::from_secs(10));
    let mut late = Vec::new();
    for _ in 0..5 {
        let batch = claim().await.unwrap().unwrap();
        store.key_release(batch.token, Duration::from_millis(100), None).await.unwrap();
        let rested = std::time::Instant::now();
        let again = claim().await.unwrap().unwrap();
        late.push(rested.elapsed().saturating_sub(Duration::from_millis(100)));
        store.key_release(again.token, Duration::ZERO, None).await.unwrap();
    }
    // A poll comes after 0.75 to 1 s, so polls would make every round late. A busy machine makes some late.
    assert!(late.iter().min().is_some_and(|least| *least < Duration::from_millis(400)), "polled, not awaited: {late:?}");
}

pub async fn a_snoozed_message_of_a_key_keeps_its_place_and_its_old_lease_is_lost(h: &Harness) {
    let queue = h.queue().await;
    put(h, &queue, &[("a", "a1"), ("a", "a2")]).await;
    let first = hold(h, &queue, "a").await;
    let old = first.messages[0].fence();
    assert_eq!(h.store.snooze(&[old], Duration::from_secs(1)).await.unwrap(), [Answer::Done]);
    h.store.key_release(first.token, Duration::ZERO, None).await.unwrap();
    h.advance(1000);
    let second = hold(h, &queue, "a").await;
    assert_eq!((payloads(&second.messages), attempts(&second)), (vec!["a1".into(), "a2".into()], vec![1, 2]));
    assert_eq!(h.complete(old).await, Answer::Lost);
    assert_eq!(h.store.release(&[old]).await.unwrap(), [Answer::Lost]);
    assert_eq!(h.store.extend(&[old], Duration::from_secs(1)).await.unwrap(), [None]);
    assert_eq!(h.complete(second.messages[0].fence()).await, Answer::Done);
}

pub async fn a_delay_that_no_database_can_hold_is_refused_and_leaves_the_key_held(h: &Harness) {
    let queue = h.queue().await;
    put(h, &queue, &[("a", "a1")]).await;
    let batch = hold(h, &queue, "a").await;
    let day = Duration::from_secs(86_400);
    for delay in [Duration::MAX, 36_501 * day] {
        let error = h.store.key_release(batch.token, delay, None).await.unwrap_err();
        assert_eq!(error.kind(), crate::Kind::InvalidInput, "{error:?}");
    }
    let longest = 36_500 * day;
    assert_eq!(h.store.key_release(batch.token, longest, None).await.unwrap(), Answer::Done);
    put(h, &queue, &[("b", "b1")]).await;
    hold(h, &queue, "b").await;
    h.clock.advance(longest);
    hold(h, &queue, "a").await;
    h.put(&queue, "plain").await;
    let plain = h.take_one(&queue).await.fence();
    let error = h.store.snooze(&[plain], Duration::MAX).await.unwrap_err();
    assert_eq!(error.kind(), crate::Kind::InvalidInput, "{error:?}");
    assert_eq!(h.store.snooze(&[plain], longest).await.unwrap(), [Answer::Done]);
}
