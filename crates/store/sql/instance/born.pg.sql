select id, born
from tenure.instance
where id = any ($1::text[])
