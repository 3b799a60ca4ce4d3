select exists (select 1 from tenure.role_binding where role_id = $1) as bound
