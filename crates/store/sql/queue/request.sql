-- How many partitions the queue should have, as the protocol's clients are shown it. The lanes that exist stay.
update tenure.queue set requested = $2 where name = $1
