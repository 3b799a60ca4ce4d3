-- One writer at a time: when the lanes are gone, every transaction that saw them has ended.
select '' as writer where 1 = 0
