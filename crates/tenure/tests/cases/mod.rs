//! What the library promises, once; each backend runs the whole list.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

pub(crate) mod admin;
pub(crate) mod consumer;
pub(crate) mod handler;
pub(crate) mod lease;
pub(crate) mod producer;
pub(crate) mod routed;
pub(crate) mod run;

use std::time::Duration;

use tenure::{Admin, Config, Consumer, Producer, Store};
use tenure_store::Clock;

/// 2026-01-01, in microseconds.
pub(crate) const START: i64 = 1_767_225_600_000_000;

/// A fresh database, under a clock of its own or the real one.
pub(crate) struct Harness {
    pub(crate) store: Store,
    pub(crate) kernel: tenure_store::Store,
    clock: Option<Clock>,
    dsn: String,
}

impl Harness {
    pub(crate) async fn open(dsn: String, fixed: bool) -> Self {
        let clock = fixed.then(|| Clock::fixed(START));
        let kernel =
            tenure_store::Store::connect_with_clock(&dsn, clock.clone().unwrap_or_else(Clock::database)).await.unwrap();
        // Under a fixed clock nobody waits for a heartbeat, and none may come in between.
        let interval = if fixed { 600 } else { 1 };
        let config = Config { heartbeat_interval_seconds: interval, ..Config::from_dsn(&dsn) };
        let store = Store::from_kernel(kernel.clone(), config);
        store.install().await.unwrap();
        Harness { store, kernel, clock, dsn }
    }

    pub(crate) fn dsn(&self) -> &str {
        &self.dsn
    }

    pub(crate) fn admin(&self) -> Admin {
        Admin::on(&self.store)
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.clock.as_ref().unwrap().advance(by);
    }

    /// So long that nobody counts as alive who does not say so.
    pub(crate) fn silence(&self) {
        self.advance(Duration::from_secs(1800));
    }

    /// A queue with its producer and a consumer.
    pub(crate) async fn queue(&self) -> (Producer, Consumer) {
        self.admin().create_queue("jobs").await.unwrap();
        (self.producer().await, self.consumer(1).await)
    }

    pub(crate) async fn producer(&self) -> Producer {
        Producer::on(&self.store, "jobs", "host", 1).await.unwrap()
    }

    pub(crate) async fn consumer(&self, port: i32) -> Consumer {
        Consumer::on(&self.store, "jobs", "host", port).await.unwrap()
    }
}

/// The list: each case runs on a fresh database; those of `run`, `handler` and `lease` with the real clock.
macro_rules! suite {
    ($open:path) => {
        $crate::cases::suite! { @cases $open, true, admin:
            a_queue_is_created_once_and_found
            a_queue_is_found_or_created_with_settings
            one_setting_is_changed_and_the_others_stay
            a_change_of_a_fixed_setting_is_refused_and_changes_nothing
            a_missing_queue_is_an_error_by_name_and_by_number
            bad_names_are_refused
            a_queue_in_use_is_not_deleted_and_a_missing_one_answers_zero
            a_purge_removes_what_lives_and_keeps_the_archive
            metrics_tell_states_apart
            a_message_without_attempts_left_is_dead_and_can_be_replayed_once
            dead_messages_are_replayed_by_kind
            dlq_batch_leaves_a_message_whose_last_lease_still_runs
            a_dead_workers_messages_are_released_and_it_is_purged
            worker_states_change_only_along_allowed_ways
            the_archive_lists_newest_first_and_refuses_negative_numbers
            retention_forgets_what_is_old
            an_archived_message_of_a_queue_without_retention_survives_housekeeping
            a_purge_removes_dedupe_keys
            dead_messages_are_listed_page_by_page
            an_unknown_dead_queue_is_named
            a_queue_that_is_there_keeps_its_settings_whatever_is_asked_for
            producers_and_consumers_of_one_place_leave_one_worker_each
            a_running_consumer_does_the_housekeeping_of_the_whole_store
            tables_have_their_names_and_the_store_its_own
            an_admin_writes_nothing_by_itself
            verify_before_install_names_the_missing_table
        }
        $crate::cases::suite! { @cases $open, true, producer:
            what_was_stored_comes_back_from_the_write
            delayed_messages_wait_for_their_time
            ten_thousand_messages_go_in_one_batch
            a_bad_payload_names_its_index_and_nothing_is_stored
            a_dedupe_key_stores_one_message
            a_duplicate_returns_the_stored_message
            a_duplicate_of_a_forgotten_message_has_its_id_and_time
            every_message_of_a_batch_can_have_its_own_options
            a_batch_with_one_bad_message_names_it_and_stores_nothing
            large_integers_and_bytes_survive
            options_arrive_with_the_message
            bad_options_are_refused
            a_deleted_queue_is_named
        }
        $crate::cases::suite! { @cases $open, true, consumer:
            dequeue_honours_batch_size_and_lock_time
            dequeue_leases_for_as_long_as_the_queue_says
            a_message_snoozed_by_hand_uses_no_attempt
            a_snoozed_lease_is_lost_once_its_message_is_delivered_again
            an_archived_message_has_what_it_was_enqueued_with
            a_lease_that_runs_out_is_delivered_again
            a_message_is_archived_once_by_itself_or_by_its_id
            foreign_messages_are_not_touched
            release_and_delete_answer_each_in_order
            an_extension_counts_from_the_end_of_the_lease
            a_message_completed_on_its_last_attempt_is_not_dead
            scheduled_messages_keep_their_id_through_promotion
            a_stopped_consumer_is_told_and_a_suspended_one_gets_nothing
            a_consumer_stopped_by_an_operator_is_told_by_its_next_dequeue
            a_paused_queue_hands_out_nothing
            a_crashed_consumer_restarts_under_its_own_name_at_once
            bad_durations_are_refused_and_zero_messages_are_none
            a_message_is_buried_or_retried_by_hand
            a_queue_that_was_created_anew_is_found_by_its_name
            large_batches_of_consumers_that_ask_at_once_are_whole
        }
        $crate::cases::suite! { @cases $open, true, routed:
            a_key_is_delivered_together_in_order_to_one_holder
            an_abandoned_key_rests_for_its_delay
            bad_keys_and_tokens_are_refused
            a_routed_queue_that_was_created_anew_is_found_by_its_name
            a_routed_batch_is_leased_for_as_long_as_its_queue_says
        }
        $crate::cases::suite! { @cases $open, false, run:
            every_message_is_handled_once
            outcomes_decide_what_becomes_of_a_message
            an_error_is_retried_after_a_rest_and_does_not_end_the_loop
            the_last_failure_is_the_reason_of_death_and_panics_are_failures
            a_lease_is_kept_while_its_handler_works
            a_handler_whose_lease_is_lost_is_told
            a_stop_waits_for_handlers_within_the_grace
            a_stop_gives_back_what_does_not_finish_in_time
            messages_of_a_key_are_handled_in_order_and_one_at_a_time
            a_failed_message_holds_back_the_rest_of_its_key
            a_busy_worker_is_not_declared_dead
            a_worker_that_was_replaced_stops_its_loop
            bad_settings_are_refused
        }
        $crate::cases::suite! { @cases $open, false, handler:
            a_snoozed_message_uses_no_attempt
            a_retry_after_the_last_attempt_is_buried
            a_running_loop_sees_changed_attempts
            a_loop_leases_for_as_long_as_the_queue_says
            a_lease_of_the_loop_overrides_that_of_the_queue
            a_loop_checks_the_lease_that_its_queue_has_now
            a_handler_that_hangs_fails_at_its_time_limit
            without_prefetch_a_busy_loop_leaves_messages_to_others
            without_prefetch_messages_and_keys_take_turns
            a_handler_learns_within_a_second_that_its_message_was_deleted
            a_loop_stops_with_any_future_and_reports_its_error
            a_rest_longer_than_a_database_can_hold_is_shortened
            a_message_completed_by_hand_in_its_handler_counts_as_completed
            a_panic_beside_the_handler_is_a_failure
            a_full_loop_gives_back_what_a_claim_brings_beyond_its_bound
            a_message_that_was_freed_under_its_handler_is_not_counted_as_completed
            a_loop_goes_on_with_a_queue_that_was_created_anew
            a_loop_ends_when_its_queue_is_deleted
        }
        $crate::cases::suite! { @cases $open, false, lease:
            messages_whose_leases_are_extended_are_handled_once
            keys_whose_leases_are_extended_are_handled_once_and_in_order
            a_long_key_is_handled_whole_and_no_message_of_it_dies
            a_poison_message_at_the_head_of_a_key_dies_alone
            a_stop_releases_the_unseen_messages_of_a_key_at_once_and_uncounted
            no_message_of_a_key_stays_leased_after_the_grace
            a_key_is_retried_on_time
            an_extension_of_a_message_of_a_key_extends_its_key
            nothing_stays_leased_when_a_loop_stops_during_a_claim
            a_handler_is_told_before_its_lease_ends_that_its_message_is_gone
        }
    };
    (@cases $open:path, $fixed:literal, $section:ident: $($case:ident)+) => {
        mod $section {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let h = $open($fixed).await;
                super::cases::$section::$case(&h).await;
            })+
        }
    };
}
pub(crate) use suite;
