-- The columns of a table; none when there is no such table.
select name
from pragma_table_info(?1)
