-- The keys of a worker are free at once; the next claim of each gives the messages back that the worker was given.
update tenure.key_lease set leased_until = 0 where worker = $1 and leased_until > 0 returning lane
