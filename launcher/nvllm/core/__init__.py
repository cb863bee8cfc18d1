"""What every room uses: refusals, canonical JSON, programs, durable writes, schemas, paths, and the frozen classes of
spec, lock and launch plan.

It imports no other room. One module runs programs (`proc`), one writes files (`durable`).
"""
