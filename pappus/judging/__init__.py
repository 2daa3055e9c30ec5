"""What a policy would earn, judged from a data set without an env: `pappus data estimate`.

    data set ──episodes──▶ logged ──▶ behaviour ──▶ weights ──▶ IS · WIS · DR · WDR ──▶ estimates with intervals
    run ─────policy──────────┘└────────────▶ fitted Q ──▶ DR · WDR · FQE ─────────────────┘

`estimates.py` is where it begins, `ops/off_policy.py` has the math.
"""
