-- How many partitions somebody would like a queue to have. Those that it has stay.
update tenure.queue set partitions = $2 where name = $1
