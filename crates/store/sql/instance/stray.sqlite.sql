-- Once for every parent: the caller takes out the children that go too.
select i.id, i.parent
from tenure.instance i
where i.parent = $1
