-- The first statement of every change: its row is also the lock under which identities change one after the other.
insert into tenure.identity as i (id, version)
values (1, 1)
on conflict (id) do update
set version = i.version + 1
