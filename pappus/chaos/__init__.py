"""`pappus chaos`: trains a run and hurts it meanwhile, from a seed, then tells whether everything came right.

    plan ──at its time──▶ fault ──▶ training (a child: `pappus train … --resume-or-start`)
                            └──watches it recover──▶ report: survived, time to recover, steps lost, accounts, leftovers
"""
