update tenure.work
set token = 0, leased_until = 0, attempts = case when $5 and attempts > 0 then attempts - 1 else attempts end,
    due_at = case when cast($4 as bigint) > 0 then {now} + $4 else 0 end
where due_at = 0
  and id = $2
  and token = $3
