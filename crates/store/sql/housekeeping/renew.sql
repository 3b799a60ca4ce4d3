update tenure.housekeeping set until = {now} + $3 where id = 1 and holder = $2 returning holder
