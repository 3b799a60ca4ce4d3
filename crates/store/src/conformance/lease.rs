use super::*;
use crate::Kind;

pub async fn a_leased_message_is_not_handed_out_again(h: &Harness) {
    let queue = h.queue().await;
    h.put(&queue, "x").await;
    let taken = h.take_one(&queue).await;
    assert_eq!((taken.attempts, taken.leased_until), (1, START + 30_000_000));
    assert!(h.take(&queue, 1).await.is_empty());
    h.advance(29_999);
    assert!(h.take(&queue, 1).await.is_empty());
}

pub async fn an_expired_lease_is_delivered_again_as_attempt_2(h: &Harness) {
    let queue = h.queue().await;
    let enqueued = h.put(&queue, "x").await;
    h.take_one(&queue).await;
    h.advance(30_000);
    let again = h.take_one(&queue).await;
    assert_eq!((again.attempts, again.identity(), again.leased_until), (2, enqueued.id, START + 60_000_000));
}

pub async fn the_time_of_the_store_is_that_of_the_clock_which_decides_its_leases(h: &Harness) {
    assert_eq!(h.store.now().await.unwrap(), START);
    h.advance(1);
    assert_eq!(h.store.now().await.unwrap(), START + 1000);
}

pub async fn leases_shorter_than_a_second_are_exact(h: &Harness) {
    let queue = h.queue().await;
    h.store.enqueue(&queue, None, numbered(2)).await.unwrap();
    h.advance(540);
    let short = Claim { lease: Some(Duration::from_millis(100)), ..Claim::from_queue(&queue, 1) };
    let longer = Claim { lease: Some(Duration::from_millis(500)), ..Claim::from_queue(&queue, 1) };
    let first = h.store.claim(short).await.unwrap();
    let second = h.store.claim(longer).await.unwrap();
    h.advance(99);
    assert!(h.take(&queue, 2).await.is_empty());
    h.advance(1);
    assert_eq!(h.take_one(&queue).await.id, first[0].id);
    h.advance(399);
    assert!(h.take(&queue, 2).await.is_empty());
    h.advance(1);
    assert_eq!(h.take_one(&queue).await.id, second[0].id);
}

pub async fn concurrent_claims_never_share_a_message(h: &Harness) {
    let queue = h.queue().await;
    h.store.enqueue(&queue, None, numbered(300)).await.unwrap();
    let other = h.another().await;
    let store = |n: usize| if n.is_multiple_of(2) { &h.store } else { other.as_ref().unwrap_or(&h.store) };
    let claims = (0..60).map(|n| store(n).claim(Claim::from_queue(&queue, 5)));
    let mut ids = Vec::new();
    for claim in futures_util::future::join_all(claims).await {
        ids.extend(claim.unwrap().into_iter().map(|message| (message.id, message.attempts)));
    }
    // A row that another claim has locked is passed over, so a race may leave some for the next claim.
    while let Some(more) = Some(h.take(&queue, 300).await).filter(|more| !more.is_empty()) {
        ids.extend(more.into_iter().map(|message| (message.id, message.attempts)));
    }
    let unique: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!((ids.len(), unique.len()), (300, 300));
    assert!(ids.iter().all(|(_, attempts)| *attempts == 1));
}

pub async fn a_claim_takes_no_more_than_it_asks_for(h: &Harness) {
    let queue = h.queue().await;
    h.store.enqueue(&queue, None, numbered(10)).await.unwrap();
    assert_eq!(h.take(&queue, 3).await.len(), 3);
    assert_eq!(h.take(&queue, 4).await.len(), 4);
    assert_eq!(h.take(&queue, 10).await.len(), 3);
}

pub async fn a_claim_of_nothing_is_empty(h: &Harness) {
    let queue = h.queue().await;
    h.put(&queue, "x").await;
    assert!(h.take(&queue, 0).await.is_empty());
    assert!(h.store.claim(Claim { lanes: vec![], ..Claim::from_queue(&queue, 1) }).await.unwrap().is_empty());
    let nowhere = h.store.claim(Claim { lanes: vec![987_654], ..Claim::from_queue(&queue, 1) }).await.unwrap_err();
    assert_eq!(nowhere.kind(), Kind::NotFound, "{nowhere}");
    assert_eq!(h.take_one(&queue).await.attempts, 1);
}

pub async fn a_claim_across_lanes_finds_all_of_them(h: &Harness) {
    let queue = h.queue_with(Settings { partitions: 4, ..Settings::default() }).await;
    for partition in 0..4 {
        h.store.enqueue(&queue, Some(partition), numbered(3)).await.unwrap();
    }
    let taken = h.take(&queue, 100).await;
    let lanes: std::collections::BTreeSet<i64> = taken.iter().map(|message| message.lane).collect();
    assert_eq!((taken.len(), lanes.len()), (12, 4));
    // One lane alone.
    h.store.enqueue(&queue, Some(1), numbered(1)).await.unwrap();
    let one = Claim { lanes: vec![queue.lanes[0]], ..Claim::from_queue(&queue, 1) };
    assert!(h.store.claim(one).await.unwrap().is_empty());
    let two = Claim { lanes: vec![queue.lanes[1]], ..Claim::from_queue(&queue, 1) };
    assert_eq!(h.store.claim(two).await.unwrap().len(), 1);
}

pub async fn an_extension_counts_from_the_deadline_or_from_now(h: &Harness) {
    let queue = h.queue().await;
    h.put(&queue, "x").await;
    let fence = h.take_one(&queue).await.fence();
    let extend = |secs| async move { h.store.extend(&[fence], Duration::from_secs(secs)).await.unwrap()[0] };
    h.advance(10_000);
    assert_eq!(extend(5).await, Some(START + 35_000_000));
    // Just run out, but nobody has taken it: it starts again from now.
    h.advance(40_000);
    assert_eq!(extend(5).await, Some(START + 55_000_000));
    let error = h.store.extend(&[fence], Duration::ZERO).await.unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidInput);
}

pub async fn an_extension_keeps_others_away(h: &Harness) {
    let queue = h.queue().await;
    h.put(&queue, "x").await;
    let fence = h.take_one(&queue).await.fence();
    h.store.extend(&[fence], Duration::from_secs(30)).await.unwrap();
    h.advance(59_999);
    assert!(h.take(&queue, 1).await.is_empty());
    h.advance(1);
    assert_eq!(h.take_one(&queue).await.attempts, 2);
    assert_eq!(h.store.extend(&[fence], Duration::from_secs(30)).await.unwrap(), [None]);
}

pub async fn a_released_message_is_next_again(h: &Harness) {
    let queue = h.queue().await;
    h.store.enqueue(&queue, None, numbered(3)).await.unwrap();
    let taken = h.take(&queue, 2).await;
    assert_eq!(h.store.release(&[taken[0].fence()]).await.unwrap(), [Answer::Done]);
    let again = h.take(&queue, 9).await;
    assert_eq!(payloads(&again), ["0", "2"]);
    assert_eq!((again[0].attempts, again[0].id), (2, taken[0].id));
}

pub async fn a_bad_lease_is_refused(h: &Harness) {
    let queue = h.queue().await;
    h.put(&queue, "x").await;
    for lease in [Duration::ZERO, Duration::MAX] {
        let claim = Claim { lease: Some(lease), ..Claim::from_queue(&queue, 1) };
        assert_eq!(h.store.claim(claim).await.unwrap_err().kind(), Kind::InvalidInput);
        let error = h.store.claim_key(&queue.lanes, Some(lease), None, Duration::ZERO).await.unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidInput);
    }
    assert_eq!(h.take_one(&queue).await.attempts, 1);
}

pub async fn other_peoples_leases_do_not_hide_what_is_behind_them(h: &Harness) {
    let queue = h.queue().await;
    h.store.enqueue(&queue, None, numbered(100)).await.unwrap();
    let Some(other) = h.another().await else { return };
    let theirs = other.claim(Claim::from_queue(&queue, 90)).await.unwrap();
    assert_eq!(h.take(&queue, 100).await.len(), 10);
    // What they give back is found here, though this process has looked past it.
    let fences: Vec<Fence> = theirs[..5].iter().map(Message::fence).collect();
    other.release(&fences).await.unwrap();
    h.advance(1_000);
    assert_eq!(h.take(&queue, 100).await.len(), 5);
    h.advance(29_000);
    assert_eq!(h.take(&queue, 200).await.len(), 95);
}

pub async fn claims_of_different_workers_and_lengths_share_statements(h: &Harness) {
    const CLAIMS: u64 = 64;
    let queue = h.queue_with(Settings { lease: Duration::from_secs(30), ..Settings::default() }).await;
    let mut workers = Vec::new();
    for n in 0..CLAIMS {
        workers.push(h.store.worker_register(&format!("w{n}"), None).await.unwrap().id);
    }
    h.store.worker_suspend(workers[5]).await.unwrap();
    h.store.enqueue(&queue, None, numbered(CLAIMS as usize)).await.unwrap();
    let before = h.store.vitals().claimed.batches.iter().sum::<u64>();
    let lengths = [None, Some(Duration::from_secs(5)), Some(Duration::from_secs(7))];
    let claims = workers.iter().zip(lengths.into_iter().cycle()).map(|(worker, lease)| {
        h.store.claim(Claim { lease, worker: Some(*worker), ..Claim::from_queue(&queue, 1) })
    });
    let claimed = futures_util::future::try_join_all(claims).await.unwrap();
    let batches = h.store.vitals().claimed.batches.iter().sum::<u64>() - before;
    assert!(batches <= 8, "{CLAIMS} claims of different workers took {batches} statements");
    for (n, (messages, worker)) in claimed.iter().zip(&workers).enumerate() {
        if n == 5 {
            assert!(messages.is_empty(), "a suspended worker leases nothing");
            continue;
        }
        let lease = lengths[n % 3].unwrap_or(queue.settings.lease);
        assert_eq!(messages.len(), 1, "claim {n} got nothing beside a suspended worker's");
        assert_eq!((messages[0].worker, messages[0].attempts), (Some(*worker), 1));
        assert_eq!(messages[0].leased_until, START + lease.as_micros() as i64);
        let stored = h.store.message_get(messages[0].id).await.unwrap().unwrap();
        assert_eq!(stored, Message { keep: true, asked: None, ..messages[0].clone() });
    }
    assert_eq!(h.take(&queue, 100).await.len(), 1, "the place of the suspended worker was used by no other claim");
    // Each lease expires after its own length, though it was taken in the same statement as the others.
    for (advance, expired) in [(5_000, 21), (2_000, 20), (23_000, 22 + 1)] {
        h.advance(advance);
        let again = h.take(&queue, 100).await;
        assert_eq!(again.len(), expired);
        assert!(again.iter().all(|message| message.attempts == 2));
    }
}

pub async fn a_claim_from_a_deleted_queue_is_refused(h: &Harness) {
    // Another process deletes the queue; this one has claimed from its lanes before.
    let other = h.another().await.unwrap_or_else(|| h.store.clone());
    for partitions in [1, 3] {
        let queue = h.queue_with(Settings { partitions, ..Settings::default() }).await;
        assert!(h.take(&queue, 1).await.is_empty());
        assert!(h.store.claim_key(&queue.lanes, None, None, Duration::ZERO).await.unwrap().is_none());
        other.queue_delete("jobs").await.unwrap();
        // What is known about a lane is believed for a second.
        h.advance(1_000);
        let error = h.store.claim(Claim::from_queue(&queue, 1)).await.unwrap_err();
        assert_eq!(error.kind(), crate::Kind::NotFound, "{error:?}");
        for lease in [None, Some(Duration::from_secs(9))] {
            let error = h.store.claim_key(&queue.lanes, lease, None, Duration::ZERO).await.unwrap_err();
            assert_eq!(error.kind(), crate::Kind::NotFound, "{error:?}");
        }
    }
}

pub async fn a_claim_that_waits_ends_when_its_queue_is_deleted(h: &Harness) {
    let queue = h.queue().await;
    let wait = Duration::from_secs(60);
    let claim = h.store.claim(Claim { wait, ..Claim::from_queue(&queue, 1) });
    let key = h.store.claim_key(&queue.lanes, None, None, wait);
    let delete = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        h.store.queue_delete("jobs").await.unwrap();
        h.advance(1_000);
    };
    let (claimed, key, ()) = tokio::time::timeout(Duration::from_secs(30), async { tokio::join!(claim, key, delete) })
        .await
        .expect("both claims end before their wait");
    assert_eq!(claimed.unwrap_err().kind(), crate::Kind::NotFound);
    assert_eq!(key.unwrap_err().kind(), crate::Kind::NotFound);
}

pub async fn merged_claims_are_dealt_messages_one_at_a_time(h: &Harness) {
    let queue = h.queue().await;
    let mut workers = Vec::new();
    for name in ["greedy", "modest", "suspended"] {
        workers.push(h.store.worker_register(name, None).await.unwrap().id);
    }
    h.store.worker_suspend(workers[2]).await.unwrap();
    // A busy machine may serve one claim before the others wait in one round, and not in all.
    let mut rounds = Vec::new();
    while rounds.len() < 5 {
        let claims: Vec<_> = workers
            .iter()
            .zip([10, 1, 10])
            .map(|(worker, limit)| {
                let wait = Duration::from_secs(3);
                let claim = Claim { worker: Some(*worker), wait, ..Claim::from_queue(&queue, limit) };
                let store = h.store.clone();
                tokio::spawn(async move { store.claim(claim).await })
            })
            .collect();
        // All three wait when two messages come in one batch.
        tokio::time::sleep(Duration::from_millis(200)).await;
        h.store.enqueue(&queue, None, numbered(2)).await.unwrap();
        let mut got = Vec::new();
        for claim in claims {
            got.push(claim.await.unwrap().unwrap().len());
        }
        if got == [1, 1, 0] {
            return;
        }
        rounds.push(got);
    }
    panic!("the greedy claim took both, or the suspended one's place was not passed on: {rounds:?}");
}
