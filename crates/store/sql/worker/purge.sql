delete from tenure.worker where status = 'stopped' and stopped_at <= {now} - $2
