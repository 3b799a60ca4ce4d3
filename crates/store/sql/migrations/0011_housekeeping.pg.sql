-- Which process does the housekeeping, and until when no other does: one row, taken by compare-and-set. A holder that ends
-- is replaced when its time has passed.
create table tenure.housekeeping (
    id     bigint primary key,
    holder bigint not null,
    until  bigint not null
);

-- A new incarnation of a worker removes its stopped predecessors.
create index worker_stopped on tenure.worker (name) where status = 'stopped';

-- Completed and dead messages have retentions of their own: with one index for both, every round walked all rows of the one
-- that stay beyond the retention of the other.
create index archive_outcome on tenure.archive (queue, outcome, finished_at, id) where queue > 0;
drop index tenure.archive_finished;
