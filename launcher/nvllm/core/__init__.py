"""What every room uses: refusals, canonical JSON, programs, durable writes, schemas, paths, and the frozen values
that spec, lock and launch plan are.

It knows no room above it. Values come in and values go out; programs, files and the disk are each behind one module.
"""
