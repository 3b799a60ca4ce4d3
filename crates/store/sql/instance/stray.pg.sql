-- A child that would be left behind without its parent.
select i.id, i.parent
from tenure.instance i
where i.parent = any ($1::text[])
  and i.id <> all ($1::text[])
