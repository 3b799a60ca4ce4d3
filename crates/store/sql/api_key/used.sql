update tenure.api_key set last_used_at = {now} where id = $2
