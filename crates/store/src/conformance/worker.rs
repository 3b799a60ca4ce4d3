use super::*;
use crate::{Heartbeat, Kind, WorkerStatus};

pub async fn a_worker_registers_and_is_found(h: &Harness) {
    let queue = h.queue().await;
    let worker = h.store.worker_register("host-1:8080", Some(queue.id)).await.unwrap();
    assert_eq!((worker.status, worker.started_at, worker.queue), (WorkerStatus::Ready, START, Some(queue.id)));
    assert_eq!(h.store.worker_get(worker.id).await.unwrap(), worker);
    h.store.worker_register("elsewhere", None).await.unwrap();
    assert_eq!(h.store.worker_list(Some(queue.id), None).await.unwrap(), [worker]);
    assert_eq!(h.store.worker_list(None, None).await.unwrap().len(), 2);
    assert_eq!(h.store.worker_get(99_999).await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(h.store.worker_register("", None).await.unwrap_err().kind(), Kind::InvalidInput);
}

pub async fn a_second_incarnation_fences_the_first_and_frees_its_leases(h: &Harness) {
    let queue = h.queue().await;
    h.put(&queue, "x").await;
    let keyed = NewMessage { key: Some("k".into()), ..NewMessage::new("y") };
    h.put_message(&queue, keyed).await;
    let first = h.store.worker_register("w", None).await.unwrap();
    let claim = Claim { worker: Some(first.id), ..Claim::from_queue(&queue, 1) };
    let taken = h.store.claim(claim).await.unwrap().remove(0);
    let batch = h.store.claim_key(&queue.lanes, None, Some(first.id), Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(h.store.worker_held(first.id).await.unwrap(), 2);
    // It crashed, and is back under its own name at once.
    let second = h.store.worker_register("w", None).await.unwrap();
    assert_ne!(first.id, second.id);
    assert_eq!(h.store.worker_get(first.id).await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(h.take_one(&queue).await.attempts, 2);
    assert!(h.store.claim_key(&queue.lanes, None, None, Duration::ZERO).await.unwrap().is_some());
    // The first one was only slow: it can do nothing any more.
    assert_eq!(h.store.worker_heartbeat(&[first.id]).await.unwrap(), [Heartbeat::Fenced]);
    assert_eq!(h.complete(taken.fence()).await, Answer::Lost);
    assert_eq!(h.store.key_complete(batch.token).await.unwrap(), Answer::Lost);
}

pub async fn a_heartbeat_tells_the_fenced_and_the_unknown(h: &Harness) {
    let living = h.store.worker_register("a", None).await.unwrap().id;
    let stopped = h.store.worker_register("b", None).await.unwrap().id;
    h.store.worker_shutdown(stopped).await.unwrap();
    h.advance(5_000);
    let answers = h.store.worker_heartbeat(&[stopped, 99_999, living]).await.unwrap();
    assert_eq!(answers, [Heartbeat::Fenced, Heartbeat::Unknown, Heartbeat::Alive]);
    assert_eq!(h.store.worker_get(living).await.unwrap().heartbeat_at, START + 5_000_000);
    assert_eq!(h.store.worker_get(stopped).await.unwrap().heartbeat_at, START);
}

pub async fn states_change_only_along_allowed_ways(h: &Harness) {
    let id = h.store.worker_register("w", None).await.unwrap().id;
    let refused = |result: crate::Result<crate::Worker>, part: &str| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidState);
        assert!(error.to_string().contains(part), "{error}");
    };
    refused(h.store.worker_resume(id).await, "is ready and cannot become ready");
    assert_eq!(h.store.worker_suspend(id).await.unwrap().status, WorkerStatus::Suspended);
    refused(h.store.worker_suspend(id).await, "is suspended and cannot become suspended");
    assert_eq!(h.store.worker_heartbeat(&[id]).await.unwrap(), [Heartbeat::Alive]);
    assert_eq!(h.store.worker_resume(id).await.unwrap().status, WorkerStatus::Ready);
    let stopped = h.store.worker_shutdown(id).await.unwrap();
    assert_eq!((stopped.status, stopped.stopped_at), (WorkerStatus::Stopped, Some(START)));
    refused(h.store.worker_resume(id).await, "is stopped and cannot become ready");
    refused(h.store.worker_shutdown(id).await, "is stopped and cannot become stopped");
    assert_eq!(h.store.worker_suspend(77_777).await.unwrap_err().kind(), Kind::NotFound);
}

pub async fn a_silent_worker_is_stale_and_a_busy_one_is_not(h: &Harness) {
    let silent = h.store.worker_register("silent", None).await.unwrap().id;
    let busy = h.store.worker_register("busy", None).await.unwrap().id;
    let stopped = h.store.worker_register("stopped", None).await.unwrap().id;
    h.store.worker_shutdown(stopped).await.unwrap();
    h.advance(10_000);
    h.store.worker_heartbeat(&[busy]).await.unwrap();
    let stale = h.store.worker_list(None, Some(Duration::from_secs(10))).await.unwrap();
    assert_eq!(stale.iter().map(|worker| worker.id).collect::<Vec<_>>(), [silent]);
    assert!(h.store.worker_list(None, Some(Duration::from_secs(11))).await.unwrap().is_empty());
}

pub async fn releasing_a_dead_worker_frees_its_messages(h: &Harness) {
    let queue = h.queue().await;
    let dead = h.store.worker_register("dead", None).await.unwrap().id;
    let living = h.store.worker_register("living", None).await.unwrap().id;
    h.store.enqueue(&queue, None, numbered(5)).await.unwrap();
    for (worker, count) in [(dead, 3), (living, 2)] {
        let claim = Claim { worker: Some(worker), ..Claim::from_queue(&queue, count) };
        assert_eq!(h.store.claim(claim).await.unwrap().len(), count);
    }
    assert_eq!(h.store.worker_release(dead).await.unwrap(), 3);
    assert_eq!(h.store.worker_release(dead).await.unwrap(), 0);
    let again = h.take(&queue, 9).await;
    assert_eq!(payloads(&again), ["0", "1", "2"]);
    assert!(again.iter().all(|message| message.attempts == 2));
    assert_eq!(h.store.worker_held(living).await.unwrap(), 2);
}

pub async fn stopped_workers_are_purged_by_age(h: &Harness) {
    let id = h.store.worker_register("w", None).await.unwrap().id;
    assert_eq!(h.store.worker_purge(Duration::ZERO).await.unwrap(), 0);
    h.store.worker_shutdown(id).await.unwrap();
    h.advance(1_000);
    assert_eq!(h.store.worker_purge(Duration::from_secs(2)).await.unwrap(), 0);
    assert_eq!(h.store.worker_purge(Duration::from_secs(1)).await.unwrap(), 1);
    assert_eq!(h.store.worker_heartbeat(&[id]).await.unwrap(), [Heartbeat::Unknown]);
}

pub async fn a_worker_that_is_not_ready_gets_nothing(h: &Harness) {
    let queue = h.queue().await;
    let worker = h.store.worker_register("w", None).await.unwrap();
    h.put(&queue, "x").await;
    h.put_message(&queue, NewMessage { key: Some("k".into()), ..NewMessage::new("y") }).await;
    let claim = || h.store.claim(Claim { worker: Some(worker.id), ..Claim::from_queue(&queue, 1) });
    let claim_key = || h.store.claim_key(&queue.lanes, None, Some(worker.id), Duration::ZERO);
    h.store.worker_suspend(worker.id).await.unwrap();
    assert!(claim().await.unwrap().is_empty());
    assert!(claim_key().await.unwrap().is_none());
    h.store.worker_resume(worker.id).await.unwrap();
    assert_eq!(claim().await.unwrap().len(), 1);
    assert!(claim_key().await.unwrap().is_some());
    h.store.worker_shutdown(worker.id).await.unwrap();
    assert_eq!(claim().await.unwrap_err().kind(), Kind::WorkerStopped);
    for unknown in [0, -1, i64::MIN] {
        let claim = Claim { worker: Some(unknown), ..Claim::from_queue(&queue, 1) };
        assert_eq!(h.store.claim(claim).await.unwrap_err().kind(), Kind::WorkerStopped);
    }
    assert_eq!(h.take_one(&queue).await.attempts, 2);
}

pub async fn a_worker_that_was_stopped_and_purged_leases_nothing_and_is_told(h: &Harness) {
    let queue = h.queue().await;
    let gone = h.store.worker_register("gone", None).await.unwrap().id;
    h.store.worker_shutdown(gone).await.unwrap();
    assert_eq!(h.store.worker_purge(Duration::ZERO).await.unwrap(), 1);
    h.put(&queue, "x").await;
    for wait in [Duration::ZERO, Duration::from_secs(20)] {
        let claim = Claim { worker: Some(gone), wait, ..Claim::from_queue(&queue, 1) };
        assert_eq!(h.store.claim(claim).await.unwrap_err().kind(), Kind::WorkerStopped);
    }
    assert_eq!(h.take_one(&queue).await.attempts, 1);
}

pub async fn a_waiting_claim_ends_when_its_worker_is_stopped(h: &Harness) {
    let queue = h.queue().await;
    // It is asked about at first and then every second.
    for (purge, waited) in [(false, 50), (true, 1100)] {
        let id = h.store.worker_register("w", None).await.unwrap().id;
        let claim = Claim { worker: Some(id), wait: Duration::from_secs(20), ..Claim::from_queue(&queue, 1) };
        let store = h.store.clone();
        let task = tokio::spawn(async move { store.claim(claim).await });
        tokio::time::sleep(Duration::from_millis(waited)).await;
        h.store.worker_shutdown(id).await.unwrap();
        if purge {
            h.store.worker_purge(Duration::ZERO).await.unwrap();
        }
        // What is enqueued meanwhile is not handed to it.
        h.put(&queue, "x").await;
        assert_eq!(task.await.unwrap().unwrap_err().kind(), Kind::WorkerStopped);
        assert_eq!(h.take_one(&queue).await.attempts, 1);
    }
}

pub async fn a_stopped_worker_leases_no_key_and_is_told_so(h: &Harness) {
    let queue = h.queue().await;
    let worker = h.store.worker_register("w", None).await.unwrap().id;
    h.put_message(&queue, NewMessage { key: Some("k".into()), ..NewMessage::new("x") }).await;
    h.store.worker_shutdown(worker).await.unwrap();
    for purged in [false, true] {
        if purged {
            h.store.worker_purge(Duration::ZERO).await.unwrap();
        }
        let claim = h.store.claim_key(&queue.lanes, None, Some(worker), Duration::ZERO);
        assert_eq!(claim.await.unwrap_err().kind(), Kind::WorkerStopped, "purged: {purged}");
    }
    assert!(h.store.claim_key(&queue.lanes, None, None, Duration::ZERO).await.unwrap().is_some());
}

pub async fn reaping_frees_and_stops_the_silent_and_nobody_else(h: &Harness) {
    let queue = h.queue().await;
    let minute = Duration::from_secs(60);
    let silent = h.store.worker_register("silent", None).await.unwrap().id;
    let alive = h.store.worker_register("alive", None).await.unwrap().id;
    h.store.enqueue(&queue, None, numbered(3)).await.unwrap();
    for (worker, limit) in [(silent, 2), (alive, 1)] {
        let lease = Some(Duration::from_secs(3600));
        let claim = Claim { worker: Some(worker), lease, ..Claim::from_queue(&queue, limit) };
        assert_eq!(h.store.claim(claim).await.unwrap().len(), limit);
    }
    h.advance(60_000);
    h.store.worker_heartbeat(&[alive]).await.unwrap();
    assert_eq!(h.store.worker_reap(minute, false).await.unwrap(), (vec![silent], 2));
    assert_eq!(h.store.worker_get(silent).await.unwrap().status, WorkerStatus::Ready);
    assert_eq!(h.store.worker_reap(minute, true).await.unwrap(), (vec![silent], 0));
    assert_eq!(h.store.worker_get(silent).await.unwrap().status, WorkerStatus::Stopped);
    assert_eq!(h.store.worker_reap(minute, true).await.unwrap(), (vec![], 0));
    assert_eq!(h.store.worker_held(alive).await.unwrap(), 1);
    assert_eq!(h.take(&queue, 9).await.len(), 2);
}

pub async fn registrations_of_one_name_leave_one_row(h: &Harness) {
    let queue = h.queue().await;
    let other = h.store.worker_register("other", None).await.unwrap();
    let mut ids = Vec::new();
    for n in 0..20 {
        let worker = h.store.worker_register("w", Some(queue.id)).await.unwrap();
        if n % 2 == 0 {
            h.store.worker_shutdown(worker.id).await.unwrap();
        }
        ids.push(worker.id);
    }
    let rows = h.store.worker_list(None, None).await.unwrap();
    assert_eq!(rows.iter().map(|worker| worker.id).collect::<Vec<_>>(), [other.id, ids[19]]);
    // Those that were replaced are told, by their heartbeats and by their claims.
    assert_eq!(h.store.worker_heartbeat(&[ids[0], ids[18], ids[19]]).await.unwrap(), [
        Heartbeat::Fenced,
        Heartbeat::Fenced,
        Heartbeat::Alive
    ]);
    let claim = Claim { worker: Some(ids[18]), ..Claim::from_queue(&queue, 1) };
    assert_eq!(h.store.claim(claim).await.unwrap_err().kind(), Kind::WorkerStopped);
}

pub async fn registrations_of_one_name_at_the_same_time_all_succeed_and_leave_one_row(h: &Harness) {
    let registered = futures_util::future::join_all((0..20).map(|_| h.store.worker_register("w", None))).await;
    let mut ids: Vec<i64> = registered.into_iter().map(|worker| worker.unwrap().id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 20);
    let rows = h.store.worker_list(None, None).await.unwrap();
    assert_eq!(rows.len(), 1, "{rows:?}");
}
