select custom_status, custom_version
from tenure.instance
where id = $1
  and name is not null
  and custom_version > $2
