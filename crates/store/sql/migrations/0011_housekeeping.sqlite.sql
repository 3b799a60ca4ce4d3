-- Which process does the housekeeping, and until when no other does: one row, taken by compare-and-set. A holder that ends
-- is replaced when its time has passed.
create table tenure.housekeeping (
    id     integer primary key,
    holder integer not null,
    until  integer not null
);

-- A new incarnation of a worker removes its stopped predecessors.
create index tenure.worker_stopped on tenure.worker (name) where status = 'stopped';
