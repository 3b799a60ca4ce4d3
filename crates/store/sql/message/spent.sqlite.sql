-- Which of these leased messages have used up their attempts.
select $2 as n
from tenure.message m
join tenure.lane l on l.id = m.lane
where m.id = $1
  and m.leased_until > 0
  and m.attempts >= coalesce(m.max_attempts, l.max_attempts)
