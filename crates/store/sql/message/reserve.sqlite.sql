-- PostgreSQL draws ids from a sequence inside the insert; SQLite moves one counter per batch.
update tenure.message_id set value = value + $2 returning value, {now} as now
