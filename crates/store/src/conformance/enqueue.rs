use super::*;
use crate::{Kind, State};

pub async fn messages_come_out_in_the_order_they_went_in(h: &Harness) {
    let queue = h.queue().await;
    for n in 0..5 {
        h.put(&queue, &n.to_string()).await;
    }
    h.store.enqueue(&queue, None, numbered(20)).await.unwrap();
    let first: Vec<String> = (0..5).map(|n| n.to_string()).collect();
    assert_eq!(payloads(&h.take(&queue, 5).await), first);
    let rest: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    assert_eq!(payloads(&h.take(&queue, 100).await), rest);
}

pub async fn every_payload_byte_survives(h: &Harness) {
    let queue = h.queue().await;
    let all: Vec<u8> = (0..=255).collect();
    let strange: [&[u8]; 5] = [b"", b"\0", b"\0\0\xff\xfe", "\u{0}ü".as_bytes(), &all];
    let messages = strange.iter().map(|bytes| NewMessage::new(bytes.to_vec())).collect();
    h.store.enqueue(&queue, None, messages).await.unwrap();
    let taken = h.take(&queue, 10).await;
    assert_eq!(taken.iter().map(|message| &message.payload[..]).collect::<Vec<_>>(), strange);
}

pub async fn a_payload_of_five_megabytes_survives(h: &Harness) {
    let queue = h.queue().await;
    let big: Vec<u8> = (0..5_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    h.store.enqueue(&queue, None, vec![NewMessage::new(big.clone()), NewMessage::new("small")]).await.unwrap();
    let taken = h.take(&queue, 10).await;
    assert!(taken[0].payload == big, "the payload changed on its way");
    assert_eq!(taken[1].payload, "small");
}

pub async fn ten_thousand_messages_go_in_and_out_in_one_batch(h: &Harness) {
    let queue = h.queue().await;
    let enqueued = h.store.enqueue(&queue, None, numbered(10_000)).await.unwrap();
    assert!(enqueued.windows(2).all(|pair| pair[0].id < pair[1].id));
    let mut taken = Vec::new();
    while taken.len() < 10_000 {
        let more = h.take(&queue, 10_000).await;
        assert!(!more.is_empty(), "only {} of 10,000 came out", taken.len());
        taken.extend(more);
    }
    assert!(taken.iter().enumerate().all(|(n, message)| message.payload == n.to_string()));
    let fences: Vec<_> = taken.iter().map(Message::fence).collect();
    let answers = h.store.complete(&fences).await.unwrap();
    assert!(answers.len() == 10_000 && answers.iter().all(|answer| *answer == Answer::Done));
    assert_eq!(h.store.lane_stats(queue.lanes[0]).await.unwrap().leased, 0);
}

pub async fn an_empty_batch_is_an_empty_answer(h: &Harness) {
    let queue = h.queue().await;
    assert!(h.store.enqueue(&queue, None, vec![]).await.unwrap().is_empty());
    assert!(h.store.complete(&[]).await.unwrap().is_empty());
    assert!(h.store.message_delete(None, &[]).await.unwrap().is_empty());
    assert!(h.store.archive_replay(None, &[]).await.unwrap().is_empty());
    assert!(h.store.message_import(queue.lanes[0], vec![]).await.unwrap().is_empty());
}

pub async fn labels_come_back_as_they_were_given(h: &Harness) {
    let queue = h.queue_with(Settings { expire: Some(Duration::from_secs(60)), ..Settings::default() }).await;
    let message = NewMessage {
        kind: Some("mail 📬".into()),
        encoding: Some("application/json".into()),
        reference: Some("'; -- %s\n".into()),
        max_attempts: Some(4),
        expire: Some(Duration::from_secs(5)),
        ..NewMessage::new("x")
    };
    let enqueued = h.put_message(&queue, message.clone()).await;
    assert_eq!((enqueued.created_at, enqueued.expire_at), (START, Some(START + 5_000_000)));
    let taken = h.take_one(&queue).await;
    assert_eq!((&taken.kind, &taken.encoding), (&message.kind, &message.encoding));
    assert_eq!(taken.reference, message.reference);
    assert_eq!((taken.max_attempts, taken.attempts, taken.created_at), (Some(4), 1, START));
    assert_eq!((taken.identity(), taken.expire_at), (enqueued.id, Some(START + 5_000_000)));
    let plain = h.put(&queue, "plain").await;
    assert_eq!(plain.expire_at, Some(START + 60_000_000));
}

pub async fn bad_labels_are_refused_and_nothing_is_stored(h: &Harness) {
    let queue = h.queue().await;
    let plain = || NewMessage::new("x");
    for bad in [
        NewMessage { kind: Some("\0".into()), ..plain() },
        NewMessage { key: Some(String::new()), ..plain() },
        NewMessage { dedupe: Some("x".repeat(1025)), ..plain() },
        NewMessage { expire: Some(Duration::ZERO), ..plain() },
        NewMessage { max_attempts: Some(0), ..plain() },
        NewMessage { due: Some(crate::Due::In(Duration::MAX)), ..plain() },
    ] {
        let error = h.store.enqueue(&queue, None, vec![plain(), bad]).await.unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidInput, "{error}");
    }
    assert_eq!(h.store.enqueue(&queue, Some(1), vec![plain()]).await.unwrap_err().kind(), Kind::InvalidInput);
    assert!(h.take(&queue, 9).await.is_empty());
}

pub async fn numbers_around_two_to_the_63_survive(h: &Harness) {
    let queue = h.queue().await;
    let import = crate::Import { expire_at: Some(i64::MAX), leased_until: i64::MAX, ..crate::Import::default() };
    h.store.message_import(queue.lanes[0], vec![import]).await.unwrap();
    let stored = h.store.message_list(queue.lanes[0], State::Leased, i64::MIN, 9).await.unwrap();
    assert_eq!((stored[0].expire_at, stored[0].leased_until), (Some(i64::MAX), i64::MAX));
    assert_eq!(h.store.message_list(queue.lanes[0], State::Live, i64::MAX, 9).await.unwrap(), []);
    assert_eq!(h.complete(Fence::exact(i64::MAX, i64::MAX)).await, Answer::Unknown);
    assert_eq!(h.complete(Fence::exact(i64::MIN, 1)).await, Answer::Unknown);
    let events = [i64::MIN, -1, 0, i64::MAX].map(|id| crate::Event { id, data: Bytes::from(id.to_string()) });
    h.store.event_append("s", i64::MAX, &events).await.unwrap();
    assert_eq!(h.store.event_read("s", i64::MAX, i64::MIN, 9).await.unwrap(), events);
}

pub async fn a_message_keeps_to_the_partition_it_was_sent_to(h: &Harness) {
    let queue = h.queue_with(Settings { partitions: 3, ..Settings::default() }).await;
    for partition in [2, 0, 2] {
        h.store.enqueue(&queue, Some(partition), numbered(2)).await.unwrap();
    }
    let mut counts = Vec::new();
    for lane in &queue.lanes {
        counts.push(h.store.lane_stats(*lane).await.unwrap().ready);
    }
    assert_eq!(counts, [2, 0, 4]);
    // Without a partition each batch goes to the next one in turn.
    for _ in 0..3 {
        h.store.enqueue(&queue, None, numbered(1)).await.unwrap();
    }
    for (lane, count) in queue.lanes.iter().zip(counts) {
        assert_eq!(h.store.lane_stats(*lane).await.unwrap().ready, count + 1);
    }
}

pub async fn concurrent_single_enqueues_are_all_stored_once(h: &Harness) {
    let queue = h.queue().await;
    let calls = (0..200).map(|n: usize| h.store.enqueue(&queue, None, vec![NewMessage::new(n.to_string())]));
    let answers = futures_util::future::join_all(calls).await;
    let ids: std::collections::BTreeSet<i64> = answers.into_iter().map(|answer| answer.unwrap()[0].id).collect();
    assert_eq!(ids.len(), 200);
    let mut taken = payloads(&h.take(&queue, 500).await);
    taken.sort_unstable_by_key(|payload| payload.parse::<usize>().unwrap());
    assert_eq!(taken, (0..200).map(|n| n.to_string()).collect::<Vec<_>>());
}

pub async fn enqueueing_into_a_deleted_queue_is_refused(h: &Harness) {
    let queue = h.queue().await;
    h.store.queue_delete("jobs").await.unwrap();
    let later = NewMessage { due: Some(crate::Due::In(Duration::from_secs(1))), ..NewMessage::new("x") };
    for message in [NewMessage::new("x"), later] {
        let error = h.store.enqueue(&queue, None, vec![message]).await.unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound, "{error}");
    }
    h.store.verify().await.unwrap();
}

pub async fn one_bad_caller_does_not_fail_its_neighbours(h: &Harness) {
    let queue = h.queue().await;
    let gone = h.store.queue_create("gone", Settings::default()).await.unwrap();
    h.store.queue_delete("gone").await.unwrap();
    let calls = (0..30).map(|n| {
        let queue = if n % 10 == 3 { &gone } else { &queue };
        h.store.enqueue(queue, None, numbered(2))
    });
    let answers = futures_util::future::join_all(calls).await;
    for (n, answer) in answers.iter().enumerate() {
        assert_eq!(answer.is_err(), n % 10 == 3, "caller {n}");
    }
    assert_eq!(h.take(&queue, 100).await.len(), 54);
}

pub async fn enqueueing_into_a_queue_that_was_created_anew_reaches_it(h: &Harness) {
    let old = h.queue_with(Settings { partitions: 3, ..Settings::default() }).await;
    // Another process deletes and creates; this one still holds the old lanes.
    let other = h.another().await.unwrap_or_else(|| h.store.clone());
    for round in 0..3 {
        other.queue_delete("jobs").await.unwrap();
        let error = h.store.enqueue(&old, None, numbered(1)).await.unwrap_err();
        assert_eq!(error.kind(), crate::Kind::NotFound, "{error:?}");
        let new = other.queue_create("jobs", Settings::default()).await.unwrap();
        assert!(h.put(&old, "a").await.id > 0);
        let keyed = NewMessage { key: Some("k".into()), ..NewMessage::new("b") };
        h.put_message(&old, keyed).await;
        assert_eq!(payloads(&h.take(&new, 9).await), ["a"], "round {round}");
        assert!(h.store.claim_key(&new.lanes, None, None, Duration::ZERO).await.unwrap().is_some());
    }
    h.store.verify().await.unwrap();
}
