//! The HTTP queue protocol, spoken to real processes of `tenure`: every message, on SQLite and on PostgreSQL.
//!
//! A case is an async function that is told the backend. All cases stand in one list, which expands to one named test
//! each, so a failure reads `postgres::lifecycle::a_lease_holds_up_to_its_deadline`. `messages` checks that no message
//! of the protocol is left out. `cargo xtask test tenure-server` starts the PostgreSQL; `-- sqlite` needs none.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod access;
mod complete_retry;
mod encoding;
mod identity;
mod lifecycle;
mod messages;
mod partitions;
mod processes;
mod produce_lease;
mod queues;
mod storage;
mod stores;
mod support;
mod transport;

macro_rules! suite {
    ($module:ident, $backend:ident; $($section:ident: $($case:ident)+;)+) => {
        mod $module {
            $(mod $section {
                $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    crate::$section::$case(crate::support::Backend::$backend).await;
                })+
            })+
        }
    };
}

macro_rules! suites {
    ($($cases:tt)+) => {
        suite! { sqlite, Sqlite; $($cases)+ }
        suite! { postgres, Postgres; $($cases)+ }
    };
}

suites! {
    queues:
        create_refuses_in_the_order_of_its_checks
        update_refuses_in_the_order_of_its_checks
        delete_refuses_in_the_order_of_its_checks
        every_call_to_a_queue_looks_it_up_first
        the_limits_are_inclusive
        a_queue_comes_back_as_it_was_created
        lists_are_sorted_by_name_and_start_at_the_pivot
        durations_come_back_as_go_prints_them
        an_update_keeps_the_timeouts_and_replaces_the_rest
        an_update_holds_for_what_comes_after_it
        a_deleted_queue_takes_its_items_along_and_answers_who_waits;
    produce_lease:
        produce_refuses_in_the_order_of_its_checks
        lease_refuses_in_the_order_of_its_checks
        items_come_out_as_they_went_in_and_in_order
        a_lease_takes_what_is_there_without_waiting_for_more
        a_large_payload_survives
        an_empty_long_poll_ends_with_its_timeout_and_not_before
        a_produce_wakes_a_waiting_lease
        a_client_waits_once_per_queue
        a_hundred_and_fifty_consumers_wait_at_once_and_all_are_served
        a_client_that_has_gone_is_never_handed_an_item
        plenty_fills_every_waiting_lease
        scarce_items_are_dealt_one_at_a_time
        a_paused_queue_parks_its_calls_and_answers_them_when_it_goes_on
        a_queue_with_too_many_calls_is_overloaded_and_loses_none
        only_a_time_that_lies_ahead_delays_an_item;
    complete_retry:
        complete_refuses_in_the_order_of_its_checks
        retry_refuses_in_the_order_of_its_checks
        the_first_id_that_fails_decides_and_those_before_stay_completed
        the_first_retry_that_fails_decides_and_those_before_stay_retried
        ids_of_other_queues_and_partitions_do_not_exist
        what_is_completed_or_scheduled_does_not_exist
        a_thousand_ids_are_completed_at_once
        a_retry_goes_to_the_tail_under_a_new_id_and_keeps_its_attempts
        a_retry_for_later_is_scheduled_under_its_id
        a_dead_item_is_deleted_where_there_is_no_dead_queue
        a_dead_item_moves_to_the_dead_queue
        a_retry_after_the_last_permitted_attempt_is_death;
    partitions:
        a_produce_goes_whole_to_the_emptiest_partition
        a_lease_goes_to_the_fullest_partition
        leases_of_one_moment_spread_as_single_ones_do
        waiting_leases_share_the_partition_that_gets_the_items
        a_lease_finds_items_wherever_they_are
        a_waiting_lease_finds_items_wherever_they_come
        everything_is_leased_once_and_each_answer_has_one_partition
        a_hundred_partitions_are_not_too_many
        a_partition_that_does_not_exist_is_refused;
    storage:
        stats_tell_the_truth
        stats_count_who_waits
        clear_takes_what_it_is_told_to
        clear_takes_all_partitions
        reload_changes_nothing
        items_are_listed_with_all_that_is_known_about_them
        lists_start_at_the_pivot
        scheduled_items_have_a_list_of_their_own
        ten_thousand_items_are_listed_at_once
        an_import_is_stored_as_it_is_and_answered_as_it_is_stored
        an_absent_time_of_an_import_is_1970
        an_import_keeps_its_order_and_counts_attempts_on
        a_source_id_is_imported_once_until_it_is_gone
        items_are_deleted_in_whatever_state
        lists_of_an_empty_queue_are_empty
        ages_grow_with_time;
    lifecycle:
        an_expired_lease_goes_to_the_tail_under_a_new_id
        a_lease_holds_up_to_its_deadline
        an_item_without_attempts_left_goes_to_the_dead_queue
        an_item_without_attempts_left_is_deleted_where_there_is_no_dead_queue
        the_last_permitted_attempt_is_not_taken_away
        an_item_that_nobody_leased_expires_once
        an_item_expires_while_it_is_leased
        a_backlog_of_expired_items_does_not_hold_up_fresh_ones
        scheduled_items_come_due_in_their_order_at_the_tail
        a_tenth_of_a_second_is_not_worth_scheduling
        a_scheduled_item_does_not_expire_before_its_time
        a_retry_for_later_comes_back_at_its_time
        what_comes_due_wakes_waiting_leases
        new_settings_hold_for_items_when_they_are_next_looked_at
        what_came_due_while_the_server_was_away_happens_when_it_is_back
        on_the_real_clock_an_expired_lease_passes_on_soon_and_never_early
        on_the_real_clock_an_expired_lease_goes_to_the_tail_although_no_client_waits
        on_the_real_clock_a_scheduled_item_comes_soon_and_never_early;
    transport:
        only_post_is_allowed
        an_unknown_path_is_not_implemented
        query_strings_are_ignored
        credentials_have_one_form_even_where_nobody_asks_for_them
        hooks_are_for_servers_that_were_started_with_them
        a_body_may_be_as_long_as_its_limit_and_no_longer
        a_body_without_a_length_has_the_same_limit
        a_connection_serves_many_requests_also_when_they_come_together
        a_request_may_arrive_byte_by_byte
        what_is_not_http_harms_nobody
        health_says_that_the_store_works
        metrics_have_a_bounded_number_of_series
        the_description_of_the_api_names_every_rpc
        every_described_rpc_is_answered;
    encoding:
        the_content_type_tells_how_a_body_is_read
        the_accept_header_tells_how_the_answer_is_written
        an_answer_that_nobody_could_read_is_refused
        protobuf_is_answered_in_protobuf_unless_something_else_is_asked_for
        json_that_does_not_fit_is_refused
        json_may_be_written_in_every_allowed_form
        protobuf_that_does_not_fit_is_refused
        protobuf_ignores_what_it_does_not_know_and_may_be_empty
        a_client_can_live_on_protobuf_alone
        no_time_is_the_year_one_in_protobuf_too
        times_are_written_with_as_many_digits_as_they_need;
    identity:
        namespaces_are_created_and_changed_in_the_order_of_the_checks
        an_update_replaces_what_is_said_about_a_namespace
        namespaces_are_listed_by_name_from_the_pivot
        a_namespace_is_deleted_when_nothing_is_left_in_it
        users_are_created_in_the_order_of_the_checks
        without_authentication_there_are_only_the_users_that_were_created
        keys_are_created_in_the_order_of_the_checks
        a_key_is_shown_once_and_carries_a_tag
        roles_are_created_in_the_order_of_the_checks
        roles_are_changed_and_deleted_unless_they_are_standard
        bindings_are_created_in_the_order_of_the_checks
        a_binding_is_deleted_by_at_least_one_of_two
        a_deleted_user_takes_keys_and_bindings_along;
    access:
        a_key_that_does_not_open_says_why
        a_key_ends_at_its_time_and_when_it_is_deleted
        a_used_key_says_when
        every_rpc_needs_its_permission_and_no_other
        a_role_counts_in_its_namespace_and_one_of_the_system_everywhere
        a_scoped_key_counts_in_its_namespace_and_in_the_system
        standard_roles_permit_what_their_names_say
        the_door_is_open_until_it_is_closed_and_then_stays_closed
        without_authentication_nobody_is_stopped;
    processes:
        data_survives_a_kill
        data_survives_a_stop
        a_server_does_the_housekeeping_of_its_store
        a_stop_under_load_says_so_and_loses_nothing
        a_kill_under_load_loses_nothing;
}

// What takes several processes on one database, or a database that goes away.
suite! { postgres_alone, Postgres;
    access:
        another_process_sees_a_revocation_within_five_seconds
        what_cannot_be_looked_up_is_refused;
    processes:
        two_processes_share_their_queues
        two_processes_hand_out_everything_once
        two_processes_keep_the_order_of_every_partition;
    stores:
        two_stores_share_the_partitions_of_a_queue
        a_store_that_is_away_takes_only_its_own_partitions_along
        a_server_without_its_database_says_so_and_recovers
        a_waiting_lease_outlives_an_absence_of_the_database
        what_nobody_has_thought_of_is_an_internal_error
        a_server_that_is_too_old_for_its_database_says_so
        a_queue_of_which_more_partitions_were_requested_is_whole_for_sql
        due_times_are_decided_by_the_clock_of_the_database
        a_queue_of_a_store_that_is_no_longer_configured_is_out_of_reach_alone;
}

// What takes another process on the same file, or looks at it.
suite! { sqlite_alone, Sqlite;
    processes:
        calls_are_answered_in_time_while_another_process_holds_the_write_lock
        a_stop_leaves_everything_in_the_file_itself;
}
