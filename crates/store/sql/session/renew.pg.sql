update tenure.session s
set leased_until = c.now + $2
from (select {now} as now) c
where s.owner = any ($4::text[])
  and s.leased_until > c.now
  and s.active_at > c.now - $3
returning s.id
