//! The conformance suite: one list of cases that every backend must pass. Public for our own tests; unstable.
//!
//! A case is an async function over a [`Harness`]: a fresh store under a clock that is moved by hand. All cases stand in
//! one list; [`suite!`](crate::suite) expands it to one named test each, so a failure reads
//! `lease::an_expired_lease_is_delivered_again_as_attempt_2`, and a new case runs everywhere without being wired.

#![allow(clippy::unwrap_used, missing_docs, reason = "cases assert; their names are their documentation")]

pub mod model;
pub mod statements;

use std::time::Duration;

use bytes::Bytes;

use crate::{Answer, Claim, Clock, Enqueued, Fence, Message, NewMessage, Queue, Settings, Store};

/// A fresh store and its clock.
pub struct Harness {
    pub store: Store,
    pub clock: Clock,
    /// Opens the same database again.
    pub dsn: String,
}

/// When the clock of every case stands at first: 2026-01-01, in microseconds.
pub const START: i64 = 1_767_225_600_000_000;

impl Harness {
    /// Opens and installs a store on an empty database.
    pub async fn open(dsn: String) -> Self {
        let clock = Clock::fixed(START);
        let store = Store::connect_with_clock(&dsn, clock.clone()).await.unwrap();
        store.install().await.unwrap();
        Harness { store, clock, dsn }
    }

    /// A second store on the same database, as another process would have it; none where only one process may.
    pub async fn another(&self) -> Option<Store> {
        if self.store.backend() == crate::Backend::Turso || self.dsn.contains(":memory:") {
            return None;
        }
        Some(Store::connect_with_clock(&self.dsn, self.clock.clone()).await.unwrap())
    }

    pub async fn queue(&self) -> Queue {
        self.queue_with(Settings::default()).await
    }

    pub async fn queue_with(&self, settings: Settings) -> Queue {
        self.store.queue_create("jobs", settings).await.unwrap()
    }

    pub async fn put(&self, queue: &Queue, payload: &str) -> Enqueued {
        self.put_message(queue, NewMessage::new(payload.to_owned())).await
    }

    pub async fn put_message(&self, queue: &Queue, message: NewMessage) -> Enqueued {
        self.store.enqueue(queue, None, vec![message]).await.unwrap().remove(0)
    }

    pub async fn take(&self, queue: &Queue, limit: usize) -> Vec<Message> {
        self.store.claim(Claim::from_queue(queue, limit)).await.unwrap()
    }

    pub async fn take_one(&self, queue: &Queue) -> Message {
        let mut messages = self.take(queue, 1).await;
        assert_eq!(messages.len(), 1, "a message was expected");
        messages.remove(0)
    }

    pub async fn complete(&self, fence: Fence) -> Answer {
        self.store.complete(&[fence]).await.unwrap()[0]
    }

    pub fn advance(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }
}

pub fn payloads(messages: &[Message]) -> Vec<String> {
    messages.iter().map(|message| String::from_utf8_lossy(&message.payload).into_owned()).collect()
}

pub fn numbered(count: usize) -> Vec<NewMessage> {
    (0..count).map(|n| NewMessage::new(Bytes::from(n.to_string()))).collect()
}

macro_rules! cases {
    ($d:tt $($module:ident: $($case:ident)+;)+) => {
        $(pub mod $module;)+

        /// Expands the list of cases to one named test each. The argument opens a [`Harness`](crate::conformance::Harness).
        #[macro_export]
        macro_rules! suite {
            ($d open:path) => {
                $(mod $module {
                    $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $case() {
                        $crate::conformance::$module::$case(&$d open().await).await;
                    })+
                })+
            };
        }
    };
}

cases! { $
    queue:
        a_queue_comes_back_as_it_was_created
        a_name_that_is_taken_is_refused_and_nothing_changes
        unicode_and_hostile_names_work
        bad_names_and_settings_are_refused_with_advice
        the_longest_retentions_and_dedupe_windows_work
        lists_are_sorted_start_at_the_pivot_and_keep_to_the_namespace
        an_update_replaces_settings_and_keeps_partitions
        requested_and_existing_partitions_are_two_values
        a_deleted_queue_takes_everything_with_it
        a_queue_in_use_is_not_deleted_as_unused
        queues_are_created_and_deleted_side_by_side
        a_missing_queue_is_named_in_the_error
        a_paused_queue_hands_out_nothing_and_resumes
        a_dead_queue_must_exist_and_not_have_its_own;
    enqueue:
        messages_come_out_in_the_order_they_went_in
        every_payload_byte_survives
        a_payload_of_five_megabytes_survives
        ten_thousand_messages_go_in_and_out_in_one_batch
        an_empty_batch_is_an_empty_answer
        labels_come_back_as_they_were_given
        bad_labels_are_refused_and_nothing_is_stored
        numbers_around_two_to_the_63_survive
        a_message_keeps_to_the_partition_it_was_sent_to
        concurrent_single_enqueues_are_all_stored_once
        enqueueing_into_a_deleted_queue_is_refused
        enqueueing_into_a_queue_that_was_created_anew_reaches_it
        one_bad_caller_does_not_fail_its_neighbours;
    dedupe:
        a_second_enqueue_with_the_same_key_stores_nothing
        a_key_is_remembered_after_its_message_has_finished
        a_key_can_be_used_again_when_window_and_message_are_gone
        a_living_message_keeps_its_key_beyond_the_window
        a_message_keeps_its_key_beyond_the_window_wherever_it_lives
        twins_in_one_batch_share_one_message
        a_duplicate_is_answered_with_the_stored_message
        a_duplicate_of_a_forgotten_message_has_its_id_and_time
        keys_of_different_queues_do_not_meet;
    lease:
        a_leased_message_is_not_handed_out_again
        an_expired_lease_is_delivered_again_as_attempt_2
        the_time_of_the_store_is_that_of_the_clock_which_decides_its_leases
        leases_shorter_than_a_second_are_exact
        concurrent_claims_never_share_a_message
        a_claim_takes_no_more_than_it_asks_for
        a_claim_of_nothing_is_empty
        a_claim_across_lanes_finds_all_of_them
        an_extension_counts_from_the_deadline_or_from_now
        an_extension_keeps_others_away
        claims_of_different_workers_and_lengths_share_statements
        merged_claims_are_dealt_messages_one_at_a_time
        a_released_message_is_next_again
        a_bad_lease_is_refused
        other_peoples_leases_do_not_hide_what_is_behind_them
        a_claim_from_a_deleted_queue_is_refused
        a_claim_that_waits_ends_when_its_queue_is_deleted;
    fence:
        a_stale_holder_can_do_nothing
        the_same_worker_with_an_old_lease_can_do_nothing
        a_snoozed_lease_is_lost_once_its_message_is_leased_again
        a_repeated_complete_says_so
        a_repeated_release_retry_and_bury_say_so
        an_expired_but_untaken_lease_still_completes
        a_released_lease_is_lost
        an_id_alone_is_fenced_by_the_worker
        answers_come_in_the_order_of_the_questions
        an_unknown_message_is_unknown;
    retry:
        a_retry_keeps_its_place
        a_retry_to_the_tail_is_behind_the_others_and_keeps_its_identity
        a_delayed_retry_waits_and_goes_to_the_tail
        a_delayed_retry_can_keep_its_place
        a_postponed_message_that_keeps_its_place_is_found_there_by_another_process;
    key:
        all_messages_of_the_first_free_key_come_together_in_order
        nobody_else_gets_a_held_key
        what_arrives_meanwhile_waits_and_is_not_swallowed
        an_expired_key_lease_passes_to_the_next_and_fences_the_first
        an_abandoned_key_rests_for_its_delay_and_keeps_its_order
        an_extended_key_stays_held
        a_message_of_a_key_is_extended_with_its_key
        concurrent_claims_take_different_keys
        a_key_always_goes_to_the_same_lane
        plain_claims_never_see_keyed_messages
        an_exhausted_keyed_message_is_buried_and_the_rest_delivered
        a_backlog_of_dead_keys_does_not_hold_up_a_fresh_one
        a_backlog_of_dead_messages_of_one_key_does_not_hold_up_its_fresh_ones
        a_claim_ends_at_a_key_whose_message_is_leased_without_it
        a_key_is_leased_in_batches_of_256_messages
        a_key_is_leased_in_batches_of_a_mebibyte
        messages_that_no_handler_has_seen_use_no_attempt_when_their_key_is_released
        only_the_first_message_of_an_expired_key_lease_has_used_an_attempt
        a_restarted_worker_has_used_an_attempt_of_one_message_of_its_key
        a_former_holder_of_a_key_can_finish_none_of_its_messages
        a_sweep_leaves_the_messages_of_a_key_to_its_next_claim
        a_resting_key_is_delivered_on_time
        a_snoozed_message_of_a_key_keeps_its_place_and_its_old_lease_is_lost
        a_delay_that_no_database_can_hold_is_refused_and_leaves_the_key_held;
    scheduled:
        a_delayed_message_is_not_ready_before_its_time
        due_messages_come_in_the_order_of_their_times
        messages_due_at_one_time_come_in_the_order_they_were_sent
        a_due_time_in_the_past_is_ready_at_once
        a_promoted_message_keeps_its_identity
        a_message_scheduled_before_a_restart_is_promoted_after_it;
    dead:
        a_message_out_of_attempts_goes_to_the_archive_and_not_to_anybody
        a_message_on_its_last_attempt_is_not_dead
        a_message_out_of_attempts_goes_to_the_dead_queue_once
        a_crash_between_claim_and_burial_loses_nothing
        an_expired_message_is_buried_and_not_delivered
        a_backlog_of_expired_messages_does_not_hold_up_fresh_ones
        a_sweep_buries_what_nobody_claims
        a_sweep_leaves_a_message_whose_last_lease_still_runs
        whatever_was_delivered_too_often_can_be_buried_under_another_limit
        a_message_can_be_buried_by_hand
        a_message_has_its_own_limits
        a_queue_can_send_expired_leases_to_the_tail;
    archive:
        a_completed_message_is_kept_as_long_as_the_queue_wants
        nothing_is_kept_unless_the_queue_wants
        a_dead_message_is_replayed_once_with_fresh_attempts
        a_completed_message_is_never_replayed
        archiving_keeps_a_copy_whatever_the_retention_and_discarding_keeps_none
        a_replay_keeps_to_its_queue
        lists_are_newest_first_and_page_by_pivot
        pruning_goes_by_age_and_in_batches
        lists_merge_outcomes_in_the_order_of_their_times
        completed_messages_stay_when_their_queue_loses_its_retention
        an_archived_message_stays_for_the_retention_and_without_one_until_it_is_pruned;
    worker:
        a_worker_registers_and_is_found
        a_second_incarnation_fences_the_first_and_frees_its_leases
        a_heartbeat_tells_the_fenced_and_the_unknown
        a_worker_that_is_not_ready_gets_nothing
        a_worker_that_was_stopped_and_purged_leases_nothing_and_is_told
        a_waiting_claim_ends_when_its_worker_is_stopped
        states_change_only_along_allowed_ways
        a_silent_worker_is_stale_and_a_busy_one_is_not
        releasing_a_dead_worker_frees_its_messages
        a_stopped_worker_leases_no_key_and_is_told_so
        reaping_frees_and_stops_the_silent_and_nobody_else
        stopped_workers_are_purged_by_age
        registrations_of_one_name_leave_one_row
        registrations_of_one_name_at_the_same_time_all_succeed_and_leave_one_row;
    maintain:
        one_round_removes_every_dedupe_key_that_has_expired
        one_process_at_a_time_does_the_housekeeping
        a_process_that_ends_in_its_round_is_replaced
        a_round_comes_to_every_queue
        rows_of_keys_are_removed_when_no_message_needs_them
        workers_are_removed_an_hour_after_they_stopped_or_after_a_silent_day
        clearing_dedupe_keys_leaves_those_of_living_messages
        rows_of_queues_that_are_gone_are_removed_and_no_others;
    event:
        events_are_read_in_order
        a_duplicate_event_is_refused_and_nothing_is_appended
        the_latest_execution_is_the_highest;
    inspect:
        lists_show_each_state_from_the_pivot_on
        a_message_is_found_by_identity_wherever_it_is
        stats_are_exact
        clearing_takes_only_what_it_is_told
        a_deleted_message_is_gone_whatever_its_state
        an_import_is_stored_as_it_is_and_once_per_source
        an_import_of_a_leased_message_with_a_key_is_refused
        the_greatest_limit_means_everything;
    wait:
        a_waiting_claim_gets_a_message_as_soon_as_there_is_one
        a_waiting_claim_ends_empty_when_its_time_is_over
        a_waiting_claim_is_woken_by_release_promotion_and_expiry
        a_message_handed_to_a_waiting_claim_is_leased_on_its_terms
        a_message_enqueued_into_a_paused_queue_is_not_handed_to_a_waiting_claim
        a_message_is_not_handed_over_past_one_that_another_process_made_ready
        messages_handed_one_by_one_are_delivered_once_each
        waiting_claims_share_fairly
        a_waiting_key_claim_gets_a_key_as_soon_as_one_is_free
        a_message_is_not_lost_when_its_caller_goes_away
        what_was_leased_for_a_caller_that_went_away_is_released_uncounted
        another_process_wakes_a_waiting_claim;
    schema:
        installing_again_changes_nothing
        verify_is_content_with_a_fresh_store
        a_running_program_stops_when_a_newer_one_has_broken_its_schema
        using_a_store_before_install_says_so
        a_newer_breaking_schema_is_refused;
    identity:
        a_namespace_comes_back_as_it_was_created_and_changed
        a_namespace_that_is_there_is_refused_or_left_alone
        lists_are_bytewise_and_begin_with_the_pivot
        a_namespace_in_use_names_bindings_then_roles_then_queues
        a_user_comes_back_as_created_and_a_username_is_taken_once
        ensuring_a_user_keeps_the_first_and_needs_its_name_free
        a_deleted_user_takes_keys_and_bindings_along
        a_key_is_found_by_its_hash_and_needs_a_user
        a_key_expires_by_the_clock_of_the_database
        keys_are_listed_for_one_user_or_all_used_and_deleted
        a_role_keeps_its_permissions_in_order_even_none_at_all
        ensuring_a_role_keeps_its_id_and_refreshes_its_permissions
        a_role_that_somebody_has_is_not_deleted
        a_binding_is_made_once_and_needs_its_user_and_its_role
        permissions_are_the_union_over_the_bindings_of_a_user_there
        two_deletions_of_one_binding_have_one_winner
        a_binding_never_outlives_its_role_or_its_user
        every_change_raises_the_version_and_nothing_else_does
        texts_that_cannot_be_stored_are_refused_with_advice;
    face:
        a_fence_within_a_lane_holds_nothing_elsewhere
        leases_end_in_order_until_one_cannot_be
        a_retry_after_the_last_attempt_buries
        one_callers_failure_leaves_other_callers_alone
        a_watch_ends_when_something_becomes_ready_and_a_look_takes_it
        ready_messages_are_counted_up_to_a_bound
        tending_a_lane_does_what_is_due_wherever_it_stands
        tending_leaves_alone_what_keeps_its_place
        a_queue_may_have_only_some_of_its_partitions_here;
    turn:
        a_turn_has_one_holder_and_is_committed_whole
        a_turn_whose_lease_ran_out_is_lost_and_comes_again
        a_repeated_acknowledgement_finds_its_own_commit
        an_event_that_is_there_undoes_the_whole_turn
        what_comes_during_a_turn_waits_for_the_next
        a_timer_is_seen_when_it_is_due
        only_what_follows_the_known_part_of_a_history_is_read
        a_value_is_a_draft_until_its_execution_ends
        an_activity_ends_once_and_tells_its_instance
        an_activity_whose_lease_ran_out_comes_again
        the_next_activity_comes_with_the_end_of_the_last
        cancelled_activities_are_gone_and_their_holders_learn_it
        a_session_stays_with_its_owner_while_its_lease_lasts
        an_uncounted_abandon_releases_a_session_that_its_fetch_claimed
        a_session_that_was_used_since_its_claim_stays_with_its_owner
        an_abandon_that_counts_keeps_the_session
        a_fetch_without_sessions_ends_when_there_is_capacity_for_sessions
        a_fetch_without_sessions_goes_on_while_the_capacity_is_used
        messages_from_before_the_start_come_with_it_in_order
        a_childs_start_brings_the_messages_that_came_before_it
        a_message_without_a_start_is_dropped_after_its_own_looks
        a_message_that_comes_later_uses_up_no_look_of_an_earlier_one
        a_message_after_a_dropped_turn_wakes_a_waiting_fetch
        deleting_an_instance_takes_everything_and_stops_its_turn;
    random:
        random_operations_agree_with_the_model;
}
