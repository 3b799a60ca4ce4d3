-- How many partitions a queue was asked to have, and how many lanes it has here, are two values: an update of the first used to
-- overwrite the second, and `tenure.enqueue` then looked for lanes that do not exist. Null: a row of an older program.
alter table tenure.queue add column requested integer;
update tenure.queue
set requested  = partitions,
    partitions = (select count(*) from tenure.lane l where l.queue = tenure.queue.id);
