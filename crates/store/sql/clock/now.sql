select {now} as now
