-- What a call of several statements did, in its own transaction. A call of one statement records itself: see `{call}`.
insert into tenure.call (token, done) values ($1, $2::bigint[])
