-- Whether this number was ever given out, as far as the table can tell: numbers only grow.
select exists (select 1 from tenure.worker where id >= $1) as known
