-- Gives the messages of a key's lease back to their places. Those behind the last one that a handler has seen ($4) get their
-- attempt back.
update tenure.message
set leased_until = 0,
    worker       = null,
    token        = null,
    attempts     = attempts - case when id <= $4 then 0 else 1 end
where lane = $1
  and key = $2
  and id <= $3
  and leased_until > 0
