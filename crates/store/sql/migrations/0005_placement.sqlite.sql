-- A queue may have partitions in other stores too: which store has how many, in the words of whoever spreads them.
-- Empty: all are here.
alter table tenure.queue add column placement text not null default '';
