-- Which process does the housekeeping, and until when no other does: one row, taken by compare-and-set. A holder that ends
-- is replaced when its time has passed.
create table tenure.housekeeping (
    id     bigint primary key,
    holder bigint not null,
    until  bigint not null
);

-- A new incarnation of a worker removes its stopped predecessors.
create index worker_stopped on tenure.worker (name) where status = 'stopped';
