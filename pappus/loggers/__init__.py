"""Where metrics can go beside metrics.jsonl: one file per place, loaded only when asked for."""
