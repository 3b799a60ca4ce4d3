delete from tenure.key_lease where leased_until <= {now} - 3600000000
